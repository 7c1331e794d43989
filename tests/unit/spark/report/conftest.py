"""Facts to be shown, harmless and hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from consumerd.spark.progress import BatchProgress, ProgressHistory, SourceLag
from consumerd.spark.reconcile_result import LogStretch, LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.report.facts import (
    LandedFacts,
    LandedInterval,
    MessageSizes,
    QuarantineFacts,
    QuarantineReason,
    QuarantineSample,
    ReportFacts,
    SizeClass,
    TablePreview,
)

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
            intervals=tuple(LandedInterval(at, 100, 13_500) for at in minutes),
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
        aggregate=TablePreview((HOSTILE, "rows"), ((HOSTILE, "1"),), total=4711),
        reconciled=ReconcileResult(HOSTILE, False, (PartitionCheck("clicks", "0-1", 0, 900, 10, 10), wrong)),
        steps={HOSTILE: {HOSTILE: [HOSTILE], "rows": 1}},
    )


@pytest.fixture
def empty() -> ReportFacts:
    """A pipeline that has not run."""
    return ReportFacts("fresh", START, (("path", "archive"),), LandedFacts(), ProgressHistory())
