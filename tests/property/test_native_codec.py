"""The native codec agrees with the pure one: verdict by verdict, byte by byte, error by error."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.builtin.records import encode_pieces, encode_records
from consumerd.wire import compress
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    DecodeLimits,
    decode_batch,
    encode_message,
    encode_message_set,
)
from tests.fuzz.mangling import mangled
from tests.property.test_wire_compression import literal
from tests.property.test_wire_messages import OFFSETS, ROWS, Made, frame, joined
from tests.support.codecs import decode_by_both, judge_by_both

pytestmark = pytest.mark.usefixtures("native_codec")

LIMITS = st.builds(
    DecodeLimits,
    max_message_bytes=st.sampled_from([10, 60, 1 << 20]),
    max_decompressed_bytes=st.sampled_from([40, 200, 1 << 20]),
    max_depth=st.integers(0, 5),
    max_batch_bytes=st.sampled_from([1, 300, 1 << 20]),
    max_pieces=st.sampled_from([0, 2, 1000]),
)


@given(ROWS, st.binary(max_size=40), OFFSETS, LIMITS)
def test_on_good_messages_within_any_limits(made: list[Made], tail: bytes, offset: int, limits: DecodeLimits) -> None:
    decode_by_both(joined(made) + tail, offset, limits=limits)


@given(ROWS, st.binary(max_size=40), LIMITS)
def test_on_produced_sets(made: list[Made], tail: bytes, limits: DecodeLimits) -> None:
    judge_by_both(joined(made) + tail, limits)


@given(ROWS.filter(bool), st.integers(0, 1 << 32), LIMITS)
def test_on_mangled_produced_sets(made: list[Made], seed: int, limits: DecodeLimits) -> None:
    data = joined(made)
    judge_by_both(mangled(random.Random(seed), data, [data]), limits)


@given(st.lists(st.integers(0, 9000), max_size=60), st.sampled_from([0, 1]), st.integers(0, 1 << 32))
def test_on_long_produced_sets(sizes: list[int], magic: int, seed: int) -> None:
    rng = random.Random(seed)
    data = encode_message_set([bytes(size) for size in sizes], magic=magic)
    judge_by_both(data, DecodeLimits(max_message_bytes=rng.choice([0, 4000, 1 << 20])))
    judge_by_both(mangled(rng, data, [data]), DecodeLimits())


TEXTS = st.text(max_size=12).map(str.encode) | st.sampled_from([bytes(range(128)), "\u00e4\u20ac\U0001f600".encode()])
PAYLOADS = st.lists(TEXTS | st.binary(max_size=12) | st.sampled_from([b"\xed\xa0\x80", b"\xc0\x80", b""]), max_size=8)


@given(
    st.lists(st.tuples(PAYLOADS, st.sampled_from(list(Codec)), st.sampled_from([0, 1])), max_size=5),
    st.text(min_size=1, max_size=4),
    st.integers(0, 1 << 62),
    st.integers(0, 10),
    st.integers(1, 6),
    st.integers(1, 300),
)
def test_on_lines_of_json(
    native_codec: native.NativeCodec,
    sets: list[tuple[list[bytes], Codec, int]],
    topic: str,
    offset: int,
    first: int,
    lines: int,
    size: int,
) -> None:
    data = b"".join(encode_message_set(payloads, codec=codec, magic=magic) for payloads, codec, magic in sets)
    found = []
    for codec in (None, native_codec):
        with native.using(codec):
            content = decode_batch(data, offset)
        batch = Batch(TopicPartition(topic, 3, 7), content, first=min(first, len(content)))
        assert (batch.buffer is None) is (codec is None)
        found.append(list(encode_pieces(batch, lines, size)))
        assert b"".join(found[-1]) == b"".join(encode_records(batch))
    assert found[0] == found[1]


@given(ROWS.filter(bool), st.integers(0, 1 << 32), LIMITS)
def test_on_mangled_messages(made: list[Made], seed: int, limits: DecodeLimits) -> None:
    data = joined(made)
    decode_by_both(mangled(random.Random(seed), data, [data]), 0, limits=limits)


@given(st.binary(max_size=200), st.sampled_from(list(Codec)), OFFSETS)
def test_on_any_bytes(garbage: bytes, codec: Codec, offset: int) -> None:
    decode_by_both(garbage, offset)
    decode_by_both(frame(garbage, 1, codec), offset)


@settings(max_examples=300)
@given(
    st.lists(st.binary(max_size=60), max_size=30), st.sampled_from([Codec.GZIP, Codec.SNAPPY]), st.integers(0, 1 << 32)
)
def test_on_mangled_compressed_payloads_whose_crc_is_right(payloads: list[bytes], codec: Codec, seed: int) -> None:
    packed = compress(codec, encode_message_set(payloads))
    data = frame(mangled(random.Random(seed), packed, [packed]), 1, codec)
    decode_by_both(data + data, 0)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=80), st.lists(st.binary(max_size=20), max_size=4))
def test_on_any_deflate_stream_whose_trailer_is_right(stream: bytes, payloads: list[bytes]) -> None:
    """Whatever the bits of a stream come to, both take it for the same or for damaged."""
    inner = encode_message_set(payloads)
    stored = b"\x00" + struct.pack("<HH", len(inner), len(inner) ^ 0xFFFF) + inner
    for raw in (stored + stream, stored + b"\x03\x00" + stream, bytes([stream[0] & 0xFE]) + stream[1:] + stored):
        inflater = zlib.decompressobj(-15)
        try:
            out = inflater.decompress(raw, 1 << 16)
        except zlib.error:
            out = inner
        trailer = struct.pack("<II", zlib.crc32(out), len(out))
        used = len(raw) - len(inflater.unused_data) if inflater.eof else len(raw)
        decode_by_both(frame(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + raw[:used] + trailer, 1, 1), 0)
        decode_by_both(frame(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + raw + trailer, 1, 1), 0)


def member(data: bytes, **options: int) -> bytes:
    return gzip.compress(data, mtime=0, **options)


INNER = encode_message_set([b"one", b"two"])


@pytest.mark.parametrize(
    "payload",
    [
        member(INNER) + member(INNER),  # the same trailer twice
        member(INNER) + member(encode_message(b"three")),
        member(INNER) + b"\x1f\x8b\x08",
        member(INNER) + b"\x1f\x8b",
        member(INNER) + b"whatever follows",
        member(INNER) + member(INNER)[-8:],
        member(INNER)[:-8] + b"junk" + member(INNER)[-8:],
        member(INNER)[:-1],
        member(INNER)[:-4] + b"\xff\xff\xff\xff",
        member(INNER)[:-8] + bytes(4) + member(INNER)[-4:],
        member(INNER, compresslevel=0),
        member(b""),
        member(b"\0\0"),
        b"\x1f\x8b\x08\x08" + member(INNER)[4:10] + b"name\0" + member(INNER)[10:],
        b"\x1f\x8b\x08\x02" + member(INNER)[4:10] + b"\0\0" + member(INNER)[10:],
        b"\x1f\x8b\x08\xe0" + member(INNER)[4:],
        b"\x1f\x8b\x07" + member(INNER)[3:],
        member(INNER + b"\x1f\x8b\x08 in the middle", compresslevel=0),
        member(bytes(5 << 20)),
        b"",
    ],
)
def test_on_unusual_gzip_payloads(payload: bytes) -> None:
    for set_ in (encode_message(payload, codec=Codec.GZIP), encode_message(b"first")):
        data = set_ + encode_message(payload, codec=Codec.GZIP) + encode_message(b"last")
        decode_by_both(data, 5)
        decode_by_both(encode_message(member(data), codec=Codec.GZIP) + data, 5)


_CUT = encode_message_set([b"\xf0\x00\x01", b"\xf0\xf0\x01\x01", b"\x04\xf0\x00"])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1),
    st.integers(1, 3),
    st.integers(0, 4),
    st.booleans(),
)
def test_on_snappy_literals_with_lengths_of_any_form(
    forms: list[tuple[int, int]], last: int, extra: int, mangle: bool
) -> None:
    """The length of a literal may be within the last bytes of its block, though no compressor writes that."""
    position, block, end = 0, bytearray([len(_CUT)]), len(_CUT) - last
    for size, form in itertools.cycle(forms):
        piece = _CUT[position : min(position + size, end)]
        position += len(piece)
        block += literal(piece, form)
        if position == end:
            break
    block += literal(_CUT[end:], extra)
    if mangle:
        del block[-last]
    decode_by_both(frame(bytes(block), 1, Codec.SNAPPY), 0)
    assert len(decode_batch(frame(bytes(block), 1, Codec.SNAPPY), 0)) == (0 if mangle else 3)


HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def blocks(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


RAW = compress(Codec.SNAPPY, INNER)[20:]


@pytest.mark.parametrize(
    "payload",
    [
        RAW,
        HEADER,
        HEADER + blocks(RAW, RAW),
        HEADER + blocks(RAW) + HEADER + blocks(RAW),
        HEADER + blocks(RAW) + HEADER[:15],
        HEADER + blocks(RAW) + b"\0\0\0",
        HEADER + blocks(RAW, b""),
        HEADER + blocks(b"\0"),
        HEADER + blocks(RAW)[:-1],
        HEADER + struct.pack(">i", -1) + RAW,
        HEADER + blocks(*[b"\0"] * 1400),
        HEADER + blocks(b"\xff\xff\xff\xff\x0f" + RAW),
        HEADER + blocks(b"\xff\xff\xff\xff\xff\x0f" + RAW),
        HEADER + blocks(b"\x80\x00"),
        HEADER[:15],
        b"",
        b"\0",
    ],
)
def test_on_unusual_snappy_payloads(payload: bytes) -> None:
    for limits in (DecodeLimits(), DecodeLimits(max_pieces=0, max_decompressed_bytes=50)):
        data = encode_message(payload, codec=Codec.SNAPPY) + encode_message(b"last")
        decode_by_both(data, 5, limits=limits)
        decode_by_both(encode_message(member(data), codec=Codec.GZIP) + data, 5, limits=limits)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_on_many_steps_and_large_wrappers(codec: Codec) -> None:
    rng = random.Random(3)
    plain = encode_message_set([rng.randbytes(rng.randrange(2000)) for _ in range(6000)])
    wrappers = encode_message_set([b"x" * 500] * 2500, codec=codec)
    large = encode_message(compress(codec, encode_message(bytes(1000)) * 5000), codec=codec)
    batch = decode_by_both(plain + wrappers + plain + wrappers + large, 77)
    assert (len(batch), batch.end) == (17_000, BatchEnd.PARTIAL)
    assert len(decode_by_both(large + plain, 77)) == 5000


def test_on_recorded_logs(golden: Path) -> None:
    paths = [*(golden / "kafka-0.7.2" / "logs").rglob("*.kafka")]
    assert len(paths) > 30
    assert sum(len(decode_by_both(path.read_bytes(), 0)) for path in paths) > 1000


def test_on_recorded_answers(golden: Path) -> None:
    cases = json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_text())["cases"]
    assert len(cases) > 30
    for case in cases:
        for key in ("request_hex", "response_hex"):
            data = bytes.fromhex(case[key])
            for skipped in (0, 4, 6):
                decode_by_both(data[skipped:], 0)


@given(ROWS, st.binary(max_size=9), st.binary(max_size=9), st.sampled_from([bytes, bytearray]))
def test_on_parts_of_buffers(made: list[Made], before: bytes, after: bytes, kind: type[bytes | bytearray]) -> None:
    whole = joined(made)
    view = memoryview(kind(before + whole + after))[len(before) :]
    decode_by_both(view)
    decode_by_both(view[: len(whole)])
    decode_by_both(view[::2])
    decode_by_both(view.cast("b"))


def test_on_a_small_part_of_a_large_buffer() -> None:
    data = encode_message_set([b"tiny"])
    large = bytes(1 << 20) + data
    decode_by_both(memoryview(large)[1 << 20 :])
    assert len(decode_by_both(memoryview(large)[:1000])) == 0
