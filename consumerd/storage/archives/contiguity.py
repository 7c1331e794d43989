"""Contiguity of the segments of a partition (spec 003, 5.5; golden notes, 3): where one ends, the next one begins.

Offsets of 0.7 are bytes, so that no gap is possible. Since 0.8 they count records, and compaction leaves out some:
where a segment beside a gap has such holes, the gap is not reported; where none has, it is, and called a guess.

Strategy: pure, over the summaries of all segments. Questions that need the neighbours are decided here: a torn end of
the *last* segment is the result of a crash; in an older one it is a block that was lost from the middle of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.segments.dialect import SegmentDialect


@dataclass(slots=True)
class ArchivePartitionReport:
    """One partition: its segments by start offset, and everything that is wrong with it, in order of offsets."""

    name: str
    segments: list[SegmentSummary]
    findings: list[ArchiveFinding] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def messages(self) -> int:
        return sum(segment.messages for segment in self.segments)

    @property
    def start(self) -> int:
        return self.segments[0].start

    @property
    def end(self) -> int:
        return max(segment.end for segment in self.segments)

    def count(self, *kinds: FlawKind | ArchiveFindingKind) -> int:
        """The number of findings of these kinds."""
        return sum(finding.count for finding in self.findings if finding.kind in kinds)


@dataclass(slots=True)
class ArchiveReport:
    """All partitions, and the findings outside of them."""

    partitions: list[ArchivePartitionReport]
    pending: list[ArchiveFinding] = field(default_factory=list)

    def findings(self) -> list[ArchiveFinding]:
        """All findings, by partition and offset, then the rest by source."""
        found = [finding for partition in self.partitions for finding in partition.findings]
        return found + sorted(self.pending, key=lambda finding: (finding.source, finding.kind))

    def is_sound(self, *, allow_torn_tail: bool) -> bool:
        """Whether there are no findings, except for deleted files, and perhaps for torn ends of logs."""
        passed = {ArchiveFindingKind.DELETED, *([FlawKind.TORN] if allow_torn_tail else [])}
        return all(finding.kind in passed for finding in self.findings())


def judge(summaries: Iterable[SegmentSummary], findings: Iterable[ArchiveFinding] = ()) -> list[ArchivePartitionReport]:
    """The partitions of an archive, sorted by name. `findings`: the others; a gap where a file was deleted is none."""
    partitions: dict[str, list[SegmentSummary]] = {}
    deleted = [each for each in findings if each.kind is ArchiveFindingKind.DELETED]
    for summary in summaries:
        partitions.setdefault(summary.folder, []).append(summary)
    return [_judged(name, partitions[name], deleted) for name in sorted(partitions)]


def _judged(name: str, segments: list[SegmentSummary], deleted: list[ArchiveFinding]) -> ArchivePartitionReport:
    segments = sorted(segments, key=lambda segment: (segment.start, segment.end, segment.source))
    report = ArchivePartitionReport(name, segments)
    for segment, following in pairwise(segments):
        between = _reported(segment, following)
        report.findings += [each for each in between if not _is_deletion(each, deleted)]
    report.findings += _reported(segments[-1], None)
    return report


def _is_deletion(finding: ArchiveFinding, deleted: list[ArchiveFinding]) -> bool:
    """Whether a finding is a gap between two segments where a file was deleted while the others were read."""
    if finding.kind is not ArchiveFindingKind.GAP or finding.offset is None or finding.end is None:
        return False
    folder = finding.source.rpartition("/")[0]
    return any(
        each.offset is not None and finding.offset <= each.offset < finding.end
        for each in deleted
        if each.source.rpartition("/")[0] == folder
    )


def _reported(segment: SegmentSummary, following: SegmentSummary | None) -> list[ArchiveFinding]:
    """The findings inside a segment, then those between it and the one that follows."""
    found = list(segment.findings)
    if segment.untold:
        found.append(
            ArchiveFinding(
                ArchiveFindingKind.MORE,
                segment.source,
                f"{segment.untold} more findings in the segment are not listed",
                segment.folder,
                segment.start,
                segment.end,
                segment.untold,
            )
        )
    if following is None:
        return found
    missing = following.start - segment.end
    lost = missing > 0 and bool(found)
    if segment.torn_at is not None:
        short = f"; {missing} {_unit(segment)} are missing before the next segment" if missing > 0 else ""
        found = [
            replace(finding, kind=ArchiveFindingKind.LOST, problem=finding.problem + short)
            if finding.kind is FlawKind.TORN
            else finding
            for finding in found
        ]
        if missing > 0:
            return found
    if (between := _between(segment, following, missing, lost=lost)) is not None:
        found.append(between)
    if None not in (epochs := (following.first_epoch, segment.last_epoch)) and epochs < epochs[::-1]:
        problem = f"its first leader epoch is {epochs[0]}, after {epochs[1]} in the segment before it"
        found.append(
            ArchiveFinding(FlawKind.EPOCH, following.source, problem, following.folder, following.start, following.end)
        )
    return found


def _unit(segment: SegmentSummary) -> str:
    return "bytes" if segment.dialect is SegmentDialect.V07 else "offsets"


def _between(segment: SegmentSummary, following: SegmentSummary, missing: int, *, lost: bool) -> ArchiveFinding | None:
    next_file, unit = following.source.rpartition("/")[2], _unit(segment)
    since_08 = segment.dialect is SegmentDialect.V08
    if segment.start == following.start:
        kind, problem = ArchiveFindingKind.DUPLICATE, f"the same segment is in {following.source}, too"
    elif not segment.size:
        kind, problem = (
            ArchiveFindingKind.EMPTY,
            f"the segment is empty, and {next_file} begins {missing} {unit} later",
        )
    elif missing > 0:
        if since_08 and (segment.absent or following.absent) and not lost:
            return None
        kind = ArchiveFindingKind.LOST if lost else ArchiveFindingKind.GAP
        problem = f"the segment ends at offset {segment.end}, {missing} {unit} before {next_file} begins"
        if since_08 and not lost:
            problem += ": a segment is missing, or (a guess) the topic is compacted"
    elif missing < 0:
        kind = ArchiveFindingKind.OVERLAP
        problem = f"the segment ends at offset {segment.end}, {-missing} {unit} after the beginning of {next_file}"
    else:
        return None
    low, high = sorted((segment.end, following.start))
    return ArchiveFinding(kind, segment.source, problem, segment.folder, low, high)
