"""Defects of the sink `parquet`, put in place in memory: what crashes at a step and random schedules have to find.

Strategy: as in `tests.simulation.planted`. Those of the disk and of takeovers are in `planted_sinks`; here are those of
a file that is written in pieces.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from consumerd.handlers.builtin import parquet, ranges
from consumerd.handlers.builtin.parquet_rows import parquet_pieces
from tests.simulation import planted_sinks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from consumerd.handlers import Batch
    from consumerd.storage.archives.options import ExportCompression

_PATCH = mock.patch.object


@contextmanager
def footer_left_out() -> Iterator[None]:
    """A file ends behind its last row group."""

    def pieces(batch: Batch, compression: ExportCompression) -> Iterator[bytes]:
        yield from list(parquet_pieces(batch, compression))[:-1]

    with _PATCH(parquet, "parquet_pieces", pieces):
        yield


@contextmanager
def part_kept_when_cancelled() -> Iterator[None]:
    """A batch that is cancelled while it is written is stored as far as it is written."""

    def until_cancelled(pieces: Iterator[bytes], cancelled: threading.Event) -> Iterator[bytes]:
        for count, piece in enumerate(pieces):
            if count and cancelled.is_set():
                return
            yield piece

    with _PATCH(ranges, "_interruptible", until_cancelled):
        yield


@contextmanager
def first_group_alone() -> Iterator[None]:
    """Row groups after the first one are not written, and the file is whole."""

    def pieces(batch: Batch, compression: ExportCompression) -> Iterator[bytes]:
        return parquet_pieces(batch.part(0, min(2, len(batch))), compression)

    with _PATCH(parquet, "parquet_pieces", pieces):
        yield


#: Those of the disk and of takeovers, but for the one that only schedules of `files` find.
OF_FILES = {name: each for name, each in planted_sinks.MUTATIONS.items() if name != "thread_left_behind"}
MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **OF_FILES,
    **{each.__name__: each for each in (footer_left_out, part_kept_when_cancelled, first_group_alone)},
}
