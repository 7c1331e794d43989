"""`consumerd group lag`: how far a group is behind, in bytes (0.7) or messages (0.8 and later)."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.numbers import PositiveFloat, PositiveInt
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
    type=PositiveFloat(),
    metavar="SECONDS",
    help="Repeat at this interval, and show what was read and written per second.",
)
@click.option("--count", type=PositiveInt(), help="With --watch: stop after this many repetitions.")
@broker_timeout_option
@json_option("One JSON object per repetition: partitions and total, which is null if a partition could not be read.")
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

    For Kafka 0.7 the lag is in BYTES, because offsets are byte positions. For Kafka 0.8 and later it is in MESSAGES,
    including those that compaction removed. Where the offset or the end of a partition cannot be read, its row has the
    reason and no lag, the total is absent (`null` in JSON), and the exit code is 11.

    In a pipe the first field of a line is `partition` or `total`.
    """
    from consumerd.admin import read_lag, read_v08_lag  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.cli.clusters import run_by_kind  # noqa: PLC0415

    name = cluster.group_or(group)
    repetitions = (1 if watch is None else None) if count is None else count

    async def repeat(read: Callable[[], Awaitable[Sequence[PartitionLag]]], unit: str) -> None:
        loop = asyncio.get_running_loop()
        before: _LagSnapshot | None = None
        number = 0
        while True:
            snapshot = _LagSnapshot(loop.time(), await read(), unit)
            _show(name, snapshot, before, as_json=as_json, watching=watch is not None)
            before, number = snapshot, number + 1
            if number == repetitions or watch is None:
                _require_all(name, snapshot)
                return
            await asyncio.sleep(max(snapshot.at + watch - loop.time(), 0))

    async def v07(session: ZooKeeper) -> None:
        await repeat(lambda: read_lag(session, name, topics, connector(broker_timeout)), "byte")

    async def v08(source: GroupSource) -> None:
        await repeat(lambda: read_v08_lag(source, name, topics), "message")

    run_by_kind(cluster, v07, v08, groups=[name], broker_timeout=broker_timeout)


class _LagSnapshot(NamedTuple):
    at: float
    lags: Sequence[PartitionLag]
    #: The unit of offsets.
    unit: str


def _require_all(group: str, snapshot: _LagSnapshot) -> None:
    """Raise CheckFailedError if the lag of a partition could not be read."""
    from consumerd.admin import CheckFailedError  # noqa: PLC0415
    from consumerd.cli.tables import counted  # noqa: PLC0415

    unread = [each for each in snapshot.lags if each.unread]
    if unread:
        first = unread[0]
        raise CheckFailedError(
            f"the lag of group {group!r} is incomplete: that of {counted(len(unread), 'partition')} is unknown "
            f"({first.partition}: {first.remark})"
        )


def _show(group: str, snapshot: _LagSnapshot, before: _LagSnapshot | None, *, as_json: bool, watching: bool) -> None:
    from consumerd.admin import known_lag, total_lag  # noqa: PLC0415
    from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

    total = total_lag(snapshot.lags)
    unknown = [each for each in snapshot.lags if each.lag is None]
    if as_json:
        click.echo(json.dumps(_as_json(group, snapshot, total), indent=None if watching else 2))
        return
    terminal = sys.stdout.isatty()
    if watching and terminal:
        click.echo(CLEAR, nl=False)
    columns = ["partition", "owner", ">committed", ">end", f">lag ({snapshot.unit}s)"]
    rows: list[list[object]] = [
        [each.partition, each.owner, each.committed, each.end, each.lag] for each in snapshot.lags
    ]
    if watching:
        per_second = "B/s" if snapshot.unit == "byte" else f"{snapshot.unit}s/s"
        columns += [f">read {per_second}", f">written {per_second}"]
        for row, speeds in zip(rows, _speeds(snapshot, before), strict=True):
            row += speeds
    for row, each in zip(rows, snapshot.lags, strict=True):
        row.append(each.remark)
    known = counted(len(snapshot.lags) - len(unknown), "partition")
    not_known = f", {len(unknown)} unknown" if unknown else ""
    at_least = "" if total is not None else "at least "
    title = f"group {group}: {at_least}{counted(known_lag(snapshot.lags), snapshot.unit)} of lag in {known}{not_known}"
    show_rows([*columns, "remark"], rows, title=title, kind="partition")
    if not terminal:
        show_rows(["total"], [[total, len(unknown)]], kind="total")


def _speeds(snapshot: _LagSnapshot, before: _LagSnapshot | None) -> list[list[int | None]]:
    """Rates of commits and of writes per second since the previous snapshot."""
    if before is None:
        return [[None, None]] * len(snapshot.lags)
    old = {each.partition: each for each in before.lags}
    seconds = snapshot.at - before.at

    def speed(now: int | None, then: int | None) -> int | None:
        return None if now is None or then is None else round((now - then) / seconds)

    speeds: list[list[int | None]] = []
    for each in snapshot.lags:
        past = old.get(each.partition)
        speeds.append(
            [None, None] if past is None else [speed(each.committed, past.committed), speed(each.end, past.end)]
        )
    return speeds


def _as_json(group: str, snapshot: _LagSnapshot, total: int | None) -> dict[str, object]:
    lags = snapshot.lags
    return {
        "group": group,
        "unit": f"{snapshot.unit}s",
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
