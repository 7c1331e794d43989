"""`consumerd group exporter`: the lag of all groups of a cluster as metrics for Prometheus."""

from __future__ import annotations

import asyncio
import re
import signal
from functools import partial
from typing import TYPE_CHECKING

import click

from consumerd.base.clock import SystemClock
from consumerd.cli.clusters import with_groups
from consumerd.cli.numbers import seconds_option
from consumerd.cli.session import ClusterAddress, broker_timeout_option, cluster_options

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource

EXAMPLES = """\b
Examples:
  consumerd group exporter --bootstrap-server kafka1:9092 --listen 0.0.0.0:8000
  consumerd group exporter --zookeeper zk1:2181/kafka --groups 'billing-.*' --interval 60
  curl -s http://127.0.0.1:8000/metrics | grep sum_lag
"""


def _pattern(_context: click.Context, _option: click.Parameter, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"must be a regular expression: {error}") from None


@click.command("exporter", epilog=EXAMPLES)
@cluster_options()
@click.option(
    "--groups",
    default=".*",
    show_default=True,
    metavar="REGEX",
    callback=_pattern,
    help="Only groups whose whole name matches.",
)
@click.option(
    "--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="Address of the HTTP server."
)
@seconds_option("--interval", 30.0, "Time from one look at the groups to the next.")
@click.option(
    "--cluster-name", default="kafka", show_default=True, metavar="NAME", help="Value of the label cluster_name."
)
@broker_timeout_option
def command(
    cluster: ClusterAddress,
    groups: re.Pattern[str],
    listen: str,
    interval: float,
    cluster_name: str,
    broker_timeout: float,
) -> None:
    """Serve the lag of all groups of a cluster as metrics, without a member in any of them, until SIGTERM or SIGINT.

    The metrics have the names and labels of kafka-lag-exporter, so that its dashboards and alerts continue. The lag is
    in messages (in bytes for Kafka 0.7) and in seconds. A group or partition that could not be read is absent, and so
    is each sum that includes it. Requires the extras http and metrics.

    Paths: /metrics; /healthz; /readyz, which answers 503 while the cluster cannot be read. A line with the port is
    printed when it listens.
    """
    from consumerd.operate.admin.lag import read_lags  # noqa: PLC0415
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415
    from consumerd.service.daemon.lag_exporter import LagExporter, serve  # noqa: PLC0415

    async def export(source: GroupSource) -> None:
        await source.names()  # a wrong address ends the command
        if isinstance(source, BrokerGroups):
            source.keeps_metadata = True  # of the round's beginning, for all groups
        exporter = LagExporter(
            source.names,
            partial(read_lags, source),
            source.logs.timestamps,
            cluster=cluster_name,
            pattern=groups,
            interval=interval,
            clock=SystemClock(),
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        try:
            await serve(exporter, listen, stop, lambda port: click.echo(f"port {port}"))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    with_groups(cluster, export, broker_timeout=broker_timeout)
