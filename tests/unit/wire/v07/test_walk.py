from __future__ import annotations

import pytest

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


class Native:
    """A native codec that takes given numbers of messages, of a size, and notes the windows that it gets."""

    def __init__(self, size: int, counts: list[int]) -> None:
        self._size = size
        self._counts = iter(counts)
        self.windows: list[int] = []
        self.arguments: set[tuple[int, int, int]] = set()

    def verify(self, data: bytes, position: int, longest: int, magic: int) -> tuple[int, int]:
        assert type(data) is bytes
        self.windows.append(len(data))
        self.arguments.add((position, longest, magic))
        passed = next(self._counts)
        return self._size * passed, passed


@pytest.mark.parametrize("magic", [0, 1])
def test_windows_of_the_native_codec_grow_while_half_of_each_is_good(
    magic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_message_set([bytes(247 - magic)] * 1025, magic=magic)
    assert len(data) == 256 * 1025
    for counts, windows in (
        ([8, 15], [4096, 8192]),
        ([7], [4096]),
        ([16, 32, 64, 128, 256, 256, 128, 0], [4096, 8192, 16384, 32768, 65536, 65536, 65536, 36 * 1024 + 256]),
    ):
        native = Native(256, counts)
        monkeypatch.setattr(walk_module, "native_codec", lambda native=native: native)
        assert verify(memoryview(data), 0, 1000, LAYOUTS[magic]) == (256 * 1024, 1024)
        assert native.windows == windows
        assert native.arguments == {(0, 1000, magic)}
