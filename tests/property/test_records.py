"""Record data of any shape, against a model that knows from the making what must come out."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import cramjam
import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.wire.v08.records import (
    BatchEnd,
    DecodeLimits,
    Headers,
    Record,
    RecordCodec,
    RecordSet,
    TimestampType,
    decode_records,
    encode_message_set,
    encode_record_batch,
)

pytestmark = pytest.mark.usefixtures("either_codec")

LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)
NOW = 1_700_000_000_000


def crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    raw = value * 2 if value >= 0 else -value * 2 - 1
    digits = [raw & 0x7F]
    while raw := raw >> 7:
        digits[-1] |= 0x80
        digits.append(raw & 0x7F)
    return bytes(digits)


def nullable(data: bytes | None, size: Callable[[int], bytes]) -> bytes:
    return size(-1) if data is None else size(len(data)) + data


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


SQUEEZE: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: gzip.compress(data, mtime=0),
    2: lambda data: bytes(snappy.compress(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


@dataclass
class Leaf:
    """The fields from which one record was made."""

    offset: int
    key: bytes | None
    value: bytes | None
    time: int
    headers: Headers = ()


@dataclass
class Made:
    """A message or batch as made: its bytes, the records in it, and the offset after it."""

    data: bytes
    after: int
    kind: TimestampType
    leaves: list[Leaf] = field(default_factory=list)


def old_message(leaf: Leaf, magic: int, attributes: int) -> bytes:
    stamp = struct.pack(">q", leaf.time) if magic else b""
    body = bytes((magic, attributes)) + stamp + nullable(leaf.key, int32) + nullable(leaf.value, int32)
    return struct.pack(">qiI", leaf.offset, len(body) + 4, zlib.crc32(body)) + body


def new_record(leaf: Leaf, base_offset: int, base_time: int) -> bytes:
    body = b"\0" + varint(leaf.time - base_time) + varint(leaf.offset - base_offset)
    body += nullable(leaf.key, varint) + nullable(leaf.value, varint) + varint(len(leaf.headers))
    for name, value in leaf.headers:
        body += nullable(name.encode(), varint) + nullable(value, varint)
    return varint(len(body)) + body


def new_batch(leaves: list[Leaf], base: int, last: int, codec: int, flags: int, times: tuple[int, int]) -> bytes:
    records = b"".join(new_record(leaf, base, times[0]) for leaf in leaves)
    body = struct.pack(">hiqqqhii", codec | flags, last - base, *times, 7, 0, 3, len(leaves)) + SQUEEZE[codec](records)
    return struct.pack(">qiibI", base, len(body) + 9, 0, 2, crc32c(body)) + body


SIZES = st.sampled_from([0, 1, 2, 50, 60, 62, 63, 64, 65, 127, 128, 300])
VALUES = st.one_of(st.none(), SIZES.map(bytes), st.binary(max_size=20))
KEYS = st.one_of(st.none(), st.none(), st.binary(max_size=70))
GAPS = st.sampled_from([0] * 12 + [1, 2, 63, 64, 9000])
TIMES = st.one_of(st.integers(0, 70), st.integers(-9000, 9000), st.integers(-NOW, 1 << 45), st.just(0))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=2).map(tuple)


@st.composite
def leaves(draw: st.DrawFn, start: int, *, least: int, plain: bool) -> list[Leaf]:
    """Records from offset `start` on; `plain`: such as make long rows."""
    count = draw(st.integers(least, 12))
    gaps = [0] * count if plain else draw(st.lists(GAPS, min_size=count, max_size=count))
    offsets = accumulate(gaps, lambda at, gap: at + 1 + gap, initial=start + draw(GAPS))
    keyed = plain and draw(st.booleans())
    found = []
    for offset, _ in zip(offsets, range(count), strict=False):
        key = draw(st.binary(max_size=9)) if keyed else None if plain else draw(KEYS)
        value = draw(st.binary(max_size=9)) if plain else draw(VALUES)
        headers = () if plain or draw(st.booleans()) else draw(HEADERS)
        found.append(Leaf(offset, key, value, NOW + draw(TIMES), headers))
    return found


@st.composite
def batches(draw: st.DrawFn, start: int) -> Made:
    inside = draw(leaves(start, least=0, plain=draw(st.booleans())))
    codec, append = draw(st.integers(0, 4)), draw(st.booleans())
    base = draw(st.integers(start, inside[0].offset)) if inside else start
    last = draw(st.integers(0, 3)) + (inside[-1].offset if inside else start)
    times = NOW, NOW + 5
    kind = TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME
    data = new_batch(inside, base, last, codec, 8 if append else 0, times)
    if append:
        inside = [Leaf(leaf.offset, leaf.key, leaf.value, times[1], leaf.headers) for leaf in inside]
    return Made(data, last + 1, kind, inside)


@st.composite
def controls(draw: st.DrawFn, start: int) -> Made:
    marker = Leaf(start, struct.pack(">hh", 0, draw(st.integers(0, 1))), b"\0" * 6, NOW)
    return Made(new_batch([marker], start, start, 0, 0x30, (NOW, NOW)), start + 1, TimestampType.CREATE_TIME)


@st.composite
def messages(draw: st.DrawFn, start: int) -> Made:
    """A row of plain messages of one magic, or one wrapper."""
    magic, codec, append = draw(st.integers(0, 1)), draw(st.integers(0, 3)), draw(st.booleans())
    inside = draw(leaves(start, least=1, plain=draw(st.booleans())))
    for leaf in inside:
        leaf.headers = ()
        leaf.time = leaf.time if magic else -1
    kind = TimestampType(-1 if magic == 0 else int(append))
    flags = 8 if magic and append else 0
    after = inside[-1].offset + 1
    if codec == 0:
        return Made(b"".join(old_message(leaf, magic, flags) for leaf in inside), after, kind, inside)
    base = inside[0].offset if magic and draw(st.booleans()) else 0
    shifted = [Leaf(leaf.offset - base, leaf.key, leaf.value, leaf.time) for leaf in inside] if magic else inside
    squeezed = SQUEEZE[codec](b"".join(old_message(leaf, magic, 0) for leaf in shifted))
    wrapper = Leaf(after - 1, None, squeezed, NOW + 1 if magic else -1)
    if flags:
        inside = [Leaf(leaf.offset, leaf.key, leaf.value, NOW + 1) for leaf in inside]
    return Made(old_message(wrapper, magic, flags | codec), after, kind, inside)


@st.composite
def fetches(draw: st.DrawFn) -> tuple[int, list[Made]]:
    """The start of a log, and its content."""
    start = at = draw(st.sampled_from([0, 5, 1 << 40]))
    found = []
    for _ in range(draw(st.integers(0, 5))):
        made = draw(st.one_of(batches(at), messages(at), controls(at)))
        found.append(made)
        at = made.after
    return start, found


Row: TypeAlias = "tuple[int, bytes | None, bytes | None, int, TimestampType, Headers]"


def expected(made: list[Made], asked: int) -> list[Row]:
    return [
        (leaf.offset, leaf.value, leaf.key, leaf.time, one.kind, leaf.headers)
        for one in made
        for leaf in one.leaves
        if leaf.offset >= asked
    ]


def seen(found: RecordSet) -> list[Row]:
    headers = [found.headers.get(number, ()) for number in range(len(found))]
    kinds = [record.timestamp_type for record in found.messages()]
    return list(zip(found.offsets, found.payloads, found.keys, found.timestamps, kinds, headers, strict=True))


@given(fetches(), st.data())
def test_reads_the_records_it_wrote(fetch: tuple[int, list[Made]], data: st.DataObject) -> None:
    start, made = fetch
    end = made[-1].after if made else start
    asked = data.draw(st.integers(start, end))
    found = decode_records(b"".join(one.data for one in made), asked, limits=LIMITS)
    assert (found.end, found.problem) == (BatchEnd.COMPLETE, None)
    assert found.next_offset == end
    assert seen(found) == expected(made, asked)
    records = list(found.messages())
    assert [(r.offset, r.payload, r.key, r.timestamp, r.timestamp_type, r.headers) for r in records] == seen(found)
    assert [r.next_offset for r in records] == [found.prefix(count) for count in range(1, len(found) + 1)]
    assert all(isinstance(record, Record) and record.index == 0 for record in records)
    assert found.memory_bytes >= sum(len(value or b"") + len(key or b"") for _, value, key, *_ in seen(found))


@given(fetches(), st.data())
def test_truncation_leaves_whole_batches(fetch: tuple[int, list[Made]], data: st.DataObject) -> None:
    start, made = fetch
    whole = b"".join(one.data for one in made)
    cut = data.draw(st.integers(0, len(whole)))
    found = decode_records(whole[:cut], start, limits=LIMITS)
    assert found.end is not BatchEnd.CORRUPT, found.problem
    assert seen(found) == expected(made, start)[: len(found)]
    if found.end is BatchEnd.COMPLETE:
        return
    if found.needed is not None:
        # With that many bytes from there on the next one is whole.
        rest = b"".join(one.data for one in made)
        again = decode_records(rest[: cut + found.needed], start, limits=LIMITS)
        assert again.next_offset > found.next_offset


COLUMNS = st.lists(st.tuples(VALUES, KEYS, TIMES.map(NOW.__add__)), min_size=1, max_size=80)


@given(
    COLUMNS,
    st.sampled_from([RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4]),
    st.integers(0, 1),
)
def test_reads_the_message_sets_it_wrote(rows: list[tuple[bytes, bytes, int]], codec: RecordCodec, magic: int) -> None:
    values, keys, times = (list(column) for column in zip(*rows, strict=True))
    data = encode_message_set(values, magic=magic, codec=codec, keys=keys, timestamps=times, base_offset=9)
    found = decode_records(data, 9, limits=LIMITS)
    assert (found.payloads, found.keys) == (values, keys)
    assert found.timestamps == (times if magic else [-1] * len(values))
    assert (found.offsets, found.next_offset) == (list(range(9, 9 + len(values))), 9 + len(values))


@settings(max_examples=50)
@given(COLUMNS, st.sampled_from(RecordCodec), st.dictionaries(st.integers(0, 79), HEADERS, max_size=5))
def test_reads_the_record_batches_it_wrote(
    rows: list[tuple[bytes, bytes, int]], codec: RecordCodec, headers: dict[int, Headers]
) -> None:
    values, keys, times = (list(column) for column in zip(*rows, strict=True))
    headers = {number: found for number, found in headers.items() if number < len(values) and found}
    data = encode_record_batch(values, codec=codec, keys=keys, timestamps=times, headers=headers, base_offset=9)
    found = decode_records(data, 9, limits=LIMITS)
    assert (found.payloads, found.keys, found.timestamps, found.headers) == (values, keys, times, headers)
    assert (found.offsets, found.next_offset) == (list(range(9, 9 + len(values))), 9 + len(values))


@given(COLUMNS, st.dictionaries(st.integers(0, 79), HEADERS, max_size=5))
def test_writes_record_batches_as_described(rows: list[tuple[bytes, bytes, int]], headers: dict[int, Headers]) -> None:
    values, keys, times = (list(column) for column in zip(*rows, strict=True))
    headers = {number: found for number, found in headers.items() if number < len(values)}
    ours = encode_record_batch(
        values, keys=keys, timestamps=times, headers=headers, base_offset=9, leader_epoch=0, producer_id=7,
        producer_epoch=0, base_sequence=3,
    )  # fmt: skip
    made = [
        Leaf(9 + number, key, value, time, headers.get(number, ()))
        for number, (value, key, time) in enumerate(zip(values, keys, times, strict=True))
    ]
    assert ours == new_batch(made, 9, 8 + len(made), 0, 0, (times[0], max(times)))


@settings(max_examples=20)
@given(st.integers(0, 8300), st.integers(1, 200), st.sampled_from([None, b"k", b"k" * 40]), st.booleans())
def test_long_batches_keep_their_offsets(skipped: int, count: int, key: bytes | None, even: bool) -> None:
    """Offset deltas of one, two and three bytes, and where they change."""
    numbers = [0, *range(skipped + 1, skipped + 1 + count)]
    made = [Leaf(100 + n, key, b"v%d" % n, NOW + n * (1 if even else 70)) for n in numbers]
    data = new_batch(made, 100, made[-1].offset, 0, 0, (NOW, NOW))
    found = decode_records(data, 0, limits=LIMITS)
    assert (found.end, found.problem) == (BatchEnd.COMPLETE, None)
    assert seen(found) == expected([Made(data, 0, TimestampType.CREATE_TIME, made)], 0)
