"""Errors of a pipeline's tables."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from consumerd.base.errors import ConfigError, ConsumerdError, CorruptDataError, ExitCode


class TableError(ConsumerdError):
    """A table's folder cannot be read or written."""

    exit_code: ClassVar[ExitCode] = ExitCode.SPARK


class TablePathError(ConfigError):
    """The path cannot hold a table of that kind."""


class TableOwnedError(ConsumerdError):
    """The table belongs to another checkpoint, whose batch numbers mean other rows; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableBehindError(ConsumerdError):
    """The checkpoint lists batches that the table does not have; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableSchemaError(ConsumerdError):
    """The rows do not fit the table's columns; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableCorruptError(CorruptDataError):
    """A file that describes the table is damaged."""


#: Errors of disks, which need not name a file.
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


def unwritable(place: str, error: OSError) -> TableError:
    """The error of a step that cannot write in `place`."""
    reason = os.strerror(error.errno) if error.errno in _DISK else error.strerror or error
    return TableError(
        f"a file in {place} cannot be written ({reason}): check free space and permissions; completed work is kept, "
        "and the same command continues from there."
    )


@contextmanager
def file_errors(place: str) -> Iterator[None]:
    """Raise errors of files as TableError. `place`: the folder that has them all. Errors of sockets pass through."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in _DISK:
            raise
        raise unwritable(place, error) from error
