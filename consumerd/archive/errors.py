"""Errors of the archive tools. What is wrong with the data is a finding, not an error, unless the policy says stop."""

from __future__ import annotations

from consumerd.errors import ConfigError, ConsumerdError, CorruptDataError, ExitCode, NotFoundError
from consumerd.storage import StorageError


class MissingExtraError(ConfigError):
    """A package of the `archive` extra is not installed."""


class NoSourceError(NotFoundError):
    """A path or URL leads to nothing that could hold segments."""


class CorruptSegmentError(CorruptDataError):
    """A segment is corrupt and the export is to stop there."""


class OutputFolderError(ConfigError):
    """The folder for the export cannot be used for this one."""


class DuplicateSegmentError(ConsumerdError):
    """Two sources are the same segment of the same partition."""

    exit_code = ExitCode.CHECK_FAILED


class ReadFailedError(StorageError):
    """A file, or what a URL leads to, cannot be read."""


class WriteFailedError(StorageError):
    """What is exported cannot be written."""


class WorkerDiedError(ConsumerdError):
    """A worker process ended before its work did (killed, out of memory). The next run takes up what it left."""

    exit_code = ExitCode.FORCED


class InterruptedWorkError(ConsumerdError):
    """Somebody asked to stop."""

    exit_code = ExitCode.INTERRUPTED
