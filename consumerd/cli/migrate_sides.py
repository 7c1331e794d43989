"""The two sides of a move of offsets: where they are, opened for the length of one command.

Strategy: each side is a ZooKeeper or a list of brokers. The dialect of a ZooKeeper is looked up; brokers of 0.8
and later are found by their nodes there. Everything that is opened is closed with the one stack.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.cli.session import ClusterAddress
    from consumerd.operate.migrate.offsets_move import OffsetsSide


def side_address(
    side: str, zookeeper: str | None, servers: Sequence[str], config: Path | None, timeout: float
) -> ClusterAddress:
    """Return the address of `side` ("from" or "to"). Raises UsageError, ConfigError."""
    import click  # noqa: PLC0415

    from consumerd.cli.session import bootstrap_servers, cluster_address  # noqa: PLC0415 - heavy imports only for the command that runs

    if zookeeper is not None and servers:
        raise click.UsageError(f"give either --{side}-zookeeper or --{side}-bootstrap-server")
    if zookeeper is None and not servers and config is None:
        raise click.UsageError(f"give --{side}-zookeeper, --{side}-bootstrap-server, or --{side}-config")
    address = cluster_address(zookeeper, bootstrap_servers(servers, f"--{side}-bootstrap-server"), config, timeout)
    assert address is not None  # one of them was given
    return address


@asynccontextmanager
async def open_side(cluster: ClusterAddress, group: str, broker_timeout: float) -> AsyncIterator[OffsetsSide]:
    """Open one side. Raises as `with_session` and `make_client`."""
    from consumerd.cli.clusters import dialect_at, make_client, registered_groups  # noqa: PLC0415
    from consumerd.cli.session import connector, open_session  # noqa: PLC0415
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415
    from consumerd.operate.migrate.offsets_move import OffsetsSide  # noqa: PLC0415
    from consumerd.wire.registry.dialect import Dialect  # noqa: PLC0415

    connect = connector(broker_timeout)
    async with AsyncExitStack() as stack:
        if cluster.bootstrap:
            client = make_client(cluster.bootstrap, cluster.config, broker_timeout, cluster.timeout)
            await stack.enter_async_context(client)
            yield OffsetsSide(connect, BrokerGroups(client), client=client)
            return
        session = await stack.enter_async_context(open_session(cluster.connect, cluster.timeout, cluster.section))
        if await dialect_at(session, [group]) is not Dialect.V08:
            yield OffsetsSide(connect, zk=session)
            return
        groups = await stack.enter_async_context(registered_groups(session, cluster, broker_timeout))
        yield OffsetsSide(connect, groups, client=groups.logs.client)
