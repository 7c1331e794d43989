"""The transactions of an archive that were not committed: what an export for readers of committed messages leaves out.

Strategy: all segments are read once before the export, each by a worker; a transaction may end in a later segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from consumerd.storage.archives.errors import ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.opening import open_logs
from consumerd.storage.archives.options import ExportOptions
from consumerd.storage.archives.pool import Emit, StopFlag, run_tasks
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive_names import ArchiveLayout
from consumerd.storage.segments.batches import read_batches
from consumerd.storage.segments.transactions import UncommittedRanges, transactions_of, uncommitted_by_folder


def find_uncommitted(
    sources: Sequence[SegmentSource], options: ExportOptions, *, workers: int, stop: StopFlag
) -> dict[str, UncommittedRanges]:
    """By the folder of a partition, the transactions that were not committed. Raises as `run_tasks`."""
    scanned: list[Any] = []
    run_tasks(partial(_scan, options), sources, workers=workers, on_event=scanned.append, stop=stop)
    return uncommitted_by_folder(scanned)


def _scan(options: ExportOptions, source: SegmentSource, emit: Emit) -> None:
    """Emit the folder and the transactions of each segment; what cannot be read is reported by the export."""
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
