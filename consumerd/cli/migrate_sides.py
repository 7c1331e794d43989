"""The two sides of a move of offsets: where they are, opened for the length of one command.

Strategy: each side is a ZooKeeper or a list of brokers. The dialect of a ZooKeeper is looked up; brokers of 0.8
and later are found by their nodes there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.cli.session import ClusterAddress
    from consumerd.operate.admin.group_source import GroupSource


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
async def open_side(cluster: ClusterAddress, group: str, broker_timeout: float) -> AsyncIterator[GroupSource]:
    """Open one side. Raises as `with_session` and `make_client`."""
    from consumerd.cli.clusters import groups_in_zookeeper, make_client  # noqa: PLC0415
    from consumerd.cli.session import open_session  # noqa: PLC0415
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415

    if cluster.bootstrap:
        async with make_client(cluster.bootstrap, cluster.config, broker_timeout, cluster.timeout) as client:
            yield BrokerGroups(client)
        return
    async with (
        open_session(cluster.connect, cluster.timeout, cluster.section) as session,
        groups_in_zookeeper(session, cluster, [group], broker_timeout) as source,
    ):
        yield source
