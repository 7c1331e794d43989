from __future__ import annotations

import pytest

from consumerd.wire.v07 import (
    Codec,
    DecodeLimits,
    MessageSetTail,
    OuterMessage,
    encode_message,
    encode_message_set,
    iter_outer,
    read_outer,
)
from consumerd.wire.v07.outer import plausible_after

HELLO_1 = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
HELLO_0 = bytes.fromhex("0000000a 00 3610a686") + b"hello"


def only(data: bytes, offset: int = 0) -> OuterMessage:
    (message,) = iter_outer(data, offset)
    return message


def test_reads_fields_of_magic_1() -> None:
    expected = OuterMessage(1000, 1015, True, 1, Codec.NONE, 11, 0x3610A686, b"hello", None)
    assert only(HELLO_1, 1000) == expected


def test_reads_fields_of_magic_0() -> None:
    assert only(HELLO_0, 7) == OuterMessage(7, 21, True, 0, Codec.NONE, 10, 0x3610A686, b"hello", None)


def test_does_not_open_wrappers() -> None:
    message = only(encode_message(b"no gzip", codec=Codec.GZIP))
    assert message.valid
    assert (message.codec, message.payload) == (Codec.GZIP, b"no gzip")


def test_reads_only_the_low_two_bits_of_the_attributes() -> None:
    for attributes in range(256):
        data = bytearray(HELLO_1)
        data[5] = attributes
        message = only(bytes(data))
        assert message.codec == [Codec.NONE, Codec.GZIP, Codec.SNAPPY, None][attributes & 3]
        assert message.valid is (attributes & 3 != 3)


def test_computes_offsets_of_consecutive_messages() -> None:
    data = HELLO_1 + HELLO_0 + encode_message_set([b"x"] * 2, codec=Codec.SNAPPY) + HELLO_1
    found = list(iter_outer(data, 500))
    assert [m.offset for m in found][:3] == [500, 515, 529]
    assert [m.next_offset for m in found] == [*[m.offset for m in found][1:], 500 + len(data)]


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (6, 0x37, "a CRC of 3610a686 where its header says 3710a686"),
        (4, 2, "magic 2, which 0.7 does not know"),
        (4, 255, "magic 255, which 0.7 does not know"),
        (5, 3, "compression codec 3, which does not exist"),
    ],
)
def test_yields_invalid_messages_and_goes_on(at: int, value: int, problem: str) -> None:
    data = bytearray(HELLO_1)
    data[at] = value
    first, second = iter_outer(bytes(data) + HELLO_0)
    assert not first.valid
    assert first.problem == problem
    assert (second.offset, second.payload) == (15, b"hello")


def test_message_without_a_readable_header_has_neither_payload_nor_crc() -> None:
    data = bytes.fromhex("0000000b 02 00 3610a686") + b"hello"
    expected = OuterMessage(7, 22, False, 2, None, 11, 0, b"", "magic 2, which 0.7 does not know")
    assert only(data, 7) == expected


def test_payload_of_the_largest_size_is_read() -> None:
    data = encode_message(bytes(100))
    assert isinstance(read_outer(data, 0, 0, 100), OuterMessage)
    assert read_outer(data, 0, 0, 99) == MessageSetTail(0, None, "a length of 106, which no message has")


def test_message_is_plausible_where_a_possible_length_or_the_end_stands() -> None:
    for size, plausible in ((-1, False), (4, False), (5, True), (106, True), (107, False)):
        data = b"12" + size.to_bytes(4, signed=True)
        assert plausible_after(data, 2, 100) is plausible
        assert plausible_after(data + b"1", 2, 100) is plausible
    for cut in range(4):
        assert plausible_after(b"12" + b"\xff" * cut, 2, 100)


def test_magic_1_in_five_bytes_has_no_room_for_its_header() -> None:
    first, second = iter_outer(bytes.fromhex("00000005 01 00000000") + HELLO_1)
    assert (first.valid, first.problem, first.next_offset) == (False, "less than a header", 9)
    assert second.valid


def test_tail_reports_the_bytes_that_a_partial_message_needs() -> None:
    data = HELLO_1 + HELLO_1
    for end in range(15, 30):
        assert [m.next_offset for m in iter_outer(data[:end])] == [15]
        needed = 15 if end >= 19 else None
        assert read_outer(data[:end], 15, 15, 1000) == MessageSetTail(15, needed, None)


@pytest.mark.parametrize("length", [0, 4, -1, 1007])
def test_impossible_length_ends_the_set(length: int) -> None:
    data = HELLO_1 + length.to_bytes(4, signed=True) + bytes(2000)
    limits = DecodeLimits(max_message_bytes=1000)
    assert len(list(iter_outer(data, limits=limits))) == 1
    assert read_outer(data, 15, 115, 1000) == MessageSetTail(115, None, f"a length of {length}, which no message has")


def test_reads_an_empty_set() -> None:
    assert list(iter_outer(b"")) == []
