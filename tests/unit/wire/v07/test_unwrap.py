from __future__ import annotations

import pytest

from consumerd.wire import Codec, CorruptMessageError, compress
from consumerd.wire.v07 import DecodeLimits, encode_message, encode_message_set
from consumerd.wire.v07.unwrap import unwrap, unwrap_pieces

LEAVES = [b"%d" % number for number in range(5000)]


def set_of(*, magic: int = 1) -> bytes:
    return encode_message_set(LEAVES, magic=magic)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("piece_bytes", [1, 100, 4096, 1 << 20])
def test_pieces_hold_the_same_leaves_as_a_batch(codec: Codec, magic: int, piece_bytes: int) -> None:
    payload = compress(codec, set_of(magic=magic))
    leaves, expanded = unwrap(codec, payload)
    pieces, same = unwrap_pieces(codec, payload, piece_bytes=piece_bytes)
    found = list(pieces)
    assert [leaf for piece in found for leaf in piece] == leaves == LEAVES
    assert same == expanded
    assert all(found)
    assert max(map(len, found)) <= 2 * piece_bytes // 9 + 2


def test_splits_nested_wrappers_into_pieces() -> None:
    inner = encode_message_set([b"a", b"b"], codec=Codec.SNAPPY)
    payload = compress(Codec.GZIP, encode_message(b"first") + inner + encode_message(b"last"))
    pieces, expanded = unwrap_pieces(Codec.GZIP, payload, piece_bytes=1 << 20)
    assert [leaf for piece in pieces for leaf in piece] == [b"first", b"a", b"b", b"last"]
    assert expanded == unwrap(Codec.GZIP, payload)[1]


def test_empty_wrapper_is_one_empty_piece() -> None:
    pieces, expanded = unwrap_pieces(Codec.GZIP, compress(Codec.GZIP, b""), piece_bytes=10)
    assert (list(pieces), expanded) == ([[]], 0)


def test_bad_end_makes_the_pieces_before_it_corrupt() -> None:
    data = bytearray(set_of())
    data[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="CRC"):
        unwrap_pieces(Codec.GZIP, compress(Codec.GZIP, bytes(data)), piece_bytes=100)


def test_enforces_limits_on_pieces() -> None:
    payload = compress(Codec.GZIP, set_of())
    with pytest.raises(CorruptMessageError, match="limit of 100 bytes"):
        unwrap_pieces(Codec.GZIP, payload, limits=DecodeLimits(max_decompressed_bytes=100), piece_bytes=10)
    nested = compress(Codec.GZIP, encode_message_set([b"x"], codec=Codec.GZIP))
    with pytest.raises(CorruptMessageError, match="nested deeper than 1"):
        unwrap_pieces(Codec.GZIP, nested, limits=DecodeLimits(max_depth=1), piece_bytes=10)
