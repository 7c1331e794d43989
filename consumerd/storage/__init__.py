"""The 0.7 log on disk: segments, flushes, recovery (ring 1). Executors import this room and `consumerd.wire` alone.

In: sets to append, offsets to read. Out: segments on disk, and slices of them.

Easy to miss:

- That a file exists does not make its name durable: a process may have created it and been killed before the sync of
  the directory. A start syncs the files and directories that it finds before it appends.
"""

from consumerd.base.files import FileEntry as DirectoryEntry
from consumerd.base.files import OsSystemCalls, SystemCalls
from consumerd.storage.log.errors import (
    CorruptLogError,
    DamagedArchiveError,
    DirectoryInUseError,
    FlushFailedError,
    OffsetOutOfLogError,
    StorageError,
)
from consumerd.storage.log.files import OsFiles, OsSegmentFile
from consumerd.storage.log.log import Log, LogSettings
from consumerd.storage.log.manager import CLEAN_MARKER, DamagedLog, LoadReport, LogManager, LogTruncation
from consumerd.storage.log.recovery import IntactExtent, TailCut, TailDamage, recover, walk
from consumerd.storage.log.retention import DeletePolicy, MaxAge, MaxBytes, SegmentFacts
from consumerd.storage.log.segment import Segment, SegmentSlice, parse_segment_name, segment_name

#: Former names.
Files = OsFiles
SegmentFile = OsSegmentFile

__all__ = [
    "CLEAN_MARKER",
    "CorruptLogError",
    "DamagedArchiveError",
    "DamagedLog",
    "DeletePolicy",
    "DirectoryEntry",
    "DirectoryInUseError",
    "Files",
    "FlushFailedError",
    "IntactExtent",
    "LoadReport",
    "Log",
    "LogManager",
    "LogSettings",
    "LogTruncation",
    "MaxAge",
    "MaxBytes",
    "OffsetOutOfLogError",
    "OsFiles",
    "OsSegmentFile",
    "OsSystemCalls",
    "Segment",
    "SegmentFacts",
    "SegmentFile",
    "SegmentSlice",
    "StorageError",
    "SystemCalls",
    "TailCut",
    "TailDamage",
    "parse_segment_name",
    "recover",
    "segment_name",
    "walk",
]
