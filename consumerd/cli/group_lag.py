"""`consumerd group lag`: how far a group is behind, in bytes (0.7) or messages (0.8 and later)."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.session import broker_timeout_option, cluster_options, connector, group_option, json_option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from consumerd.admin import GroupSource, PartitionLag
    from consumerd.cli.session import ClusterAddress
    from consumerd.ports import ZooKeeper

EXAMPLES = """\b
Examples:
  consumerd group lag --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group lag -c /etc/consumerd/events.toml --watch 5
  consumerd group lag --zookeeper zk1:2181 --group events --json | jq .total
  consumerd group lag --bootstrap-server kafka1:9092 --group events
"""

CLEAR = "\x1b[H\x1b[2J"


@click.command("lag", epilog=EXAMPLES)
@cluster_options()
@group_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option(
    "--watch",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Look again every so many seconds, with what was read and written per second in between.",
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after this many looks.")
@broker_timeout_option
@json_option("One object per look: partitions and total.")
def command(
    cluster: ClusterAddress,
    group: str | None,
    topics: tuple[str, ...],
    watch: float | None,
    count: int | None,
    broker_timeout: float,
    as_json: bool,
) -> None:
    """Show committed offset, end of the log, lag and owner of each partition, and the total.

    Kafka 0.7: everything is in BYTES of the log, because an offset is a byte position, and nobody knows how many
    messages those bytes are. Kafka 0.8 and later: in MESSAGES, counting those too that compaction took away. A broker
    that cannot be asked is a remark at its partitions, not an error. In a pipe every line begins with `partition` or
    `total`.
    """
    from consumerd.admin import read_lag, read_v08_lag  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.cli.clusters import run_by_kind  # noqa: PLC0415

    name = cluster.group_or(group)
    looks = (1 if watch is None else None) if count is None else count

    async def look_on(look: Callable[[], Awaitable[Sequence[PartitionLag]]], unit: str) -> None:
        loop = asyncio.get_running_loop()
        before: _Sight | None = None
        number = 0
        while True:
            sight = _Sight(loop.time(), await look(), unit)
            _show(name, sight, before, as_json=as_json, watching=watch is not None)
            before, number = sight, number + 1
            if number == looks or watch is None:
                return
            await asyncio.sleep(max(sight.at + watch - loop.time(), 0))

    async def v07(session: ZooKeeper) -> None:
        await look_on(lambda: read_lag(session, name, topics, connector(broker_timeout)), "byte")

    async def v08(source: GroupSource) -> None:
        await look_on(lambda: read_v08_lag(source, name, topics), "message")

    run_by_kind(cluster, v07, v08, groups=[name], broker_timeout=broker_timeout)


class _Sight(NamedTuple):
    at: float
    lags: Sequence[PartitionLag]
    #: What offsets count.
    unit: str


def _show(group: str, sight: _Sight, before: _Sight | None, *, as_json: bool, watching: bool) -> None:
    from consumerd.admin import total_lag  # noqa: PLC0415
    from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

    total = total_lag(sight.lags)
    unknown = [each for each in sight.lags if each.lag is None]
    if as_json:
        click.echo(json.dumps(_as_json(group, sight, total), indent=None if watching else 2))
        return
    terminal = sys.stdout.isatty()
    if watching and terminal:
        click.echo(CLEAR, nl=False)
    columns = ["partition", "owner", ">committed", ">end", f">lag ({sight.unit}s)"]
    rows: list[list[object]] = [[each.partition, each.owner, each.committed, each.end, each.lag] for each in sight.lags]
    if watching:
        per_second = "B/s" if sight.unit == "byte" else f"{sight.unit}s/s"
        columns += [f">read {per_second}", f">written {per_second}"]
        for row, speeds in zip(rows, _speeds(sight, before), strict=True):
            row += speeds
    for row, each in zip(rows, sight.lags, strict=True):
        row.append(each.remark)
    known = counted(len(sight.lags) - len(unknown), "partition")
    not_known = f", without {len(unknown)} that could not be asked for" if unknown else ""
    title = f"group {group}: {counted(total, sight.unit)} of lag in {known}{not_known}"
    show_rows([*columns, "remark"], rows, title=title, kind="partition")
    if not terminal:
        show_rows(["total"], [[total, len(unknown)]], kind="total")


def _speeds(sight: _Sight, before: _Sight | None) -> list[list[int | None]]:
    """What the group committed, and what was written, per second since the look before."""
    if before is None:
        return [[None, None]] * len(sight.lags)
    old = {each.partition: each for each in before.lags}
    seconds = sight.at - before.at

    def speed(now: int | None, then: int | None) -> int | None:
        return None if now is None or then is None else round((now - then) / seconds)

    speeds: list[list[int | None]] = []
    for each in sight.lags:
        past = old.get(each.partition)
        speeds.append(
            [None, None] if past is None else [speed(each.committed, past.committed), speed(each.end, past.end)]
        )
    return speeds


def _as_json(group: str, sight: _Sight, total: int) -> dict[str, object]:
    lags = sight.lags
    return {
        "group": group,
        "unit": f"{sight.unit}s",
        "total": total,
        "unknown": [str(each.partition) for each in lags if each.lag is None],
        "partitions": {
            str(each.partition): {
                "owner": each.owner,
                "committed": each.committed,
                "earliest": each.earliest,
                "end": each.end,
                "lag": each.lag,
                "remark": each.remark or None,
            }
            for each in lags
        },
    }
