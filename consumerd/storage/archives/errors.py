"""Errors of the archive tools. A defect of the data is a finding, not an error, unless the policy is to stop."""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.base.errors import ConfigError, ConsumerdError, CorruptDataError, ExitCode, NotFoundError
from consumerd.storage import StorageError


class MissingExtraError(ConfigError):
    """A package of the `archive` extra is not installed."""


class NoSourceError(NotFoundError):
    """A path or URL names nothing that can hold segments."""


class MissingTopicsError(NoSourceError):
    """Topics that were named have no segments in the archive."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = ", ".join(sorted(topics))
        super().__init__(f"the archive has no segments of the topics {names}; see `consumerd log ls`")


class CorruptSegmentError(CorruptDataError):
    """A segment is corrupt, and `on_corrupt` stops the export there."""


class OutputFolderError(ConfigError):
    """The output folder cannot be used for this export."""


class DuplicateSegmentError(ConsumerdError):
    """Two sources are the same segment of the same partition."""

    exit_code = ExitCode.CHECK_FAILED


class ReadFailedError(StorageError):
    """A file or URL cannot be read."""


class WriteFailedError(StorageError):
    """An output file cannot be written."""


class ArchiveWorkerDiedError(ConsumerdError):
    """A worker process died (killed, out of memory). The next run resumes its work."""

    exit_code = ExitCode.FORCED


class InterruptedWorkError(ConsumerdError):
    """The work was stopped on request."""

    exit_code = ExitCode.INTERRUPTED
