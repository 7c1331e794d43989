"""Comparisons of logs in memory, with every kind of difference in the target."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.forward.mapping import TopicNaming
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.operate.migrate.findings import ComparisonReport, MessageCounts
from consumerd.operate.migrate.message_source import SourceMessage, UnreadableStretch
from consumerd.operate.migrate.verify import Comparison
from consumerd.wire.v08.records import Headers, Record, TimestampType

ONE, OTHER = TopicPartition("events", 0, 0), TopicPartition("events", 1, 0)
Messages = list[tuple["Headers", bytes | None]]


class Old:
    """Wrappers of three leaves each, 100 bytes of log apart; `bad` offsets cannot be read."""

    def __init__(self, counts: dict[TopicPartition, int], bad: frozenset[int] = frozenset()) -> None:
        self.messages = {
            partition: [
                SourceMessage(n // 3 * 100, n % 3, b"%s %d" % (partition.name.encode(), n)) for n in range(count)
            ]
            for partition, count in counts.items()
        }
        self.bad = bad

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        return {partition: (0, (len(found) + 2) // 3 * 100) for partition, found in self.messages.items()}

    async def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        for offset in range(start, end, 100):
            if offset in self.bad:
                yield UnreadableStretch(offset, f"bad bytes at {offset}")
            else:
                yield [found for found in self.messages[partition] if found.offset == offset]


class New:
    """Topic `events` with what was forwarded to its partitions."""

    def __init__(self, *partitions: Messages) -> None:
        self.logs = partitions

    async def partitions(self, topic: str) -> list[int]:
        return list(range(len(self.logs))) if topic == "events" else []

    async def bounds(self, topic: str, partition: int) -> LogBounds:
        return LogBounds(0, len(self.logs[partition]))

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
        for offset in range(start, end):
            headers, payload = self.logs[partition][offset]
            yield [Record(offset, 0, offset + 1, payload, None, 0, TimestampType.CREATE_TIME, headers)]


def forwarded(old: Old, partition: TopicPartition, cluster: str | None = None) -> Messages:
    mark = SourceMark(partition, cluster)
    return [(mark.headers(*found), found.payload) for found in old.messages[partition]]


async def compare(old: Old, *target: Messages, size: int = 10, **options: object) -> ComparisonReport:
    return await Comparison(old, New(*target), TopicNaming(), range_messages=size, **options).run()  # type: ignore[arg-type]


def rest(counts: MessageCounts) -> dict[str, int]:
    return {name: value for name, value in counts.as_json().items() if value and name not in ("source", "there")}


@given(data=st.data(), size=st.integers(1, 40))
async def test_counts_every_kind_of_difference(data: st.DataObject, size: int) -> None:
    old = Old({ONE: 100, OTHER: 31})
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    log = forwarded(old, ONE)
    places = rng.sample(range(100), 20)
    removed, changed, crc, twice = places[:5], places[5:8], places[8:10], places[10:14]
    expected: dict[str, int] = {}
    for place in changed:
        headers, payload = log[place]
        log[place] = headers, (payload or b"") + b"!"
    for place in crc:
        headers, payload = log[place]
        log[place] = (*headers[:-1], ("consumerd.source.crc", b"00000000")), payload
    expected["changed"] = 5
    again = [log[place] for place in twice]
    new = [message for place, message in enumerate(log) if place not in removed]
    expected["missing"] = 5
    for message in again:  # behind the first copy, anywhere
        new.insert(rng.randrange(new.index(message) + 1, len(new) + 1), message)
    expected["duplicated"] = 4
    mark = SourceMark(ONE)
    for offset, index in ((rng.randrange(33) * 100, 3), (rng.randrange(33) * 100 + 1, 0)):
        new.insert(rng.randrange(len(new) + 1), (mark.headers(offset, index, b"made up"), b"made up"))
    new.insert(rng.randrange(len(new) + 1), ((), b"no headers"))
    expected["foreign"] = 3
    new.insert(rng.randrange(len(new) + 1), (mark.headers(9999999, 0, b"later"), b"later"))
    # The other partition's messages lie in between.
    mixed = forwarded(old, OTHER)
    for n, message in enumerate(mixed):
        new.insert(4 * n, message)
    report = await compare(old, [], new, size=size)
    found = rest(report.totals)
    found.pop("out_of_order", None)  # made-up places may push others back
    assert found == expected
    (one, other) = report.partitions
    assert rest(other.counts) == {}
    assert (one.outside, other.places) == (1, [1])
    assert report.strangers == {"events/1": 1}
    assert sum(each.counts.source for each in one.ranges) == 100
    named = {(each.kind, each.message) for each in report.examples if each.kind == "missing"}
    assert named == {("missing", f"{ONE} offset {place // 3 * 100} index {place % 3}") for place in removed}


@given(data=st.data(), size=st.integers(1, 40))
async def test_detects_late_messages_across_ranges(data: st.DataObject, size: int) -> None:
    old = Old({ONE: 60})
    log = forwarded(old, ONE)
    place = data.draw(st.integers(0, 58))
    to = data.draw(st.integers(place + 1, 59))
    log.insert(to, log.pop(place))  # one message goes behind later ones, which count as in order
    report = await compare(old, log, size=size)
    assert rest(report.totals) == {"out_of_order": 1}
    assert not report.is_clean(duplicates=True, foreign=True)


async def test_counts_a_repeated_tail_as_duplicated_only() -> None:
    old = Old({ONE: 90})
    log = forwarded(old, ONE)
    report = await compare(old, log[:50] + log[30:70] + log[60:])
    assert rest(report.totals) == {"duplicated": 30}
    assert report.totals.there == 90
    assert report.is_clean(duplicates=True)
    assert not report.is_clean()
    assert [rest(each.counts) for each in report.partitions[0].ranges if not each.counts.is_clean()]


async def test_accepts_a_partition_spread_by_keys() -> None:
    old = Old({ONE: 90})
    log = forwarded(old, ONE)
    report = await compare(old, log[::2], log[1::2])
    assert report.is_clean()
    assert report.partitions[0].places == [0, 1]
    assert report.partitions[0].ranges[0].range.target.in_order is None
    # The same message in both is twice there.
    report = await compare(old, log[::2], [*log[1::2], log[4]])
    assert rest(report.totals) == {"duplicated": 1}


async def test_counts_missing_partitions() -> None:
    old = Old({ONE: 25, OTHER: 0})
    report = await compare(old, [], size=10)
    assert rest(report.totals) == {"missing": 25}
    assert [(each.range.start, each.range.end) for each in report.partitions[0].ranges] == [
        (0, 400),
        (400, 800),
        (800, 900),
    ]
    assert report.partitions[1].ranges == []
    with pytest.raises(NotFoundError, match="the target has no topic 'other'"):
        await Comparison(old, New([]), TopicNaming("other")).run()


async def test_checks_names_of_sources_and_reports_unreadable_stretches() -> None:
    old = Old({ONE: 30}, bad=frozenset({300}))
    log = forwarded(old, ONE, "dc1")
    readable = [message for found, message in zip(old.messages[ONE], log, strict=True) if found.offset != 300]
    report = await compare(old, readable, cluster="dc1")
    assert rest(report.totals) == {}
    assert report.partitions[0].unreadable == ["bad bytes at 300"]
    assert not report.is_clean()
    assert (await compare(old, readable)).strangers == {"events/0": 27}
