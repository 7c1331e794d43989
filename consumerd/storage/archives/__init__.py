"""Archives of segment files: finding, verifying and exporting them (ring 1)."""

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
from consumerd.storage.archives.outputs import MANIFEST, OutputFileSystem
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
    "OutputFileSystem",
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
