"""Exporting an archive: the remaining segments, the workers' results one by one, and the report.

Strategy: the manifest is the record of finished files, and only this process writes it and gives names to files. A
name is given before the manifest lists it, and a replaced file is removed after; a run removes files that
its manifest does not list. So a kill at any point costs the work on unfinished segments and a quarter of a second, and
no message is exported twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from consumerd.base.files import SystemFiles
from consumerd.storage.archives.contiguity import ArchiveReport, judge
from consumerd.storage.archives.copies import without_other_copies
from consumerd.storage.archives.errors import (
    DuplicateSegmentError,
    InterruptedWorkError,
    MissingTopicsError,
    OutputFolderError,
)
from consumerd.storage.archives.export_worker import (
    ExportTask,
    SegmentExported,
    export_source,
    scan_transactions,
    wanted,
)
from consumerd.storage.archives.findings import ArchiveFinding, SegmentSummary
from consumerd.storage.archives.manifest import Manifest, ManifestEntry, load
from consumerd.storage.archives.opening import stamp_of
from consumerd.storage.archives.options import ExportFormat, ExportOptions
from consumerd.storage.archives.outputs import MANIFEST, PARTIAL, OutputFolder
from consumerd.storage.archives.parquet import require_parquet
from consumerd.storage.archives.pool import BytesRead, Progress, StopFlag, run_tasks
from consumerd.storage.archives.sources import Packing, SegmentSource
from consumerd.storage.log.archive_names import INSIDE, ArchiveLayout, MisnamedSegmentError, SegmentName
from consumerd.storage.log.segment import SUFFIX
from consumerd.storage.segments.transactions import UncommittedRanges, uncommitted_by_folder

#: The manifest is written at most once in this many seconds, and not more than a twentieth of the time: what a kill
#: costs.
_SAVE_SECONDS = 0.25
_SAVE_SHARE = 20


@dataclass(slots=True, kw_only=True)
class ExportReport(ArchiveReport):
    """The content of the folder now, and the part that this run exported."""

    rows: int
    files: int
    bytes: int
    #: Segments exported by this run, those that were finished before, and those of the former that had changed.
    made: int = 0
    kept: int = 0
    changed: int = 0


class ArchiveExport:
    """One run of an export. Blocking; `run` is called once."""

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        folder: Path,
        options: ExportOptions,
        *,
        workers: int,
        progress: Progress,
        stop: StopFlag,
        monotonic: Callable[[], float],
        files: SystemFiles | None = None,
    ) -> None:
        self._options = options
        self._policy = f"{options.on_corrupt}, resync {options.resync}, expansion {options.expansion}"
        self._layout = ArchiveLayout(options.layout, options.broker)
        self._sources, self._pending = without_other_copies(sources, self._layout)
        self._workers = workers
        self._progress = progress
        self._stop = stop
        self._monotonic = monotonic
        self._files = files or SystemFiles()
        self._folder = OutputFolder(folder, self._files)
        self._manifest = Manifest(options.fixed())
        #: By the folder of a partition, the transactions that are left out.
        self._left_out: dict[str, UncommittedRanges] = {}
        #: Segment -> the source that it was exported from.
        self._origins: dict[SegmentName, str] = {}
        #: Finished file -> the source that it was made of.
        self._outputs: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._next_save = 0.0
        self._made = self._kept = self._changed = 0

    def run(self) -> ExportReport:
        """Export the segments that are not exported yet.

        Raises MissingTopicsError, OutputFolderError, WriteFailedError, MissingExtraError, DuplicateSegmentError,
        CorruptSegmentError if the policy requires it, InterruptedWorkError, WorkerDiedError. After any of them the next
        run continues.
        """
        if self._options.format is ExportFormat.PARQUET:
            require_parquet()
        with self._folder.held():
            self._manifest = load(self._folder.read_manifest(), self._options)
            self._outputs = self._manifest.outputs()
            self._folder.clean(self._outputs.__contains__)
            self._require_topics()
            if self._options.read_committed:
                scanned: list[Any] = []
                scan = partial(scan_transactions, self._options)
                run_tasks(scan, self._sources, workers=self._workers, on_event=scanned.append, stop=self._stop)
                self._left_out = uncommitted_by_folder(scanned)
            tasks = self._plan()
            self._save()
            self._next_save = 0.0  # the first result is safe at once, the others soon
            try:
                work = partial(export_source, self._options, str(self._folder.path), self._files)
                run_tasks(work, tasks, workers=self._workers, on_event=self._on_event, stop=self._stop)
            except InterruptedWorkError as error:
                done = self._made + self._kept
                raise InterruptedWorkError(
                    f"interrupted with {done} segments done; run the same command to resume"
                ) from error
            finally:
                self._save()
            return self._report()

    def _require_topics(self) -> None:
        """Raise MissingTopicsError for topics that are not there. What is in a packed tar is known when it was read."""
        if any(source.is_tar for source in self._sources):
            return
        there = {entry.summary.name.topic for entry in self._manifest.entries.values() if entry.summary.name}
        for source in self._sources:
            with suppress(MisnamedSegmentError):
                there.add(self._layout.name(source.name).topic)
        if missing := self._options.topics - there:
            raise MissingTopicsError(missing)

    def _plan(self) -> list[ExportTask]:
        """The tasks that are left, the largest first, and the manifest entries that are still valid."""
        for entry in self._manifest.entries.values():
            assert entry.summary.name is not None
            self._claim(entry.summary.name, entry.key)
        inside: dict[str, list[ManifestEntry]] = {}
        for entry in self._manifest.entries.values():
            for match in re.finditer(re.escape(INSIDE), entry.key):  # names may hold what separates them
                inside.setdefault(entry.key[: match.start()], []).append(entry)
        tasks = []
        for source in self._sources:
            if source.is_tar:
                entries = inside.get(source.name, ())
                done = frozenset(entry.key for entry in entries if self._holds(entry, source))
                self._kept += len(done)
                tasks.append(ExportTask(source, done, self._left_out))
            elif (former := self._manifest.entries.get(source.name)) is not None and self._holds(former, source):
                self._kept += 1
            elif self._is_wanted(source):
                tasks.append(ExportTask(source, left_out=self._left_out_of(source)))
        in_tars = any(task.source.is_tar for task in tasks)
        self._progress.begin(sum(task.source.size or 0 for task in tasks), None if in_tars else len(tasks))
        return sorted(tasks, key=lambda task: -(task.source.size or 0))

    def _holds(self, entry: ManifestEntry, source: SegmentSource) -> bool:
        """Whether an entry of the manifest is still valid, so that its segment is not exported again."""
        if entry.summary.stamp != stamp_of(source):
            self._changed += 1
            return False
        committed = self._options.read_committed
        if (entry.summary.flaws or committed) and entry.policy != self._policy_of(entry.summary):
            return False
        try:
            if self._layout.name(entry.key) != entry.summary.name:
                return False
        except MisnamedSegmentError:
            return False
        return entry.output is None or self._folder.size(entry.output) == entry.size

    def _left_out_of(self, source: SegmentSource) -> dict[str, UncommittedRanges]:
        """The transactions of the partition of a single segment."""
        try:
            folder = self._layout.name(source.name).folder
        except MisnamedSegmentError:
            return {}
        return {folder: self._left_out[folder]} if folder in self._left_out else {}

    def _policy_of(self, summary: SegmentSummary) -> str:
        """What a segment's rows depend on beside itself: a later one may say that a transaction was committed."""
        assert summary.name is not None
        left_out = self._left_out.get(summary.name.folder, UncommittedRanges()).between(summary.start, summary.end)
        if not left_out:
            return self._policy
        digest = sha256(repr(left_out).encode()).hexdigest()
        return f"{self._policy}, without {len(left_out)} transactions {digest}"

    def _is_wanted(self, source: SegmentSource) -> bool:
        """Whether a single segment needs a worker; also notes which partition it is of."""
        try:
            name = self._layout.name(source.name)
        except MisnamedSegmentError:
            return True  # the worker reports it
        # The size tells offsets of 0.7 alone, where they are bytes.
        size = source.size if source.packing is Packing.NONE and source.name.endswith(SUFFIX) else None
        if not wanted(name, size, self._options):
            return False
        self._claim(name, source.name)
        return True

    def _claim(self, name: SegmentName, source: str) -> None:
        """No segment is exported from two places, because readers of the folder would see its messages twice."""
        if name.topic in {MANIFEST, PARTIAL}:
            raise OutputFolderError(f"a topic named {name.topic} cannot be exported: the folder uses that name itself")
        other = self._origins.setdefault(name, source)
        if other != source:
            raise DuplicateSegmentError(
                f"{other} and {source} are the same segment of {name.folder}; distinguish brokers by --layout or "
                "--broker-id, or export only one of the two into this folder"
            )

    def _claim_output(self, output: str, source: str) -> None:
        """No file takes the place of another one.

        Two overlapping segments, cut to the same range, would, and so would ours and those of another program.
        """
        other = self._outputs.get(output)
        if other is None and self._folder.size(output) is not None:
            path = self._folder.path / output
            raise OutputFolderError(f"{path} already exists and was not made by this export; move it away")
        if other not in (None, source):
            raise DuplicateSegmentError(f"{other} and {source} hold the same offsets; export only one of the two")
        self._outputs[output] = source

    def _on_event(self, event: object) -> None:
        if isinstance(event, BytesRead):
            self._progress.advance(event.size)
        elif isinstance(event, SegmentExported):
            self._commit(event)
            self._progress.segment(event.entry.rows)
        elif isinstance(event, ArchiveFinding):
            self._pending.append(event)

    def _commit(self, made: SegmentExported) -> None:
        entry, output = made.entry, None
        name = entry.summary.name
        assert name is not None
        self._claim(name, entry.key)
        if made.partial is not None:
            output = f"{name.folder}/{entry.start:020d}-{entry.end:020d}{self._options.suffix}"
            self._claim_output(output, entry.key)
            self._folder.commit(Path(made.partial), output)
        entry = replace(entry, policy=self._policy_of(entry.summary), output=output)
        former = self._manifest.entries.get(entry.key)
        if former is not None and former.output is not None:
            self._replaced.add(former.output)
        if output is not None:
            self._replaced.discard(output)  # perhaps its own name again
        self._manifest.entries[entry.key] = entry
        self._made += 1
        if self._monotonic() >= self._next_save:
            self._save()

    def _save(self) -> None:
        began = self._monotonic()
        for name in self._replaced:
            self._folder.note(name)
        self._folder.write_manifest(self._manifest.dump())
        for name in self._replaced:
            self._folder.remove(name)
        self._replaced.clear()
        self._folder.forget()
        ended = self._monotonic()
        self._next_save = ended + max(_SAVE_SECONDS, _SAVE_SHARE * (ended - began))

    def _report(self) -> ExportReport:
        entries = self._manifest.entries.values()
        return ExportReport(
            partitions=judge((entry.summary for entry in entries), self._pending),
            rows=sum(entry.rows for entry in entries),
            files=sum(entry.output is not None for entry in entries),
            bytes=sum(entry.size for entry in entries),
            made=self._made,
            kept=self._kept,
            changed=self._changed,
            pending=self._pending,
        )
