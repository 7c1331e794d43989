"""Directories whose names survive a loss of power.

Strategy: a new name is durable once the directory that holds it is synced. That a directory exists says nothing: the
process that made it may have been killed, or have got an error, before its sync. So the name of the first directory
that is there is synced, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Errors of directories in which no process of ours can have made names: not permitted, read-only.
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def make_directory(directory: Path, sync_directory: Callable[[Path], None]) -> None:
    """Make it and its missing parents; `sync_directory` makes the names in a directory durable. Raises OSError."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    try:
        sync_directory(directory.parent)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.mkdir()
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
