"""Defects of exactly-once files, put in place in memory: what random schedules have to find.

    with MUTATIONS["renamed_before_synced"]():
        SinkSchedule(3, "power").run()  # raises ScheduleError

Strategy: as in `tests.simulation.planted`. `python -m tests.simulation.planted_sinks [name ...] [--kind KIND]
[--seeds FIRST-END]` says which seeds find what.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from consumerd.base.files import StrPath, SystemFiles, write_all
from consumerd.handlers import Batch
from consumerd.handlers.builtin import ranges
from consumerd.handlers.builtin.range_folders import RangeFolders, WriterFolder
from consumerd.handlers.builtin.range_logs import last_log
from tests.simulation.defects import Defects, main
from tests.simulation.sink_schedule import KINDS, SinkSchedule

_PATCH = mock.patch.object
MUTATIONS = Defects()


# -- what is durable when


def _write_unsynced(self: SystemFiles, path: Path, pieces: Iterable[bytes]) -> None:
    position = 0
    with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        for piece in pieces:
            position = write_all(self.system, descriptor, piece, position)


@MUTATIONS.add
def renamed_before_synced() -> Iterator[None]:
    """A file is synced only when it has its name already."""
    rename = SystemFiles.rename

    def rename_and_sync(self: SystemFiles, source: Path, target: Path) -> None:
        rename(self, source, target)
        self._sync(target)

    with _PATCH(SystemFiles, "write", _write_unsynced), _PATCH(SystemFiles, "rename", rename_and_sync):
        yield


@MUTATIONS.add
def never_synced() -> Iterator[None]:
    """The names of files are durable, their bytes are left to the system."""
    with _PATCH(SystemFiles, "write", _write_unsynced):
        yield


@MUTATIONS.instead(SystemFiles, "_sync")
def names_not_synced(self: Any, path: Any, flags: Any = 0) -> None:
    """A range is confirmed before its name is durable."""


class _Unsynced(SystemFiles):
    """Directories are made durably, and not synced otherwise."""

    def sync_directory(self, path: StrPath) -> None:
        """Leave it to the system."""


@MUTATIONS.add
def takeover_not_synced() -> Iterator[None]:
    """A new owner continues behind a range whose writer did not live to sync its name."""
    with _take_over_on(_Unsynced):
        yield


@MUTATIONS.instead(SystemFiles, "make_directory")
def found_directory_not_synced(self: SystemFiles, path: Path) -> None:
    """A directory that another process made is used, though that process may not have lived to sync its name."""
    missing = []
    while not self.system.is_directory(path):
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            self.system.make_directory(each)
        self._sync_parent(each)


@MUTATIONS.instead(RangeFolders, "store")
def written_in_place(
    self: RangeFolders, folder: WriterFolder, batch: Batch, pieces: Callable[[], Iterator[bytes]]
) -> None:
    """A file has its name from the beginning, and is synced before it is confirmed."""
    self._files.write(folder.path / folder.stored.range_name(batch, self._suffix), pieces())
    self._files.sync_directory(folder.path)
    folder.stored = folder.stored.with_batch(batch)


# -- who may write


@contextmanager
def _take_over_on(kind: type[SystemFiles]) -> Iterator[None]:
    take_over = RangeFolders.take_over

    def take_over_there(self: RangeFolders, topic: str, partition: str) -> WriterFolder:
        return take_over(RangeFolders(kind(self._files.system), self._directory, self._suffix), topic, partition)

    with _PATCH(RangeFolders, "take_over", take_over_there):
        yield


class _Unfenced(SystemFiles):
    def rename(self, source: StrPath, target: StrPath) -> None:
        """Leave it to its writer."""


@MUTATIONS.add
def former_owner_not_fenced() -> Iterator[None]:
    """A takeover leaves the folders of other writers as they are."""
    with _take_over_on(_Unfenced):
        yield


@MUTATIONS.around(RangeFolders, "take_over")
def looked_before_fenced(take_over: Any, self: RangeFolders, topic: str, partition: str) -> Any:
    """A takeover looks where the ranges end, and then ends the writing of others."""
    path = self._directory / topic / partition
    names = self._names(path) if self._files.exists(path) else []
    stored, _ = last_log(path, names, self._suffix)
    folder = take_over(self, topic, partition)
    folder.stored = stored
    return folder


@MUTATIONS.instead(ranges, "in_thread")
async def thread_left_behind(work: Callable[[], Any], *, interrupt: Callable[[], None] | None = None) -> Any:
    """A handler that is cancelled returns at once; its thread continues."""
    return await asyncio.to_thread(work)


if __name__ == "__main__":
    main(MUTATIONS, SinkSchedule, KINDS)
