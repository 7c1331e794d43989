"""Archives of segment files: finding, verifying and exporting them (ring 1)."""

from consumerd.archive.contiguity import ArchivePartitionReport, ArchiveReport, judge
from consumerd.archive.errors import (
    CorruptSegmentError,
    DuplicateSegmentError,
    InterruptedWorkError,
    MissingExtraError,
    NoSourceError,
    OutputFolderError,
    ReadFailedError,
    WorkerDiedError,
    WriteFailedError,
)
from consumerd.archive.export import ArchiveExport, ExportReport
from consumerd.archive.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.archive.options import ExportCompression, ExportFormat, ExportOptions, OnCorrupt
from consumerd.archive.outputs import MANIFEST, OutputFileSystem
from consumerd.archive.pool import StopRequest
from consumerd.archive.progress import NoProgress, Progress
from consumerd.archive.sources import Packing, SegmentSource, find_sources
from consumerd.archive.verify import VerifyOptions, verify

__all__ = [
    "MANIFEST",
    "ArchiveExport",
    "ArchiveFinding",
    "ArchiveFindingKind",
    "ArchivePartitionReport",
    "ArchiveReport",
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
    "OutputFileSystem",
    "OutputFolderError",
    "Packing",
    "Progress",
    "ReadFailedError",
    "SegmentSource",
    "SegmentSummary",
    "StopRequest",
    "VerifyOptions",
    "WorkerDiedError",
    "WriteFailedError",
    "find_sources",
    "judge",
    "verify",
]
