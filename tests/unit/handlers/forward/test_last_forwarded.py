"""The last message of a source partition on the target, among those of other clusters, topics and partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.handler import last_forwarded
from consumerd.handlers.forward.identity import SourceIdentity, SourceMark
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.wire.crc import crc32
from consumerd.wire.v08.records import Record, decode_records, encode_record_batch

SOURCE = TopicPartition("t", 1, 2)
#: Whose messages may stand on the same partition of the target.
OTHERS = [
    (SOURCE, "other"),
    (SOURCE, None),
    (TopicPartition("u", 1, 2), "ours"),
    (TopicPartition("t", 0, 2), "ours"),
    (TopicPartition("t", 1, 3), "ours"),
    (TopicPartition.numbered("t", 2), "ours"),
]


class Target:
    """A partition of the target: who has sent the message at each offset, and where it stood there."""

    def __init__(self, messages: list[tuple[TopicPartition, str | None, int]], start: int = 0) -> None:
        self.start = start
        marks = [SourceMark(partition, cluster).headers(offset, 0, b"x") for partition, cluster, offset in messages]
        self.data = encode_record_batch([b"x"] * len(marks), headers=dict(enumerate(marks)), base_offset=start)
        self.end = start + len(marks)

    async def bounds(self, topic: str, partition: int) -> LogBounds:
        return LogBounds(self.start, self.end)

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
        yield [record for record in decode_records(self.data, start).messages() if record.offset < end]


async def found_in(target: Any, cluster: str | None) -> int | None:
    found = await last_forwarded(target, "target", 0, SOURCE, cluster)
    assert found is None or found == SourceIdentity(SOURCE, found.offset, 0, crc32(b"x"), cluster)
    return None if found is None else found.offset


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: f"{other[0]} of {other[1]}")
async def test_resumes_after_its_own_message_and_no_other(other: tuple[TopicPartition, str | None]) -> None:
    ours = [(SOURCE, "ours", 10), (SOURCE, "ours", 20)]
    ahead = (*other, 900)
    assert await found_in(Target([*ours, ahead]), "ours") == 20
    assert await found_in(Target([ahead, ours[0], ahead, ours[1], ahead, ahead]), "ours") == 20
    assert await found_in(Target([ahead] * 5), "ours") is None


async def test_source_without_a_name_is_not_one_with_a_name() -> None:
    messages: list[tuple[TopicPartition, str | None, int]] = [(SOURCE, None, 10), (SOURCE, "other", 900)]
    assert await found_in(Target(messages), None) == 10
    assert await found_in(Target(messages[1:]), None) is None
    assert await found_in(Target([]), None) is None


@pytest.mark.parametrize("behind", [1999, 2000, 2001, 9999, 10_000, 10_001])
async def test_finds_its_message_behind_many_of_others(behind: int) -> None:
    others = [(SOURCE, "other", 900 + number) for number in range(behind)]
    assert await found_in(Target([(SOURCE, "ours", 10), (SOURCE, "ours", 20), *others], start=50), "ours") == 20
