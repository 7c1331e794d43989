"""The beginning and the end of a segment: what `log ls` shows of it, and what a choice between copies goes by.

Strategy: of a file that can seek only the first header is read, and what follows the last entry of its index: batches
are followed by their lengths, in a bounded number of reads, and only the last one is checked by its CRC. Where that
does not lead to the end of the file, the end is unknown, and absent. A packed one is read from beginning to end, and
nothing of it is kept but the last batch.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumerd.storage.log.archive_items import ByteStream, FlawKind
from consumerd.storage.log.archive_tar import SeekableStream
from consumerd.storage.log.archive_tiered import ZSTD_MAGIC, tiered_start
from consumerd.storage.log.errors import DamagedArchiveError
from consumerd.storage.log.segment import SUFFIX
from consumerd.storage.segments.batches import batch_size, is_intact
from consumerd.storage.segments.copies import EpochStart
from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.storage.segments.kinds import MAGIC_AT, MAX_OFFSET
from consumerd.wire.v08.records.codecs import CODEC_MASK
from consumerd.wire.v08.records.record_batch import HEADER, MAGIC, read_header

#: Bytes per read, and the reads that may lead from the last entry of an index to the end of the segment.
_READ: Final = 4096
_READS: Final = 64
#: The largest last batch whose CRC is checked.
_CHECKED: Final = 4 << 20
#: Bytes of a packed segment that are read at once.
_WINDOW: Final = 1 << 18
#: The least length that a message of 0.7 begins with: that of its magic and CRC.
_OLD_LEAST: Final = 5
_ENTRY: Final = struct.Struct(">ii")
_OLD_HEAD: Final = struct.Struct(">qiIbbq")


@dataclass(slots=True)
class SegmentEnds:
    """What the beginning and the end of a segment show. `size`: its bytes, unpacked; times in milliseconds."""

    size: int = 0
    dialect: SegmentDialect | None = None
    first_time: int | None = None
    last_time: int | None = None
    end: int | None = None
    formats: set[str] = field(default_factory=set)
    #: Leader epochs of the batches that were looked at.
    epochs: list[EpochStart] = field(default_factory=list)
    index_problem: str | None = None
    flaw: tuple[FlawKind, str] | None = None


class SegmentPlace(NamedTuple):
    """A segment file: the offset by which it is named, and its bytes as they lie there."""

    start: int
    name: str
    size: int


class IndexFile(NamedTuple):
    """The `.index` of a segment."""

    file: SeekableStream
    size: int


def ends_of(file: SeekableStream, segment: SegmentPlace, index: IndexFile | None) -> SegmentEnds:
    """Look at the beginning and the end of a segment that is not packed. Raises the errors of the files."""
    ends = SegmentEnds(segment.size)
    if not segment.size:
        ends.end = segment.start
        return ends
    head = _read_at(file, HEADER.size, 0)
    if not _begins(head, segment.name, ends):
        return ends
    if ends.dialect is SegmentDialect.V07:
        _follow_old(file, segment, ends)
        return ends
    position = 0
    if index is not None:
        offset, position = _last_entry(index, segment.size)
        there = _read_at(file, HEADER.size, position)
        if position and not _is_of(there, segment.start, segment.start + offset):
            ends.index_problem = f"the last entry of the .index file of {segment.name} is wrong"
            position = 0
    _follow(file, segment, position, ends)
    return ends


def ends_of_stream(stream: ByteStream, name: str, start: int) -> SegmentEnds:
    """Look at a segment from its beginning to its end. `name`: without the suffix of its compression."""
    ends, forward = SegmentEnds(), _Forward(stream)
    try:
        head = forward.head()
        if not head:
            ends.end = start
        elif _begins(head, name, ends):
            follow = _follow_old_stream if ends.dialect is SegmentDialect.V07 else _follow_stream
            follow(forward, start, ends)
        forward.drain()
    except DamagedArchiveError as error:
        ends.end, ends.flaw = None, (FlawKind.ARCHIVE, f"it is truncated at position {forward.position}: {error}")
    ends.size = forward.position
    return ends


def _begins(head: bytes, name: str, ends: SegmentEnds) -> bool:
    """Whether a segment with this head can be followed to its end."""
    if head.startswith(ZSTD_MAGIC) and tiered_start(name) is not None:
        ends.formats.add("zstd")
        return False
    ends.dialect = recognise(head)
    if ends.dialect is None:
        if name.endswith(SUFFIX):
            ends.dialect = SegmentDialect.V07
        elif head.strip(b"\0"):
            ends.flaw = FlawKind.NONSENSE, "its first bytes are not a message of any Kafka"
            return False
    if ends.dialect is SegmentDialect.V07:
        ends.formats.add("0.7")
    elif batch_size(head) is not None:
        ends.formats.add(str(head[MAGIC_AT]))
        ends.first_time = _first_time(head)
        _see_epoch(head, ends)
    return True


class _Forward:
    """A stream that cannot seek, and the position in it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._data = b""
        self._at = 0
        self.position = 0

    def _fill(self, count: int) -> None:
        while (left := len(self._data) - self._at) < count and (fresh := self._stream.read(max(_WINDOW, count - left))):
            self._data = self._data[self._at :] + fresh
            self._at = 0

    def head(self, count: int = HEADER.size) -> bytes:
        """The next bytes, which stay where they are."""
        self._fill(count)
        return self._data[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        taken = self.head(count)
        self._at += len(taken)
        self.position += len(taken)
        return taken

    def skip(self, count: int) -> int:
        """Leave out bytes; how many there were."""
        before = self.position
        while (left := count - (self.position - before)) and self.take(min(left, _WINDOW)):
            pass
        return self.position - before

    def drain(self) -> None:
        while self.take(_WINDOW):
            pass


def _follow_stream(forward: _Forward, start: int, ends: SegmentEnds) -> None:
    """Follow lengths to the end of a segment since 0.8, as `_follow`."""
    last: list[_Batch] = []
    data: bytes | None = None
    while head := forward.head():
        position, size = forward.position, batch_size(head)
        if size is None:
            forward.drain()
            ends.flaw = _no_batch(head, position, None, forward.position)
            break
        batch = forward.take(size) if size <= _CHECKED else None
        if (forward.skip(size) if batch is None else len(batch)) < size:
            ends.flaw = _no_batch(head, position, size, forward.position)
            break
        last, data = [*last[-1:], _Batch(position, size, head)], batch
    if ends.flaw is not None and ends.flaw[0] is FlawKind.NONSENSE:
        return
    _see_last(last, data, start, ends)


def _follow_old_stream(forward: _Forward, start: int, ends: SegmentEnds) -> None:
    """The end of a segment of 0.7, after its last whole message: lengths are followed to it."""
    while head := forward.head(4):
        position, length = forward.position, int.from_bytes(head)
        if len(head) == 4 and length < _OLD_LEAST:
            ends.flaw = FlawKind.NONSENSE, f"the bytes at position {position} are not a message"
            return
        if forward.skip(4 + length) < 4 + length:
            rest = forward.position - position
            ends.flaw = FlawKind.TORN, f"the message at position {position} is torn: the file has {rest} bytes of it"
            ends.end = start + position
            return
    ends.end = start + forward.position


def _read_at(file: SeekableStream, count: int, position: int) -> bytes:
    """As many bytes as there are, up to `count`."""
    file.seek(position)
    data = b""
    while len(data) < count and (fresh := file.read(count - len(data))):
        data += fresh
    return data


def _last_entry(index: IndexFile, size: int) -> tuple[int, int]:
    """Relative offset and position of the last entry of an index that lies within the segment's `size` bytes.

    (0, 0) without one. A broker reserves 10 MiB for the index of its last segment, so zeros may follow the entries.
    """
    found = 0, 0
    low, high = 0, index.size // _ENTRY.size
    while low < high:
        middle = (low + high) // 2
        data = _read_at(index.file, _ENTRY.size, middle * _ENTRY.size)
        offset, position = _ENTRY.unpack(data) if len(data) == _ENTRY.size else (0, 0)
        if 0 < position < size:
            found, low = (offset, position), middle + 1
        else:
            high = middle
    return found


def _is_of(head: bytes, start: int, last: int) -> bool:
    """Whether a batch of a segment from `start` on begins here, whose index has an entry for the offset `last`.

    Before magic 2 the entry may be less than the offset of a compressed message, which is that of its last one.
    """
    if batch_size(head) is None:
        return False
    offset = int.from_bytes(head[:8])
    return start <= offset and (head[MAGIC_AT] != MAGIC or offset <= last)


class _Batch(NamedTuple):
    """A batch that was followed by its length."""

    position: int
    size: int
    head: bytes


def _follow_old(opened: SeekableStream, file: SegmentPlace, ends: SegmentEnds) -> None:
    """The end of a segment of 0.7: of a small one after its last whole message, else that of the file."""
    if file.size > _READ * _READS:
        ends.end = file.start + file.size
    else:
        _follow_old_stream(_Forward(io.BytesIO(_read_at(opened, file.size, 0))), file.start, ends)


def _follow(opened: SeekableStream, file: SegmentPlace, position: int, ends: SegmentEnds) -> None:
    """Follow lengths from `position` to the end of the segment: its next offset and last time, or a flaw there."""
    begin, data, base, reads = position, b"", position, 0
    last: list[_Batch] = []
    while position < file.size:
        head = data[position - base : position - base + HEADER.size]
        if len(head) < min(HEADER.size, file.size - position):
            if reads == _READS:
                return
            reads += 1
            data, base = _read_at(opened, _READ, position), position
            head = data[: HEADER.size]
            if len(head) < min(HEADER.size, file.size - position):
                return  # the file has become shorter
        size = batch_size(head)
        if size is None or position + size > file.size:
            ends.flaw = _no_batch(head, position, size, file.size)
            if ends.flaw[0] is FlawKind.NONSENSE:
                return
            break
        last = [*last[-1:], _Batch(position, size, head)]
        position += size
    batch = None
    if last and last[-1].size <= _CHECKED:
        batch = _read_at(opened, last[-1].size, last[-1].position)
    if last or not begin:
        _see_last(last, batch, None if begin else file.start, ends)


def _spoiled(last: _Batch, data: bytes | None) -> tuple[FlawKind, str] | None:
    """What is wrong with the last batch, whose bytes are `data`; None for too many to be checked."""
    what = f"the last batch, at position {last.position},"
    if data is not None and (len(data) < last.size or not is_intact(data)):
        return FlawKind.CRC, f"{what} does not match its CRC"
    offset = int.from_bytes(last.head[:8])
    if not offset <= _next_offset(last.head) - 1 <= MAX_OFFSET:
        return FlawKind.NONSENSE, f"{what} has impossible offsets"
    return None


def _see_last(last: Sequence[_Batch], data: bytes | None, start: int | None, ends: SegmentEnds) -> None:
    """What the last sound one of the two last batches shows. `data`: the bytes of the last one, if they are checked.

    Without any the segment ends where it starts; `start` is None where others may stand before them.
    """
    if last and (flaw := _spoiled(last[-1], data)) is not None:
        ends.flaw, last = flaw, last[:-1]
        if last and _spoiled(last[-1], None) is not None:
            return
    if not last:
        ends.end = start
        return
    ends.end, ends.last_time = _next_offset(last[-1].head), _last_time(last[-1].head)
    ends.formats.add(str(last[-1].head[MAGIC_AT]))
    _see_epoch(last[-1].head, ends)


def _see_epoch(head: bytes, ends: SegmentEnds) -> None:
    if head[MAGIC_AT] == MAGIC and len(head) == HEADER.size:
        header = read_header(head, 0)
        if header.leader_epoch >= 0:
            ends.epochs.append(EpochStart(header.leader_epoch, header.base_offset))


def _no_batch(head: bytes, position: int, size: int | None, file_size: int) -> tuple[FlawKind, str]:
    """What stands where no whole batch does."""
    rest = file_size - position
    if size is not None:
        return FlawKind.TORN, f"the batch at position {position} is torn: the file has {rest} bytes of its {size}"
    if not head.strip(b"\0"):
        return FlawKind.TORN, f"zeros begin at position {position}: space that the broker reserved, or a lost end"
    if rest <= MAGIC_AT:
        return FlawKind.TORN, f"the batch at position {position} is torn: the file has {rest} bytes of its header"
    return FlawKind.NONSENSE, f"the bytes at position {position} are not a batch"


def _next_offset(head: bytes) -> int:
    if head[MAGIC_AT] == MAGIC:
        return read_header(head, 0).last_offset + 1
    return int.from_bytes(head[:8]) + 1


def _first_time(head: bytes) -> int | None:
    """The time of the first record; None where the header does not have it.

    A compressed message of magic 1 has that of its last one, and a batch with a delete horizon has that in its place.
    """
    if head[MAGIC_AT] == MAGIC:
        header = read_header(head, 0) if len(head) == HEADER.size else None
        return None if header is None or header.delete_horizon is not None else _time(header.base_timestamp)
    if head[MAGIC_AT] and not head[MAGIC_AT + 1] & CODEC_MASK:
        return _last_time(head)
    return None


def _last_time(head: bytes) -> int | None:
    if head[MAGIC_AT] == MAGIC:
        return _time(read_header(head, 0).max_timestamp)
    return _time(_OLD_HEAD.unpack_from(head)[5]) if head[MAGIC_AT] and len(head) >= _OLD_HEAD.size else None


def _time(milliseconds: int) -> int | None:
    return milliseconds if milliseconds >= 0 else None
