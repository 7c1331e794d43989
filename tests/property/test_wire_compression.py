"""Compression: there and back, and damaged bytes end in data or in the one declared error, within the limit."""

from __future__ import annotations

import gzip

import snappy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.wire import Codec, DecompressionError, compress, decompress

CODECS = st.sampled_from([Codec.GZIP, Codec.SNAPPY])
DATA = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 8000)),
)


def within(codec: Codec, data: bytes, limit: int) -> bytes | None:
    try:
        found = decompress(codec, data, limit=limit)
    except DecompressionError:
        return None
    assert len(found) <= limit
    return found


@given(CODECS, DATA)
def test_reads_what_it_wrote_within_exactly_the_size(codec: Codec, data: bytes) -> None:
    squeezed = compress(codec, data)
    assert decompress(codec, squeezed, limit=len(data)) == data
    if data:
        assert within(codec, squeezed, len(data) - 1) is None


@given(DATA)
def test_reads_other_writers(data: bytes) -> None:
    assert decompress(Codec.GZIP, gzip.compress(data, mtime=0), limit=len(data)) == data
    assert decompress(Codec.SNAPPY, bytes(snappy.compress(data)), limit=len(data)) == data


@given(st.lists(DATA, min_size=1, max_size=4))
def test_reads_concatenated_members_and_streams(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    for codec in (Codec.GZIP, Codec.SNAPPY):
        assert decompress(codec, b"".join(compress(codec, part) for part in parts), limit=len(whole)) == whole


@given(CODECS, DATA, st.data())
def test_rejects_truncated_data(codec: Codec, data: bytes, choice: st.DataObject) -> None:
    squeezed = compress(codec, data)
    cut = squeezed[: choice.draw(st.integers(0, len(squeezed) - 1))]
    found = within(codec, cut, len(data))
    # Framed snappy has no end mark: cut between blocks it is a shorter stream.
    assert found is None or (codec is Codec.SNAPPY and data.startswith(found))


@given(CODECS, DATA, st.data())
def test_flipped_bit_raises_or_changes_nothing_else(codec: Codec, data: bytes, choice: st.DataObject) -> None:
    squeezed = bytearray(compress(codec, data))
    squeezed[choice.draw(st.integers(0, len(squeezed) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    within(codec, bytes(squeezed), 2 * len(data) + 100)


@given(CODECS, st.binary(max_size=100), st.integers(0, 1000))
def test_reads_any_bytes_or_raises_declared_errors(codec: Codec, data: bytes, limit: int) -> None:
    within(codec, data, limit)
    within(codec, compress(codec, b"x")[:16] + data, limit)


def by_description(block: bytes) -> bytes | None:
    """Read a raw block of fewer than 128 bytes by Google's description of the format; None where it is damaged."""
    out, position = bytearray(), 1
    try:
        while position < len(block):
            tag = block[position]
            kind, size, position = tag & 3, (tag >> 2) + 1, position + 1
            if kind == 0:
                if size > 60:
                    extra = size - 60
                    size = int.from_bytes(block[position : position + extra], "little") + 1
                    position += extra
                if position + size > len(block):
                    return None
                out += block[position : position + size]
                position += size
                continue
            if kind == 1:
                size, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[position]
                position += 1
            else:
                extra = 2 * kind - 2 if kind == 2 else 4
                if position + extra > len(block):
                    return None
                offset = int.from_bytes(block[position : position + extra], "little")
                position += extra
            if not 0 < offset <= len(out):
                return None
            for _ in range(size):
                out.append(out[-offset])
    except IndexError:
        return None
    return bytes(out) if len(out) == block[0] else None


def literal(data: bytes, extra: int) -> bytes:
    """An element of the snappy format whose length is in its tag, or in `extra` bytes after it."""
    if not extra:
        return bytes([(len(data) - 1) << 2]) + data
    return bytes([(59 + extra) << 2]) + (len(data) - 1).to_bytes(extra, "little") + data


#: Bytes that are tags and lengths, too, so that a literal may look like the end of a block.
_TELLING = st.lists(st.sampled_from(b"\x00\x01\x02\x04\x08\xf0\xf4\xf8\xfc"), min_size=1, max_size=4).map(bytes)
ELEMENTS = st.lists(
    st.builds(literal, _TELLING, st.integers(0, 4))
    | st.sampled_from([b"\x01\x01", b"\x02\x01\x00", b"\xf0"])
    | _TELLING,
    max_size=5,
).map(b"".join)


@settings(max_examples=500)
@example(1, bytes.fromhex("f00001"))
@example(2, bytes.fromhex("f0010102"))
@example(1, bytes.fromhex("f4000001"))
@example(2, bytes.fromhex("04f00001"))  # the literal is f0 00, and half an element follows
@example(3, bytes.fromhex("0801f00001"))
@example(100, bytes.fromhex("ec") + bytes(60) + bytes.fromhex("9c") + bytes(39) + bytes.fromhex("f00001"))
@given(st.integers(0, 20), ELEMENTS)
def test_short_snappy_blocks_are_what_the_description_says(size: int, elements: bytes) -> None:
    block = bytes([size]) + elements
    expected = by_description(block)
    assert within(Codec.SNAPPY, block, 1000) == expected
    if expected is None:
        # Mostly because the drawn size is not that of the elements: try each.
        sizes = [bytes([right]) + elements for right in range(100)]
        right = [by_description(block) for block in sizes]
        assert [within(Codec.SNAPPY, block, 1000) for block in sizes] == right
