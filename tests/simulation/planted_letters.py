"""Defects of dead letters in files, put in place in memory: what crashes at a step have to find.

Strategy: as in `tests.simulation.planted`.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.handlers import dead_letter_files
from consumerd.handlers.builtin.disk import OsDisk
from consumerd.handlers.dead_letter_files import FileDeadLetters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PATCH = mock.patch.object


def _append(descriptor: int, data: bytes, *, sync: bool) -> None:
    system: Any = vars(dead_letter_files)["os"]
    rest = memoryview(data)
    while rest:
        rest = rest[system.write(descriptor, rest) :]
    if sync:
        system.fsync(descriptor)


@contextmanager
def letter_not_synced() -> Iterator[None]:
    """A letter is confirmed when it is written."""

    def write(self: FileDeadLetters, descriptor: int, lines: bytes, *, locked: bool) -> None:
        _append(descriptor, lines, sync=False)

    with _PATCH(FileDeadLetters, "_write", write):
        yield


@contextmanager
def torn_line_continued() -> Iterator[None]:
    """A letter is written behind the part of a line that a crash left."""

    def write(self: FileDeadLetters, descriptor: int, lines: bytes, *, locked: bool) -> None:
        _append(descriptor, lines, sync=True)

    with _PATCH(FileDeadLetters, "_write", write):
        yield


@contextmanager
def name_not_synced() -> Iterator[None]:
    """A letter is confirmed before the name of its file is durable."""
    with _PATCH(FileDeadLetters, "_sync_folder", lambda self: None):
        yield


@contextmanager
def folders_not_synced() -> Iterator[None]:
    """The folder of the file is made, and left to the system."""

    def make_directory(self: OsDisk, directory: Path) -> None:
        with contextlib.suppress(FileExistsError):
            directory.mkdir()

    with _PATCH(OsDisk, "make_directory", make_directory):
        yield


@contextmanager
def number_taken_twice() -> Iterator[None]:
    """Each full file gets the first number."""

    def rotate(self: FileDeadLetters) -> None:
        self._path.rename(dead_letter_files._numbered(self._path, 1))
        self._sync_folder()

    with _PATCH(FileDeadLetters, "_rotate", rotate):
        yield


@contextmanager
def not_locked() -> Iterator[None]:
    """Members rename the file at once, without its lock."""
    with _PATCH(dead_letter_files, "_lock", lambda descriptor, until: True):
        yield


@contextmanager
def locked_while_written_alone() -> Iterator[None]:
    """The lock is given back before the file is renamed."""
    rotate = FileDeadLetters._rotate

    def unlock_and_rotate(self: FileDeadLetters) -> None:
        system: Any = vars(dead_letter_files)["fcntl"]
        system.flock(self._descriptor, system.LOCK_UN)
        rotate(self)

    with _PATCH(FileDeadLetters, "_rotate", unlock_and_rotate):
        yield


@contextmanager
def rename_not_noticed() -> Iterator[None]:
    """A member that has waited for the lock does not look whether the file was renamed meanwhile."""
    with _PATCH(FileDeadLetters, "_was_moved", lambda self, descriptor: False):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        letter_not_synced,
        torn_line_continued,
        name_not_synced,
        folders_not_synced,
        number_taken_twice,
        not_locked,
        locked_while_written_alone,
        rename_not_noticed,
    )
}
