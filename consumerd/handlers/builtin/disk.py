"""The few things that the `files` handler asks of a file system, each durable or atomic as its text says.

Strategy: a narrow port, so that tests can crash a process at every step, or simulate a machine that loses
unsynced data. All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Protocol

from consumerd.base.durable import make_directory, sync_directory
from consumerd.base.errors import HandlerFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Disk(Protocol):
    """A POSIX file system: `rename` is atomic, and synced data survive a loss of power."""

    def make_directory(self, directory: Path) -> None:
        """Make it and its missing parents, durably. An existing one is made durable."""
        ...

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        """Make a directory in `parent` whose name no other writer ever uses."""
        ...

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def identity(self, directory: Path) -> object:
        """What tells a directory from one that is mounted, or made, in its place."""
        ...

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Make or overwrite a file; its bytes are durable on return, its name is not. The folder must be there.

        What `pieces` raises leaves a file with those before.
        """
        ...

    def holds(self, path: Path, pieces: Iterable[bytes]) -> bool:
        """Whether a file has just these bytes. One piece is in memory at a time."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, atomically."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Make durable which names are in `directory`."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file. A missing one is fine."""
        ...

    def remove_directory(self, directory: Path) -> None:
        """Remove a directory if it is empty; one that is missing or not empty is fine."""
        ...


class OsDisk:
    """The operating system's file system."""

    def make_directory(self, directory: Path) -> None:
        make_directory(directory, self.sync_directory)

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        path = parent / f"{prefix}{secrets.token_hex(8)}"
        path.mkdir()
        return path

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    def identity(self, directory: Path) -> object:
        status = directory.stat()
        return status.st_dev, status.st_ino

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)

    def holds(self, path: Path, pieces: Iterable[bytes]) -> bool:
        with path.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in pieces) and not file.read(1)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_directory(self, directory: Path) -> None:
        sync_directory(directory)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, directory: Path) -> None:
        with contextlib.suppress(OSError):
            directory.rmdir()


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


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    except OSError as error:
        if error.filename is None:  # calls with a descriptor do not know it
            error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
