from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable

import pytest

from consumerd.base import native
from consumerd.wire.crc import crc32
from consumerd.wire.v07 import encode_message, encode_message_set
from consumerd.wire.v07 import walk as walk_module
from consumerd.wire.v07.outer import HEADER_SIZE
from consumerd.wire.v07.walk import LAYOUTS, MessageReaders, layouts_up_to, verify, walk

pytestmark = pytest.mark.usefixtures("either_codec")

PAYLOADS = [b"hello", b"", b"a longer payload", b"hello"]


def run(data: bytes, start: int = 0, magic: int = 1) -> tuple[list[bytes], int]:
    found: list[bytes] = []
    end = walk(data, start, found.append, LAYOUTS[magic])
    assert verify(data, start, 1 << 30, LAYOUTS[magic]) == (end, len(found))
    return found, end


@pytest.mark.parametrize("magic", [0, 1])
def test_takes_all_but_the_last_message(magic: int) -> None:
    data = encode_message_set(PAYLOADS, magic=magic)
    last = len(encode_message(PAYLOADS[-1], magic=magic))
    assert run(data, magic=magic) == (PAYLOADS[:-1], len(data) - last)


@pytest.mark.parametrize("magic", [0, 1])
def test_stops_at_the_other_magic(magic: int) -> None:
    data = encode_message_set(PAYLOADS, magic=magic)
    other = encode_message_set(PAYLOADS, magic=1 - magic)
    assert run(data + other, magic=magic) == (PAYLOADS, len(data))
    assert run(other + data, magic=magic) == ([], 0)


def test_stops_at_attributes() -> None:
    data = encode_message_set(PAYLOADS)
    marked = bytearray(encode_message(b"x"))
    marked[5] = 0xFC
    assert run(data + marked + data) == (PAYLOADS, len(data))


def test_stops_at_a_wrong_crc() -> None:
    data = bytearray(encode_message_set(PAYLOADS))
    data[15 + 6] ^= 1
    assert run(bytes(data)) == (PAYLOADS[:1], 15)


@pytest.mark.parametrize("length", [0, 1, 5, -1, -(1 << 31), 0x7FFFFFFF])
def test_stops_at_an_impossible_length(length: int) -> None:
    good = encode_message(b"x")
    bad = length.to_bytes(4, signed=True) + b"\x01\x00\0\0\0\0" + bytes(100)
    assert run(good + bad) == ([b"x"], len(good))
    assert run(bad) == ([], 0)


def test_starts_at_any_position() -> None:
    data = b"whatever" + encode_message_set(PAYLOADS)
    assert run(data, 8)[0] == PAYLOADS[:-1]
    assert run(data, len(data)) == ([], len(data))


def test_cache_of_readers_is_bounded() -> None:
    layout = MessageReaders("iHI", 0x0100)
    for length in range(6, 6 + 3 * MessageReaders.ROOM):
        payload = bytes(length - 6)
        assert layout[length](payload + bytes(10), 0)[0] == payload
        assert len(layout) <= MessageReaders.ROOM


def test_keeps_the_reader_of_a_length() -> None:
    layout = MessageReaders("iHI", 0x0100)
    reader = layout[11]
    assert layout[12] is not reader
    assert layout[11] is reader


@pytest.mark.parametrize("magic", [0, 1])
def test_verify_stops_at_a_long_payload(magic: int) -> None:
    data = encode_message_set([b"12345", b"123456", b"12345", b""], magic=magic)
    first = len(encode_message(b"12345", magic=magic))
    assert verify(data, 0, 5, LAYOUTS[magic]) == (first, 1)
    assert verify(data, 0, 6, LAYOUTS[magic])[1] == 3


def test_a_length_above_the_longest_has_no_reader() -> None:
    data = encode_message_set([b"12345", b"123456", b"12345", b""])
    found: list[bytes] = []
    assert walk(data, 0, found.append, layouts_up_to(5 + HEADER_SIZE[1])[1]) == 15
    assert found == [b"12345"]


@pytest.mark.parametrize("magic", [0, 1])
def test_verify_counts_the_last_message_where_that_is_asked_for(magic: int) -> None:
    data = encode_message_set(PAYLOADS, magic=magic)
    assert verify(data, 0, 99, LAYOUTS[magic], last=True) == (len(data), len(PAYLOADS))
    assert verify(data + b"\0\0\0", 0, 99, LAYOUTS[magic], last=True) == (len(data), len(PAYLOADS))
    last = len(encode_message(PAYLOADS[-1], magic=magic))
    rest = (len(data) - last, len(PAYLOADS) - 1)
    wrong = data[:-1] + b"\0"
    for other in (wrong, data[:-1], data[: 1 - last], data[:-last] + (-1).to_bytes(4, signed=True) + data[4 - last :]):
        assert verify(other, 0, 99, LAYOUTS[magic], last=True) == rest
    assert verify(data, 0, 15, LAYOUTS[magic], last=True)[1] == 2
    for end in range(len(encode_message(b"", magic=magic))):
        assert verify(data[:end], 0, 99, LAYOUTS[magic], last=True) == (0, 0)
    empty = encode_message(b"", magic=magic)
    assert verify(empty, 0, 99, LAYOUTS[magic], last=True) == (len(empty), 1)


def test_verify_leaves_the_loop_to_the_native_codec(
    native_codec: native.NativeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []

    def crc_of(payload: bytes) -> int:
        checked.append(payload)
        return crc32(payload)

    monkeypatch.setattr(walk_module, "crc32", crc_of)
    data = encode_message_set(PAYLOADS)
    for codec, expected in ((native_codec, []), (None, PAYLOADS)):
        with native.using(codec):
            assert verify(data, 0, 99, LAYOUTS[1], last=True) == (len(data), len(PAYLOADS))
        assert checked == expected


@pytest.mark.parametrize("last", [False, True])
def test_verify_reads_any_buffer_of_any_length(last: bool) -> None:
    """Windows of the native codec end within messages, at their ends, and in headers."""
    rng = random.Random(3)
    sizes = [0, 1, 100, 1000, 4085, 4086, 4087, 4090, 9000, 16_373, 16_374, 16_380, 70_000, 200_000]
    for _ in range(20):
        payloads = [bytes(rng.choice(sizes)) for _ in range(rng.randint(1, 12))] + [b""] * rng.randint(0, 9000)
        data = bytearray(encode_message_set(payloads))
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1
        del data[len(data) - rng.choice([0, 0, 1, 9, 10, 11, 50]) :]
        start = rng.choice([0, 0, 1])
        expected = verify(bytes(data), start, 150_000, LAYOUTS[1], last=last)
        for whole in (bytes(data), data):
            assert verify(memoryview(whole), start, 150_000, LAYOUTS[1], last=last) == expected
        for whole in (b"x" + bytes(data), bytearray(b"x" + data)):
            assert verify(memoryview(whole)[1:], start, 150_000, LAYOUTS[1], last=last) == expected


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_verify_leaves_no_object_behind(kind: Callable[[bytes], bytes]) -> None:
    """A broker that verifies what it receives would grow for as long as it runs."""
    data = kind(encode_message_set([b"x" * 1000] * 50))
    verify(data, 0, 1 << 30, LAYOUTS[1])
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        verify(data, 0, 1 << 30, LAYOUTS[1])
    assert sys.getallocatedblocks() - before < 500
