"""The native codec agrees with the pure one on the records of 0.8 and later: in values, verdicts and words."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import cramjam
import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.wire.lz4 import header_checksum, lz4_compress
from consumerd.wire.v08.records import BatchEnd, DecodeLimits, RecordCodec, encode_message_set, encode_record_batch
from tests.fuzz.mangling import mangled
from tests.fuzz.mending import signed_records
from tests.golden import test_record_sets as recorded
from tests.property.test_records import Leaf, Made, fetches, new_batch, old_message, varint
from tests.support.codecs import decode_records_by_both

pytestmark = pytest.mark.usefixtures("native_codec")

LIMITS = st.builds(
    DecodeLimits,
    max_message_bytes=st.sampled_from([60, 300, 1 << 20]),
    max_decompressed_bytes=st.sampled_from([40, 200, 1 << 20]),
    max_batch_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
ABORTED = st.lists(st.tuples(st.sampled_from([7, 8]), st.sampled_from([0, 5, 12, 1 << 40])), max_size=3)


def joined(made: list[Made]) -> bytes:
    return b"".join(one.data for one in made)


@settings(max_examples=40)
@given(fetches(), st.integers(0, 40), st.binary(max_size=20), LIMITS, ABORTED)
def test_on_good_records_within_any_limits(
    fetch: tuple[int, list[Made]], skipped: int, tail: bytes, limits: DecodeLimits, aborted: list[tuple[int, int]]
) -> None:
    start, made = fetch
    decode_records_by_both(joined(made) + tail, start + skipped, limits=limits, aborted=aborted)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=6), st.integers(0, 12))
def test_on_batches_of_several_leader_epochs(batches: list[tuple[int, int]], asked: int) -> None:
    data, first = b"", 0
    for count, epoch in batches:
        data += encode_record_batch([b"v"] * count, base_offset=first, leader_epoch=epoch)
        first += count
    found = decode_records_by_both(data, min(asked, first - 1))
    epochs = [epoch for count, epoch in batches for _ in range(count)]
    assert {epochs[offset] for offset in found.offsets} == {found.log.leader_epoch}
    assert found.next_offset == first or epochs[found.next_offset] != found.log.leader_epoch


@given(fetches(), st.integers(0, 1 << 32), LIMITS)
def test_on_mangled_records(fetch: tuple[int, list[Made]], seed: int, limits: DecodeLimits) -> None:
    start, made = fetch
    data = joined(made)
    decode_records_by_both(mangled(random.Random(seed), data, [data]), start, limits=limits)


@settings(max_examples=40)
@given(fetches(), st.integers(0, 1 << 32))
def test_on_every_cut(fetch: tuple[int, list[Made]], seed: int) -> None:
    start, made = fetch
    data, rng = joined(made), random.Random(seed)
    for _ in range(8):
        decode_records_by_both(data[: rng.randrange(len(data) + 1)], start)


@settings(max_examples=100)
@given(fetches(), st.integers(0, 1 << 32))
def test_on_mangled_records_whose_crc_is_right(fetch: tuple[int, list[Made]], seed: int) -> None:
    start, made = fetch
    rng = random.Random(seed)
    pieces = [signed_records(mangled(rng, one.data, [one.data])) if rng.random() < 0.5 else one.data for one in made]
    decode_records_by_both(b"".join(pieces), start, aborted=[(7, start)])


@pytest.mark.parametrize("name", recorded.FILES)
def test_on_recorded_fetches(golden: Path, name: str) -> None:
    found = [*recorded.fetched(golden, name)]
    assert found
    for one in found:
        for data in (one.data, one.data[: len(one.data) // 2], one.data[: len(one.data) - 1]):
            for skipped in (0, 1, 3):
                decode_records_by_both(data, one.offset + skipped)


def wrapped(payload: bytes, codec: RecordCodec, magic: int) -> bytes:
    """Something compressed, in a batch that says it has three records, or in a wrapper, with the right CRC."""
    if magic == 2:
        body = struct.pack(">hiqqqhii", codec, 2, 5, 9, -1, -1, -1, 3) + payload
        return struct.pack(">qiibI", 10, len(body) + 9, 0, 2, crc32c(body)) + body
    return old_message(Leaf(12, None, payload, 5), magic, codec)


def inner(magic: int, size: int = 3) -> bytes:
    """Three records, or messages, as they stand in a batch or wrapper."""
    values = [b"v" * size, b"", bytes(range(size % 256)) * 9]
    if magic == 2:
        return encode_record_batch(values, base_offset=10)[61:]
    return encode_message_set(values, magic=magic, base_offset=10 if magic == 0 else 0)


SQUEEZED = [codec for codec in RecordCodec if codec]


@settings(max_examples=120)
@given(
    st.sampled_from(SQUEEZED), st.integers(0, 2), st.sampled_from([3, 90, 3000]), st.integers(0, 1 << 32), st.booleans()
)
def test_on_mangled_compressed_data(codec: RecordCodec, magic: int, size: int, seed: int, changed: bool) -> None:
    rng, plain = random.Random(seed), inner(magic, size)
    if codec is RecordCodec.GZIP:
        packed = gzip.compress(plain, mtime=0)
    elif codec is RecordCodec.SNAPPY:
        packed = bytes(cramjam.snappy.compress_raw(plain))
    elif codec is RecordCodec.LZ4:
        packed = rng.choice([lambda data: bytes(cramjam.lz4.compress(data)), lz4_compress])(plain)
    else:
        packed = bytes(cramjam.zstd.compress(plain))
    data = wrapped(mangled(rng, packed, [packed, plain]) if changed else packed, codec, magic)
    found = decode_records_by_both(data + encode_record_batch([b"last"], base_offset=13), 0)
    if not changed and (codec is not RecordCodec.ZSTD or magic == 2):
        assert (len(found), found.end) == (4, BatchEnd.COMPLETE)


def lz4_frame(*blocks: tuple[bytes, bool], flags: int = 0x60, tail: bytes = b"") -> bytes:
    """A frame of blocks, each with whether it is kept as it is."""
    head = bytes((flags, 0x40))
    found = b"\x04\x22\x4d\x18" + head + bytes((header_checksum(head),))
    for block, raw in blocks:
        found += struct.pack("<I", len(block) | (1 << 31 if raw else 0)) + block
    return found + bytes(4) + tail


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00",
        b"\x10a",
        b"\x10",
        b"\x1fa\x01\x00\x00\x50zzzzz",  # a match far from the end
        b"\x10a\x01\x00\x50zzzzz",  # one of four bytes, twelve bytes before the end at most
        b"\x10a\x01\x00\x40zzzz",  # too few literals at the end
        b"\x10a\x01\x00\x00",
        b"\x10a\x01\x00",
        b"\x10a\x00\x00\xc0" + b"z" * 12,  # an offset of nothing
        b"\x10a\x02\x00\xc0" + b"z" * 12,  # an offset before the beginning
        b"\x10a\x01\x00\xc0" + b"z" * 12,
        b"\x1fa\x01\x00" + b"\xff" * 300 + b"\x00\xc0" + b"z" * 12,  # more than a block may hold
        b"\xf0" + b"\xff" * 3,
    ],
)
def test_on_unusual_lz4_blocks(block: bytes) -> None:
    for magic in (0, 1, 2):
        rest = (inner(magic), True)
        for frame in (lz4_frame((block, False), rest), lz4_frame(rest, (block, False)), lz4_frame((block, False))):
            decode_records_by_both(wrapped(frame, RecordCodec.LZ4, magic), 0)


@pytest.mark.parametrize("flags", range(0x40, 0x80))
def test_on_lz4_frames_with_any_flags(flags: int) -> None:
    for tail in (b"", bytes(4), b"more"):
        decode_records_by_both(wrapped(lz4_frame((inner(2), True), flags=flags, tail=tail), RecordCodec.LZ4, 2), 0)


@pytest.mark.parametrize("large", [70_000, 300_000])
def test_on_large_lz4_and_zstd_frames(large: int) -> None:
    value = random.Random(large).randbytes(large // 2) + bytes(large // 2)
    body = encode_record_batch([value, b"", value], base_offset=10)[61:]
    for packed, codec in (
        (bytes(cramjam.lz4.compress(body)), RecordCodec.LZ4),
        (lz4_compress(body), RecordCodec.LZ4),
        (bytes(cramjam.zstd.compress(body)), RecordCodec.ZSTD),
        (bytes(cramjam.zstd.compress(body[:9])) + bytes(cramjam.zstd.compress(body[9:])), RecordCodec.ZSTD),
    ):
        data = wrapped(packed, codec, 2)
        assert decode_records_by_both(data, 0).payloads == [value, b"", value]
        for limit in (len(body) - 1, len(body), 4 * len(body)):
            decode_records_by_both(data, 0, limits=DecodeLimits(max_decompressed_bytes=limit))


@given(st.binary(max_size=40), st.integers(0, 40))
def test_on_any_zstd_frame_header(head: bytes, cut: int) -> None:
    packed = bytes(cramjam.zstd.compress(inner(2)))
    for payload in (packed[:4] + head + packed[5:], packed[:4] + head, packed[: cut + 4] + head, packed + packed[:cut]):
        decode_records_by_both(wrapped(payload, RecordCodec.ZSTD, 2), 0)


@given(st.lists(st.binary(max_size=12), max_size=4), st.integers(0, 4))
def test_on_any_bytes_as_records(records: list[bytes], count: int) -> None:
    body = b"".join(varint(len(record)) + record for record in records)
    fields = struct.pack(">hiqqqhii", 0, 8, 1 << 62, -(1 << 62), -1, -1, -1, count) + body
    decode_records_by_both(struct.pack(">qiibI", (1 << 62) - 3, len(fields) + 9, 0, 2, crc32c(fields)) + fields)


@pytest.mark.parametrize(
    "number", [b"\x80\x00", b"\x8e\x80\x80\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x1f", b"\x80" * 12]
)
@pytest.mark.parametrize("place", range(6))
def test_on_numbers_in_more_bytes_than_they_take(number: bytes, place: int) -> None:
    fields = [b"\x00", b"\x00", b"\x00", b"\x01", b"\x01", b"\x00"]  # attributes, time, offset, key, value, headers
    fields[place] = number
    record = b"".join(fields)
    for body in (varint(len(record)) + record, varint(len(record))[:-1] + bytes((0x80 | len(record) << 1, 0)) + record):
        head = struct.pack(">hiqqqhii", 0, 1 << 30, 5, 9, -1, -1, -1, 1)
        for codec in (0, 1):
            content = struct.pack(">h", codec) + head[2:] + (gzip.compress(body) if codec else body)
            decode_records_by_both(struct.pack(">qiibI", 3, len(content) + 9, 0, 2, crc32c(content)) + content)


OFFSETS = st.sampled_from([-(1 << 63), -1, 0, 1, 5, 6, (1 << 63) - 2, (1 << 63) - 1])


@given(st.lists(st.tuples(OFFSETS, OFFSETS), max_size=4), OFFSETS, st.integers(0, 1), st.sampled_from([0, 1, 9]))
def test_on_offsets_and_times_at_their_bounds(
    rows: list[tuple[int, int]], outer: int, magic: int, attributes: int
) -> None:
    inside = b"".join(old_message(Leaf(offset, None, b"v", time), magic, 0) for offset, time in rows)
    wrapper = Leaf(outer, b"key", gzip.compress(inside), outer) if attributes else Leaf(outer, None, None, outer)
    message = old_message(wrapper, magic, attributes)
    for data in (message, inside + message, message + inside, inside + bytes(20)):
        decode_records_by_both(data, 0)
        decode_records_by_both(data, 6)
    leaves = [Leaf(5 + (offset & 3), None, b"v", time) for offset, time in rows if abs(time) < 1 << 62]
    decode_records_by_both(new_batch(leaves, 5, 9, attributes & 1, attributes & 8, ((1 << 63) - 1, -5)), 6)


@pytest.mark.parametrize("end", [0, 1])
def test_on_transactions(end: int) -> None:
    marker = struct.pack(">hh", 0, end)
    control = new_batch([Leaf(12, marker, b"", 0)], 12, 12, 0, 0x30, (0, 0))
    first = new_batch([Leaf(10, None, b"a", 0), Leaf(11, None, b"b", 0)], 10, 11, 0, 0x10, (0, 0))
    later = new_batch([Leaf(13, None, b"c", 0)], 13, 13, 0, 0x10, (0, 0))
    plain = new_batch([Leaf(14, None, b"d", 0)], 14, 14, 0, 0, (0, 0))
    second = new_batch([Leaf(15, None, b"e", 0)], 15, 15, 0, 0x10, (0, 0))
    data = first + control + later + plain + second
    for aborted in ([], [(7, 10)], [(8, 10)], [(7, 10), (7, 15)], [(7, 12)], [(7, 16)], [(7, 10), (8, 11), (7, 10)]):
        decode_records_by_both(data, 10, aborted=aborted)
    kept = [b"c", b"d", b"e"] if end == 0 else [b"d"]
    assert decode_records_by_both(data, 10, aborted=[(7, 10)]).payloads == kept


@pytest.mark.parametrize("magic", [0, 1])
def test_on_sets_with_everything_in_them(magic: int) -> None:
    rng = random.Random(magic)
    pieces, offset = list[bytes](), 0
    for _ in range(300):
        values = [rng.choice([None, b"", rng.randbytes(rng.randrange(300))]) for _ in range(rng.randrange(1, 9))]
        keys = [rng.choice([None, b"key"]) for _ in values]
        codec = rng.choice([RecordCodec.NONE, RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4])
        size = len(values)
        pieces.append(encode_message_set(values, magic=magic, codec=codec, keys=keys, base_offset=offset))
        offset += size + rng.choice([0, 0, 3])
    found = decode_records_by_both(b"".join(pieces), 100)
    assert (found.end, found[-1:]) == (BatchEnd.COMPLETE, found.payloads[-1:])


@settings(max_examples=40)
@given(fetches(), st.binary(max_size=9), st.sampled_from([bytes, bytearray]))
def test_on_parts_of_buffers(fetch: tuple[int, list[Made]], around: bytes, kind: type[bytes | bytearray]) -> None:
    start, made = fetch
    view = memoryview(kind(around + joined(made) + around))[len(around) :]
    decode_records_by_both(view, start)
    decode_records_by_both(view[::2], start)
    decode_records_by_both(view.cast("b"), start)


def test_on_a_small_part_of_a_large_buffer() -> None:
    large = bytes(1 << 20) + encode_record_batch([b"tiny", None], keys=[b"k", None], headers={1: (("n", b"v"),)})
    found = decode_records_by_both(memoryview(large)[1 << 20 :])
    assert found.memory_bytes < 1000
