"""The 0.7 log on disk: segments, flushes, recovery (ring 1). Executors import this room and `consumerd.wire` alone."""

from consumerd.storage.errors import (
    CorruptLogError,
    DamagedArchiveError,
    DirectoryInUseError,
    FlushFailedError,
    OffsetOutOfRangeError,
    StorageError,
)
from consumerd.storage.files import Files, OsFiles, OsSegmentFile, SegmentFile
from consumerd.storage.log import Log
from consumerd.storage.manager import CLEAN_MARKER, Damaged, LoadReport, LogManager, Truncation
from consumerd.storage.recovery import Cut, Damage, Extent, recover, walk
from consumerd.storage.retention import DeletePolicy, MaxAge, MaxBytes, SegmentFacts
from consumerd.storage.segment import Segment, Slice, parse_segment_name, segment_name
from consumerd.storage.settings import LogSettings
from consumerd.storage.system import Entry, System, SystemCalls

__all__ = [
    "CLEAN_MARKER",
    "CorruptLogError",
    "Cut",
    "Damage",
    "Damaged",
    "DamagedArchiveError",
    "DeletePolicy",
    "DirectoryInUseError",
    "Entry",
    "Extent",
    "Files",
    "FlushFailedError",
    "LoadReport",
    "Log",
    "LogManager",
    "LogSettings",
    "MaxAge",
    "MaxBytes",
    "OffsetOutOfRangeError",
    "OsFiles",
    "OsSegmentFile",
    "Segment",
    "SegmentFacts",
    "SegmentFile",
    "Slice",
    "StorageError",
    "System",
    "SystemCalls",
    "Truncation",
    "parse_segment_name",
    "recover",
    "segment_name",
    "walk",
]
