"""The part of an export that workers do: they read a source and write files that have no final name yet.

Strategy: one segment is one file, of any size; nothing of a segment is reported before its file is sealed.
Damaged messages are handled as configured; bytes that are not messages never become rows and are only reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from consumerd.base.files import SystemFiles
from consumerd.storage.archives.errors import CorruptSegmentError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.archives.manifest import ManifestEntry
from consumerd.storage.archives.ndjson import NdjsonWriter
from consumerd.storage.archives.opening import (
    OpenSegment,
    abandoned,
    open_logs,
    open_segments,
    told_apart,
    unread_source,
)
from consumerd.storage.archives.options import ExportFormat, ExportOptions, OnCorrupt
from consumerd.storage.archives.outputs import PartialFile
from consumerd.storage.archives.parquet import ParquetRows
from consumerd.storage.archives.pool import Emit, ReadMeter
from consumerd.storage.archives.rows import RowOrigin, RowWriter, is_within, within
from consumerd.storage.archives.segment_rows import NdjsonRecords, ParquetRecords, RecordWriter
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import MESSAGE_FLAWS, ArchivedRun, Flaw, FlawKind, IndexedMessages
from consumerd.storage.log.archive_names import ArchiveLayout, MisnamedSegmentError, SegmentName
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.transactions import UncommittedRanges, transactions_of


@dataclass(frozen=True, slots=True)
class ExportTask:
    """A source, and the names of the segments in it that a former run has finished.

    `left_out`: by the folder of a partition, the transactions whose records are not exported.
    """

    source: SegmentSource
    done: frozenset[str] = frozenset()
    left_out: Mapping[str, UncommittedRanges] = field(default_factory=dict)


class SegmentExported(NamedTuple):
    """Event: a segment is exported, and `partial` (None: without rows) waits for its name."""

    entry: ManifestEntry
    partial: str | None


def export_source(options: ExportOptions, folder: str, files: SystemFiles, task: ExportTask, emit: Emit) -> None:
    """The work of one worker: emits SegmentExported, ArchiveFinding and BytesRead.

    Raises CorruptSegmentError if the policy requires it, WriteFailedError, MissingExtraError.
    """
    meter = ReadMeter(emit)
    source = task.source
    try:
        for opened in open_segments(source, expansion=options.expansion, on_bytes=meter.add):
            if isinstance(opened, ArchiveFinding):
                emit(opened)
            elif opened.name not in task.done:
                _export_one(opened, task, options, Path(folder), files, emit)
    except ReadFailedError as error:
        emit(unread_source(source, error))
    meter.finish(source.size)


def scan_transactions(options: ExportOptions, source: SegmentSource, emit: Emit) -> None:
    """The work of one worker before the export: emits the folder of a partition, and the transactions of a segment.

    A transaction may end in a later segment. What cannot be read is reported by the export.
    """
    layout = ArchiveLayout(options.layout, options.broker)
    try:
        for found in open_logs(source, layout, expansion=options.expansion):
            if isinstance(found, ArchiveFinding):
                continue
            name, opened = found
            if not options.topics or name.topic in options.topics:
                items = read_batches(opened.stream, name.start, together=True)
                emit((name.folder, transactions_of(items, name.start)))
    except ReadFailedError:
        return


def wanted(name: SegmentName, size: int | None, options: ExportOptions) -> bool:
    """Whether a segment can have rows that the options select; `size` in bytes, None if unknown."""
    if options.topics and name.topic not in options.topics:
        return False
    if options.last is not None and name.start >= options.last:
        return False
    return size is None or name.start + size > options.first or not options.first


def _export_one(
    opened: OpenSegment, task: ExportTask, options: ExportOptions, folder: Path, files: SystemFiles, emit: Emit
) -> None:
    if (finding := abandoned(opened.name)) is not None:
        emit(finding)
        return
    try:
        name = ArchiveLayout(options.layout, options.broker).name(opened.name)
    except MisnamedSegmentError as error:
        emit(ArchiveFinding(ArchiveFindingKind.MISNAMED, opened.name, str(error)))
        return
    if options.topics and name.topic not in options.topics:
        return
    dialect, stream = told_apart(opened)
    since_08 = dialect is SegmentDialect.V08
    if not wanted(name, None if since_08 else opened.size, options):
        return
    with _Segment(name, opened, options, folder, files, dialect) as segment:
        if since_08:
            uncommitted = task.left_out.get(name.folder, UncommittedRanges())
            for batch in read_batches(stream, name.start, together=True):
                segment.take_batch(batch, uncommitted)
        else:
            for item in read_indexed(stream, name.start, resync=options.resync, expansion=options.expansion):
                segment.take(item)
        made = segment.finish()
        emit(made)


class _Segment:
    """The file of one segment, from its first row to its seal. Leaves nothing behind when it fails."""

    def __init__(
        self,
        name: SegmentName,
        opened: OpenSegment,
        options: ExportOptions,
        folder: Path,
        files: SystemFiles,
        dialect: SegmentDialect,
    ) -> None:
        self._name = name
        self._options = options
        self._folder = folder
        self._files = files
        self._summary = SegmentSummary(opened.name, opened.stamp, name.folder, name.start, name, dialect=dialect)
        self._file: PartialFile | None = None
        self._writer: RowWriter | None = None
        self._records: RecordWriter | None = None
        self._start: int | None = None
        self._end = name.start
        self._rows = 0

    def __enter__(self) -> _Segment:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._file is not None:
            self._file.discard()

    def take(self, item: ArchivedRun | IndexedMessages | Flaw) -> None:
        """Take the next messages or the next flaw of the segment."""
        options = self._options
        self._summary.see(item)
        if isinstance(item, IndexedMessages):
            self._take_indexed(item)
            return
        if isinstance(item, ArchivedRun):
            self._take_run(item)
            return
        if item.kind is not FlawKind.TORN and options.on_corrupt is OnCorrupt.FAIL and self._touches(item):
            self._refuse(item.problem)
        if item.kind in MESSAGE_FLAWS and self._is_wanted(item):
            keep = options.on_corrupt is OnCorrupt.KEEP
            self._covers(item.offset, item.next_offset, int(keep))
            if keep:
                self._into().add_flaw(item)

    def take_batch(self, item: StoredBatch | SegmentFlaw, left_out: UncommittedRanges) -> None:
        """Take the next batch or the next flaw of a segment of 0.8 and later, without what is left out."""
        options, last = self._options, self._options.last
        self._summary.see_batch(item)
        if isinstance(item, StoredBatch):
            selected = item.next_offset > options.first and (last is None or item.offset < last)
            if selected and not left_out.has(item):
                self._take_records(item)
            return
        beyond = last is not None and item.offset >= last
        if item.kind is not FlawKind.TORN and options.on_corrupt is OnCorrupt.FAIL and not beyond:
            self._refuse(item.problem)
        if item.kind in MESSAGE_FLAWS and options.on_corrupt is OnCorrupt.KEEP and not beyond:
            self._covers(item.offset, item.offset, 1)
            self._into_records().add_flaw(item)

    def _take_records(self, item: StoredBatch) -> None:
        """Take the selected records of a batch."""
        first, last, stop = self._options.first, self._options.last, len(item.records)
        offsets: Sequence[int] = ()
        low = 0
        if item.offset < first or (last is not None and last < item.next_offset):
            offsets = item.records.offsets
            low, stop = bisect_left(offsets, first), stop if last is None else bisect_left(offsets, last)
        if low < stop:
            whole = not offsets
            start, end = (item.offset, item.next_offset) if whole else (offsets[low], offsets[stop - 1] + 1)
            self._covers(start, end, stop - low)
            self._into_records().add(item, low, stop)

    def _covers(self, start: int, end: int, rows: int) -> None:
        if self._start is None:
            self._start = start
        self._end = max(self._end, end)
        self._rows += rows

    def _into_records(self) -> RecordWriter:
        """The writer of records, made with the first row."""
        if self._records is None:
            file, origin = self._begin()
            if self._options.format is ExportFormat.PARQUET:
                self._records = ParquetRecords(file, origin, self._options.compression)
            else:
                self._records = NdjsonRecords(file, origin, base64=self._options.base64)
        return self._records

    def _refuse(self, problem: str) -> NoReturn:
        raise CorruptSegmentError(
            f"{self._summary.source}: {problem}; inspect it with `consumerd log verify`, then export with "
            "--on-corrupt skip or keep"
        )

    def _take_indexed(self, messages: IndexedMessages) -> None:
        if not is_within(messages, self._options.first, self._options.last):
            for run in messages.as_runs():
                self._take_run(run)
            return
        self._covers(messages.offset, messages.next_offset, len(messages.payloads))
        if messages.payloads:
            self._into().add_indexed(messages)

    def _take_run(self, item: ArchivedRun) -> None:
        run = within(item, self._options.first, self._options.last)
        if run is not None:
            self._covers(run.offset, run.next_offset, len(run.payloads))
            if run.payloads:
                self._into().add_run(run)

    def _touches(self, flaw: Flaw) -> bool:
        """Whether the flaw may hide rows that were selected."""
        return flaw.next_offset >= self._options.first and (
            self._options.last is None or flaw.offset < self._options.last
        )

    def _is_wanted(self, flaw: Flaw) -> bool:
        return flaw.offset >= self._options.first and (self._options.last is None or flaw.offset < self._options.last)

    def _begin(self) -> tuple[PartialFile, RowOrigin]:
        """The file, made with the first row."""
        self._file = PartialFile(self._folder, self._options, self._files)
        return self._file, RowOrigin(self._name, self._summary.source)

    def _into(self) -> RowWriter:
        """The writer, made with the first row."""
        if self._writer is None:
            file, origin = self._begin()
            if self._options.format is ExportFormat.PARQUET:
                self._writer = ParquetRows(file, origin, self._options.compression)
            else:
                self._writer = NdjsonWriter(file, origin, base64=self._options.base64)
        return self._writer

    def finish(self) -> SegmentExported:
        """Seal the file."""
        start = self._name.start if self._start is None else self._start
        writer = self._writer or self._records
        if self._file is None or writer is None:
            return SegmentExported(ManifestEntry(self._summary, start=start, end=self._end), None)
        writer.finish()
        self._file.seal()
        made = ManifestEntry(
            self._summary, start=start, end=self._end, rows=self._rows, size=self._file.size, sha256=self._file.sha256
        )
        return SegmentExported(made, str(self._file.path))
