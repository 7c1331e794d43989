from __future__ import annotations

import io
from pathlib import Path

import pytest

from consumerd.storage import StorageError
from consumerd.storage.log.dump import LogEntry, read_entries, read_segment
from consumerd.wire.v07 import Codec, DecodeLimits, encode_message, encode_message_set

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
BAD = bytes.fromhex("0000000b 01 00 00000000") + b"hello"
OLD = bytes.fromhex("0000000a 00 3610a686") + b"hello"
GZIPPED = encode_message_set([b"one", b"two"], codec=Codec.GZIP)
SNAPPED = encode_message_set([b"three"], codec=Codec.SNAPPY)


def entries(data: bytes, start: int = 0, window: int = 1 << 20, limits: DecodeLimits | None = None) -> list[LogEntry]:
    return list(read_entries(io.BytesIO(data), start, window=window, limits=limits or DecodeLimits()))


def test_yields_each_outer_message_with_its_leaves() -> None:
    first, second, third, fourth = entries(HELLO + GZIPPED + OLD + SNAPPED, 1000)
    assert first == LogEntry(1000, 1015, True, 1, Codec.NONE, 11, [b"hello"], None)
    assert second == LogEntry(1015, third.offset, True, 1, Codec.GZIP, len(GZIPPED) - 4, [b"one", b"two"], None)
    assert (third.magic, third.payloads) == (0, [b"hello"])
    assert (fourth.codec, fourth.payloads) == (Codec.SNAPPY, [b"three"])


@pytest.mark.parametrize("window", [1, 3, 4, 7, 15, 16, 100])
def test_result_does_not_depend_on_the_window(window: int) -> None:
    data = HELLO + GZIPPED + BAD + encode_message(b"x" * 500) + OLD + SNAPPED + HELLO[:9]
    assert entries(data, 5, window) == entries(data, 5)


def test_requests_the_missing_bytes_of_a_message_larger_than_the_window_at_once() -> None:
    class Recorder(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            sizes.append(size)
            return super().read(size)

    sizes: list[int | None] = []
    large = encode_message(b"x" * 1000)
    assert len(list(read_entries(Recorder(HELLO + large), 0, window=20))) == 2
    assert sizes == [20, len(large) - 5, 20]


def test_empty_file_has_no_entries() -> None:
    assert entries(b"", 5) == []


def test_marks_a_bad_message_invalid_and_reads_the_next_one() -> None:
    first, second = entries(BAD + HELLO)
    assert first == LogEntry(0, 15, False, 1, Codec.NONE, 11, [], first.problem)
    assert first.problem == "the message at offset 0 has a CRC of 3610a686 where its header says 00000000"
    assert second.valid


def test_marks_an_undecodable_wrapper_invalid() -> None:
    bad = encode_message(b"no gzip", codec=Codec.GZIP)
    first, second = entries(bad + HELLO)
    assert (first.valid, first.codec, first.payloads) == (False, Codec.GZIP, [])
    assert first.problem is not None
    assert first.problem.startswith("the message at offset 0 cannot be decompressed: ")
    assert second.valid


@pytest.mark.parametrize(
    ("tail", "size", "problem"),
    [
        (HELLO[:12], 11, "the message at offset 115 is torn: it has 12 of its 15 bytes"),
        (HELLO[:4], 11, "the message at offset 115 is torn: it has 4 of its 15 bytes"),
        (b"\0\0\0", None, "the segment ends 3 bytes into a length field, at offset 115"),
        (bytes(50), 0, "at offset 115 stands a length of 0, which no message has; the last 50 bytes are unreadable"),
        (b"\xff" * 5000, -1, "at offset 115 stands a length of -1, which no message has; the last 5000 bytes are "),
        (b"\0\0\x10\0" + bytes(60), 4096, "at offset 115 stands a length of 4096, which no message has; the last 64 "),
    ],
)
@pytest.mark.parametrize("window", [8, 1 << 20])
def test_yields_an_unreadable_end_as_the_last_entry(tail: bytes, size: int | None, problem: str, window: int) -> None:
    first, last = entries(HELLO + tail, 100, window, DecodeLimits(max_message_bytes=1000))
    assert first.valid
    assert last == LogEntry(115, 115 + len(tail), False, None, None, size, [], last.problem)
    assert last.problem is not None
    assert last.problem.startswith(problem)


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.kafka"
    path.write_bytes(HELLO * 3)
    assert [entry.offset for entry in read_segment(path, 100)] == [100, 115, 130]


def test_raises_for_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        list(read_segment(tmp_path, 0))
