from __future__ import annotations

from consumerd.archive import FindingKind, SegmentSummary, judge
from consumerd.archive.findings import MAX_FINDINGS
from consumerd.storage.archive import Flaw, FlawKind, Run
from consumerd.wire.v07 import Codec


def summary(start: int, *items: Run | Flaw, folder: str = "t-0", source: str | None = None) -> SegmentSummary:
    found = SegmentSummary(source or f"/a/{folder}/{start:020d}.kafka", "", folder, start)
    for item in items:
        found.see(item)
    return found


def good(start: int, end: int) -> Run:
    return Run(start, end, 1, Codec.NONE, [b"x" * (end - start - 10)])


def torn(start: int, end: int) -> Flaw:
    return Flaw(FlawKind.TORN, start, end, "torn")


def kinds(*summaries: SegmentSummary) -> list[str]:
    return [str(finding.kind) for report in judge(summaries) for finding in report.findings]


def test_segments_that_fit_are_sound() -> None:
    (report,) = judge([summary(50, good(50, 100)), summary(0, good(0, 50)), summary(100)])
    assert report.findings == []
    assert (report.name, report.start, report.end, report.size, report.messages) == ("t-0", 0, 100, 100, 2)


def test_the_first_segments_may_be_gone_and_the_last_be_empty() -> None:
    assert kinds(summary(4000, good(4000, 4050)), summary(4050)) == []
    assert kinds(summary(0)) == []


def test_partitions_are_judged_each_for_itself() -> None:
    reports = judge([summary(0, good(0, 50), folder="b-0"), summary(70, good(70, 80), folder="a-0")])
    assert [(report.name, report.findings) for report in reports] == [("a-0", []), ("b-0", [])]


def test_a_gap() -> None:
    (report,) = judge([summary(0, good(0, 50)), summary(70, good(70, 80))])
    (finding,) = report.findings
    assert (finding.kind, finding.offset, finding.end) == (FindingKind.GAP, 50, 70)
    assert "20 bytes before 00000000000000000070.kafka begins" in finding.problem


def test_a_torn_end_of_the_log_is_a_tail_and_elsewhere_a_lost_block() -> None:
    assert kinds(summary(0, good(0, 50), torn(50, 55))) == ["torn-tail"]
    (report,) = judge([summary(0, good(0, 50), torn(50, 55)), summary(70, good(70, 80))])
    (finding,) = report.findings
    assert (finding.kind, finding.offset, finding.end) == (FindingKind.LOST, 50, 55)
    assert finding.problem == "torn; 15 bytes are missing before the next segment"


def test_a_torn_end_that_nothing_is_missing_after() -> None:
    assert kinds(summary(0, good(0, 50), torn(50, 55)), summary(55)) == ["lost-block"]


def test_a_damaged_segment_that_is_short_has_lost_something() -> None:
    nonsense = Flaw(FlawKind.NONSENSE, 20, 50, "nonsense")
    assert kinds(summary(0, good(0, 20), nonsense), summary(70)) == ["nonsense-block", "lost-block"]


def test_overlaps_duplicates_and_empty_segments() -> None:
    assert kinds(summary(0, good(0, 90)), summary(70, good(70, 90))) == ["overlap"]
    assert kinds(summary(0, good(0, 90), source="a"), summary(0, good(0, 90), source="b")) == ["duplicate-segment"]
    (report,) = judge([summary(0), summary(30, good(30, 50))])
    assert [finding.kind for finding in report.findings] == [FindingKind.EMPTY]
    assert "00000000000000000030.kafka begins 30 bytes further on" in report.findings[0].problem


def test_findings_beyond_the_first_are_counted() -> None:
    flaws = [Flaw(FlawKind.CRC, at, at + 1, "bad", 1, Codec.NONE) for at in range(MAX_FINDINGS + 7)]
    (report,) = judge([summary(0, *flaws)])
    assert len(report.findings) == MAX_FINDINGS + 1
    assert report.findings[-1].kind is FindingKind.MORE
    assert sum(finding.count for finding in report.findings) == MAX_FINDINGS + 7
    assert report.segments[0].corrupt == MAX_FINDINGS + 7
