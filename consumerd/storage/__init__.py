"""The 0.7 log on disk: segments, flushes, recovery (ring 1). Executors import this room and `consumerd.wire` alone."""

from consumerd.storage.errors import (
    CorruptLogError,
    DirectoryInUseError,
    FlushFailedError,
    OffsetOutOfRangeError,
    StorageError,
)
from consumerd.storage.files import Entry, Files, OsFiles, OsSegmentFile, SegmentFile
from consumerd.storage.log import Log
from consumerd.storage.manager import CLEAN_MARKER, LoadReport, LogManager, Truncation
from consumerd.storage.recovery import Damage, Extent, recover, walk
from consumerd.storage.segment import Segment, Slice, parse_segment_name, segment_name
from consumerd.storage.settings import LogSettings

__all__ = [
    "CLEAN_MARKER",
    "CorruptLogError",
    "Damage",
    "DirectoryInUseError",
    "Entry",
    "Extent",
    "Files",
    "FlushFailedError",
    "LoadReport",
    "Log",
    "LogManager",
    "LogSettings",
    "OffsetOutOfRangeError",
    "OsFiles",
    "OsSegmentFile",
    "Segment",
    "SegmentFile",
    "Slice",
    "StorageError",
    "Truncation",
    "parse_segment_name",
    "recover",
    "segment_name",
    "walk",
]
