"""The dialect of the cluster that a command works on, and the client for Kafka 0.8 and later.

Strategy: named brokers are of 0.8 or later. In ZooKeeper `consumerd.net.cluster.dialects` finds the
dialect. If it is not known, or both are there, 0.7 is assumed, whose tools say what is wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import starmap
from typing import TYPE_CHECKING, TypeVar

import click

from consumerd.base.address import format_address
from consumerd.base.clock import SystemClock
from consumerd.base.ports import ZooKeeper
from consumerd.cli.session import ClusterAddress, connector, open_session, run_tool
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.net.client.cluster import ClusterClient
    from consumerd.net.zk.session import Session
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.service.config.model import Config

_T = TypeVar("_T")

#: Seconds that a broker may take where a command has no option for it.
BROKER_TIMEOUT = 10.0
#: The last version of the broker node (that of 0.9) whose brokers do not answer when they are asked for their versions,
#: and the seconds that they get nevertheless.
_LAST_SILENT = 2
_SILENCE = 0.5


def with_groups(
    cluster: ClusterAddress,
    work: Callable[[GroupSource], Awaitable[_T]],
    *,
    groups: Sequence[str] = (),
    hint: Dialect | None = None,
    broker_timeout: float = BROKER_TIMEOUT,
) -> _T:
    """Run `work` on the groups of a cluster, and return its result.

    `groups`: what the work is about; `hint`: the dialect if it is not known. Raises as `with_session`, ConfigError,
    BrokerError, and what the work raises.
    """

    async def main() -> _T:
        await require_names(cluster.bootstrap)
        async with open_groups(cluster, groups, broker_timeout, hint) as source:
            return await work(source)

    return run_tool(main())


@asynccontextmanager
async def open_groups(
    cluster: ClusterAddress, groups: Sequence[str], broker_timeout: float, hint: Dialect | None = None
) -> AsyncIterator[GroupSource]:
    """The groups of a cluster, for work on several clusters. Parameters and errors as of `with_groups`."""
    if cluster.bootstrap:
        from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415

        async with make_client(cluster.bootstrap, cluster.config, broker_timeout, cluster.timeout) as client:
            yield BrokerGroups(client)
        return
    async with (
        open_session(cluster.connect, cluster.timeout, cluster.section) as session,
        _groups_in_zookeeper(session, cluster, groups, broker_timeout, hint) as source,
    ):
        yield source


@asynccontextmanager
async def _groups_in_zookeeper(
    session: Session, cluster: ClusterAddress, groups: Sequence[str], broker_timeout: float, hint: Dialect | None
) -> AsyncIterator[GroupSource]:
    """The groups of the dialect that `session` shows, with the logs of the brokers that are registered, if any is."""
    from consumerd.net.client.errors import NoBrokerReachedError  # noqa: PLC0415
    from consumerd.operate.admin.group_source import V07Groups  # noqa: PLC0415
    from consumerd.operate.admin.v08.group_source import ZooKeeperGroups  # noqa: PLC0415
    from consumerd.operate.admin.v08.logs import V08BrokerLogs  # noqa: PLC0415

    if (await dialect_at(session, groups) or hint) is not Dialect.V08:
        yield V07Groups(session, connector(broker_timeout))
        return
    client, reason = None, ""
    try:
        client = await registered_client(session, cluster, broker_timeout)
    except NoBrokerReachedError as error:
        reason = str(error)
    async with client or nullcontext():
        yield ZooKeeperGroups(session, V08BrokerLogs(client, reason))


async def require_names(addresses: Sequence[tuple[str, int]]) -> None:
    """Raise NoBrokerReachedError where no name resolves: a person does not wait for that to change."""
    from consumerd.net.addresses import why_unresolvable  # noqa: PLC0415
    from consumerd.net.client.errors import NoBrokerReachedError  # noqa: PLC0415

    if addresses and (reason := await why_unresolvable(addresses)):
        names = ",".join(starmap(format_address, addresses))
        raise NoBrokerReachedError(
            f"cannot connect to broker {names}: {reason}; check its spelling, and the DNS of this machine."
        )


def require_zookeeper(cluster: ClusterAddress, what: str, remedy: str) -> None:
    """Raise UsageError where brokers are named: `what` is for groups that coordinate in ZooKeeper."""
    if cluster.bootstrap:
        raise click.UsageError(f"{what} is for groups that coordinate in ZooKeeper: {remedy}")


async def dialect_at(zk: ZooKeeper, groups: Sequence[str] = ()) -> Dialect | None:
    """Return the dialect of the nodes in a ZooKeeper; None if there are none, 0.7 if those of both exist."""
    from consumerd.net.cluster.dialects import look_for_dialect  # noqa: PLC0415
    from consumerd.wire.registry.errors import DialectError  # noqa: PLC0415

    try:
        return await look_for_dialect(zk, groups)
    except DialectError:
        return Dialect.V07  # whose tools name each node that is not


async def registered_client(
    session: Session, cluster: ClusterAddress, broker_timeout: float = BROKER_TIMEOUT
) -> ClusterClient:
    """A client of the brokers of 0.8 or later that are registered. Raises NoBrokerReachedError where none is,
    ConfigError.
    """
    from consumerd.net.client.errors import NoBrokerReachedError  # noqa: PLC0415
    from consumerd.net.client.factory import security_protocol  # noqa: PLC0415
    from consumerd.net.cluster.view_v08 import V08ClusterView  # noqa: PLC0415

    brokers = await V08ClusterView(session).read_brokers()
    kafka = None if cluster.config is None else cluster.config.kafka
    protocol = security_protocol(tls=kafka is not None and kafka.tls is not None, sasl=bool(kafka and kafka.sasl))
    addresses = [address for broker in brokers.values() if (address := broker.address(protocol)) is not None]
    if not addresses:
        raise NoBrokerReachedError(f"no broker with a {protocol} listener is registered")
    silent = all(broker.version <= _LAST_SILENT for broker in brokers.values())
    return make_client(addresses, cluster.config, broker_timeout, broker_timeout, silent=silent)


def make_client(
    addresses: Sequence[tuple[str, int]],
    config: Config | None,
    timeout: float,
    patience: float,
    *,
    silent: bool = False,
) -> ClusterClient:
    """A client for one command; neither connecting nor one answer may take longer than `timeout` seconds.

    `patience`: seconds for what is tried again. `silent`: the brokers are known not to tell their versions. Raises
    ConfigError.
    """
    import random  # noqa: PLC0415
    from functools import partial  # noqa: PLC0415

    from consumerd.net.client.cluster import ClusterClient  # noqa: PLC0415
    from consumerd.net.client.opening import ChannelOpener  # noqa: PLC0415
    from consumerd.net.client.settings import ClientSettings  # noqa: PLC0415
    from consumerd.net.connect import connect  # noqa: PLC0415
    from consumerd.net.connection import ConnectionSettings  # noqa: PLC0415

    clock, rng = SystemClock(), random.Random()
    connection = ConnectionSettings(connect_timeout=timeout, socket_timeout=timeout)
    versions_timeout = _SILENCE if silent else ClientSettings().versions_timeout
    settings = ClientSettings(connection=connection, retry_timeout=patience, versions_timeout=versions_timeout)
    if config is None:
        opener = ChannelOpener(partial(connect, settings=connection), settings, clock)
        return ClusterClient(list(addresses), opener, settings, clock=clock, rng=rng)
    from consumerd.service.config.build_v08 import build_client_of  # noqa: PLC0415

    return build_client_of(config.kafka, connection, clock=clock, rng=rng, settings=settings, bootstrap=list(addresses))
