from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.fields import UnreadableRecordError
from consumerd.storage.segments.group_offsets import (
    ArchivedOffset,
    GroupOffsetsReader,
    OffsetKey,
    read_key,
    read_value,
)
from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c

PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def key(group: str = "g", topic: str = "t", partition: int = 0) -> bytes:
    return struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", partition)


def value(offset: int, committed: int = 5) -> bytes:
    return struct.pack(">hqi", 3, offset, 2) + text("m") + struct.pack(">q", committed)


def commits(place: int, *values: bytes | None, timestamp: int = 5, transactional: bool = False) -> StoredBatch:
    more: dict[str, Any] = PRODUCER if transactional else {}
    data = encode_record_batch(
        values,
        keys=[key()] * len(values),
        base_offset=place,
        timestamps=timestamp,
        transactional=transactional,
        **more,
    )
    return batch_of(data)


def marker(place: int, kind: int) -> StoredBatch:
    data = bytearray(
        encode_record_batch(
            [bytes(6)],
            keys=[struct.pack(">hh", 0, kind)],
            base_offset=place,
            transactional=True,
            timestamps=5,
            **PRODUCER,
        )
    )
    data[22] |= 0x20
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4)
    return batch_of(bytes(data))


def batch_of(data: bytes) -> StoredBatch:
    (batch,) = read_batches(io.BytesIO(data), 0)
    assert isinstance(batch, StoredBatch)
    return batch


def offsets(batches: Iterable[StoredBatch], until: int | None = None) -> list[int]:
    reader = GroupOffsetsReader(until)
    for batch in batches:
        reader.take(0, batch)
    return [committed.offset for committed in reader.offsets().values()]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("0000 0000000000000007 0001 6d 0000000000000009", ArchivedOffset(7, None, "m", 9)),
        ("0001 0000000000000007 0000 0000000000000009 000000000000000a", ArchivedOffset(7, None, "", 9, 10)),
        ("0002 0000000000000007 0001 6d 0000000000000009", ArchivedOffset(7, None, "m", 9)),
        ("0003 0000000000000007 00000002 0001 6d 0000000000000009", ArchivedOffset(7, 2, "m", 9)),
        ("0003 0000000000000007 ffffffff 0000 ffffffffffffffff", ArchivedOffset(7, None, "", None)),
        # With a topic's id as a tagged field.
        (
            "0004 0000000000000007 00000002 02 6d 0000000000000009 01 00 10 000102030405060708090a0b0c0d0e0f",
            ArchivedOffset(7, 2, "m", 9),
        ),
    ],
)
def test_values_of_all_versions(data: str, found: ArchivedOffset) -> None:
    assert read_value(bytes.fromhex(data)) == found


@pytest.mark.parametrize(
    "data", ["", "0009 00", "0003 0000000000000007", "0002 0000000000000007 00ff 6d", "0004" + "00" * 12]
)
def test_other_values_are_refused(data: str) -> None:
    with pytest.raises(UnreadableRecordError):
        read_value(bytes.fromhex(data))


def test_keys() -> None:
    assert read_key(key("g", "t", 3)) == OffsetKey("g", "t", 3)
    # The members of a group.
    assert read_key(struct.pack(">h", 2) + text("g")) is None
    for data in (None, b"", key()[:-1], b"\0\1\x7f\xffabc", b"\0\1\0\1\xff" + key()[5:]):
        with pytest.raises(UnreadableRecordError):
            read_key(data)


def test_last_commit_counts_in_whatever_order_segments_are_read() -> None:
    batches = [commits(0, value(1), value(2)), commits(2, value(3)), commits(3, value(9), None)]
    assert offsets(batches[:2]) == offsets(batches[1::-1]) == [3]
    assert offsets(batches) == []


def test_commits_of_a_transaction_count_once_it_is_committed() -> None:
    before, inside = commits(0, value(1)), commits(1, value(2), transactional=True)
    assert offsets([before, inside]) == [1]
    assert offsets([before, inside, marker(2, 0)]) == [1]
    assert offsets([marker(2, 1), inside, before]) == [2]
    # The first marker behind it decides, and a later commit outside of transactions wins.
    assert offsets([before, inside, marker(2, 0), marker(4, 1)]) == [1]
    assert offsets([before, inside, marker(2, 1), commits(3, value(8))]) == [8]


def test_offsets_at_a_time() -> None:
    batches = [commits(0, value(1), timestamp=100), commits(1, value(2), timestamp=200)]
    assert offsets(batches, until=150) == [1]
    assert offsets(batches, until=200) == [2]
    assert offsets(batches, until=50) == []


def test_unreadable_commits_are_counted() -> None:
    reader = GroupOffsetsReader()
    reader.take(0, commits(0, value(1), b"\0\x63"))
    assert (reader.unreadable, len(reader.offsets())) == (1, 1)
