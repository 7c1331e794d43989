from __future__ import annotations

import io
import struct

import pytest

from consumerd.storage import DamagedArchiveError
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.segments.batches import (
    BatchProducer,
    SegmentFlaw,
    StoredBatch,
    check_batches,
    read_batches,
)
from consumerd.storage.segments.checking import CheckedBatches
from consumerd.wire.crc import crc32
from consumerd.wire.v08.records import RecordCodec, TimestampType, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c

OLD = encode_message_set([b"a", b"b"], magic=0, base_offset=10)
WRAPPED = encode_message_set([b"c", b"d", b"e"], magic=1, codec=RecordCodec.GZIP, timestamps=5, base_offset=12)
BATCH = encode_record_batch(
    [b"f", b"g"],
    keys=[b"k", None],
    codec=RecordCodec.ZSTD,
    timestamps=[7, 9],
    base_offset=15,
    leader_epoch=3,
    producer_id=4,
    producer_epoch=1,
    base_sequence=20,
)
LAST = encode_record_batch([b"h"], base_offset=17, leader_epoch=3, timestamps=11)
SEGMENT = OLD + WRAPPED + BATCH + LAST


def marker(offset: int, kind: int) -> bytes:
    """The end of a transaction as a broker writes it: a batch with one record, of key (version 0, `kind`)."""
    batch = bytearray(
        encode_record_batch(
            [bytes.fromhex("000000000007")],
            keys=[struct.pack(">hh", 0, kind)],
            timestamps=3,
            base_offset=offset,
            leader_epoch=3,
            producer_id=4,
            producer_epoch=1,
            transactional=True,
        )
    )
    batch[22] |= 0x20
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4)
    return bytes(batch)


class Trickle:
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        self._file, self._most = io.BytesIO(data), most

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, self._most))


class Rewound:
    """A stream that can go back."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.read = self._file.read
        self.repeated = 0

    def unread(self, count: int, /) -> bool:
        self.repeated += count
        self._file.seek(-count, io.SEEK_CUR)
        return True


def items(data: bytes, start: int = 10, window: int = 1 << 20) -> list[StoredBatch | SegmentFlaw]:
    found = list(read_batches(io.BytesIO(data), start, window=window))
    ends = [0, *(item.position + item.size for item in found)]
    assert [item.position for item in found] == ends[:-1]
    assert ends[-1] == len(data)
    return found


def facts(found: list[StoredBatch | SegmentFlaw]) -> list[object]:
    return [
        (item.offset, item.last_offset, list(item.records.payloads)) if isinstance(item, StoredBatch) else item
        for item in found
    ]


def flaws(data: bytes) -> list[tuple[FlawKind, int, int]]:
    return [(item.kind, item.position, item.size) for item in items(data) if isinstance(item, SegmentFlaw)]


def test_yields_messages_of_all_formats_in_one_segment() -> None:
    first, second, wrapped, batch, last = items(SEGMENT)
    assert isinstance(wrapped, StoredBatch)
    assert isinstance(batch, StoredBatch)
    assert isinstance(last, StoredBatch)
    assert facts([first, second]) == [(10, 10, [b"a"]), (11, 11, [b"b"])]
    assert (wrapped.offset, wrapped.last_offset, wrapped.magic, wrapped.codec) == (12, 14, 1, RecordCodec.GZIP)
    assert (wrapped.max_timestamp, wrapped.leader_epoch, wrapped.producer) == (5, None, None)
    assert list(wrapped.records.payloads) == [b"c", b"d", b"e"]
    assert (batch.offset, batch.last_offset, batch.magic, batch.codec) == (15, 16, 2, RecordCodec.ZSTD)
    assert (batch.leader_epoch, batch.producer, batch.max_timestamp) == (3, BatchProducer(4, 1, 20), 9)
    assert (batch.timestamp_type, batch.transactional, batch.control) == (TimestampType.CREATE_TIME, False, None)
    assert list(batch.records.keys) == [b"k", None]
    assert last.next_offset == 18
    assert all(item.problem is None for item in (wrapped, batch, last))


@pytest.mark.parametrize("window", [1, 16, 17, 61, 200])
def test_result_does_not_depend_on_the_window(window: int) -> None:
    damaged = bytearray(SEGMENT)
    damaged[len(OLD + WRAPPED) + 30] ^= 1
    data = bytes(damaged) + LAST[:40]
    assert facts(items(data, window=window)) == facts(items(data))


def test_result_does_not_depend_on_the_sizes_of_the_streams_reads() -> None:
    assert facts(list(read_batches(Trickle(SEGMENT, 3), 10))) == facts(items(SEGMENT))


@pytest.mark.parametrize("shallow", [True, False])
def test_bytes_that_a_stream_gives_again_are_read_once(*, shallow: bool) -> None:
    many = [encode_record_batch([b"x" * 20] * 3, base_offset=at, leader_epoch=3) for at in range(0, 300, 3)]
    damaged = bytearray(b"".join(many))
    damaged[len(many[0]) * 70 + 30] ^= 1
    data = bytes(damaged) + LAST[:40]
    stream = Rewound(data)
    assert facts(list(read_batches(stream, 0, window=1000))) == facts(items(data, 0))
    assert 0 < stream.repeated < len(data) / 4
    stream, once = Rewound(data), list(check_batches(io.BytesIO(data), 0, shallow=shallow))
    checked = list(check_batches(stream, 0, window=1000, shallow=shallow))
    assert 0 < stream.repeated < len(data) / 4
    for found in (checked, once):
        assert [item.position for item in found[1:]] == [item.position + item.size for item in found[:-1]]
    assert [item for item in checked if isinstance(item, SegmentFlaw)] == [
        item for item in once if isinstance(item, SegmentFlaw)
    ]
    sums = [sum(item.records for item in found if isinstance(item, CheckedBatches)) for found in (checked, once)]
    assert sums[0] == sums[1]


def test_batch_with_a_wrong_crc_is_one_flaw_and_reading_continues() -> None:
    damaged = bytearray(SEGMENT)
    damaged[len(OLD + WRAPPED + BATCH) - 1] ^= 1
    found = items(bytes(damaged))
    flaw = found[3]
    assert isinstance(flaw, SegmentFlaw)
    assert (flaw.kind, flaw.position, flaw.size) == (FlawKind.CRC, len(OLD + WRAPPED), len(BATCH))
    assert flaw.problem.startswith("the batch at offset 15 has a CRC of ")
    assert facts(found[4:]) == [(17, 17, [b"h"])]


def test_intact_batch_that_cannot_be_decompressed_is_distinguished_from_a_wrong_crc() -> None:
    broken = encode_message_set([b"x" * 50], magic=1, base_offset=12, timestamps=1)
    # The attributes promise gzip; the CRC is computed again.
    body = bytes([1, 1]) + broken[18:]
    data = broken[:12] + crc32(body).to_bytes(4) + body
    assert flaws(OLD + data + BATCH) == [(FlawKind.WRAPPER, len(OLD), len(data))]


def test_bytes_that_are_not_a_batch_end_where_the_next_proven_batch_begins() -> None:
    nonsense = b"\xff" * 100 + SEGMENT[:5]
    assert flaws(OLD + nonsense + BATCH + LAST) == [(FlawKind.NONSENSE, len(OLD), len(nonsense))]


def test_length_that_points_beyond_the_file_hides_no_later_batches() -> None:
    wrong = bytearray(BATCH)
    wrong[8:12] = (1 << 20).to_bytes(4)
    assert flaws(OLD + bytes(wrong) + LAST) == [(FlawKind.NONSENSE, len(OLD), len(BATCH))]


def test_copy_of_earlier_batches_inside_a_payload_does_not_end_a_search() -> None:
    outer = encode_record_batch([BATCH], base_offset=30)
    spoiled = bytearray(outer)
    spoiled[8:12] = (1 << 20).to_bytes(4)
    later = encode_record_batch([b"z"], base_offset=31)
    data = encode_record_batch([b"y"], base_offset=29) + bytes(spoiled) + later
    assert [item.offset for item in items(data) if isinstance(item, StoredBatch)] == [29, 31]


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (LAST[:40], f"is torn: the file has 40 bytes of its {len(LAST)}"),
        (LAST[:9], "is torn: the file has 9 bytes of its header"),
        (bytes(4096), "the last 4096 bytes are zeros: space that the broker reserved (log.preallocate), or lost when "),
        (bytes(5), "the last 5 bytes are zeros"),
    ],
)
def test_torn_end_is_one_flaw(tail: bytes, problem: str) -> None:
    *_, flaw = items(SEGMENT + tail)
    assert isinstance(flaw, SegmentFlaw)
    assert (flaw.kind, flaw.position, flaw.size, flaw.offset) == (FlawKind.TORN, len(SEGMENT), len(tail), 18)
    assert problem in flaw.problem


def test_zeros_with_a_batch_behind_them_are_not_a_torn_end() -> None:
    assert flaws(OLD + bytes(64) + BATCH) == [(FlawKind.NONSENSE, len(OLD), 64)]


def test_offsets_that_go_back_are_a_problem_of_a_readable_batch() -> None:
    *_, again = items(SEGMENT + BATCH)
    assert isinstance(again, StoredBatch)
    assert again.problem == (FlawKind.ORDER, "the batch at offset 15 stands where 18 is the least that may follow")
    assert list(again.records.payloads) == [b"f", b"g"]


def test_offsets_before_the_segments_start_are_a_problem() -> None:
    (batch,) = items(BATCH, start=16)
    assert isinstance(batch, StoredBatch)
    assert batch.problem is not None
    assert batch.problem[0] is FlawKind.ORDER


def test_leader_epoch_that_goes_back_is_a_problem() -> None:
    earlier = encode_record_batch([b"i"], base_offset=18, leader_epoch=2)
    *_, batch = items(SEGMENT + earlier)
    assert isinstance(batch, StoredBatch)
    assert batch.problem == (FlawKind.EPOCH, "the batch at offset 18 is of leader epoch 2, after one of 3")


def test_gaps_of_compaction_are_not_a_problem() -> None:
    later = encode_record_batch([b"i"], base_offset=1000, leader_epoch=3)
    assert all(isinstance(item, StoredBatch) and item.problem is None for item in items(SEGMENT + later))


def test_truncated_stream_is_a_damaged_archive() -> None:
    class Truncated(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if not (data := super().read(size)):
                raise DamagedArchiveError("the file ends in the middle of its gzip stream")
            return data

    *_, torn, damage = read_batches(Truncated(SEGMENT + LAST[:30]), 10)
    assert isinstance(torn, SegmentFlaw)
    assert isinstance(damage, SegmentFlaw)
    assert (torn.kind, damage.kind) == (FlawKind.TORN, FlawKind.ARCHIVE)
    assert damage.problem == "the file ends in the middle of its gzip stream"


def test_empty_segment_has_no_items() -> None:
    assert items(b"") == []


@pytest.mark.parametrize(("kind", "name"), [(0, "abort"), (1, "commit"), (2, "leader-change"), (9, "type 9")])
def test_control_batch_is_named_by_what_it_says(kind: int, name: str) -> None:
    (batch,) = items(marker(18, kind))
    assert isinstance(batch, StoredBatch)
    assert (batch.control, batch.transactional, len(batch.records), batch.next_offset) == (name, True, 0, 19)


@pytest.mark.parametrize("together", [False, True])
def test_a_control_batch_of_an_unknown_codec_is_a_flaw(together: bool) -> None:
    odd = bytearray(marker(18, 1))
    odd[22] |= 5
    odd[17:21] = crc32c(bytes(odd[21:])).to_bytes(4)
    found = list(read_batches(io.BytesIO(SEGMENT + bytes(odd) * 2), 10, together=together))
    assert [(each.kind, each.size, each.problem) for each in found if isinstance(each, SegmentFlaw)] == [
        (FlawKind.CODEC, len(odd), f"the batch at position {len(SEGMENT) + after} has the unknown codec 5")
        for after in (0, len(odd))
    ]
    *_, checked = check_batches(io.BytesIO(SEGMENT + bytes(odd)), 10, shallow=True)
    assert isinstance(checked, SegmentFlaw)
    assert checked.kind is FlawKind.CODEC
