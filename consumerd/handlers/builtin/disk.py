"""What the check of a configuration says about the directory that a handler is to write to."""

from __future__ import annotations

import os
from pathlib import Path

from consumerd.base.errors import HandlerFailedError


def look_at_directory(directory: Path) -> str:
    """Return the room in a directory, also before it is made. Raises HandlerFailedError if it cannot be written to."""
    existing = directory.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise HandlerFailedError(f"{existing} is not a directory; check options.directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise HandlerFailedError(
            f"{existing} cannot be written to by the user {os.getuid()}; change its owner, or options.directory."
        )
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    made = "" if existing == directory.absolute() else f" will be made in {existing},"
    return f"{directory}{made} {free >> 20:,} MiB free"
