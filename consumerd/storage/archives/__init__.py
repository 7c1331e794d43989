"""Archives of segment files: finding, verifying and exporting them (ring 1).

In: directories and tars of segments. Out: findings, or files of rows with a manifest, made on worker processes.

Files in reading order: sources, opening, pool, progress, verify, contiguity, findings, export, export_worker, manifest,
outputs, rows, ndjson, parquet, zstd, options, extras, errors.

Easy to miss:

- A chain of intact messages inside a segment may be the content of a snappy message that was stored uncompressed. The
  search for a boundary tries every earlier offset for an enclosing message.
- The workers of a process pool survive a killed parent, and wait for tasks for ever: they watch for its death
  themselves.
"""

from consumerd.storage.archives.contiguity import ArchivePartitionReport, ArchiveReport, judge
from consumerd.storage.archives.errors import (
    ArchiveWorkerDiedError,
    CorruptSegmentError,
    DuplicateSegmentError,
    InterruptedWorkError,
    MissingExtraError,
    NoSourceError,
    OutputFolderError,
    ReadFailedError,
    WriteFailedError,
)
from consumerd.storage.archives.export import ArchiveExport, ExportReport
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.archives.options import ExportCompression, ExportFormat, ExportOptions, OnCorrupt
from consumerd.storage.archives.outputs import MANIFEST
from consumerd.storage.archives.pool import StopFlag
from consumerd.storage.archives.progress import NoProgress, Progress
from consumerd.storage.archives.sources import Packing, SegmentSource, find_sources
from consumerd.storage.archives.verify import VerifyOptions, verify

__all__ = [
    "MANIFEST",
    "ArchiveExport",
    "ArchiveFinding",
    "ArchiveFindingKind",
    "ArchivePartitionReport",
    "ArchiveReport",
    "ArchiveWorkerDiedError",
    "CorruptSegmentError",
    "DuplicateSegmentError",
    "ExportCompression",
    "ExportFormat",
    "ExportOptions",
    "ExportReport",
    "InterruptedWorkError",
    "MissingExtraError",
    "NoProgress",
    "NoSourceError",
    "OnCorrupt",
    "OutputFolderError",
    "Packing",
    "Progress",
    "ReadFailedError",
    "SegmentSource",
    "SegmentSummary",
    "StopFlag",
    "VerifyOptions",
    "WriteFailedError",
    "find_sources",
    "judge",
    "verify",
]
