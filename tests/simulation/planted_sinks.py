"""Defects of exactly-once files, put in place in memory: what random schedules have to find.

    with MUTATIONS["renamed_before_synced"]():
        SinkSchedule(3, "power").run()  # raises ScheduleError

Strategy: as in `tests.simulation.planted`. `python -m tests.simulation.planted_sinks [name ...] [--kind KIND]
[--seeds FIRST-END]` says which seeds find what.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.handlers.builtin import disk as os_disk
from consumerd.handlers.builtin import ranges
from consumerd.handlers.builtin.disk import OsDisk
from consumerd.handlers.builtin.range_folders import RangeFolders, WriterFolder
from consumerd.handlers.builtin.range_logs import last_log
from tests.simulation.base_schedule import ScheduleError
from tests.simulation.sink_schedule import KINDS, SinkSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from consumerd.handlers import Batch

_PATCH = mock.patch.object


# -- what is durable when


def _system() -> Any:
    """The calls of `OsDisk`, which the simulation replaces."""
    return vars(os_disk)["os"]


def _write_unsynced(self: OsDisk, path: Path, pieces: Iterable[bytes]) -> None:
    system = _system()
    with os_disk._opened(path, system.O_WRONLY | system.O_CREAT | system.O_TRUNC) as descriptor:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[system.write(descriptor, rest) :]


@contextmanager
def renamed_before_synced() -> Iterator[None]:
    """A file is synced only when it has its name already."""
    rename = OsDisk.rename

    def rename_and_sync(self: OsDisk, source: Path, target: Path) -> None:
        rename(self, source, target)
        with os_disk._opened(target, os.O_RDONLY) as descriptor:
            _system().fsync(descriptor)

    with _PATCH(OsDisk, "write", _write_unsynced), _PATCH(OsDisk, "rename", rename_and_sync):
        yield


@contextmanager
def never_synced() -> Iterator[None]:
    """The names of files are durable, their bytes are left to the system."""
    with _PATCH(OsDisk, "write", _write_unsynced):
        yield


@contextmanager
def names_not_synced() -> Iterator[None]:
    """A range is confirmed before its name is durable."""
    with _PATCH(OsDisk, "sync_directory", lambda self, directory: None):
        yield


class _Unsynced(OsDisk):
    """Directories are made durably, and not synced otherwise."""

    def make_directory(self, directory: Path) -> None:
        OsDisk().make_directory(directory)

    def sync_directory(self, directory: Path) -> None:
        """Leave it to the system."""


@contextmanager
def takeover_not_synced() -> Iterator[None]:
    """A new owner continues behind a range whose writer did not live to sync its name."""
    with _take_over_on(_Unsynced()):
        yield


@contextmanager
def found_directory_not_synced() -> Iterator[None]:
    """A directory that another process made is used, though that process may not have lived to sync its name."""

    def make_directory(self: OsDisk, directory: Path) -> None:
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            self.sync_directory(path.parent)

    with _PATCH(OsDisk, "make_directory", make_directory):
        yield


@contextmanager
def written_in_place() -> Iterator[None]:
    """A file has its name from the beginning, and is synced before it is confirmed."""

    def store(self: RangeFolders, folder: WriterFolder, batch: Batch, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._disk.write(folder.path / folder.stored.range_name(batch, self._suffix), pieces())
        self._disk.sync_directory(folder.path)
        folder.stored = folder.stored.with_batch(batch)

    with _PATCH(RangeFolders, "store", store):
        yield


# -- who may write


@contextmanager
def _take_over_on(disk: OsDisk) -> Iterator[None]:
    take_over = RangeFolders.take_over

    def take_over_there(self: RangeFolders, topic: str, partition: str) -> WriterFolder:
        return take_over(RangeFolders(disk, self._directory, self._suffix), topic, partition)

    with _PATCH(RangeFolders, "take_over", take_over_there):
        yield


class _Unfenced(OsDisk):
    def rename(self, source: Path, target: Path) -> None:
        """Leave it to its writer."""


@contextmanager
def former_owner_not_fenced() -> Iterator[None]:
    """A takeover leaves the folders of other writers as they are."""
    with _take_over_on(_Unfenced()):
        yield


@contextmanager
def looked_before_fenced() -> Iterator[None]:
    """A takeover looks where the ranges end, and then ends the writing of others."""
    take_over = RangeFolders.take_over

    def look_and_take_over(self: RangeFolders, topic: str, partition: str) -> WriterFolder:
        path = self._directory / topic / partition
        names = self._disk.names(path) if path.is_dir() else []
        stored, _ = last_log(path, names, self._suffix)
        folder = take_over(self, topic, partition)
        folder.stored = stored
        return folder

    with _PATCH(RangeFolders, "take_over", look_and_take_over):
        yield


@contextmanager
def thread_left_behind() -> Iterator[None]:
    """A handler that is cancelled returns at once; its thread continues."""

    async def in_thread(work: Callable[[], Any], *, interrupt: Callable[[], None] | None = None) -> Any:
        return await asyncio.to_thread(work)

    with _PATCH(ranges, "in_thread", in_thread):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        renamed_before_synced,
        never_synced,
        names_not_synced,
        takeover_not_synced,
        found_directory_not_synced,
        written_in_place,
        former_owner_not_fenced,
        looked_before_fenced,
        thread_left_behind,
    )
}


def finding(
    mutation: str, seeds: Iterable[int], *, kind: str | None = None, at_least: int = 0
) -> Iterator[tuple[int, str]]:
    """The seeds that fail while the defect is there, and how; no more than `at_least`, unless that is 0.

    `kind`: of schedule, instead of the one that each seed chooses.
    """
    found = 0
    with MUTATIONS[mutation]():
        for seed in seeds:
            try:
                SinkSchedule(seed, kind).run()
            except ScheduleError as error:
                found += 1
                yield seed, str(error).partition("\n")[0]
                if found == at_least:
                    return


def main() -> None:
    """For people."""
    parser = argparse.ArgumentParser(description="Say which seeds find defects of exactly-once files.")
    parser.add_argument("names", nargs="*", default=list(MUTATIONS), metavar="name", help=", ".join(MUTATIONS))
    parser.add_argument("--seeds", default="0-300", help="from which to which, the last one not included")
    parser.add_argument("--at-least", type=int, default=3, help="so many per defect are enough; 0 for all there are")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="of schedule, for all seeds")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition("-")
    for name in arguments.names:
        for seed, headline in finding(
            name, range(int(first), int(end)), kind=arguments.kind, at_least=arguments.at_least
        ):
            sys.stdout.write(f"{name:32} {seed:6}  {headline}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
