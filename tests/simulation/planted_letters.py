"""Defects of dead letters in files, put in place in memory: what crashes at a step have to find.

Strategy: as in `tests.simulation.planted`.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from consumerd.base.files import SystemFiles
from consumerd.handlers import DeadLetters, Letter, dead_letter_files
from consumerd.handlers.dead_letter_files import FileDeadLetters
from consumerd.handlers.giving_up import GivingUp
from tests.simulation.defects import Defects

MUTATIONS = Defects()
#: Letters that are still being written.
_WRITING: set[asyncio.Task[None]] = set()


def _append(self: FileDeadLetters, descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[self._system.append(descriptor, rest) :]


@MUTATIONS.instead(FileDeadLetters, "_write")
def letter_not_synced(self: FileDeadLetters, descriptor: int, lines: bytes, *, locked: bool) -> None:
    """A letter is confirmed when it is written."""
    _append(self, descriptor, lines)


@MUTATIONS.instead(FileDeadLetters, "_write")
def torn_line_continued(self: FileDeadLetters, descriptor: int, lines: bytes, *, locked: bool) -> None:
    """A letter is written behind the part of a line that a crash left."""
    _append(self, descriptor, lines)
    self._system.sync(descriptor)


@MUTATIONS.instead(FileDeadLetters, "_sync_folder")
def name_not_synced(self: Any) -> None:
    """A letter is confirmed before the name of its file is durable."""


@MUTATIONS.instead(SystemFiles, "make_directory")
def folders_not_synced(self: SystemFiles, path: Path) -> None:
    """The folder of the file is made, and left to the system."""
    with contextlib.suppress(FileExistsError):
        self.system.make_directory(path)


@MUTATIONS.instead(FileDeadLetters, "_rotate")
def number_taken_twice(self: FileDeadLetters) -> None:
    """Each full file gets the first number."""
    self._files.rename(self._path, dead_letter_files._numbered(self._path, 1))
    self._sync_folder()


@MUTATIONS.instead(dead_letter_files, "_lock")
def not_locked(system: Any, descriptor: Any, until: Any) -> Any:
    """Members rename the file at once, without its lock."""
    return True


@MUTATIONS.around(FileDeadLetters, "_rotate")
def locked_while_written_alone(rotate: Any, self: FileDeadLetters) -> None:
    """The lock is given back before the file is renamed."""
    assert self._descriptor is not None
    self._system.unlock(self._descriptor)
    rotate(self)


@MUTATIONS.instead(FileDeadLetters, "_was_moved")
def rename_not_noticed(self: Any, descriptor: Any) -> Any:
    """A member that has waited for the lock does not look whether the file was renamed meanwhile."""
    return False


@MUTATIONS.around(GivingUp, "_write")
async def committed_before_confirmed(write: Any, self: GivingUp, place: DeadLetters, letters: list[Letter]) -> None:
    """A message counts as handled while its letter is on its way."""

    async def write_later() -> None:
        await asyncio.sleep(1.0)
        await write(self, place, letters)

    task = asyncio.ensure_future(write_later())
    _WRITING.add(task)
    task.add_done_callback(_WRITING.discard)
