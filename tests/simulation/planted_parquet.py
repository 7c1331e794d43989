"""Defects of the sink `parquet`, put in place in memory: what crashes at a step and random schedules have to find.

Strategy: as in `tests.simulation.planted`. Those of the disk and of takeovers are in `planted_sinks`, in code that
both sinks share; here are those of a file that is written in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from consumerd.handlers import Batch
from consumerd.handlers.builtin import parquet, ranges
from consumerd.handlers.builtin.parquet_rows import parquet_pieces
from consumerd.storage.archives.options import ExportCompression
from tests.simulation.defects import Defects

if TYPE_CHECKING:
    import threading

MUTATIONS = Defects()


@MUTATIONS.instead(parquet, "parquet_pieces")
def footer_left_out(batch: Batch, compression: ExportCompression) -> Iterator[bytes]:
    """A file ends behind its last row group."""
    yield from list(parquet_pieces(batch, compression))[:-1]


@MUTATIONS.instead(ranges, "_interruptible")
def part_kept_when_cancelled(pieces: Iterator[bytes], cancelled: threading.Event) -> Iterator[bytes]:
    """A batch that is cancelled while it is written is stored as far as it is written."""
    for count, piece in enumerate(pieces):
        if count and cancelled.is_set():
            return
        yield piece


@MUTATIONS.instead(parquet, "parquet_pieces")
def first_group_alone(batch: Batch, compression: ExportCompression) -> Iterator[bytes]:
    """Row groups after the first one are not written, and the file is whole."""
    return parquet_pieces(batch.part(0, min(2, len(batch))), compression)
