"""Compression: there and back, and damaged bytes end in data or in the one declared error, within the limit."""

from __future__ import annotations

import gzip

import snappy
from hypothesis import given
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
