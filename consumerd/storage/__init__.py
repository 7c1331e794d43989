"""Segments on disk: the 0.7 log (`log`), work on directories of segments (`archives`), a 0.7 broker (`broker`).

The names of the log are exported here. Executors import them, and `consumerd.wire`, alone.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.storage.log.errors import (
    CorruptLogError,
    DamagedArchiveError,
    DirectoryInUseError,
    FlushFailedError,
    OffsetOutOfLogError,
    StorageError,
)

if TYPE_CHECKING:
    from consumerd.base.files import OsSystemCalls, SystemCalls
    from consumerd.storage.log.files import DirectoryEntry, Files, OsFiles, OsSegmentFile, SegmentFile
    from consumerd.storage.log.log import Log, LogSettings
    from consumerd.storage.log.manager import CLEAN_MARKER, DamagedLog, LoadReport, LogManager, LogTruncation
    from consumerd.storage.log.recovery import IntactExtent, TailCut, TailDamage, recover, walk
    from consumerd.storage.log.retention import DeletePolicy, MaxAge, MaxBytes, SegmentFacts
    from consumerd.storage.log.segment import Segment, SegmentSlice, parse_segment_name, segment_name
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.base.files": "OsSystemCalls SystemCalls",
            "consumerd.storage.log.files": "DirectoryEntry Files OsFiles OsSegmentFile SegmentFile",
            "consumerd.storage.log.log": "Log LogSettings",
            "consumerd.storage.log.manager": "CLEAN_MARKER DamagedLog LoadReport LogManager LogTruncation",
            "consumerd.storage.log.recovery": "IntactExtent TailCut TailDamage recover walk",
            "consumerd.storage.log.retention": "DeletePolicy MaxAge MaxBytes SegmentFacts",
            "consumerd.storage.log.segment": "Segment SegmentSlice parse_segment_name segment_name",
        },
        {"OffsetOutOfRangeError": "OffsetOutOfLogError"},
    )

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
