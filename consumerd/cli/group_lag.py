"""`consumerd group lag`: how many bytes a group is behind."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.session import broker_timeout_option, connector, group_option, json_option, place_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.admin import PartitionLag
    from consumerd.cli.session import Place
    from consumerd.net import Connector
    from consumerd.ports import ZooKeeper

EXAMPLES = """\b
Examples:
  consumerd group lag --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group lag -c /etc/consumerd/events.toml --watch 5
  consumerd group lag --zookeeper zk1:2181 --group events --json | jq .total
"""

CLEAR = "\x1b[H\x1b[2J"


@click.command("lag", epilog=EXAMPLES)
@place_options()
@group_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option(
    "--watch",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Look again every so many seconds, with the bytes per second that were read and written in between.",
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after this many looks.")
@broker_timeout_option
@json_option("One object per look: partitions and total.")
def command(
    place: Place,
    group: str | None,
    topics: tuple[str, ...],
    watch: float | None,
    count: int | None,
    broker_timeout: float,
    as_json: bool,
) -> None:
    """Show committed offset, end of the log, lag and owner of each partition, and the total.

    Everything is in BYTES of the log: an offset of Kafka 0.7 is a byte position, and nobody knows how many messages
    those bytes are. A broker that cannot be asked is a remark at its partitions, not an error. In a pipe every line
    begins with `partition` or `total`.
    """
    name = place.group_or(group)
    looks = (1 if watch is None else None) if count is None else count

    async def work(session: ZooKeeper) -> None:
        loop = asyncio.get_running_loop()
        before: _Sight | None = None
        number = 0
        while True:
            sight = _Sight(loop.time(), await read_lag(session, name, topics, connector(broker_timeout)))
            _show(name, sight, before, as_json=as_json, watching=watch is not None)
            before, number = sight, number + 1
            if number == looks or watch is None:
                return
            await asyncio.sleep(max(sight.at + watch - loop.time(), 0))

    place.run(work)


class _Sight(NamedTuple):
    at: float
    lags: Sequence[PartitionLag]


async def read_lag(zk: ZooKeeper, group: str, topics: Sequence[str], connect: Connector) -> list[PartitionLag]:
    """The lag of a group now, of all topics or of those named. Raises NotFoundError for a group that never was."""
    from consumerd.admin import BrokerLogs, lag_of, survey_group  # noqa: PLC0415

    survey = await survey_group(zk, group)
    wanted = [partition for partition in survey.partitions() if survey.exists(partition)]
    ranges = await BrokerLogs(survey.brokers, connect).ranges(wanted)
    return [each for each in lag_of(survey, ranges) if not topics or each.partition.topic in topics]


def _show(group: str, sight: _Sight, before: _Sight | None, *, as_json: bool, watching: bool) -> None:
    from consumerd.admin import total_lag  # noqa: PLC0415
    from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

    total = total_lag(sight.lags)
    unknown = [each for each in sight.lags if each.lag is None]
    if as_json:
        click.echo(json.dumps(_as_json(group, sight.lags, total), indent=None if watching else 2))
        return
    terminal = sys.stdout.isatty()
    if watching and terminal:
        click.echo(CLEAR, nl=False)
    columns = ["partition", "owner", ">committed", ">end", ">lag (bytes)"]
    rows: list[list[object]] = [[each.partition, each.owner, each.committed, each.end, each.lag] for each in sight.lags]
    if watching:
        columns += [">read B/s", ">written B/s"]
        for row, speeds in zip(rows, _speeds(sight, before), strict=True):
            row += speeds
    for row, each in zip(rows, sight.lags, strict=True):
        row.append(each.remark)
    known = counted(len(sight.lags) - len(unknown), "partition")
    not_known = f", without {len(unknown)} that could not be asked for" if unknown else ""
    title = f"group {group}: {counted(total, 'byte')} of lag in {known}{not_known}"
    show_rows([*columns, "remark"], rows, title=title, kind="partition")
    if not terminal:
        show_rows(["total"], [[total, len(unknown)]], kind="total")


def _speeds(sight: _Sight, before: _Sight | None) -> list[list[int | None]]:
    """Bytes per second that the group committed, and that were written, since the look before."""
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


def _as_json(group: str, lags: Sequence[PartitionLag], total: int) -> dict[str, object]:
    return {
        "group": group,
        "unit": "bytes",
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
