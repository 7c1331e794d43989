"""A progress bar on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Bar:
    """See `consumerd.storage.archives.pool.Progress`."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None, segments=0, of="", messages=0)
        self._segments = self._messages = 0

    def begin(self, total_bytes: int, segments: int | None) -> None:
        of = "" if segments is None else f"/{segments}"
        self._progress.update(self._task, total=total_bytes, of=of)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def segment(self, rows: int) -> None:
        self._segments += 1
        self._messages += rows
        self._progress.update(self._task, segments=self._segments, messages=self._messages)


@contextlib.contextmanager
def bar(what: str) -> Iterator[Bar]:
    """Shown until the block ends."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[segments]}{task.fields[of]} segments, {task.fields[messages]} messages"),
        console=Console(stderr=True),
    ) as progress:
        yield Bar(progress, what)
