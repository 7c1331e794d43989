"""An archive at a glance: the partitions below some folders, from names, indexes and the ends of their segments.

Strategy: of a segment only the first header is read, and what follows the last entry of its index: batches are followed
by their lengths, in a bounded number of reads, and only the last one is checked by its CRC. Where that does not lead to
the end of the file, the end is unknown, and absent. Names and bytes are hostile: links to folders are not followed, as
in a search for segments, and a file that is not a regular one is not opened.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from consumerd.base.errors import CorruptDataError
from consumerd.storage.archives.errors import NoSourceError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, FindingKind
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import LOG_SUFFIX, is_topic, parse_partition_folder, parse_segment_file
from consumerd.storage.log.archive_tiered import ZSTD_MAGIC, parse_tiered_folder, tiered_start
from consumerd.storage.log.segment import SUFFIX, parse_segment_name
from consumerd.storage.segments.batches import batch_size, is_intact
from consumerd.storage.segments.copies import EpochStart, parse_epochs
from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.storage.segments.kinds import MAGIC_AT
from consumerd.wire.v08.records.codecs import CODEC_MASK
from consumerd.wire.v08.records.record_batch import HEADER, MAGIC, read_header

#: Findings of a partition that are reported one by one; further ones are counted.
MOST_FINDINGS: Final = 100
#: Bytes per read, and the reads that may lead from the last entry of an index to the end of the segment.
_READ: Final = 4096
_READS: Final = 64
#: The largest last batch whose CRC is checked.
_CHECKED: Final = 4 << 20
_SMALL_FILE: Final = 4096
#: The most of a checkpoint of leader epochs: 30,000 elections.
_CHECKPOINT: Final = 1 << 20
#: The least length that a message of 0.7 begins with: that of its magic and CRC.
_OLD_LEAST: Final = 5
_CHECKPOINT_FILE: Final = "leader-epoch-checkpoint"
_ENTRY: Final = struct.Struct(">ii")
_OLD_HEAD: Final = struct.Struct(">qiIbbq")
_TOPIC_ID: Final = re.compile(r"^topic_id: *([A-Za-z0-9_-]{22}) *$", re.MULTILINE)
_BROKER: Final = re.compile(r"^(?:broker|node)\.id *= *([0-9]{1,9}) *$", re.MULTILINE)


@dataclass(slots=True)
class ListedPartition:
    """A folder with segments. What cannot be known without reading everything is None.

    `folder`: printable in any encoding. `topic` and `partition`: by its name, `state` too: "" for a log, else delete,
    future, stray or tiered. `broker`: by the `meta.properties` beside it. `start` and `end`: offsets, in bytes for 0.7.
    Times: milliseconds since 1970. `formats`: 0.7, or the magics of the first and last batches of segments since 0.8.
    `epochs`: leader epochs, where they begin if `exact_epochs`, else where a batch has them. `gaps`: ranges of offsets
    between segments. `last_file`: the path of the last segment. `read`: False where another copy of the partition is
    read in place of this one.
    """

    folder: str
    topic: str | None = None
    partition: int | None = None
    state: str = ""
    topic_id: str | None = None
    broker: int | None = None
    segments: int = 0
    bytes: int = 0
    start: int | None = None
    end: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    formats: set[str] = field(default_factory=set)
    findings: list[ArchiveFinding] = field(default_factory=list)
    epochs: tuple[EpochStart, ...] = ()
    exact_epochs: bool = False
    gaps: list[tuple[int, int]] = field(default_factory=list)
    last_file: str = ""
    read: bool = True

    def as_json(self) -> dict[str, Any]:
        """For `--json`: of the epochs the last one."""
        left_out = {"epochs", "exact_epochs", "gaps", "last_file"}
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        return values | {
            "leader_epoch": self.epochs[-1].epoch if self.epochs else None,
            "formats": sorted(self.formats),
            "findings": [finding.as_json() | {"count": finding.count} for finding in self.findings],
        }

    def note(self, kind: FindingKind, file: str, problem: str, *, count: int = 1) -> None:
        """Add a finding; one too many is only counted."""
        if len(self.findings) < MOST_FINDINGS:
            source = f"{self.folder}/{_printable(file)}" if file else self.folder
            self.findings.append(ArchiveFinding(kind, source, problem, count=count))
            return
        more = count + sum(each.count for each in self.findings[MOST_FINDINGS:])
        problem = f"{more} further findings of the partition are not listed; `consumerd log verify` reports more"
        found = ArchiveFinding(ArchiveFindingKind.MORE, self.folder, problem, count=more)
        self.findings[MOST_FINDINGS:] = [found]


class _File(NamedTuple):
    """A segment file in a folder."""

    start: int
    name: str
    size: int
    has_index: bool


@dataclass(slots=True)
class _Ends:
    """What the beginning and the end of a segment show."""

    dialect: SegmentDialect | None = None
    first_time: int | None = None
    last_time: int | None = None
    end: int | None = None
    formats: set[str] = field(default_factory=set)
    #: Leader epochs of the batches that were looked at.
    epochs: list[EpochStart] = field(default_factory=list)
    index_problem: str | None = None
    flaw: tuple[FlawKind, str] | None = None


def list_partitions(paths: Sequence[str]) -> Iterator[ListedPartition | ArchiveFinding]:
    """The folders with segments below `paths`, each once, in the order of their paths. Blocks.

    A folder that cannot be read is a finding. Raises NoSourceError for a path that is not a folder.
    """
    seen: set[str] = set()
    for path in paths:
        if not Path(path).is_dir():
            what = "is not a directory" if Path(path).exists() else "does not exist"
            raise NoSourceError(f"{path} {what}; name directories that hold segments")
        refused: list[OSError] = []
        root = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, and names are part of the output
        for folder, inside, files in os.walk(root, onerror=refused.append):
            inside.sort()
            if folder not in seen:
                seen.add(folder)
                if (listed := list_partition(folder, files)) is not None:
                    yield listed
        for error in refused:
            name = _printable(str(error.filename or path))
            problem = f"{name} cannot be read: {error.strerror or error}"
            yield ArchiveFinding(ArchiveFindingKind.UNREADABLE, name, problem)


def list_partition(folder: str, names: Sequence[str]) -> ListedPartition | None:
    """The partition in a folder with these files; None if it has no file that is named as a segment. Blocks."""
    there = set(names)
    found, leftovers = [], []
    for name in names:
        if (start := parse_segment_name(name)) is not None:
            found.append((start, name))
        elif (since_08 := parse_segment_file(name)) is not None:
            if since_08.state:
                leftovers.append(name)
            else:
                found.append((since_08.start, name))
    if not found and not leftovers:
        return None
    listed = _named(folder, there)
    if leftovers:
        problem = (
            f"{len(leftovers)} files that the broker was about to delete or had not finished (.deleted, .cleaned, "
            ".swap) are not counted; `consumerd log dump` shows one that is named"
        )
        listed.note(ArchiveFindingKind.LEFTOVER, min(leftovers), problem, count=len(leftovers))
    seen = _look(listed, folder, _regular_files(listed, folder, sorted(found), there))
    _set_epochs(listed, seen, folder, has_checkpoint=_CHECKPOINT_FILE in there)
    return listed


def _named(folder: str, there: set[str]) -> ListedPartition:
    """What the folder's name and the small files in it and beside it say."""
    listed = ListedPartition(_printable(folder))
    named = parse_partition_folder(os.path.basename(folder))  # noqa: PTH119 - one of a million
    tiered = parse_tiered_folder(*folder.split("/")[-2:]) if named is None and "/" in folder else None
    if tiered is not None and is_topic(tiered.topic):
        listed.topic, listed.partition, listed.state = tiered.topic, tiered.partition, "tiered"
        listed.topic_id = tiered.topic_id
    elif named is not None:
        listed.topic, listed.partition, listed.state = _printable(named.topic), named.partition, named.state
    if "partition.metadata" in there and (text := _match(_TOPIC_ID, f"{folder}/partition.metadata")) is not None:
        listed.topic_id = text
    if (text := _match(_BROKER, f"{os.path.dirname(folder)}/meta.properties")) is not None:  # noqa: PTH120
        listed.broker = int(text)
    return listed


def _regular_files(
    listed: ListedPartition, folder: str, found: Sequence[tuple[int, str]], there: set[str]
) -> list[_File]:
    """The files that can be opened: opening a FIFO waits for a writer."""
    files: list[_File] = []
    for start, name in found:
        try:
            status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - one of a million
        except OSError as error:
            listed.note(ArchiveFindingKind.UNREADABLE, name, f"{_printable(name)} cannot be read: {error.strerror}")
            continue
        if stat.S_ISREG(status.st_mode):
            index = name.removesuffix(LOG_SUFFIX) + ".index"
            files.append(_File(start, name, status.st_size, index in there))
        else:
            listed.note(ArchiveFindingKind.NO_FILE, name, f"{_printable(name)} is not a regular file; it was not read")
    return files


def _look(listed: ListedPartition, folder: str, files: Sequence[_File]) -> list[EpochStart]:
    """Read the beginnings and ends of the segments, in the order of their offsets. Returns the epochs of batches."""
    listed.segments = len(files)
    listed.bytes = sum(file.size for file in files)
    without_index: list[str] = []
    segments: list[tuple[_File, _Ends]] = []
    for file in files:
        try:
            ends = _ends_of(folder, file)
        except OSError as error:
            problem = f"{_printable(file.name)} cannot be read: {error.strerror or error}"
            listed.note(ArchiveFindingKind.UNREADABLE, file.name, problem)
            ends = _Ends()
        segments.append((file, ends))
        listed.formats |= ends.formats
        if ends.index_problem is not None:
            listed.note(ArchiveFindingKind.INDEX, file.name, ends.index_problem)
        elif file.size and ends.dialect is SegmentDialect.V08 and not file.has_index:
            without_index.append(file.name)
        if ends.flaw is not None:
            kind, problem = ends.flaw
            inside = kind is FlawKind.TORN and file is not files[-1]
            listed.note(ArchiveFindingKind.LOST if inside else kind, file.name, f"{_printable(file.name)}: {problem}")
    if without_index:
        problem = f"{len(without_index)} segments have no .index file; a broker builds it again when it starts"
        listed.note(ArchiveFindingKind.INDEX, without_index[0], problem, count=len(without_index))
    for (left, ends), (right, _) in pairwise(segments):
        _compare(listed, left, ends, right)
    if segments:
        listed.start, listed.end = segments[0][0].start, segments[-1][1].end
        listed.last_file = f"{folder}/{files[-1].name}"
        if filled := [each for file, each in segments if file.size]:
            listed.first_time, listed.last_time = filled[0].first_time, filled[-1].last_time
    return [epoch for _, ends in segments for epoch in ends.epochs]


def _set_epochs(listed: ListedPartition, seen: Sequence[EpochStart], folder: str, *, has_checkpoint: bool) -> None:
    """The leader epochs by the checkpoint, which batches must not contradict, else by batches."""
    entries: tuple[EpochStart, ...] = ()
    if has_checkpoint:
        try:
            data = _small_file(f"{folder}/{_CHECKPOINT_FILE}", _CHECKPOINT + 1)
            if len(data) > _CHECKPOINT:
                raise CorruptDataError(f"it has more than {_CHECKPOINT} bytes")
            entries = parse_epochs(data)
        except CorruptDataError as error:
            listed.note(ArchiveFindingKind.CHECKPOINT, _CHECKPOINT_FILE, f"{_CHECKPOINT_FILE} cannot be used: {error}")
    ordered = all(one.epoch <= other.epoch and one.start <= other.start for one, other in pairwise(seen))
    if entries and (wrong := _contradiction(entries, seen)) is not None:
        problem = (
            f"{_CHECKPOINT_FILE} is wrong or older than the log: the batch at offset {wrong.start} has leader epoch "
            f"{wrong.epoch}; a broker writes it again when it recovers the log"
        )
        listed.note(ArchiveFindingKind.CHECKPOINT, _CHECKPOINT_FILE, problem)
    elif entries:
        listed.epochs, listed.exact_epochs = entries, True
        return
    if ordered:
        listed.epochs = tuple(seen)


def _contradiction(entries: Sequence[EpochStart], seen: Sequence[EpochStart]) -> EpochStart | None:
    """The first batch whose epoch is not the one that the checkpoint has for its offset."""
    for each in seen:
        at = bisect_right(entries, each.start, key=itemgetter(1))
        if at and entries[at - 1].epoch != each.epoch:
            return each
    return None


def _compare(listed: ListedPartition, left: _File, ends: _Ends, right: _File) -> None:
    """Report a gap between two segments, or an overlap."""
    if left.start == right.start:
        problem = f"{_printable(left.name)} and {_printable(right.name)} are the same segment"
        listed.note(ArchiveFindingKind.DUPLICATE, right.name, problem)
    elif ends.end is not None and ends.flaw is None and ends.end != right.start:
        gap = ends.end < right.start
        if gap:
            listed.gaps.append((ends.end, right.start))
        guess = " (a guess: compaction may have removed what was between)" if ends.dialect is SegmentDialect.V08 else ""
        problem = f"{_printable(left.name)} ends at offset {ends.end}, and the next segment begins at {right.start}"
        kind = ArchiveFindingKind.GAP if gap else ArchiveFindingKind.OVERLAP
        listed.note(kind, left.name, problem + (guess if gap else ""))


def _ends_of(folder: str, file: _File) -> _Ends:
    """Look at the beginning and the end of one segment. Raises OSError."""
    ends = _Ends()
    if not file.size:
        ends.end = file.start
        return ends
    with Path(folder, file.name).open("rb", buffering=0) as opened:
        head = os.pread(opened.fileno(), HEADER.size, 0)
        if head.startswith(ZSTD_MAGIC) and tiered_start(file.name) is not None:
            ends.formats.add("zstd")
            return ends
        ends.dialect = recognise(head)
        if ends.dialect is None:
            if file.name.endswith(SUFFIX):
                ends.dialect = SegmentDialect.V07
            elif head.strip(b"\0"):
                ends.flaw = FlawKind.NONSENSE, "its first bytes are not a message of any Kafka"
                return ends
        if ends.dialect is SegmentDialect.V07:
            ends.formats.add("0.7")
            _follow_old(opened, file, ends)
            return ends
        if batch_size(head) is not None:
            ends.formats.add(str(head[MAGIC_AT]))
            ends.first_time = _first_time(head)
            _see_epoch(head, ends)
        position = 0
        if file.has_index:
            offset, position = _last_entry(Path(folder, file.name.removesuffix(LOG_SUFFIX) + ".index"), file.size)
            there = os.pread(opened.fileno(), HEADER.size, position)
            if position and not _is_of(there, file.start, file.start + offset):
                ends.index_problem = f"the last entry of the .index file of {_printable(file.name)} is wrong"
                position = 0
        _follow(opened, file, position, ends)
    return ends


def _last_entry(index: Path, size: int) -> tuple[int, int]:
    """Relative offset and position of the last entry of an index that lies within the segment's `size` bytes.

    (0, 0) without one. A broker reserves 10 MiB for the index of its last segment, so zeros may follow the entries.
    """
    found = 0, 0
    if not index.is_file():
        return found
    with index.open("rb", buffering=0) as opened:
        low, high = 0, os.fstat(opened.fileno()).st_size // _ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = os.pread(opened.fileno(), _ENTRY.size, middle * _ENTRY.size)
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


def _follow_old(opened: BinaryIO, file: _File, ends: _Ends) -> None:
    """The end of a segment of 0.7: of a small one after its last whole message, else that of the file."""
    ends.end = file.start + file.size
    if file.size > _READ * _READS:
        return
    data, position = os.pread(opened.fileno(), file.size, 0), 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4])
        if len(data) - position >= 4 and length < _OLD_LEAST:
            ends.flaw = FlawKind.NONSENSE, f"the bytes at position {position} are not a message"
        elif position + 4 + length > len(data):
            rest = len(data) - position
            ends.flaw = FlawKind.TORN, f"the message at position {position} is torn: the file has {rest} bytes of it"
        if ends.flaw is not None:
            ends.end = file.start + position if ends.flaw[0] is FlawKind.TORN else None
            return
        position += 4 + length


def _follow(opened: BinaryIO, file: _File, position: int, ends: _Ends) -> None:
    """Follow lengths from `position` to the end of the segment: its next offset and last time, or a flaw there."""
    begin, data, base, reads = position, b"", position, 0
    last: list[_Batch] = []
    while position < file.size:
        head = data[position - base : position - base + HEADER.size]
        if len(head) < min(HEADER.size, file.size - position):
            if reads == _READS:
                return
            reads += 1
            data, base = os.pread(opened.fileno(), _READ, position), position
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
    if last and last[-1].size <= _CHECKED:
        batch = os.pread(opened.fileno(), last[-1].size, last[-1].position)
        if len(batch) < last[-1].size or not is_intact(batch):
            ends.flaw = FlawKind.CRC, f"the last batch, at position {last[-1].position}, does not match its CRC"
            last.pop()
    if last:
        ends.end, ends.last_time = _next_offset(last[-1].head), _last_time(last[-1].head)
        ends.formats.add(str(last[-1].head[MAGIC_AT]))
        _see_epoch(last[-1].head, ends)
    elif not begin:
        ends.end = file.start


def _see_epoch(head: bytes, ends: _Ends) -> None:
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
    """The time of the first record; that of a compressed message of magic 1 is of its last."""
    if head[MAGIC_AT] == MAGIC:
        return _time(read_header(head, 0).base_timestamp) if len(head) == HEADER.size else None
    if head[MAGIC_AT] and not head[MAGIC_AT + 1] & CODEC_MASK:
        return _last_time(head)
    return None


def _last_time(head: bytes) -> int | None:
    if head[MAGIC_AT] == MAGIC:
        return _time(read_header(head, 0).max_timestamp)
    return _time(_OLD_HEAD.unpack_from(head)[5]) if head[MAGIC_AT] and len(head) >= _OLD_HEAD.size else None


def _time(milliseconds: int) -> int | None:
    return milliseconds if milliseconds >= 0 else None


def _match(pattern: re.Pattern[str], path: str) -> str | None:
    """The value in a small text file of the broker's; None if it is not there."""
    found = pattern.search(_small_file(path, _SMALL_FILE).decode("utf-8", "replace"))
    return None if found is None else found[1]


def _small_file(path: str, most: int) -> bytes:
    """The first `most` bytes; none of a file that cannot be read."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb", buffering=0) as file:
            return file.read(most)
    except OSError:
        return b""


def _printable(name: str) -> str:
    """A name of a file, in any encoding."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
