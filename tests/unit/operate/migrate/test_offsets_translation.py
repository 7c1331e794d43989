"""From offsets of old logs to those of forwarded ones: nothing is left out, whatever the forwarder did."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.operate.migrate.offsets_translation import OffsetTranslator, PartitionOffset, TopicTranslation
from consumerd.wire.v08.records import Headers

A, B, C = (TopicPartition("t", broker, 0) for broker in range(3))


class Rec(NamedTuple):
    """As much of a record as a translator looks at."""

    offset: int
    headers: Headers


class Log:
    """Partitions of the target in memory; offsets begin at `start` and have gaps, as behind transactions."""

    def __init__(self, start: int = 10) -> None:
        self.records: dict[int, list[Rec]] = {}
        self.start = start
        self.read_from: list[tuple[int, int]] = []

    def add(self, number: int, source: TopicPartition | None, offset: int, cluster: str | None = None) -> None:
        records = self.records.setdefault(number, [])
        headers: Headers = () if source is None else SourceMark(source, cluster).headers(offset, 0, b"x")
        at = records[-1].offset + 1 + len(records) % 2 if records else self.start
        records.append(Rec(at, headers))

    async def bounds(self, topic: str, partition: int) -> LogBounds:
        assert topic == "new"
        records = self.records.get(partition, [])
        return LogBounds(self.start, records[-1].offset + 1 if records else self.start)

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Rec]]:
        self.read_from.append((partition, start))
        for record in self.records.get(partition, []):
            if start <= record.offset < end:
                yield [record]


async def translate(
    log: Log,
    committed: dict[TopicPartition, int],
    *,
    cluster: str | None = None,
    empty: tuple[TopicPartition, ...] = (),
) -> TopicTranslation:
    translator = OffsetTranslator(log, committed, cluster=cluster)  # type: ignore[arg-type]
    return await translator.translate("new", sorted(log.records) or [0], committed, empty)


async def test_resumes_at_the_first_message_that_is_not_handled() -> None:
    log = Log()
    for offset in (0, 71, 71, 142):  # a wrapper has leaves of one offset
        log.add(0, A, offset)
    assert (await translate(log, {A: 71})).offsets[0] == PartitionOffset(12, 16, frozenset({A}))
    assert (await translate(log, {A: 142})).offsets[0].offset == 15
    found = await translate(log, {A: 213})
    assert (found.offsets[0].offset, found.problems) == (16, [])


async def test_duplicates_do_not_skip_anything() -> None:
    log = Log()
    for offset in (0, 10, 20, 30, 10, 20, 30, 40):
        log.add(0, A, offset)
    assert (await translate(log, {A: 20})).offsets[0].offset == log.records[0][2].offset
    assert (await translate(log, {A: 40})).offsets[0].offset == log.records[0][7].offset


async def test_old_partitions_that_share_one_resume_at_the_one_behind() -> None:
    log = Log()
    for offset in range(0, 50, 10):
        log.add(0, A, offset)
        log.add(0, B, offset)
    found = await translate(log, {A: 40, B: 10})
    assert found.offsets[0].offset == log.records[0][3].offset
    assert found.offsets[0].sources == {A, B}


async def test_treats_messages_of_other_origin_as_not_handled() -> None:
    log = Log()
    log.add(0, A, 0)
    log.add(0, None, 0)
    log.add(0, A, 10)
    assert (await translate(log, {A: 20})).offsets[0].offset == log.records[0][1].offset
    log = Log()
    for source in (A, B, A):
        log.add(0, source, 0)
    # The group never committed anything of B: it has all of it before it.
    assert (await translate(log, {A: 20})).offsets[0].offset == log.records[0][1].offset


async def test_reports_what_was_not_forwarded() -> None:
    log = Log()
    log.add(0, A, 100)
    log.add(1, B, 0)
    found = await translate(log, {A: 50, B: 30, C: 7})
    assert found.problems == [
        "t/0-0: the group is at 50, and new has messages from 100 on: the messages in between were not forwarded",
        "t/2-0: new has no message of it: check the topic, and that it was forwarded",
    ]
    assert (0, 10) in log.read_from  # it was looked for behind the place, too
    found = await translate(log, {A: 100, C: 7}, empty=(C,))
    assert (found.problems, found.notes) == ([], ["t/2-0: its log is empty"])


async def test_distinguishes_sources_by_their_names() -> None:
    log = Log()
    log.add(0, A, 0, "dc1")
    log.add(0, A, 10, "dc1")
    found = await translate(log, {A: 10})
    assert found.offsets[0].offset == 10
    assert any("sources 'dc1', not only of the expected source, without a name" in each for each in found.problems)
    found = await translate(log, {A: 10}, cluster="dc1")
    assert (found.offsets[0].offset, found.problems) == (12, [])


async def test_skips_nothing_and_repeats_as_little_as_possible_whatever_was_forwarded() -> None:
    rng = random.Random(3)
    for _ in range(300):
        log = Log(rng.randrange(100))
        partitions = rng.randrange(1, 4)
        sources = [A, B, C][: rng.randrange(1, 4)]
        keyed = rng.random() < 0.3
        ends = {source: rng.randrange(1, 30) for source in sources}
        at = dict.fromkeys(sources, 0)
        while any(at[source] < ends[source] for source in sources):
            source = rng.choice(sources)
            chunk = range(at[source], min(ends[source], at[source] + rng.randrange(1, 5)))
            for offset in chunk:
                log.add((offset if keyed else sources.index(source)) % partitions, source, offset)
            if rng.random() < 0.7:  # else the answer was lost: all of it, or some more, comes again
                at[source] = chunk.stop
            elif rng.random() < 0.3:
                at[source] = max(0, at[source] - rng.randrange(5))
        committed = {source: rng.randrange(ends[source] + 1) for source in sources}
        found = await translate(log, committed)
        assert found.problems == []
        handed = set()
        for number, records in log.records.items():
            offset, end, _ = found.offsets[number]
            rest = [record for record in records if record.offset >= offset]
            names = [dict(record.headers) for record in rest]
            handed |= {(each["consumerd.source.broker"], int(each["consumerd.source.offset"] or b"")) for each in names}
            if rest:
                first = sources[int(names[0]["consumerd.source.broker"] or b"")]
                assert int(names[0]["consumerd.source.offset"] or b"") >= committed[first]
            else:
                assert offset == end
        for source in sources:
            assert {(b"%d" % source.broker, each) for each in range(committed[source], ends[source])} <= handed
