"""Whether an archive is sound: every CRC, the inner ones too, every boundary, every gap.

Strategy: workers sum up one source each, reading on past damage where intact messages follow, so that a finding names
its true extent; then the partitions are judged as a whole. Nothing is written anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from consumerd.archive.contiguity import PartitionReport, judge
from consumerd.archive.errors import ReadFailedError
from consumerd.archive.findings import Finding, FindingKind, SegmentSummary
from consumerd.archive.opening import OpenSegment, open_segments
from consumerd.archive.pool import run_tasks
from consumerd.archive.progress import BytesRead, Meter
from consumerd.storage.archive import DEFAULT_EXPANSION, FlawKind, read_runs
from consumerd.storage.archive_names import (
    DEFAULT_LAYOUT,
    INSIDE,
    Layout,
    MisnamedSegmentError,
    SegmentName,
    segment_start,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.archive.pool import Emit, Stop
    from consumerd.archive.progress import Progress
    from consumerd.archive.sources import Source


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`layout` and `broker` say which partition a segment is of; without a broker its folder does."""

    layout: str = DEFAULT_LAYOUT
    broker: int | None = None
    expansion: int = DEFAULT_EXPANSION


@dataclass(slots=True)
class VerifyReport:
    """All partitions, and what is wrong outside of them."""

    partitions: list[PartitionReport]
    loose: list[Finding] = field(default_factory=list)

    def findings(self) -> list[Finding]:
        """Everything that is wrong, by partition and offset, then the rest by source."""
        found = [finding for partition in self.partitions for finding in partition.findings]
        return found + sorted(self.loose, key=lambda finding: (finding.source, finding.kind))

    def is_sound(self, *, allow_torn_tail: bool) -> bool:
        """Whether nothing is wrong, but for torn ends of logs perhaps."""
        return all(allow_torn_tail and finding.kind is FlawKind.TORN for finding in self.findings())


def verify(
    sources: Sequence[Source], options: VerifyOptions, *, workers: int, progress: Progress, stop: Stop
) -> VerifyReport:
    """Look at all sources. Raises InterruptedWorkError, WorkerDiedError, MissingExtraError, ConfigError (layout)."""
    Layout(options.layout, options.broker)
    summaries: list[SegmentSummary] = []
    loose: list[Finding] = []

    def on_event(event: object) -> None:
        if isinstance(event, BytesRead):
            progress.advance(event.size)
        elif isinstance(event, SegmentSummary):
            summaries.append(event)
            progress.segment(event.messages)
        elif isinstance(event, Finding):
            loose.append(event)

    tasks = sorted(sources, key=lambda source: -(source.size or 0))
    in_tars = any(source.is_tar for source in sources)
    progress.begin(sum(source.size or 0 for source in sources), None if in_tars else len(sources))
    run_tasks(partial(verify_source, options), tasks, workers=workers, on_event=on_event, stop=stop)
    return VerifyReport(judge(summaries), loose)


def verify_source(options: VerifyOptions, source: Source, emit: Emit) -> None:
    """The work of one worker: emits SegmentSummary, Finding and BytesRead."""
    layout = Layout(options.layout, options.broker)
    meter = Meter(emit)
    try:
        for opened in open_segments(source, expansion=options.expansion, on_bytes=meter.add):
            emit(opened if isinstance(opened, Finding) else _summed_up(opened, layout, options))
    except ReadFailedError as error:
        emit(Finding(FindingKind.UNREADABLE, source.name, str(error)))
    meter.finish(source.size)


def _summed_up(opened: OpenSegment, layout: Layout, options: VerifyOptions) -> SegmentSummary | Finding:
    folder, _, file = opened.name.replace(INSIDE, "/").rpartition("/")
    start = segment_start(file)
    name: SegmentName | None = None
    try:
        name = layout.name(opened.name)
    except MisnamedSegmentError as error:
        if start is None:
            return Finding(FindingKind.MISNAMED, opened.name, str(error))
    assert start is not None
    if name is not None and name.broker is not None:
        folder = name.folder
    summary = SegmentSummary(opened.name, opened.stamp, folder, start, name)
    for item in read_runs(opened.stream, start, resync=True, expansion=options.expansion):
        summary.see(item)
    return summary
