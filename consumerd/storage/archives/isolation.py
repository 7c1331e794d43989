"""The transactions of an archive that were not committed: what an export for readers of committed messages leaves out.

Strategy: all segments are read once before the export, each by a worker; a transaction may end in a later segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from consumerd.storage.archives.errors import ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.opening import open_logs
from consumerd.storage.archives.options import ExportOptions
from consumerd.storage.archives.pool import Emit, StopFlag, run_tasks
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive_names import ArchiveLayout
from consumerd.storage.segments.batches import read_batches
from consumerd.storage.segments.transactions import (
    SegmentTransactions,
    UncommittedRanges,
    transactions_of,
    uncommitted,
)


class _Scanned(NamedTuple):
    """Event: the transactions of a segment. `folder`: of its partition."""

    folder: str
    transactions: SegmentTransactions


def find_uncommitted(
    sources: Sequence[SegmentSource], options: ExportOptions, *, workers: int, stop: StopFlag
) -> dict[str, UncommittedRanges]:
    """By the folder of a partition, the transactions that were not committed. Raises as `run_tasks`."""
    scanned: defaultdict[str, list[SegmentTransactions]] = defaultdict(list)

    def on_event(event: object) -> None:
        assert isinstance(event, _Scanned)
        scanned[event.folder].append(event.transactions)

    run_tasks(partial(_scan, options), sources, workers=workers, on_event=on_event, stop=stop)
    found = {folder: uncommitted(segments) for folder, segments in scanned.items()}
    return {folder: each for folder, each in found.items() if each.ranges}


def _scan(options: ExportOptions, source: SegmentSource, emit: Emit) -> None:
    """Emit the transactions of a source's segments; what cannot be read is reported by the export."""
    layout = ArchiveLayout(options.layout, options.broker)
    try:
        for found in open_logs(source, layout, expansion=options.expansion):
            if isinstance(found, ArchiveFinding):
                continue
            name, opened = found
            if not options.topics or name.topic in options.topics:
                items = read_batches(opened.stream, name.start, together=True)
                emit(_Scanned(name.folder, transactions_of(items, name.start)))
    except ReadFailedError:
        return
