from __future__ import annotations

from consumerd.storage.archives.contiguity import judge
from consumerd.storage.archives.findings import MAX_FINDINGS, ArchiveFindingKind, SegmentSummary
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, FlawKind
from consumerd.wire.v07 import Codec


def summary(start: int, *items: ArchivedRun | Flaw, folder: str = "t-0", source: str | None = None) -> SegmentSummary:
    found = SegmentSummary(source or f"/a/{folder}/{start:020d}.kafka", "", folder, start)
    for item in items:
        found.see(item)
    return found


def good(start: int, end: int) -> ArchivedRun:
    return ArchivedRun(start, end, 1, Codec.NONE, [b"x" * (end - start - 10)])


def torn(start: int, end: int) -> Flaw:
    return Flaw(FlawKind.TORN, start, end, "torn")


def kinds(*summaries: SegmentSummary) -> list[str]:
    return [str(finding.kind) for report in judge(summaries) for finding in report.findings]


def test_contiguous_segments_are_sound() -> None:
    (report,) = judge([summary(50, good(50, 100)), summary(0, good(0, 50)), summary(100)])
    assert report.findings == []
    assert (report.name, report.start, report.end, report.size, report.messages) == ("t-0", 0, 100, 100, 2)


def test_allows_deleted_first_segments_and_an_empty_last_one() -> None:
    assert kinds(summary(4000, good(4000, 4050)), summary(4050)) == []
    assert kinds(summary(0)) == []


def test_checks_each_partition_by_itself() -> None:
    reports = judge([summary(0, good(0, 50), folder="b-0"), summary(70, good(70, 80), folder="a-0")])
    assert [(report.name, report.findings) for report in reports] == [("a-0", []), ("b-0", [])]


def test_reports_a_gap() -> None:
    (report,) = judge([summary(0, good(0, 50)), summary(70, good(70, 80))])
    (finding,) = report.findings
    assert (finding.kind, finding.offset, finding.end) == (ArchiveFindingKind.GAP, 50, 70)
    assert "20 bytes before 00000000000000000070.kafka begins" in finding.problem


def test_reports_a_torn_end_as_a_tail_in_the_last_segment_and_as_a_lost_block_elsewhere() -> None:
    assert kinds(summary(0, good(0, 50), torn(50, 55))) == ["torn-tail"]
    (report,) = judge([summary(0, good(0, 50), torn(50, 55)), summary(70, good(70, 80))])
    (finding,) = report.findings
    assert (finding.kind, finding.offset, finding.end) == (ArchiveFindingKind.LOST, 50, 55)
    assert finding.problem == "torn; 15 bytes are missing before the next segment"


def test_reports_a_torn_end_without_a_gap_after_it() -> None:
    assert kinds(summary(0, good(0, 50), torn(50, 55)), summary(55)) == ["lost-block"]


def test_reports_a_short_damaged_segment_as_lost_bytes() -> None:
    nonsense = Flaw(FlawKind.NONSENSE, 20, 50, "nonsense")
    assert kinds(summary(0, good(0, 20), nonsense), summary(70)) == ["nonsense-block", "lost-block"]


def test_reports_overlaps_duplicates_and_empty_segments() -> None:
    assert kinds(summary(0, good(0, 90)), summary(70, good(70, 90))) == ["overlap"]
    assert kinds(summary(0, good(0, 90), source="a"), summary(0, good(0, 90), source="b")) == ["duplicate-segment"]
    (report,) = judge([summary(0), summary(30, good(30, 50))])
    assert [finding.kind for finding in report.findings] == [ArchiveFindingKind.EMPTY]
    assert "00000000000000000030.kafka begins 30 bytes later" in report.findings[0].problem


def test_counts_findings_beyond_the_first() -> None:
    flaws = [Flaw(FlawKind.CRC, at, at + 1, "bad", 1, Codec.NONE) for at in range(MAX_FINDINGS + 7)]
    (report,) = judge([summary(0, *flaws)])
    assert len(report.findings) == MAX_FINDINGS + 1
    assert report.findings[-1].kind is ArchiveFindingKind.MORE
    assert sum(finding.count for finding in report.findings) == MAX_FINDINGS + 7
    assert report.segments[0].corrupt == MAX_FINDINGS + 7
