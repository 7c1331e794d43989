"""Facts to be shown, harmless and hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from consumerd.spark.progress import BatchProgress, ProgressHistory, SourceLag
from consumerd.spark.reconcile_result import LogStretch, LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.report.facts import (
    EventFacts,
    GroupFacts,
    GroupRow,
    LandedFacts,
    LandedInterval,
    MessageSizes,
    QuarantineFacts,
    QuarantineReason,
    QuarantineSample,
    ReportFacts,
    SizeClass,
    TableFacts,
    WindowFacts,
)
from consumerd.spark.step_history import StepRun

START = datetime(2026, 11, 21, 17, tzinfo=UTC)
HOSTILE = "<script>alert('1')</script>\"'&${x}$\\frac{1}{2}$\u202e\x00\x1b[31m{{ 7 * 7 }}]]>"


@pytest.fixture
def facts() -> ReportFacts:
    """A pipeline that has everything, wherever text comes from outside with HOSTILE in it."""
    minutes = [START + timedelta(minutes=n) for n in range(60)]
    sizes = MessageSizes((SizeClass(0, 1, 0, 0), SizeClass(56, 98, 130, 140), SizeClass(100, 1, 5900, 5900)))
    batches = [
        BatchProgress("q", "r", n, at, 2.5, 1000 * (59 - n), (SourceLag(HOSTILE, HOSTILE, 5),) if n == 59 else ())
        for n, at in enumerate(minutes)
    ]
    stretches = LogStretches(30, tuple(LogStretch(10 * n, 10 * n + 5) for n in range(20)))
    wrong = PartitionCheck(HOSTILE, HOSTILE, 0, 300, 90, 40, 40, 3, gaps=stretches, trimmed=stretches, same_hash=False)
    return ReportFacts(
        pipeline=HOSTILE,
        made=START + timedelta(hours=1),
        source=((HOSTILE, HOSTILE), ("subscribe", "clicks")),
        landed=LandedFacts(
            rows=6000,
            size=810_000,
            corrupt=2,
            batches=60,
            first=minutes[0],
            last=minutes[-1],
            width=timedelta(minutes=1),
            intervals=tuple(
                LandedInterval(at, 100, 13_500, quarantined=2 if n == 59 else 1) for n, at in enumerate(minutes)
            ),
            sizes=sizes,
        ),
        progress=ProgressHistory(tuple(batches), unreadable=1),
        refined=5900,
        quarantine=QuarantineFacts(
            90,
            (
                QuarantineReason(
                    HOSTILE, 50, (QuarantineSample(HOSTILE, b"\xff\xfe" + HOSTILE.encode(), truncated=True),)
                ),
                QuarantineReason(
                    "none",
                    30,
                    (QuarantineSample("a", None, truncated=False), QuarantineSample("b", b"", truncated=False)),
                ),
            ),
            other_reasons=7,
        ),
        events=EventFacts(5890, 10, minutes[0], minutes[-1], tuple((at, 98) for at in minutes), timedelta(minutes=1)),
        windows=WindowFacts(minutes[40], open_windows=12, late=3),
        groups=GroupFacts(
            (HOSTILE, "page"),
            (HOSTILE,),
            (GroupRow((HOSTILE, "/a"), 30, (HOSTILE,)), GroupRow(("null", "/b"), 10, ("1",))),
            groups=4711,
            events=50,
            windows=7,
            first=minutes[0],
            last=minutes[-1],
        ),
        tables=(TableFacts("bronze", 6000, 60, 60, 600_000), TableFacts("silver", 5900, 60, 0, 0)),
        history=tuple(
            StepRun(step, at + timedelta(seconds=second), seconds, 100, 5_000)
            for at, seconds in ((minutes[0], 2.0), (minutes[1], 2.0), (minutes[2], 5.0))
            for second, step in enumerate(("land", HOSTILE))
        ),
        reconciled=ReconcileResult(HOSTILE, False, (PartitionCheck("clicks", "0-1", 0, 900, 10, 10), wrong)),
        steps={HOSTILE: {HOSTILE: [HOSTILE], "rows": 1}},
    )


@pytest.fixture
def empty() -> ReportFacts:
    """A pipeline that has not run."""
    return ReportFacts("fresh", START, (("path", "archive"),), LandedFacts(), ProgressHistory())
