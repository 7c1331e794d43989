"""The two sides of a move of offsets: where they are, opened for the length of one command.

Strategy: each side is a ZooKeeper or a list of brokers. A ZooKeeper is asked which dialect it speaks; brokers of 0.8
and later are reached by what is registered there. Whatever is opened is closed with the one stack.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from consumerd.admin import GroupSource, GroupSurvey
    from consumerd.cli.session import Place
    from consumerd.client import ClusterClient
    from consumerd.partition import TopicPartition
    from consumerd.zk import Session


def side_place(side: str, zookeeper: str | None, servers: Sequence[str], config: Path | None, timeout: float) -> Place:
    """Where `side` ("from" or "to") is. Raises UsageError, ConfigError."""
    import click  # noqa: PLC0415

    from consumerd.cli.session import Place, bootstrap_servers  # noqa: PLC0415 - heavy imports only for the command that runs

    if zookeeper is not None and servers:
        raise click.UsageError(f"give either --{side}-zookeeper or --{side}-bootstrap-server")
    if zookeeper is None and not servers and config is None:
        raise click.UsageError(f"give --{side}-zookeeper, --{side}-bootstrap-server, or --{side}-config")
    from consumerd.config.build_v08 import build_bootstrap  # noqa: PLC0415
    from consumerd.config.model import load  # noqa: PLC0415

    bootstrap = bootstrap_servers(servers, f"--{side}-bootstrap-server")
    if config is None:
        return Place(zookeeper or "", timeout, bootstrap=bootstrap)
    loaded = load(config)
    if zookeeper is None and not bootstrap and loaded.group.coordination != "zookeeper":
        bootstrap = tuple(build_bootstrap(loaded.kafka))
    connect = "" if bootstrap else zookeeper or loaded.zookeeper.connect
    return Place(connect, timeout, loaded.zookeeper, loaded.group.id, bootstrap, loaded)


@dataclass(frozen=True, slots=True)
class Side:
    """One side, open. Exactly one of `groups` (0.8 and later) and `old` (0.7) is there."""

    groups: GroupSource | None = None
    old: Session | None = None
    #: Of the brokers of 0.8 and later; None where none can be reached.
    client: ClusterClient | None = None

    async def survey(self, group: str) -> GroupSurvey:
        """One look at the group. Raises NotFoundError, BrokerError, ZooKeeperError."""
        if self.groups is not None:
            return await self.groups.survey(group)
        from consumerd.admin import survey_group  # noqa: PLC0415

        assert self.old is not None
        return await survey_group(self.old, group)

    async def empty(
        self, survey: GroupSurvey, partitions: Iterable[TopicPartition], timeout: float
    ) -> set[TopicPartition]:
        """Those whose logs hold nothing, as far as the brokers tell."""
        from consumerd.admin import BrokerLogs, LogRange, Survey  # noqa: PLC0415
        from consumerd.cli.session import connector  # noqa: PLC0415

        if self.groups is not None:
            ranges = await self.groups.logs.ranges(partitions)
        else:
            assert isinstance(survey, Survey)
            ranges = await BrokerLogs(survey.brokers, connector(timeout)).ranges(partitions)
        return {each for each, known in ranges.items() if isinstance(known, LogRange) and not known.size}


@asynccontextmanager
async def open_side(place: Place, group: str, broker_timeout: float) -> AsyncIterator[Side]:
    """Open one side. Raises as `with_session` and `make_client`."""
    from consumerd.admin import BrokerGroups  # noqa: PLC0415
    from consumerd.cli.clusters import dialect_at, make_client, registered_groups  # noqa: PLC0415
    from consumerd.cli.session import open_session  # noqa: PLC0415
    from consumerd.registry import Dialect  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        if place.bootstrap:
            client = make_client(place.bootstrap, place.config, broker_timeout, place.timeout)
            await stack.enter_async_context(client)
            yield Side(BrokerGroups(client), client=client)
            return
        session = await stack.enter_async_context(open_session(place.connect, place.timeout, place.section))
        if await dialect_at(session, [group]) is not Dialect.V08:
            yield Side(old=session)
            return
        groups = await stack.enter_async_context(registered_groups(session, place, broker_timeout))
        yield Side(groups, client=groups.logs.client)
