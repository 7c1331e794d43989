"""`consumerd group lag`: how far a group is behind, in bytes (0.7) or messages (0.8 and later)."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.numbers import PositiveInt, seconds_option
from consumerd.cli.session import ClusterAddress, broker_timeout_option, cluster_options, group_option
from consumerd.cli.tables import counted, show_rows
from consumerd.operate.admin.errors import CheckFailedError
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.operate.admin.lag import PartitionLag

EXAMPLES = """\b
Examples:
  consumerd group lag --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group lag -c /etc/consumerd/events.toml --partitions --behind --watch 5
  consumerd group lag --zookeeper zk1:2181 --group events --json | jq .total
  consumerd group lag --bootstrap-server kafka1:9092 --group events
"""

CLEAR = "\x1b[H\x1b[2J"


@click.command("lag", epilog=EXAMPLES)
@cluster_options()
@group_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option("--partitions", is_flag=True, help="On a terminal: show each partition, not the topics alone.")
@click.option("--behind", is_flag=True, help="Show only partitions whose lag is above 0 or unknown.")
@seconds_option("--watch", None, "Repeat at this interval, and show what was read and written per second.")
@click.option("--count", type=PositiveInt(), help="With --watch: stop after this many repetitions.")
@broker_timeout_option
@json_option("One JSON object per repetition: partitions and total, which is null if a partition could not be read.")
def command(
    cluster: ClusterAddress,
    group: str | None,
    topics: tuple[str, ...],
    partitions: bool,
    behind: bool,
    watch: float | None,
    count: int | None,
    broker_timeout: float,
    as_json: bool,
) -> None:
    """Show the lag of a group: by topic, the largest first; with --partitions or --topic, of each partition.

    For Kafka 0.7 the lag is in BYTES, because offsets are byte positions. For Kafka 0.8 and later it is in MESSAGES,
    including those that compaction removed. Where the offset or the end of a partition cannot be read, its row has the
    reason and no lag, the total is absent (`null` in JSON), and the exit code is 11.

    The lag in seconds is the age of the first message that is not handled, by its timestamp (Kafka 0.10 and later; READ
    on the topic is required). Otherwise it is known with --watch alone, of what was written meanwhile.

    In a pipe the first field of a line is `partition` or `total`. Fields of a partition: name, owner, committed offset,
    end of the log, lag, lag in seconds (not for a single look at Kafka 0.7), with --watch what was read and written per
    second, and a remark.
    """
    from consumerd.operate.admin.lag import LagTimes, read_lag  # noqa: PLC0415

    name = cluster.group_or(group)
    repetitions = (1 if watch is None else None) if count is None else count

    async def repeat(source: GroupSource) -> None:
        unit = "byte" if source.dialect is Dialect.V07 else "message"
        loop, times = asyncio.get_running_loop(), LagTimes(SystemClock(), source.logs.timestamps)
        before: _LagSnapshot | None = None
        number = 0
        while True:
            at, lags = loop.time(), await read_lag(source, name, topics)
            if before is None:
                _require_topics(name, topics, lags)
            await times.look(lags)
            snapshot = _LagSnapshot(at, lags, unit, {each.partition: times.age(each) for each in lags})
            shown = _Shown(by_topic=not (partitions or topics), behind=behind, watching=watch is not None)
            if as_json:
                click.echo(json.dumps(_as_json(name, snapshot, shown), indent=None if shown.watching else 2))
            else:
                _show(name, snapshot, before, shown)
            before, number = snapshot, number + 1
            if number == repetitions or watch is None:
                _require_all(name, snapshot)
                return
            await asyncio.sleep(max(snapshot.at + watch - loop.time(), 0))

    with_groups(cluster, repeat, groups=[name], broker_timeout=broker_timeout)


def _require_topics(group: str, topics: Collection[str], lags: Sequence[PartitionLag]) -> None:
    """Raise NotFoundError for topics of which the group has nothing: a lag of 0 would not be true."""
    if missing := sorted(set(topics) - {each.partition.topic for each in lags}):
        raise NotFoundError(f"group {group!r} has no partitions of the topics {', '.join(missing)}: check the names")


class _LagSnapshot(NamedTuple):
    at: float
    lags: Sequence[PartitionLag]
    #: The unit of offsets.
    unit: str
    #: The lag in seconds, None where it is unknown.
    ages: Mapping[TopicPartition, float | None]

    def seconds(self, partitions: Sequence[PartitionLag]) -> int | None:
        """The largest lag in whole seconds; None where one is unknown."""
        ages = [self.ages[each.partition] for each in partitions if not each.gone]
        known = [age for age in ages if age is not None]
        return round(max(known)) if known and len(known) == len(ages) else None


class _Shown(NamedTuple):
    """What is shown of a snapshot."""

    #: Topics on a terminal, not partitions.
    by_topic: bool
    behind: bool
    watching: bool

    def has_seconds(self, snapshot: _LagSnapshot) -> bool:
        """Whether the lag in seconds may be known: messages of 0.7 have no timestamps."""
        return self.watching or snapshot.unit == "message"

    def lags(self, snapshot: _LagSnapshot) -> list[PartitionLag]:
        return [each for each in snapshot.lags if not self.behind or each.lag != 0]


def _require_all(group: str, snapshot: _LagSnapshot) -> None:
    """Raise CheckFailedError if the lag of a partition could not be read."""
    unread = [each for each in snapshot.lags if each.unread]
    if unread:
        first = unread[0]
        raise CheckFailedError(
            f"the lag of group {group!r} is incomplete: that of {counted(len(unread), 'partition')} is unknown "
            f"({first.partition}: {first.remark})"
        )


def _show(group: str, snapshot: _LagSnapshot, before: _LagSnapshot | None, shown: _Shown) -> None:
    from consumerd.operate.admin.lag import known_lag, total_lag  # noqa: PLC0415

    total = total_lag(snapshot.lags)
    unknown = [each for each in snapshot.lags if each.lag is None]
    known = counted(len(snapshot.lags) - len(unknown), "partition")
    not_known = f", {len(unknown)} unknown" if unknown else ""
    at_least = "" if total is not None else "at least "
    title = f"group {group}: {at_least}{counted(known_lag(snapshot.lags), snapshot.unit)} of lag in {known}{not_known}"
    lag = [f">lag ({snapshot.unit}s)"] + [">lag (s)"] * shown.has_seconds(snapshot)
    speeds = _speeds(snapshot, before)
    per_second = "B/s" if snapshot.unit == "byte" else f"{snapshot.unit}s/s"
    rates = [f">read {per_second}", f">written {per_second}"] if shown.watching else []
    lags = shown.lags(snapshot)
    if not (terminal := sys.stdout.isatty()) or not shown.by_topic:
        columns = ["partition", "owner", ">committed", ">end", *lag, *rates, "remark"]
        rows: list[list[object]] = []
        for each in _sorted(lags) if terminal else lags:
            rates_of = speeds[each.partition] if shown.watching else []
            lag_of = [each.lag, snapshot.seconds([each])][: len(lag)]
            rows.append([each.partition, each.owner, each.committed, each.end, *lag_of, *rates_of, each.remark])
    else:
        columns = ["topic", ">partitions", ">behind", *lag, *rates, "remark"]
        rows = []
        for topic, of_topic in _by_topic(lags):
            seconds = [snapshot.seconds(of_topic)][: len(lag) - 1]
            rows.append(_topic_row(topic, of_topic, seconds, speeds if shown.watching else {}))
    most = None
    if shown.watching and terminal:
        click.echo(CLEAR, nl=False)
        most = shutil.get_terminal_size().lines - 1
    if terminal and not rows:
        click.echo(title)
    show_rows(columns, rows, title=title, kind="partition", most=most)
    if not terminal:
        show_rows(["total"], [[total, len(unknown)]], kind="total")


def _sorted(lags: Sequence[PartitionLag]) -> list[PartitionLag]:
    """Unknown lags first, then the largest."""
    return sorted(lags, key=lambda each: (not each.unread, -(each.lag or 0)))


def _by_topic(lags: Sequence[PartitionLag]) -> list[tuple[str, list[PartitionLag]]]:
    """Topics with their partitions: those with an unknown lag first, then the largest lag."""
    topics: dict[str, list[PartitionLag]] = {}
    for each in _sorted(lags):
        topics.setdefault(each.partition.topic, []).append(each)

    def rank(topic: tuple[str, list[PartitionLag]]) -> tuple[bool, int]:
        return not topic[1][0].unread, -sum(each.lag or 0 for each in topic[1])

    return sorted(topics.items(), key=rank)


def _topic_row(
    topic: str,
    lags: list[PartitionLag],
    seconds: Sequence[int | None],
    speeds: Mapping[TopicPartition, list[int | None]],
) -> list[object]:
    """The row of a topic whose partitions are sorted: their number, those behind, the lag, the first remark.

    `seconds`: the column of the lag in seconds, if there is one. A sum with an unknown part is unknown.
    """
    lag = None if any(each.unread for each in lags) else sum(each.lag or 0 for each in lags)
    rates = []
    for column in range(2 if speeds else 0):
        parts = [speeds[each.partition][column] for each in lags]
        rates.append(None if None in parts else sum(filter(None, parts)))
    remarks = [each for each in lags if each.remark]
    remark = f"{remarks[0].partition.name}: {remarks[0].remark}" if remarks else ""
    if len(remarks) > 1:
        remark = f"{remark} (and {len(remarks) - 1} more)"
    return [topic, len(lags), sum(each.lag != 0 for each in lags), lag, *seconds, *rates, remark]


def _speeds(snapshot: _LagSnapshot, before: _LagSnapshot | None) -> dict[TopicPartition, list[int | None]]:
    """Rates of commits and of writes per second since the previous snapshot."""
    if before is None:
        return {each.partition: [None, None] for each in snapshot.lags}
    old = {each.partition: each for each in before.lags}
    seconds = snapshot.at - before.at

    def speed(now: int | None, then: int | None) -> int | None:
        return None if now is None or then is None else round((now - then) / seconds)

    speeds: dict[TopicPartition, list[int | None]] = {}
    for each in snapshot.lags:
        past = old.get(each.partition)
        speeds[each.partition] = (
            [None, None] if past is None else [speed(each.committed, past.committed), speed(each.end, past.end)]
        )
    return speeds


def _as_json(group: str, snapshot: _LagSnapshot, shown: _Shown) -> dict[str, object]:
    from consumerd.operate.admin.lag import total_lag  # noqa: PLC0415

    return {
        "group": group,
        "unit": f"{snapshot.unit}s",
        "total": total_lag(snapshot.lags),
        "unknown": [str(each.partition) for each in snapshot.lags if each.lag is None],
        "partitions": {
            str(each.partition): {
                "owner": each.owner,
                "committed": each.committed,
                "earliest": each.earliest,
                "end": each.end,
                "lag": each.lag,
                "lag_seconds": _rounded(snapshot.ages[each.partition]),
                "remark": each.remark or None,
            }
            for each in shown.lags(snapshot)
        },
    }


def _rounded(age: float | None) -> float | None:
    return None if age is None else round(age, 1)
