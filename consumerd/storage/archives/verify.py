"""The verification of an archive: every CRC, also the inner ones, every boundary, every gap.

Strategy: workers sum up one source each, reading on past damage where intact messages follow, so that a finding names
its true extent; then the partitions are judged as a whole. Nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from consumerd.storage.archives.contiguity import ArchiveReport, judge
from consumerd.storage.archives.copies import without_other_copies
from consumerd.storage.archives.errors import ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.archives.opening import OpenSegment, abandoned, open_segments, told_apart, unread_source
from consumerd.storage.archives.pool import BytesRead, Emit, Progress, ReadMeter, StopFlag, run_tasks
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import DEFAULT_EXPANSION
from consumerd.storage.log.archive_names import (
    DEFAULT_LAYOUT,
    INSIDE,
    ArchiveLayout,
    MisnamedSegmentError,
    SegmentName,
    segment_start,
)
from consumerd.storage.segments.batches import check_batches
from consumerd.storage.segments.dialect import SegmentDialect


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`layout` and `broker` say which partition a segment is of; without a broker its folder does.

    `shallow`: of segments of 0.8 and later headers and CRCs are checked, and records are not decoded.
    """

    layout: str = DEFAULT_LAYOUT
    broker: int | None = None
    expansion: int = DEFAULT_EXPANSION
    shallow: bool = False


def verify(
    sources: Sequence[SegmentSource], options: VerifyOptions, *, workers: int, progress: Progress, stop: StopFlag
) -> ArchiveReport:
    """Look at all sources. Raises InterruptedWorkError, WorkerDiedError, MissingExtraError, ConfigError (layout)."""
    _, copies = without_other_copies(sources, ArchiveLayout(options.layout, options.broker))
    summaries: list[SegmentSummary] = []
    pending: list[ArchiveFinding] = []

    def on_event(event: object) -> None:
        if isinstance(event, BytesRead):
            progress.advance(event.size)
        elif isinstance(event, SegmentSummary):
            summaries.append(event)
            progress.segment(event.messages)
        elif isinstance(event, ArchiveFinding):
            pending.append(event)

    tasks = sorted(sources, key=lambda source: -(source.size or 0))
    in_tars = any(source.is_tar for source in sources)
    progress.begin(sum(source.size or 0 for source in sources), None if in_tars else len(sources))
    run_tasks(partial(verify_source, options), tasks, workers=workers, on_event=on_event, stop=stop)
    return ArchiveReport(judge(summaries, pending), pending + copies)


def verify_source(options: VerifyOptions, source: SegmentSource, emit: Emit) -> None:
    """The work of one worker: emits SegmentSummary, ArchiveFinding and BytesRead."""
    layout = ArchiveLayout(options.layout, options.broker)
    meter = ReadMeter(emit)
    try:
        for opened in open_segments(source, expansion=options.expansion, on_bytes=meter.add):
            emit(opened if isinstance(opened, ArchiveFinding) else _summed_up(opened, layout, options))
    except ReadFailedError as error:
        emit(unread_source(source, error))
    meter.finish(source.size)


def _summed_up(opened: OpenSegment, layout: ArchiveLayout, options: VerifyOptions) -> SegmentSummary | ArchiveFinding:
    folder, _, file = opened.name.replace(INSIDE, "/").rpartition("/")
    start = segment_start(file)
    name: SegmentName | None = None
    try:
        name = layout.name(opened.name)
    except MisnamedSegmentError as error:
        if start is None:
            return ArchiveFinding(ArchiveFindingKind.MISNAMED, opened.name, str(error))
    assert start is not None
    if name is not None and name.broker is not None:
        folder = name.folder
    dialect, stream = told_apart(opened)
    if dialect is SegmentDialect.V08:
        if (finding := abandoned(opened.name)) is not None:
            return finding
        summary = SegmentSummary(opened.name, opened.stamp, folder, start, name, dialect=dialect)
        for batch in check_batches(stream, start, shallow=options.shallow):
            summary.see_batch(batch)
        return summary
    summary = SegmentSummary(opened.name, opened.stamp, folder, start, name)
    for item in read_indexed(stream, start, resync=True, expansion=options.expansion):
        summary.see(item)
    return summary
