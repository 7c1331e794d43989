from __future__ import annotations

import pytest

from consumerd.wire import Codec, CorruptMessageError, compress, compression
from consumerd.wire.compression import DecompressionAllowance
from consumerd.wire.v07 import DecodeLimits, encode_message, encode_message_set, iter_outer, leaf_payloads
from consumerd.wire.v07 import unwrap as unwrap_module
from consumerd.wire.v07.outer import read_outer
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


def test_messages_read_by_themselves_make_pieces_of_the_same_size() -> None:
    payload = compress(Codec.GZIP, encode_message(b".", magic=0) * 120)
    pieces, _ = unwrap_pieces(Codec.GZIP, payload, piece_bytes=500)
    assert list(map(len, pieces)) == [50, 50, 20]


def test_wrappers_inside_make_no_empty_pieces() -> None:
    inner = encode_message_set([b"a", b"b"], codec=Codec.SNAPPY)
    data = inner + encode_message_set([], codec=Codec.SNAPPY) + inner + encode_message(b"cut off")[:-1]
    pieces, _ = unwrap_pieces(Codec.GZIP, compress(Codec.GZIP, data), limits=DecodeLimits(max_depth=2), piece_bytes=1)
    assert list(pieces) == [[b"a"], [b"b"]] * 2


def leaves_of(data: bytes, **limits: int) -> list[bytes]:
    (message,) = iter_outer(data, 100)
    return leaf_payloads(message, limits=DecodeLimits(**limits))


def test_leaf_of_a_plain_message_is_its_payload() -> None:
    assert leaves_of(encode_message(b"hello")) == [b"hello"]
    assert leaves_of(encode_message(b"", magic=0)) == [b""]


def test_leaves_of_a_wrapper_are_those_of_its_set() -> None:
    inner = encode_message(b"a") + encode_message_set([b"b", b"c"], codec=Codec.SNAPPY)
    data = encode_message(compress(Codec.GZIP, inner), codec=Codec.GZIP)
    assert leaves_of(data) == [b"a", b"b", b"c"]
    assert leaves_of(data, max_depth=2) == [b"a", b"b", b"c"]
    with pytest.raises(CorruptMessageError, match="nested deeper than 1"):
        leaves_of(data, max_depth=1)


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (6, 0, "the message at offset 100 has a CRC of 3610a686 where its header says 0010a686"),
        (5, 3, "the message at offset 100 has compression codec 3"),
        (4, 2, "the message at offset 100 has magic 2"),
    ],
)
def test_message_that_is_not_valid_has_no_leaves(at: int, value: int, problem: str) -> None:
    data = bytearray(encode_message(b"hello"))
    data[at] = value
    with pytest.raises(CorruptMessageError, match=problem):
        leaves_of(bytes(data))


def test_only_the_last_of_a_row_of_inner_messages_is_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def look(data: bytes, position: int, offset: int, max_payload: int) -> object:
        looked.append(position)
        return read_outer(data, position, offset, max_payload)

    monkeypatch.setattr(unwrap_module, "read_outer", look)
    payload = compress(Codec.GZIP, encode_message(b".") * 1000)
    assert unwrap(Codec.GZIP, payload) == ([b"."] * 1000, 11_000)
    assert looked == [10_989]
    looked.clear()
    pieces, _ = unwrap_pieces(Codec.GZIP, payload, piece_bytes=1100)
    assert looked == list(range(1089, 11_000, 1100))
    assert list(map(len, pieces)) == [100] * 10


@pytest.mark.parametrize(("piece_bytes", "pieces", "opened"), [(1 << 20, 1, 1), (550, 2, 2), (110, 10, 2)])
def test_opens_a_set_of_several_pieces_twice(
    piece_bytes: int, pieces: int, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to check it, once for what is yielded: so no more than a piece is in memory."""
    calls: list[int] = []

    def decompress_steps(codec: Codec, data: bytes, allowance: DecompressionAllowance) -> object:
        calls.append(len(data))
        return compression.decompress_steps(codec, data, allowance)

    monkeypatch.setattr(unwrap_module, "decompress_steps", decompress_steps)
    payload = compress(Codec.GZIP, encode_message(b".") * 100)
    found, expanded = unwrap_pieces(Codec.GZIP, payload, limits=DecodeLimits(max_depth=1), piece_bytes=piece_bytes)
    parts = list(found)
    assert (len(parts), sum(map(len, parts)), expanded) == (pieces, 100, 1100)
    assert len(calls) == opened
