"""Fetch responses other than whole, valid records: cuts, records below the requested offset, limits, damage."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from google_crc32c import value as crc32c

from consumerd.base.native import codec as native_codec
from consumerd.base.partition import LogId
from consumerd.wire.v08.records import (
    BatchEnd,
    DecodeLimits,
    RecordCodec,
    TimestampType,
    decode_records,
    encode_message_set,
    encode_record_batch,
    fetched,
)

pytestmark = pytest.mark.usefixtures("either_codec")

VALUES = [b"a", b"bb", None, b"dddd"]
FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in RecordCodec if magic == 2 or codec is not RecordCodec.ZSTD
]
formats = pytest.mark.parametrize(("magic", "codec"), FORMATS)


def encode(values: list[bytes | None], magic: int, codec: RecordCodec = RecordCodec.NONE, **options: Any) -> bytes:
    if magic == 2:
        return encode_record_batch(values, codec=codec, **options)
    return encode_message_set(values, magic=magic, codec=codec, **options)


def resigned(data: bytes, **changes: bytes) -> bytes:
    """`data` with other bytes at places that are named `at_<position>`, and the CRC that belongs to it then."""
    found = bytearray(data)
    for name, new in changes.items():
        at = int(name.removeprefix("at_"))
        found[at : at + len(new)] = new
    if found[16] == 2:
        found[17:21] = crc32c(bytes(found[21:])).to_bytes(4)
    else:
        found[12:16] = zlib.crc32(found[16:]).to_bytes(4)
    return bytes(found)


@formats
def test_drops_records_below_the_requested_offset(magic: int, codec: RecordCodec) -> None:
    data = encode(VALUES, magic, codec, base_offset=10) + encode(VALUES, magic, codec, base_offset=14)
    for asked in range(10, 19):
        found = decode_records(data, asked)
        assert found.offsets == list(range(asked, 18))
        assert found.payloads == (VALUES * 2)[asked - 10 :]
        assert (found.start_offset, found.next_offset) == (asked, 18)
        assert {run.codec for run in found.runs} == ({codec} if asked < 18 else set())
    beyond = decode_records(data, 25)
    assert (len(beyond), beyond.next_offset, beyond.end) == (0, 25, BatchEnd.COMPLETE)


@formats
def test_reports_the_bytes_that_a_partial_batch_needs(magic: int, codec: RecordCodec) -> None:
    first, second = encode(VALUES, magic, codec), encode([b"e"], magic, codec, base_offset=4)
    for cut in range(1, len(second)):
        found = decode_records(first + second[:cut], 0)
        assert (found.end, found.payloads, found.next_offset) == (BatchEnd.PARTIAL, VALUES, 4)
        assert found.needed == (None if cut < 12 else len(second))


@formats
def test_damage_ends_the_set_and_can_be_skipped(magic: int, codec: RecordCodec) -> None:
    first, second = encode(VALUES, magic, codec, base_offset=5), encode([b"e" * 30], magic, codec, base_offset=9)
    damaged = bytearray(second)
    damaged[-1] ^= 1
    found = decode_records(first + bytes(damaged) + encode([b"f"], magic, base_offset=10), 5)
    assert (found.end, found.payloads, found.next_offset) == (BatchEnd.CORRUPT, VALUES, 9)
    what = "batch" if magic == 2 else "message"
    assert found.problem is not None
    assert found.problem.startswith(f"the {what} at offset 9 has a CRC of ")
    assert found.resume_offset == 10


def test_native_codec_reads_what_is_intact_without_the_pure_one(monkeypatch: pytest.MonkeyPatch) -> None:
    if native_codec() is None:
        return
    monkeypatch.setattr(fetched, "_Decoder", None)
    monkeypatch.setattr(fetched, "_NativeDecoder", None)
    found = decode_records(encode(VALUES, 2, base_offset=5, leader_epoch=3), 6)
    assert (list(found), found.start_offset, found.next_offset, found.end) == (VALUES[1:], 6, 9, BatchEnd.COMPLETE)
    assert found.log == LogId(leader_epoch=3)


def test_damage_before_nonsense_cannot_be_skipped() -> None:
    damaged = bytearray(encode([b"e" * 30], 2))
    damaged[-1] ^= 1
    found = decode_records(bytes(damaged) + b"\x00" * 30, 0)
    assert (found.end, found.resume_offset) == (BatchEnd.CORRUPT, None)


@pytest.mark.parametrize("size", [-1, 0, 13, 1 << 30])
def test_rejects_impossible_sizes(size: int) -> None:
    found = decode_records(struct.pack(">qi", 7, size) + bytes(40), 7)
    assert (found.end, found.next_offset, found.resume_offset) == (BatchEnd.CORRUPT, 7, None)
    assert found.problem == f"the message at offset 7 has the impossible size {size}"


def test_rejects_an_unknown_magic() -> None:
    found = decode_records(resigned(encode([b"a"], 1), at_16=b"\x03"), 0)
    assert found.problem == "the message at offset 0 has the unknown magic 3"


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_rejects_decreasing_offsets(magic: int) -> None:
    data = encode([b"a", b"b"], magic, base_offset=5) + encode([b"c"], magic, base_offset=6)
    found = decode_records(data, 5)
    assert (found.end, found.payloads, found.next_offset) == (BatchEnd.CORRUPT, [b"a", b"b"], 7)
    assert found.problem is not None
    assert "offset 6 where offset 7 is the least that may follow" in found.problem


def wrapped(inside: bytes, magic: int, offset: int = 0) -> bytes:
    """A gzip wrapper around any bytes."""
    made = encode([gzip.compress(inside)], magic, base_offset=offset)
    return resigned(made, at_17=b"\x01")


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_nested_wrappers(magic: int) -> None:
    assert decode_records(wrapped(encode([b"a"], magic), magic), 0).payloads == [b"a"]
    found = decode_records(wrapped(wrapped(encode([b"a"], magic), magic), magic), 0)
    assert (found.end, found.payloads) == (BatchEnd.CORRUPT, [])
    assert found.problem == "the message at offset 0 has a compressed message inside a compressed message"
    first = wrapped(encode([b"a"], magic), magic)
    found = decode_records(wrapped(first + encode([b"b"], magic, base_offset=1), magic, offset=1), 0)
    assert (found.end, found.payloads) == (BatchEnd.CORRUPT, [])


def test_rejects_an_offset_that_has_none_after_it() -> None:
    last = (1 << 63) - 1
    found = decode_records(encode([b"a"], 2, base_offset=last - 1) + encode([b"b"], 1, base_offset=last), 0)
    assert (found.end, found.payloads, found.resume_offset) == (BatchEnd.CORRUPT, [b"a"], None)
    assert found.next_offset == last


@pytest.mark.parametrize("magic", [0, 1])
def test_run_ends_where_offsets_decrease(magic: int) -> None:
    data = b"".join(encode([b"%d" % offset], magic, base_offset=offset) for offset in (5, 6, 9, 9, 10, 11))
    found = decode_records(data, 0)
    assert (found.end, found.offsets, found.payloads) == (BatchEnd.CORRUPT, [5, 6, 9], [b"5", b"6", b"9"])
    assert found.problem == "the message at offset 9 has offset 9 where offset 10 is the least that may follow"
    assert (len(found.keys), len(found.timestamps), found.next_offset) == (3, 3, 10)


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_wrappers_that_hold_no_set(magic: int) -> None:
    whole = encode([b"a"], magic)
    for inside, problem in (
        (whole[:15], "a truncated compressed set"),
        (whole[:-1], f"a message of {len(whole) - 12} bytes where its compressed set has {len(whole) - 13} left"),
        (whole[:-1] + b"b", "a CRC of "),
    ):
        found = decode_records(wrapped(inside, magic), 0)
        assert found.problem is not None
        assert found.problem.startswith(f"the message at offset 0 has {problem}")
    for payload, codec in ((None, b"\x01"), (b"", b"\x02")):
        assert decode_records(resigned(encode([payload], magic), at_17=codec), 0).end is BatchEnd.CORRUPT


def test_empty_wrapper_has_no_records() -> None:
    found = decode_records(wrapped(b"", 1, offset=6), 0)
    assert (found.end, found.payloads, found.next_offset) == (BatchEnd.COMPLETE, [], 7)


def test_applies_the_wrapper_s_append_time_to_all_records() -> None:
    data = encode([b"a", b"b"], 1, RecordCodec.GZIP, timestamps=[3, 4], log_append_time=99)
    found = decode_records(data, 0)
    assert found.timestamps == [99, 99]
    assert {record.timestamp_type for record in found.messages()} == {TimestampType.LOG_APPEND_TIME}
    assert decode_records(encode([b"a", b"b"], 1, RecordCodec.GZIP, timestamps=[3, 4]), 0).timestamps == [3, 4]
    batch = encode([b"a", b"b"], 2, timestamps=[3, 4], log_append_time=99)
    assert decode_records(batch, 0).timestamps == [99, 99]


def test_reads_a_produced_wrapper_without_an_offset() -> None:
    """Some clients leave it at 0; brokers set it."""
    found = decode_records(resigned(encode([b"a", b"b"], 1, RecordCodec.GZIP), at_0=bytes(8)), 0)
    assert (found.offsets, found.next_offset) == ([0, 1], 2)


@formats
def test_rejects_decompression_bombs(magic: int, codec: RecordCodec) -> None:
    if codec is RecordCodec.NONE:
        return
    bomb = encode([bytes(1_000_000)], magic, codec)
    found = decode_records(bomb, 0, limits=DecodeLimits(max_decompressed_bytes=1000))
    assert (found.end, len(found)) == (BatchEnd.CORRUPT, 0)
    assert found.problem is not None
    assert "1000 bytes" in found.problem
    assert found.resume_offset == 1


@formats
def test_set_holds_no_more_than_its_limit(magic: int, codec: RecordCodec) -> None:
    """One compressed batch at least; the next one is for the next set."""
    sets = [encode([bytes(5000)] * 2, magic, codec, base_offset=2 * number) for number in range(4)]
    found = decode_records(b"".join(sets), 0, limits=DecodeLimits(max_batch_bytes=12_000))
    if codec is RecordCodec.NONE:
        assert (len(found), found.end) == (8, BatchEnd.COMPLETE)
    else:
        assert (len(found), found.end, found.next_offset, found.needed) == (4, BatchEnd.PARTIAL, 4, len(sets[2]))


def test_message_beyond_the_limit_is_corrupt() -> None:
    found = decode_records(encode([bytes(2000)], 2), 0, limits=DecodeLimits(max_message_bytes=1000))
    assert found.end is BatchEnd.CORRUPT


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"at_57": struct.pack(">i", 2)}, "records that end at byte 16 of 24"),
        ({"at_57": struct.pack(">i", 4)}, "4 records in 24 bytes"),
        ({"at_57": struct.pack(">i", -1)}, "-1 records in 24 bytes"),
        ({"at_23": struct.pack(">i", 1)}, "offset delta 2 where the last is 1"),
        ({"at_23": struct.pack(">i", -2)}, "a last offset delta of -2"),
        ({"at_21": b"\x00\x07"}, "compression codec 7, which magic 2 does not have"),
        ({"at_61": b"\x10"}, "a record whose fields take -1 bytes more than it has"),
        ({"at_61": b"\x7e"}, "a record of 63 bytes where 23 are left"),
        ({"at_72": b"\x00"}, "offset delta 0 where 1 is the least"),
        ({"at_68": b"\x02"}, "1 headers in 0 bytes"),
        ({"at_68": b"\x01"}, "-1 headers in 0 bytes"),
        ({"at_61": b"\xff\xff\xff\xff\x7f"}, "a number of more than 32 bits"),
    ],
)
def test_rejects_inconsistent_batches(changes: dict[str, bytes], problem: str) -> None:
    good = encode([b"a", b"b", b"c"], 2)
    assert len(good) == 61 + 24
    found = decode_records(resigned(good, **changes), 0)
    assert (found.end, found.payloads, found.headers) == (BatchEnd.CORRUPT, [], {})
    assert found.problem is not None
    assert problem in found.problem


def test_batch_without_records_advances_the_position() -> None:
    """An empty batch that compaction keeps for the producer's sequence numbers."""
    empty = encode([b"a", b"b", b"c"], 2, base_offset=4)[:61]
    empty = resigned(empty, at_8=struct.pack(">i", 49), at_57=bytes(4))
    found = decode_records(empty + encode([b"d"], 2, base_offset=7), 4)
    assert (found.end, found.offsets, found.next_offset) == (BatchEnd.COMPLETE, [7], 8)


def control(offset: int, kind: int, producer: int) -> bytes:
    batch = encode_record_batch(
        [bytes(6)], keys=[struct.pack(">hh", 0, kind)], base_offset=offset, producer_id=producer
    )
    return resigned(batch, at_21=b"\x00\x30")


def test_skips_control_batches_and_advances_the_position() -> None:
    data = encode([b"a"], 2) + control(1, 1, 5)
    found = decode_records(data, 0)
    assert (found.payloads, found.next_offset, found.prefix(1)) == ([b"a"], 2, 2)
    assert [record.next_offset for record in found.messages()] == [2]


def test_skips_aborted_transactions() -> None:
    def sent(offset: int, producer: int, value: bytes, transactional: bool = True) -> bytes:
        return encode_record_batch(
            [value], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=transactional
        )

    data = b"".join(
        (
            sent(0, 5, b"before"),
            control(1, 1, 5),
            sent(2, 5, b"aborted"),
            sent(3, 6, b"other"),
            sent(4, 5, b"plain", transactional=False),
            sent(5, 5, b"aborted, too"),
            control(6, 0, 5),
            sent(7, 5, b"after"),
            control(8, 1, 6),
        )
    )
    everything = decode_records(data, 0)
    assert len(everything) == 6
    committed = decode_records(data, 0, aborted=[(5, 2)])
    assert committed.payloads == [b"before", b"other", b"plain", b"after"]
    assert (committed.offsets, committed.next_offset) == ([0, 3, 4, 7], 9)


def test_reads_headers_that_are_not_utf_8_as_the_jvm_does() -> None:
    batch = encode_record_batch([b"v"], headers={0: (("ab", b"1"),)})
    data = resigned(batch.replace(b"ab", b"a\xff"))
    assert decode_records(data, 0).headers == {0: (("a\ufffd", b"1"),)}


def test_record_set_repr_names_its_content() -> None:
    found = decode_records(encode([b"a", b"b"], 2, base_offset=3), 3)
    assert repr(found) == "<RecordSet of 2 messages, offsets 3 to 5, complete>"
    assert list(found) == [b"a", b"b"]
    with pytest.raises(ValueError, match="a prefix of 3 messages of a batch of 2"):
        found.prefix(3)


SHAPES: dict[str, Callable[[list[bytes]], bytes]] = {
    "batch": lambda values: encode_record_batch(values, timestamps=list(range(len(values)))),
    "keyed batch": lambda values: encode_record_batch(values, keys=[b"key %d" % n for n in range(len(values))]),
    "headers": lambda values: encode_record_batch(
        values, headers={n: (("name", b"value %d" % n),) for n in range(len(values))}
    ),
    "set": lambda values: encode_message_set(values, timestamps=list(range(10**12, 10**12 + len(values)))),
    "one batch each": lambda values: b"".join(
        encode_record_batch([value], base_offset=n) for n, value in enumerate(values)
    ),
    "set with gaps": lambda values: b"".join(
        encode_message_set([value], base_offset=2 * n, timestamps=10**12 + n) for n, value in enumerate(values)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_counts_what_a_budget_needs(shape: str, either_codec: str) -> None:
    data = SHAPES[shape]([b"some value %d" % number * 6 for number in range(2000)])
    decode_records(data, 0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = decode_records(data, 0)
        assert len(found.payloads) == len(found.keys) == 2000  # objects, whatever the codec
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.75 * taken < found.memory_bytes < (1.5 if either_codec == "pure" else 2) * taken


def test_ends_where_another_leader_epoch_begins() -> None:
    data = b"".join(
        encode_record_batch([b"v"] * 2, base_offset=first, leader_epoch=epoch)
        for first, epoch in ((10, 3), (12, 3), (14, 5), (16, 5))
    )
    found = decode_records(data, 10)
    assert (found.offsets, found.next_offset, found.end) == ([10, 11, 12, 13], 14, BatchEnd.COMPLETE)
    assert found.log == LogId(leader_epoch=3)
    rest = decode_records(data, 14)  # as a broker answers that begins with an earlier batch
    assert (rest.offsets, rest.next_offset, rest.log) == ([14, 15, 16, 17], 18, LogId(leader_epoch=5))


def test_epoch_of_batches_before_the_requested_offset_has_no_effect() -> None:
    data = encode_record_batch([b"old"] * 3, base_offset=0, leader_epoch=1) + encode_record_batch(
        [b"new"], base_offset=3, leader_epoch=2
    )
    found = decode_records(data, 3)
    assert (found.payloads, found.log.leader_epoch) == ([b"new"], 2)


def test_messages_without_an_epoch_stand_in_the_set_of_those_that_have_one() -> None:
    data = encode_message_set([b"a", b"b"], magic=1, base_offset=0) + encode_record_batch(
        [b"c"], base_offset=2, leader_epoch=0
    )
    assert decode_records(data[: len(data) // 2], 0).log == LogId()
    found = decode_records(data, 0)
    assert (found.offsets, found.log) == ([0, 1, 2], LogId(leader_epoch=0))
