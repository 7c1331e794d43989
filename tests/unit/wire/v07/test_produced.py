from __future__ import annotations

import gzip

import pytest

from consumerd.wire import CorruptMessageError, DecompressionError, OversizeMessageError
from consumerd.wire.v07 import CheckedSet, Codec, DecodeLimits, check_produced_set, encode_message, encode_message_set

pytestmark = pytest.mark.usefixtures("either_codec")

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
OLD = bytes.fromhex("0000000a 00 3610a686") + b"hello"
BAD_CRC = bytes.fromhex("0000000b 01 00 00000000") + b"hello"
LIMITS = DecodeLimits(max_message_bytes=100)


def wrapper(inner: bytes) -> bytes:
    return encode_message(gzip.compress(inner, mtime=0), codec=Codec.GZIP)


def check(data: bytes) -> CheckedSet:
    return check_produced_set(data, limits=LIMITS)


def test_checks_plain_messages() -> None:
    assert check(HELLO) == CheckedSet(15, 1, 1)
    assert check(HELLO + OLD + HELLO + encode_message(b"")) == CheckedSet(54, 4, 4)


def test_counts_leaves_inside_wrappers() -> None:
    one, nested = wrapper(HELLO * 3), wrapper(HELLO + wrapper(OLD * 2))
    data = HELLO + one + nested + OLD
    assert check(data) == CheckedSet(len(data), 4, 1 + 3 + 3 + 1)


def test_empty_wrapper_is_a_message_without_leaves() -> None:
    assert check(wrapper(b"")) == CheckedSet(30, 1, 0)


@pytest.mark.parametrize("stray", [b"", b"\0", b"\0\0\0"])
def test_accepts_an_empty_set(stray: bytes) -> None:
    assert check(stray) == CheckedSet(0, 0, 0)


def test_drops_a_partial_message_at_the_end() -> None:
    for end in range(15, 30):
        assert check((HELLO + HELLO)[:end]) == CheckedSet(15, 1, 1)


def test_huge_length_at_the_end_is_a_partial_message() -> None:
    assert check(HELLO + b"\x7f\xff\xff\xff\x01\x00") == CheckedSet(15, 1, 1)


def test_drops_a_partial_message_at_the_end_of_an_inner_set() -> None:
    assert check(wrapper(HELLO + HELLO[:9])).leaf_count == 1


@pytest.mark.parametrize(
    "data",
    [
        HELLO[:12],  # nothing but a part
        bytes.fromhex("00000003 010000"),
        bytes.fromhex("00000000") + HELLO,
        bytes.fromhex("00000005 01 00000000"),
        HELLO + bytes.fromhex("00000000"),
        bytes.fromhex("ffffffff") + b"abcdef",
        HELLO + bytes.fromhex("ffffffff"),
        BAD_CRC,
        HELLO + BAD_CRC,
        BAD_CRC + HELLO,
        bytes.fromhex("0000000b 02 00 3610a686") + b"hello",
        bytes.fromhex("0000000b 01 03 3610a686") + b"hello",
        wrapper(BAD_CRC),
        wrapper(HELLO + BAD_CRC),
        wrapper(HELLO[:9]),
        wrapper(wrapper(BAD_CRC)),
        HELLO + wrapper(HELLO) + wrapper(b"\0\0\0\0"),
    ],
)
def test_one_bad_message_rejects_the_whole_set(data: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        check(data)


def test_rejects_an_undecodable_wrapper() -> None:
    with pytest.raises(DecompressionError):
        check(HELLO + encode_message(b"this is not gzip", codec=Codec.GZIP))


def test_size_counts_outer_payloads_only() -> None:
    assert check(encode_message(b"x" * 100) * 2).outer_count == 2
    assert check(wrapper(encode_message(b"x" * 5000))).leaf_count == 1
    large = encode_message(b"x" * 101)
    for data in (large, HELLO * 3 + large + HELLO, OLD + large, encode_message(b"x" * 101, magic=0) + OLD):
        with pytest.raises(OversizeMessageError, match=r"payload of 101 bytes, more than max\.message\.size = 100"):
            check(data)


def test_does_not_measure_a_partial_message() -> None:
    assert check(OLD + encode_message(b"x" * 101)[:-1]).valid_bytes == 14


def test_first_problem_decides() -> None:
    large = encode_message(b"x" * 101)
    with pytest.raises(OversizeMessageError):
        check(HELLO + large + BAD_CRC)
    with pytest.raises(CorruptMessageError):
        check(HELLO + BAD_CRC + large)
    with pytest.raises(OversizeMessageError):
        check(wrapper(BAD_CRC) + large)  # wrappers are opened after all sizes were looked at


def test_enforces_limits_on_wrappers() -> None:
    data = encode_message_set([b"x" * 1000], codec=Codec.SNAPPY)
    with pytest.raises(DecompressionError):
        check_produced_set(data, limits=DecodeLimits(max_decompressed_bytes=1000))
    assert check_produced_set(data, limits=DecodeLimits(max_decompressed_bytes=1010)).leaf_count == 1
