from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from consumerd.base import native
from consumerd.storage import DamagedArchiveError
from consumerd.storage.log import archive as reading
from consumerd.storage.log.archive import read_indexed, read_runs
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, FlawKind, IndexedMessages
from consumerd.wire.v07 import Codec, DecodeLimits, MessageLeaf, decode_batch, encode_message, encode_message_set

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
BAD = bytes.fromhex("0000000b 01 00 00000000") + b"hello"
OLD = bytes.fromhex("0000000a 00 3610a686") + b"hello"
MAGIC = bytes.fromhex("0000000b 02 00 3610a686") + b"hello"
CODEC = bytes.fromhex("0000000b 01 03 3610a686") + b"hello"
HEADER = bytes.fromhex("00000005 01 00 3610a6")
GZIPPED = encode_message_set([b"one", b"two"], codec=Codec.GZIP)
BOTCHED = encode_message(b"no gzip", codec=Codec.GZIP)


class Dribble:
    """Gives a byte at a time, and perhaps breaks in the end."""

    def __init__(self, data: bytes, breaks: bool = False) -> None:
        self.file = io.BytesIO(data)
        self.breaks = breaks

    def read(self, size: int, /) -> bytes:
        data = self.file.read(min(size, 1))
        if size and not data and self.breaks:
            raise DamagedArchiveError("the rest is gone")
        return data


def read(
    data: bytes,
    start: int = 0,
    *,
    window: int = 1 << 20,
    resync: bool = False,
    limits: DecodeLimits | None = None,
    max_bytes: int = 1 << 32,
) -> list[ArchivedRun | Flaw]:
    found = list(
        read_runs(
            io.BytesIO(data), start, limits=limits or DecodeLimits(), window=window, resync=resync, max_bytes=max_bytes
        )
    )
    ends = [start, *(item.next_offset for item in found)]
    assert [item.offset for item in found] == ends[:-1], "no tiling"
    return found


def messages(found: Iterable[ArchivedRun | Flaw]) -> list[MessageLeaf | Flaw]:
    """Runs taken apart, so that it does not show how they were cut."""
    result: list[MessageLeaf | Flaw] = []
    for item in found:
        if isinstance(item, Flaw):
            result.append(item)
            continue
        offset = item.offset
        final = len(item.payloads) - 1
        for index, payload in enumerate(item.payloads):
            if item.codec is Codec.NONE:
                after = offset + 9 + item.magic + len(payload)
                result.append(MessageLeaf(offset, 0, after, payload))
                offset = after
            else:
                result.append(MessageLeaf(offset, index, item.next_offset if index == final else offset, payload))
    return result


def test_reads_runs_of_plain_messages_and_wrappers() -> None:
    data = HELLO * 3 + GZIPPED + OLD * 2 + HELLO
    runs = read(data, 1000)
    assert all(isinstance(run, ArchivedRun) for run in runs)
    assert messages(runs) == list(decode_batch(data, 1000).messages())
    first = runs[0]
    assert isinstance(first, ArchivedRun)
    assert (first.offset, first.magic, first.codec) == (1000, 1, Codec.NONE)
    assert [run.magic for run in runs if isinstance(run, ArchivedRun)].count(0) > 0


@pytest.mark.parametrize("window", [1, 3, 4, 7, 15, 16, 100])
@pytest.mark.parametrize("resync", [False, True])
def test_result_does_not_depend_on_window_or_short_reads(window: int, resync: bool) -> None:
    data = HELLO + GZIPPED + BAD + encode_message(b"x" * 500) + OLD + BOTCHED + HELLO[:9]
    expected = messages(read(data, 5, resync=resync))
    assert messages(read(data, 5, window=window, resync=resync)) == expected
    assert messages(read_runs(Dribble(data), 5, window=window, resync=resync)) == expected


def test_reads_nothing_from_an_empty_segment() -> None:
    assert read(b"", 5) == []


@pytest.mark.parametrize(
    ("message", "kind", "magic", "codec", "crc_ok", "raw"),
    [
        (BAD, FlawKind.CRC, 1, Codec.NONE, False, b"hello"),
        (MAGIC, FlawKind.MAGIC, 2, None, False, MAGIC[4:]),
        (CODEC, FlawKind.CODEC, 1, None, True, b"hello"),
        (HEADER, FlawKind.HEADER, 1, None, False, HEADER[4:]),
        (BOTCHED, FlawKind.WRAPPER, 1, Codec.GZIP, True, b"no gzip"),
        (bytes.fromhex("00000006 01 00 00000001"), FlawKind.CRC, 1, Codec.NONE, False, b""),
        (bytes.fromhex("00000005 00 00000001"), FlawKind.CRC, 0, Codec.NONE, False, b""),
    ],
)
@pytest.mark.parametrize("resync", [False, True])
def test_reports_a_bad_message_and_reads_the_next_one(
    message: bytes, kind: FlawKind, magic: int, codec: Codec | None, crc_ok: bool, raw: bytes, resync: bool
) -> None:
    first, flaw, last, final = messages(read(HELLO + message + HELLO * 2, 100, resync=resync))
    assert isinstance(flaw, Flaw)
    assert flaw[:3] == (kind, 115, 115 + len(message))
    assert flaw[4:8] == (magic, codec, crc_ok, raw)
    assert "115" in flaw.problem
    assert first[3] == last[3] == final[3] == b"hello"


def test_wrapper_with_a_bad_inner_crc_is_unreadable() -> None:
    data = encode_message(gzip.compress(HELLO + BAD), codec=Codec.GZIP)
    (flaw,) = read(data)
    assert isinstance(flaw, Flaw)
    assert flaw.kind is FlawKind.WRAPPER
    assert "inside a compressed message" in flaw.problem


@pytest.mark.parametrize(
    ("tail", "kind", "problem"),
    [
        (HELLO[:12], FlawKind.TORN, "the message at offset 115 is torn: it has 12 of its 15 bytes"),
        (HELLO[:4], FlawKind.TORN, "the message at offset 115 is torn: it has 4 of its 15 bytes"),
        (b"\0\0\0", FlawKind.TORN, "the segment ends 3 bytes into a length field, at offset 115"),
        (b"\0", FlawKind.TORN, "the segment ends 1 bytes into a length field, at offset 115"),
        (bytes(50), FlawKind.NONSENSE, "at offset 115 stands a length of 0, which no message has; the last 50 bytes"),
        (b"\xff" * 5000, FlawKind.NONSENSE, "at offset 115 stands a length of -1, which no message has; the last 5000"),
        (b"\0\0\1\0\2", FlawKind.NONSENSE, "at offset 115 stands the beginning of a message of unknown"),
        (b"\0\0\1\0\2" + b"x" * 40, FlawKind.NONSENSE, "at offset 115 stands the beginning of a message of unknown"),
    ],
)
@pytest.mark.parametrize("window", [1, 8, 1 << 20])
@pytest.mark.parametrize("resync", [False, True])
def test_reports_a_torn_or_nonsensical_end(
    tail: bytes, kind: FlawKind, problem: str, window: int, resync: bool
) -> None:
    _, last = messages(read(HELLO + tail, 100, window=window, resync=resync, limits=DecodeLimits(1000)))
    assert isinstance(last, Flaw)
    assert last[:3] == (kind, 115, 115 + len(tail))
    assert last[4:8] == (None, None, False, b"")
    assert last.problem.startswith(problem)


def test_stops_at_nonsense_unless_resync_is_on() -> None:
    data = HELLO * 2 + bytes(4096) + HELLO * 3
    *_, flaw = read_runs(io.BytesIO(data), 0)
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.offset, flaw.next_offset) == (FlawKind.NONSENSE, 30, len(data))
    found = messages(read(data, resync=True))
    assert [item.offset for item in found] == [0, 15, 30, 4126, 4141, 4156]
    assert found[2] == Flaw(
        FlawKind.NONSENSE, 30, 4126, "the 4096 bytes from offset 30 on are not messages; intact ones continue at 4126"
    )


def test_resyncs_after_a_block_lost_inside_of_a_message() -> None:
    """Its length leads past the messages that follow: they are found, since the first is not intact."""
    damaged = HELLO[:-3]
    found = messages(read(HELLO + damaged + HELLO * 4, resync=True))
    assert [(item.offset, item.next_offset) for item in found] == [
        (0, 15), (15, 27), (27, 42), (42, 57), (57, 72), (72, 87)
    ]  # fmt: skip
    assert isinstance(found[1], Flaw)


def test_never_resyncs_inside_of_an_intact_message() -> None:
    inside = encode_message(HELLO * 3 + b"\0")
    assert [item.payload for item in messages(read(inside * 2, resync=True)) if isinstance(item, MessageLeaf)] == [
        HELLO * 3 + b"\0"
    ] * 2


@pytest.mark.parametrize("length", [3 << 20, 9 << 20, 20 << 20])
def test_resyncs_after_nonsense_of_any_length(length: int) -> None:
    data = HELLO + b"\xfe" * length + HELLO * 3
    found = messages(read(data, resync=True))
    assert [item.offset for item in found] == [0, 15, 15 + length, 30 + length, 45 + length]


@pytest.mark.parametrize(("length", "window_end"), [((4 << 20) - 1, 8 << 20), (4 << 20, 12 << 20)])
def test_searches_windows_of_8_mebibytes_up_to_4_before_their_end(length: int, window_end: int) -> None:
    stream = io.BytesIO(b"\xff" * length + encode_message(bytes((2 << 20) - 10)) * 2 + HELLO * (1 << 20))
    flaw = next(read_runs(stream, 0, window=1, resync=True))
    assert (flaw.offset, flaw.next_offset) == (0, length)
    assert stream.tell() == window_end


def test_search_does_bounded_work() -> None:
    """Every fifth byte claims to begin a message of a megabyte with a wrong CRC: 16 TB of it."""
    claim = struct.pack(">iB", 1 << 20, 0)
    data = HELLO + b"\xff" * 5 + claim * (16 << 20 >> 2) + HELLO * 2
    found = messages(read(data, resync=True))
    assert found[0].offset == 0
    assert isinstance(found[1], Flaw)


def test_message_beyond_the_limit_is_nonsense_in_any_window() -> None:
    limits = DecodeLimits(max_message_bytes=100)
    good, long = encode_message(b"x" * 100), encode_message(b"x" * 101)
    for window in (16, 1 << 20):
        found = messages(read(good * 3 + long * 3 + good, window=window, limits=limits))
        assert [isinstance(item, Flaw) for item in found] == [False, False, False, True]
        assert (found[3].offset, found[3].next_offset) == (3 * len(good), 4 * len(good) + 3 * len(long))


@pytest.mark.parametrize(("magic", "longest"), [(0, 101), (1, 100)])
def test_messages_before_one_beyond_the_limit_come_in_runs(magic: int, longest: int) -> None:
    """The limit is that of the length, which counts a byte more in magic 1."""

    def made(size: int) -> bytes:
        header = struct.pack(">iBB" if magic else ">iB", 5 + magic + size, *(magic, 0)[: magic + 1])
        return header + struct.pack(">I", zlib.crc32(b"x" * size)) + b"x" * size

    data = made(longest) * 4 + made(longest + 1) + made(longest) * 2
    *runs, flaw = read(data, 50, limits=DecodeLimits(max_message_bytes=100))
    # the first message of magic 0 is read by itself
    assert [len(run.payloads) for run in runs if isinstance(run, ArchivedRun)] == ([4] if magic else [1, 3])
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.offset, flaw.next_offset) == (
        FlawKind.NONSENSE,
        50 + 4 * len(made(longest)),
        50 + len(data),
    )


def test_messages_of_magic_0_come_in_runs_too() -> None:
    sizes = [len(run.payloads) for run in read(OLD * 10) if isinstance(run, ArchivedRun)]
    assert sum(sizes) == 10
    assert max(sizes) >= 8


def test_reports_damage_of_the_container_as_one_flaw() -> None:
    found = list(read_runs(Dribble(HELLO + HELLO[:5], breaks=True), 0))
    assert found[-1] == Flaw(
        FlawKind.ARCHIVE, 15, 20, "the message at offset 15 is cut off: the rest is gone", length=11
    )
    found = list(read_runs(Dribble(HELLO * 2, breaks=True), 0))
    assert found[-1] == Flaw(FlawKind.ARCHIVE, 30, 30, "the segment is truncated at offset 30: the rest is gone")
    assert sum(isinstance(item, Flaw) for item in found) == 1


def test_stops_reading_a_segment_at_the_limit() -> None:
    found = read(HELLO * 4, max_bytes=45)
    assert isinstance(found[-1], Flaw)
    assert found[-1][:3] == (FlawKind.OVERSIZE, 45, 45)
    assert messages(read(HELLO * 4, max_bytes=60))[-1][3] == b"hello"
    assert read(bytes(1000), max_bytes=100)[-1].next_offset == 100


def test_reports_wrappers_beyond_the_decompression_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FREE_EXPANSION", 10_000)
    bomb = encode_message_set([bytes(9_900)], codec=Codec.GZIP)
    found = list(read_runs(io.BytesIO(bomb * 3 + HELLO), 0, expansion=20))
    assert [getattr(item, "kind", None) for item in found] == [None, FlawKind.WRAPPER, FlawKind.WRAPPER, None]
    assert all(isinstance(item, ArchivedRun) for item in read_runs(io.BytesIO(bomb * 3 + HELLO), 0, expansion=1000))


def test_raises_errors_of_the_stream() -> None:
    class Broken:
        def read(self, size: int, /) -> bytes:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(read_runs(Broken(), 0))


def test_crc_is_that_of_zlib() -> None:
    assert struct.unpack_from(">I", HELLO, 6) == (zlib.crc32(b"hello"),)


@pytest.mark.parametrize("before", [b"", HELLO])
def test_splits_large_wrappers_into_runs_with_their_commit_position(before: bytes) -> None:
    leaves = [b"%d" % number for number in range(1000)]
    data = before + encode_message_set(leaves, codec=Codec.GZIP) + HELLO
    *parts, last = [
        run
        for run in read_runs(io.BytesIO(data), 40, piece_bytes=1000)
        if isinstance(run, ArchivedRun) and run.codec is Codec.GZIP
    ]
    start, end = 40 + len(before), 40 + len(data) - len(HELLO)
    assert len(parts) > 5
    assert {(part.offset, part.next_offset) for part in parts} == {(start, start)}
    assert (last.offset, last.next_offset) == (start, end)
    assert [leaf for run in (*parts, last) for leaf in run.payloads] == leaves
    assert all(leaves[run.first] == run.payloads[0] for run in (*parts, last))


def test_large_wrapper_with_a_bad_end_yields_no_run() -> None:
    inner = encode_message_set([b"x" * 50] * 100) + BAD
    data = encode_message(gzip.compress(inner), codec=Codec.GZIP)
    (flaw,) = read_runs(io.BytesIO(data), 0, piece_bytes=100)
    assert isinstance(flaw, Flaw)
    assert flaw.kind is FlawKind.WRAPPER
    assert (flaw.offset, flaw.next_offset) == (0, len(data))


def test_stops_reading_at_the_given_offset() -> None:
    data = HELLO + OLD + HELLO * 3
    stop = len(HELLO + OLD)
    stream = io.BytesIO(data)
    found = list(read_runs(stream, 10, stop=10 + stop))
    assert found[-1].next_offset == 10 + stop
    assert stream.tell() == stop
    assert list(read_runs(io.BytesIO(data), 10, stop=10)) == []


@pytest.mark.parametrize("window", [20, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_requests_nothing_beyond_the_stop_of_plain_messages(count: int, window: int) -> None:
    stream = io.BytesIO(HELLO * 5)
    stop = count * len(HELLO)
    found = list(read_runs(stream, 10, window=window, stop=10 + stop))
    assert found[-1].next_offset == 10 + stop
    assert stream.tell() == stop


def test_reports_nothing_after_the_stop() -> None:
    found = list(read_runs(io.BytesIO(HELLO * 4), 0, stop=30, max_bytes=30))
    assert found[-1].next_offset == 30
    assert not any(isinstance(item, Flaw) for item in found)


@pytest.mark.parametrize("reader", [read_runs, read_indexed])
def test_reads_no_message_at_the_stop_where_more_of_the_stream_is_known(reader: Callable[..., Iterable[Any]]) -> None:
    """A bad message has to be followed beyond the stop."""
    stop = len(BAD) + len(HELLO)
    found = reader(io.BytesIO(BAD + HELLO + OLD * 2), 0, resync=True, stop=stop)
    assert [item.next_offset for item in found] == [len(BAD), stop]


def test_requests_large_pieces_of_the_stream() -> None:
    stream = io.BytesIO(HELLO * (1 << 15))
    next(read_runs(stream, 0))
    assert stream.tell() >= 1 << 18


def test_believes_the_length_of_a_bad_message_after_a_mebibyte() -> None:
    stream = io.BytesIO(BAD + HELLO * (1 << 18))
    first = next(read_runs(stream, 0, window=1, resync=True))
    assert isinstance(first, Flaw)
    assert (first.offset, first.next_offset) == (0, len(BAD))
    assert stream.tell() == len(BAD) + (1 << 20)


def test_yields_a_message_across_the_stop_whole() -> None:
    (found,) = read_runs(io.BytesIO(GZIPPED + HELLO), 0, stop=7, resync=True)
    assert isinstance(found, ArchivedRun)
    assert (found.next_offset, found.payloads) == (len(GZIPPED), [b"one", b"two"])


def test_finds_the_same_damage_before_any_stop() -> None:
    data = HELLO + b"\xff" * 50 + HELLO * 4 + BAD + HELLO * 2
    whole = list(read_runs(io.BytesIO(data), 0, resync=True))
    stop = len(HELLO) + 50
    assert list(read_runs(io.BytesIO(data), 0, resync=True, stop=stop)) == whole[:2]
    assert whole[1].next_offset == stop


def test_does_not_resync_inside_of_a_torn_compressed_message() -> None:
    """Snappy keeps short messages as they are; they do not continue to the end of the segment, though."""
    inner = b"".join(encode_message(bytes([65 + number] * number)) for number in (5, 7, 11, 13))
    torn = encode_message(b"header" + inner + b"rest", codec=Codec.SNAPPY)
    (flaw,) = read(torn[:-2], resync=True)
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.next_offset) == (FlawKind.TORN, len(torn) - 2)


def test_resyncs_after_a_length_that_leads_beyond_the_end() -> None:
    wrong = b"\0\1\0\0" + HELLO[4:]
    first, *rest = read(wrong + HELLO * 50, resync=True)
    assert isinstance(first, Flaw)
    assert (first.offset, first.next_offset) == (0, len(wrong))
    assert sum(len(run.payloads) for run in rest if isinstance(run, ArchivedRun)) == 50


def test_follows_the_length_of_a_bad_message_unless_resync_is_on() -> None:
    """It leads into a later message, where no length is possible."""
    data = HELLO + HELLO[:-3] + HELLO * 4
    first, bad, rest = read(data, limits=DecodeLimits(1000))
    assert isinstance(first, ArchivedRun)
    assert isinstance(bad, Flaw)
    assert isinstance(rest, Flaw)
    assert (bad.kind, bad.offset, bad.next_offset) == (FlawKind.CRC, 15, 30)
    assert (rest.kind, rest.next_offset) == (FlawKind.NONSENSE, len(data))


def test_does_not_resync_inside_of_a_bad_message_that_an_intact_one_follows() -> None:
    bad = encode_message(HELLO * 3 + b"\0")[:-1] + b"\1"
    flaw, *_ = read(bad + HELLO, resync=True)
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.next_offset) == (FlawKind.CRC, len(bad))


def test_bad_message_before_nonsense_has_its_own_length() -> None:
    found = [item for item in read(HELLO + BAD + bytes(50), resync=True) if isinstance(item, Flaw)]
    assert [(flaw.kind, flaw.offset, flaw.next_offset) for flaw in found] == [
        (FlawKind.CRC, 15, 30), (FlawKind.NONSENSE, 30, 80)
    ]  # fmt: skip


def test_resyncs_after_a_bad_message_and_never_before_it() -> None:
    """A message begins at the last byte of the good one; but what was read once is not read again."""
    good = encode_message(b"x\0")
    data = good + HELLO[1:] + HELLO * 200
    first, flaw, *rest = messages(read(data, resync=True, limits=DecodeLimits(10_000)))
    assert first[3] == b"x\0"
    assert isinstance(flaw, Flaw)
    assert (flaw.offset, flaw.next_offset) == (len(good), len(good) + len(HELLO) - 1)
    assert len(rest) == 200


def test_reports_a_wrapper_beyond_the_limit_of_one_message_set() -> None:
    data = encode_message_set([bytes(5000)], codec=Codec.GZIP)
    for limit, is_flaw in ((5000, True), (6000, False)):
        (found,) = read(data, limits=DecodeLimits(max_decompressed_bytes=limit))
        assert isinstance(found, Flaw) is is_flaw


@pytest.mark.parametrize(("free", "is_flaw"), [(0, True), (1, False)])
def test_decompresses_not_one_byte_where_none_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int, is_flaw: bool
) -> None:
    monkeypatch.setattr(reading, "FREE_EXPANSION", free)
    data = encode_message(gzip.compress(b"\0"), codec=Codec.GZIP)
    (found,) = read_runs(io.BytesIO(data), 0, expansion=0)
    assert isinstance(found, Flaw) is is_flaw


def test_segment_of_the_largest_size_may_not_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_SEGMENT_BYTES", 45)
    *_, last = read(HELLO * 4, 1000, max_bytes=45)
    assert isinstance(last, Flaw)
    assert last[:3] == (FlawKind.OVERSIZE, 1045, 1045)


@pytest.mark.parametrize(
    ("byte", "following"),
    [(b"\xff", HELLO), (b"\0", encode_message(b"x" * 0xAFF))],
    ids=["nonsense", "a bad message"],
)
def test_resyncs_at_the_very_next_byte(byte: bytes, following: bytes) -> None:
    """Before a length of 00 00 0b 05, a byte of 0 makes a message of 11 bytes and magic 5."""
    found = messages(read(HELLO + byte + following + HELLO, resync=True))
    assert [(type(item), item.offset) for item in found] == [
        (MessageLeaf, 0), (Flaw, 15), (MessageLeaf, 16), (MessageLeaf, 16 + len(following))
    ]  # fmt: skip


@pytest.mark.parametrize(("others", "kind"), [(15, FlawKind.NONSENSE), (16, FlawKind.TORN)])
def test_tries_16_chains_after_a_torn_message(others: int, kind: FlawKind) -> None:
    """The others end at other bytes, so they may be part of the torn message; the last one goes on to the end."""
    skipped = struct.pack(">iBB", 1 << 10, 1, 0) + (HELLO * 2 + b"\xff" * 5) * others
    data = HELLO * 2 + skipped + HELLO * 2
    flaw = next(item for item in read(data, resync=True) if isinstance(item, Flaw))
    assert (flaw.kind, flaw.offset) == (kind, 30)
    assert flaw.next_offset == (len(data) if kind is FlawKind.TORN else 30 + len(skipped))


def test_tries_chains_that_begin_at_neighbouring_bytes() -> None:
    """The four bytes after an empty message's length and its CRC of 0 are read as another length and magic."""
    short = encode_message(b"") + HELLO
    inner = HELLO + b"x" * (0x601 - 5 - 4 - len(HELLO))
    # The last four bytes make its CRC 0, too.
    long = short[1:10] + inner + (zlib.crc32(inner) ^ 0x6DD90A9D).to_bytes(4, "little")
    torn = struct.pack(">iBB", 1 << 12, 1, 0) + b"\xff"
    first, *_ = read(torn + b"\0" + long + HELLO, resync=True)
    assert isinstance(first, Flaw)
    assert (first.kind, first.next_offset) == (FlawKind.NONSENSE, len(torn) + 1)


def test_decompresses_as_many_bytes_as_are_free_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = len(encode_message_set([bytes(5000)]))
    data = encode_message_set([bytes(5000)], codec=Codec.GZIP) * 2
    for free, flaws in ((2 * inner, 0), (2 * inner - 1, 1), (inner, 1), (inner - 1, 2)):
        monkeypatch.setattr(reading, "FREE_EXPANSION", free)
        found = list(read_runs(io.BytesIO(data), 1 << 30, expansion=1))
        assert sum(isinstance(item, Flaw) for item in found) == flaws


def indexed(data: bytes, start: int = 1000, **options: Any) -> list[tuple[type, int, int]]:
    found = list(read_indexed(io.BytesIO(data), start, **options))
    return [(type(item), item.offset, item.next_offset) for item in found]


@pytest.mark.usefixtures("native_codec")
def test_indexes_what_is_intact_between_bad_messages() -> None:
    good = HELLO + GZIPPED + OLD
    data = good + BAD + good
    ends = [1000 + end for end in (0, len(good), len(good) + len(BAD), len(data))]
    expected = list(zip([IndexedMessages, Flaw, IndexedMessages], ends, ends[1:], strict=False))
    assert indexed(data) == expected
    assert indexed(b"") == []
    with native.using(None):
        assert {kind for kind, _, _ in indexed(data)} == {ArchivedRun, Flaw}
    torn = indexed(good + HELLO[:7])
    assert torn == [expected[0], (Flaw, ends[1], ends[1] + 7)]


@pytest.mark.usefixtures("native_codec")
@pytest.mark.parametrize("window", [20, 1 << 20])
@pytest.mark.parametrize("first", [HELLO, BAD])
def test_indexed_messages_end_at_the_stop(first: bytes, window: int) -> None:
    stop = 1000 + 3 * len(HELLO)
    found = indexed(first + HELLO * 7, stop=stop, window=window, resync=True)
    assert [kind for kind, _, _ in found if kind is not IndexedMessages] == ([] if first is HELLO else [Flaw])
    assert found[-1][2] == stop


@pytest.mark.usefixtures("native_codec")
def test_indexes_nothing_if_a_step_could_exceed_what_may_be_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_STEP_ROOM", 5000)
    for free, kind in ((5000, IndexedMessages), (4999, ArchivedRun)):
        monkeypatch.setattr(reading, "FREE_EXPANSION", free)
        assert indexed(HELLO)[0][0] is kind


@pytest.mark.usefixtures("native_codec")
def test_indexes_no_more_bytes_than_the_native_codec_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, kind in ((len(HELLO), IndexedMessages), (len(HELLO) - 1, ArchivedRun)):
        monkeypatch.setattr(reading, "NATIVE_BYTES", most)
        assert indexed(HELLO)[0][0] is kind


@pytest.mark.usefixtures("native_codec")
def test_decompressed_bytes_of_indexed_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_STEP_ROOM", 1)
    monkeypatch.setattr(reading, "FREE_EXPANSION", 6000)
    data = encode_message_set([bytes(5000)], codec=Codec.GZIP)
    found = indexed(data * 3, window=len(data), expansion=0)
    assert [kind for kind, _, _ in found] == [IndexedMessages, IndexedMessages, Flaw]


@pytest.mark.usefixtures("native_codec")
def test_indexes_large_wrappers_in_steps() -> None:
    data = encode_message_set([bytes(700_000)] * 2, codec=Codec.GZIP)
    found = indexed(data * 3)
    assert [kind for kind, _, _ in found] == [IndexedMessages] * 3
    assert [offset for _, offset, _ in found] == [1000 + number * len(data) for number in range(3)]


@pytest.mark.usefixtures("native_codec")
def test_step_of_the_native_codec_may_decompress_8_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, kind in ((8 << 20, IndexedMessages), ((8 << 20) - 1, ArchivedRun)):
        monkeypatch.setattr(reading, "FREE_EXPANSION", free)
        assert indexed(HELLO, 0)[0][0] is kind


@pytest.mark.usefixtures("native_codec")
def test_indexing_stops_at_nonsense_unless_resync_is_on() -> None:
    data = HELLO * 2 + b"\xff" * 50 + HELLO * 3
    assert [kind for kind, _, _ in indexed(data)] == [IndexedMessages, Flaw]
    assert indexed(data)[-1][2] == 1000 + len(data)
    assert [kind for kind, _, _ in indexed(data, resync=True)] == [IndexedMessages, Flaw, IndexedMessages]
