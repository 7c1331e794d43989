"""Errors of the log on disk.

Two kinds only: `CorruptLogError` when bytes or file names contradict each other, which must not be ignored, and
`StorageError` when the operating system refuses (disk full, no permission, a lock held by another process).
"""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, CorruptDataError, ExitCode


class StorageError(ConsumerdError):
    """The file system refused an operation on the log."""

    exit_code = ExitCode.BROKER


class DirectoryInUseError(StorageError):
    """Another process has the same log directory open."""


class CorruptLogError(CorruptDataError):
    """Segment files are damaged or do not fit together; nothing is served until they are repaired."""


class DamagedArchiveError(CorruptDataError):
    """A compressed file or a tar around segments is damaged, truncated, or expands beyond the limit."""


class FlushFailedError(StorageError):
    """A sync failed: the disk's content is unknown, so the log refuses all work until a restart has checked it."""


class OffsetOutOfLogError(StorageError):
    """The offset lies before the first segment or beyond the flushed end of the log (golden notes, 1: error code 1)."""
