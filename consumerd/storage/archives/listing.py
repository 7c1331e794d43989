"""An archive at a glance: the partitions below some folders, from names, indexes and the ends of their segments.

Strategy: of a segment only the ends are looked at (`segment_ends`), and the folders may be anywhere (`folders`). Names
and bytes are hostile: a file that is not a regular one is not opened.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from consumerd.base.errors import CorruptDataError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, FindingKind
from consumerd.storage.archives.folders import LOCAL_FILES, ArchiveFiles, ArchiveFolder, find_folders
from consumerd.storage.archives.opening import unpacked
from consumerd.storage.archives.segment_ends import IndexFile, SegmentEnds, SegmentPlace, ends_of, ends_of_stream
from consumerd.storage.archives.sources import Packing, packing_of, printable, unpacked_name
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import LOG_SUFFIX, is_topic, parse_partition_folder, parse_segment_file
from consumerd.storage.log.archive_tiered import TIERED, parse_tiered_folder
from consumerd.storage.log.segment import parse_segment_name
from consumerd.storage.segments.copies import EpochStart, parse_epochs
from consumerd.storage.segments.dialect import SegmentDialect

#: Findings of a partition that are reported one by one; further ones are counted.
MOST_FINDINGS: Final = 100
_SMALL_FILE: Final = 4096
#: The most of a checkpoint of leader epochs: 30,000 elections.
_CHECKPOINT: Final = 1 << 20
_CHECKPOINT_FILE: Final = "leader-epoch-checkpoint"
_TOPIC_ID: Final = re.compile(r"^topic_id: *([A-Za-z0-9_-]{22}) *$", re.MULTILINE)
_BROKER: Final = re.compile(r"^(?:broker|node)\.id *= *([0-9]{1,9}) *$", re.MULTILINE)


@dataclass(slots=True)
class ListedPartition:
    """A folder with segments. What cannot be known without reading everything is None.

    `folder`: printable in any encoding. `topic` and `partition`: by its name, `state` too: "" for a log, else delete,
    future, stray or tiered. `broker`: by the `meta.properties` beside it. `start` and `end`: offsets, in bytes for 0.7.
    Times: milliseconds since 1970. `formats`: 0.7, or the magics of the first and last batches of segments since 0.8.
    `epochs`: leader epochs, where they begin if `exact_epochs`, else where a batch has them. `gaps`: ranges of offsets
    between segments. `last_file`: the path of the last segment, in `files`. `read`: False where another copy of the
    partition is read in place of this one.
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
    files: ArchiveFiles = LOCAL_FILES

    def as_json(self) -> dict[str, Any]:
        """For `--json`: of the epochs the last one."""
        left_out = {"epochs", "exact_epochs", "gaps", "last_file", "files"}
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        return values | {
            "leader_epoch": self.epochs[-1].epoch if self.epochs else None,
            "formats": sorted(self.formats),
            "findings": [finding.as_json() | {"count": finding.count} for finding in self.findings],
        }

    def note(self, kind: FindingKind, file: str, problem: str, *, count: int = 1) -> None:
        """Add a finding; one too many is only counted."""
        if len(self.findings) < MOST_FINDINGS:
            source = f"{self.folder}/{printable(file)}" if file else self.folder
            self.findings.append(ArchiveFinding(kind, source, problem, count=count))
            return
        more = count + sum(each.count for each in self.findings[MOST_FINDINGS:])
        problem = f"{more} further findings of the partition are not listed; `consumerd log verify` reports more"
        found = ArchiveFinding(ArchiveFindingKind.MORE, self.folder, problem, count=more)
        self.findings[MOST_FINDINGS:] = [found]


def list_partitions(paths: Sequence[str]) -> Iterator[ListedPartition | ArchiveFinding]:
    """The folders with segments below `paths`, each once, in the order of their paths. Blocks.

    What cannot be read is a finding. Raises NoSourceError for another path, MissingExtraError.
    """
    seen: set[str] = set()
    for path in paths:
        for found in find_folders(path):
            if isinstance(found, ArchiveFinding):
                yield found
            elif found.path not in seen:
                seen.add(found.path)
                if (listed := list_partition(found)) is not None:
                    yield listed


def list_partition(folder: ArchiveFolder) -> ListedPartition | None:
    """The partition in a folder; None if it has no file that is named as a segment. Blocks."""
    found, leftovers = [], []
    for name in folder.names:
        plain = unpacked_name(name)
        if (start := parse_segment_name(plain)) is not None:
            found.append((start, name))
        elif (since_08 := parse_segment_file(plain)) is not None:
            if since_08.state:
                leftovers.append(name)
            else:
                found.append((since_08.start, name))
    if not found and not leftovers:
        return None
    listed = _named(folder)
    if leftovers:
        problem = (
            f"{len(leftovers)} files that the broker was about to delete or had not finished (.deleted, .cleaned, "
            ".swap) are not counted; `consumerd log dump` shows one that is named"
        )
        listed.note(ArchiveFindingKind.LEFTOVER, min(leftovers), problem, count=len(leftovers))
    seen = _look(listed, folder, _regular_files(listed, folder, sorted(found)))
    _set_epochs(listed, seen, folder)
    return listed


def _named(folder: ArchiveFolder) -> ListedPartition:
    """What the folder's name and the small files in it and beside it say."""
    listed = ListedPartition(printable(folder.path), files=folder.files)
    above, _, last = folder.path.rpartition("/")
    named = parse_partition_folder(last)
    tiered = parse_tiered_folder(above.rpartition("/")[2], last) if named is None and above else None
    if tiered is not None and is_topic(tiered.topic):
        listed.topic, listed.partition, listed.state = tiered.topic, tiered.partition, TIERED
        listed.topic_id = tiered.topic_id
    elif named is not None:
        listed.topic, listed.partition, listed.state = printable(named.topic), named.partition, named.state
    if "partition.metadata" in folder.names:
        listed.topic_id = _match(_TOPIC_ID, folder, "partition.metadata") or listed.topic_id
    if (text := _match(_BROKER, folder._replace(path=above), "meta.properties")) is not None:
        listed.broker = int(text)
    return listed


def _regular_files(
    listed: ListedPartition, folder: ArchiveFolder, found: Sequence[tuple[int, str]]
) -> list[SegmentPlace]:
    """The files that can be opened: opening a FIFO waits for a writer."""
    files: list[SegmentPlace] = []
    for start, name in found:
        try:
            size = folder.files.size(folder.file(name))
        except OSError as error:
            listed.note(ArchiveFindingKind.UNREADABLE, name, f"{printable(name)} cannot be read: {error.strerror}")
            continue
        if size is not None:
            files.append(SegmentPlace(start, name, size))
        else:
            listed.note(ArchiveFindingKind.NO_FILE, name, f"{printable(name)} is not a regular file; it was not read")
    return files


def _look(listed: ListedPartition, folder: ArchiveFolder, files: Sequence[SegmentPlace]) -> list[EpochStart]:
    """Read the beginnings and ends of the segments, in the order of their offsets. Returns the epochs of batches."""
    listed.segments = len(files)
    without_index: list[str] = []
    segments: list[tuple[SegmentPlace, SegmentEnds]] = []
    for file in files:
        try:
            ends = _ends_of(folder, file)
        except OSError as error:
            problem = f"{printable(file.name)} cannot be read: {error.strerror or error}"
            listed.note(ArchiveFindingKind.UNREADABLE, file.name, problem)
            ends = SegmentEnds(file.size)
        segments.append((file, ends))
        listed.bytes += ends.size
        listed.formats |= ends.formats
        if ends.index_problem is not None:
            listed.note(ArchiveFindingKind.INDEX, file.name, ends.index_problem)
        elif (
            file.size
            and file.name.endswith(LOG_SUFFIX)
            and _index_of(file.name) not in folder.names
            and ends.dialect is SegmentDialect.V08
        ):
            without_index.append(file.name)
        if ends.flaw is not None:
            kind, problem = ends.flaw
            inside = kind is FlawKind.TORN and file is not files[-1]
            listed.note(ArchiveFindingKind.LOST if inside else kind, file.name, f"{printable(file.name)}: {problem}")
    if without_index:
        have = "1 segment has" if len(without_index) == 1 else f"{len(without_index)} segments have"
        problem = f"{have} no .index file; a broker builds it again when it starts"
        listed.note(ArchiveFindingKind.INDEX, without_index[0], problem, count=len(without_index))
    for (left, ends), (right, _) in pairwise(segments):
        _compare(listed, left, ends, right)
    if segments:
        listed.start, listed.end = segments[0][0].start, segments[-1][1].end
        listed.last_file = folder.file(files[-1].name)
        if filled := [each for _, each in segments if each.size]:
            listed.first_time, listed.last_time = filled[0].first_time, filled[-1].last_time
    return [epoch for _, ends in segments for epoch in ends.epochs]


def _set_epochs(listed: ListedPartition, seen: Sequence[EpochStart], folder: ArchiveFolder) -> None:
    """The leader epochs by the checkpoint, which batches must not contradict, else by batches."""
    entries: tuple[EpochStart, ...] = ()
    if _CHECKPOINT_FILE in folder.names:
        try:
            data = _small_file(folder, _CHECKPOINT_FILE, _CHECKPOINT + 1)
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


def _compare(listed: ListedPartition, left: SegmentPlace, ends: SegmentEnds, right: SegmentPlace) -> None:
    """Report a gap between two segments, or an overlap."""
    if left.start == right.start:
        problem = f"{printable(left.name)} and {printable(right.name)} are the same segment"
        listed.note(ArchiveFindingKind.DUPLICATE, right.name, problem)
        return
    if ends.end is not None and ends.end < right.start:
        listed.gaps.append((ends.end, right.start))
    if ends.end is not None and ends.flaw is None and ends.end != right.start:
        gap = ends.end < right.start
        guess = " (a guess: compaction may have removed what was between)" if ends.dialect is SegmentDialect.V08 else ""
        problem = f"{printable(left.name)} ends at offset {ends.end}, and the next segment begins at {right.start}"
        kind = ArchiveFindingKind.GAP if gap else ArchiveFindingKind.OVERLAP
        listed.note(kind, left.name, problem + (guess if gap else ""))


def _index_of(name: str) -> str:
    return unpacked_name(name).removesuffix(LOG_SUFFIX) + ".index"


def _ends_of(folder: ArchiveFolder, file: SegmentPlace) -> SegmentEnds:
    """Look at the beginning and the end of one segment. Raises OSError."""
    path, name = folder.file(file.name), printable(unpacked_name(file.name))
    if (known := folder.files.known_ends(path)) is not None:
        return known
    with folder.files.open(path) as opened, contextlib.ExitStack() as stack:
        if (packing := packing_of(file.name)) is not Packing.NONE:
            return ends_of_stream(unpacked(opened, packing), name, file.start)
        index = None
        if (beside := _index_of(file.name)) in folder.names and file.name.endswith(LOG_SUFFIX):
            size = folder.files.size(folder.file(beside))
            if size is not None:
                index = IndexFile(stack.enter_context(folder.files.open(folder.file(beside))), size)
        return ends_of(opened, file._replace(name=name), index)


def _match(pattern: re.Pattern[str], folder: ArchiveFolder, name: str) -> str | None:
    """The value in a small text file of the broker's; None if it is not there."""
    found = pattern.search(_small_file(folder, name, _SMALL_FILE).decode("utf-8", "replace"))
    return None if found is None else found[1]


def _small_file(folder: ArchiveFolder, name: str, most: int) -> bytes:
    """The first `most` bytes; none of a file that cannot be read."""
    try:
        with folder.files.open(folder.file(name)) as file:
            return file.read(most)
    except OSError:
        return b""
