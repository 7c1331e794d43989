"""Archives of segment files: where they are, whether they are sound, and what is in them (ring 1)."""

from consumerd.archive.contiguity import PartitionReport, judge
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
from consumerd.archive.export import Export, ExportReport
from consumerd.archive.findings import Finding, FindingKind, SegmentSummary
from consumerd.archive.options import Compression, ExportOptions, Format, OnCorrupt
from consumerd.archive.outputs import MANIFEST, Disk
from consumerd.archive.pool import Stop
from consumerd.archive.progress import Progress, Quiet
from consumerd.archive.sources import Packing, Source, find_sources
from consumerd.archive.verify import VerifyOptions, VerifyReport, verify

__all__ = [
    "MANIFEST",
    "Compression",
    "CorruptSegmentError",
    "Disk",
    "DuplicateSegmentError",
    "Export",
    "ExportOptions",
    "ExportReport",
    "Finding",
    "FindingKind",
    "Format",
    "InterruptedWorkError",
    "MissingExtraError",
    "NoSourceError",
    "OnCorrupt",
    "OutputFolderError",
    "Packing",
    "PartitionReport",
    "Progress",
    "Quiet",
    "ReadFailedError",
    "SegmentSummary",
    "Source",
    "Stop",
    "VerifyOptions",
    "VerifyReport",
    "WorkerDiedError",
    "WriteFailedError",
    "find_sources",
    "judge",
    "verify",
]
