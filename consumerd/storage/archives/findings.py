"""The findings in an archive, one for each problem, and the summary of a segment.

Strategy: a worker looks at one segment and sums it up (`SegmentSummary`); only the view of all segments of a partition
distinguishes a torn end of the log from a block that is lost inside it (`consumerd.storage.archives.contiguity`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from consumerd.storage.log.archive_items import MESSAGE_FLAWS, ArchivedRun, Flaw, FlawKind, IndexedMessages
from consumerd.storage.log.archive_names import SegmentName
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch
from consumerd.storage.segments.checking import CheckedBatches
from consumerd.storage.segments.copies import CopyDifferenceKind
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.wire.v07 import Codec

#: Findings of one segment that are reported one by one; further ones are counted.
MAX_FINDINGS = 1000


class ArchiveFindingKind(StrEnum):
    """The kinds of defects other than the flaws inside of a segment (`FlawKind`)."""

    #: A segment ends before the next one begins, and ends well: a file is missing, or the end of one.
    GAP = "gap"
    #: A segment ends before the next one begins, and ends inside a message or in nonsense.
    LOST = "lost-block"
    #: A segment ends behind the beginning of the next one.
    OVERLAP = "overlap"
    DUPLICATE = "duplicate-segment"
    #: A segment without a byte that is not the last one of its partition.
    EMPTY = "empty-segment"
    MISNAMED = "misnamed-segment"
    #: A name in a tar that leads out of it.
    UNSAFE = "unsafe-name"
    #: A link, a sparse file or the like in a tar.
    NO_FILE = "no-plain-file"
    UNREADABLE = "unreadable-file"
    #: A file that was deleted since it was found, as a running broker does: not a defect of the archive.
    DELETED = "deleted-file"
    #: A tiered segment that its plugin encrypted.
    ENCRYPTED = "encrypted-segment"
    #: In a folder that a broker of 0.8 and later was about to delete, had found to be a stray one, or was filling.
    ABANDONED = "abandoned-folder"
    #: The index of a segment is missing, or wrong (`consumerd log ls`).
    INDEX = "unusable-index"
    #: The leader epochs of a partition's folder are missing, or wrong (`consumerd log ls`).
    CHECKPOINT = "unusable-checkpoint"
    #: A folder that is not of a partition of an existing topic, by the cluster's metadata (`consumerd log ls`).
    STALE = "stale-folder"
    #: Partitions of existing topics that have no folder, by the cluster's metadata (`consumerd log ls`).
    ABSENT = "missing-partition"
    #: The metadata log of the cluster has holes (`consumerd log ls`).
    METADATA = "incomplete-metadata"
    #: Files that a broker was about to delete, or had not finished (`consumerd log ls`).
    LEFTOVER = "leftover-file"
    #: More findings of a segment than are reported one by one.
    MORE = "more-findings"


FindingKind = FlawKind | ArchiveFindingKind | CopyDifferenceKind


@dataclass(frozen=True, slots=True)
class ArchiveFinding:
    """One thing that is wrong. `offset` and `end` are log offsets, where it has some; `problem` is a sentence."""

    kind: FindingKind
    source: str
    problem: str
    partition: str | None = None
    offset: int | None = None
    end: int | None = None
    #: The number of things that it stands for.
    count: int = 1
    #: Whether another copy is read in place of the one that it is about, so that nothing is missing because of it.
    replaced: bool = False

    def as_json(self) -> dict[str, Any]:
        """For `--json` and manifests."""
        return {
            "finding": str(self.kind),
            "source": self.source,
            "partition": self.partition,
            "offset": self.offset,
            "end": self.end,
            "problem": self.problem,
        }


@dataclass(slots=True)
class SegmentSummary:
    """One segment as it was found. Sizes in bytes of the segment itself, unpacked."""

    source: str
    stamp: str
    #: The name of the partition in reports.
    folder: str
    start: int
    name: SegmentName | None = None
    size: int = 0
    #: Messages that can be read: those inside of wrappers, and plain ones.
    messages: int = 0
    wrappers: int = 0
    #: Messages that cannot.
    corrupt: int = 0
    #: Bytes that are not messages, and those of a torn end.
    nonsense: int = 0
    torn: int = 0
    #: The start of a torn end.
    torn_at: int | None = None
    findings: list[ArchiveFinding] = field(default_factory=list)
    untold: int = 0
    dialect: SegmentDialect = SegmentDialect.V07
    #: Since 0.8: the offset after the last record, and how many offsets before it no record and no marker has.
    next_offset: int | None = None
    absent: int = 0
    #: Since 0.11: the first and the greatest leader epoch.
    first_epoch: int | None = None
    last_epoch: int | None = None

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.start + self.size if self.next_offset is None else self.next_offset

    @property
    def flaws(self) -> int:
        """The number of findings inside of the segment."""
        return len(self.findings) + self.untold

    def see(self, item: ArchivedRun | IndexedMessages | Flaw) -> None:
        """Count the next messages or the next flaw of the segment."""
        self.size = item.next_offset - self.start
        if isinstance(item, IndexedMessages):
            self.messages += len(item.payloads)
            self.wrappers += sum(not overhead for _, _, overhead in item.payloads.runs)
            return
        if isinstance(item, ArchivedRun):
            self.messages += len(item.payloads)
            self.wrappers += item.codec is not Codec.NONE
            return
        self._see_flaw(item, item.next_offset - item.offset, item.next_offset)

    def see_batch(self, item: CheckedBatches | StoredBatch | SegmentFlaw) -> None:
        """Count the next batch or the next flaw of a segment of 0.8 and later."""
        self.size = item.position + item.size
        if self.next_offset is None:
            self.next_offset = self.start
        if isinstance(item, CheckedBatches):
            self.wrappers += item.compressed
            self._see_records(item.records, item.control, item.next_offset)
            self._see_epochs(item.first_epoch, item.last_epoch)
            return
        if isinstance(item, StoredBatch):
            self.wrappers += item.batches if item.codec else 0
            self._see_records(len(item.records), item.control is not None, item.next_offset)
            self._see_epochs(item.leader_epoch, item.leader_epoch)
            if item.problem is not None:
                kind, problem = item.problem
                self._note(kind, problem, item.offset, item.next_offset)
            return
        self._see_flaw(item, item.size, None)

    def _see_flaw(self, item: Flaw | SegmentFlaw, size: int, end: int | None) -> None:
        if item.kind in MESSAGE_FLAWS:
            self.corrupt += 1
        elif item.kind is FlawKind.TORN:
            self.torn, self.torn_at = size, item.offset
        else:
            self.nonsense += size
        self._note(item.kind, item.problem, item.offset, end)

    def _see_records(self, records: int, control: int, next_offset: int) -> None:
        before = self.start if self.next_offset is None else self.next_offset
        self.messages += records
        self.absent += max(0, next_offset - before - records - control)
        self.next_offset = max(before, next_offset)

    def _see_epochs(self, first: int | None, last: int | None) -> None:
        if first is None or last is None or first < 0:
            return
        self.first_epoch = first if self.first_epoch is None else self.first_epoch
        self.last_epoch = max(last, self.first_epoch, self.last_epoch or 0)

    def _note(self, kind: FlawKind, problem: str, offset: int, end: int | None) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(ArchiveFinding(kind, self.source, problem, self.folder, offset, end))
        else:
            self.untold += 1
