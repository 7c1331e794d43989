"""Rows -> the stretches of the log that they cover without a break: a few numbers for many rows.

Strategy: a row knows its place, (offset, index), and the place that follows it: of a compressed message's leaves the
next leaf, after the last one (and after a plain message) the next message. So rows chain, and a row that is missing
breaks the chain, be it the last leaf of a wrapper: how many leaves there were need not be known. Rows that follow each
other in a batch become one run, with their number and the sum of their hashes; nothing has to be in order for that to
be right, but in the order of the log it is short.

Executors run this: it knows Arrow and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What makes rows chain.
PLACE: Final = ("topic", "broker_partition", "offset", "index", "next_offset")
#: The columns of a run. A run covers the places from `start_*` up to, and without, `end_*`; `hash` is modulo 2**64.
RUNS_DDL: Final = (
    "topic string, broker_partition string, seen boolean, start_offset bigint, start_index bigint, "
    "end_offset bigint, end_index bigint, rows bigint, hash bigint"
)
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_partition", pa.string()),
        ("seen", pa.bool_()),
        *((name, pa.int64()) for name in ("start_offset", "start_index", "end_offset", "end_index", "rows", "hash")),
    ]
)


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: batches with the columns of PLACE, `seen` and `hash` (bigint) -> batches of runs."""
    for batch in batches:
        if batch.num_rows:
            yield runs_of(batch)


def runs_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The runs of one batch, which has at least one row."""
    count = batch.num_rows
    offset = batch["offset"]
    following = batch["next_offset"]
    index = batch["index"].cast(pa.int64())
    # A row that says it ends before it begins covers its own place, as a leaf does, and is found by its neighbours.
    moves = pc.fill_null(pc.greater(following, offset), False)
    end_offset = pc.if_else(moves, following, offset)
    end_index = pc.if_else(moves, 0, pc.add(index, 1))
    starts = pa.array([0], pa.int64())
    if count > 1:
        pairs = [(batch[name], batch[name]) for name in ("topic", "broker_partition", "seen")]
        pairs += [(end_offset, offset), (end_index, index)]
        breaks = None
        for before, after in pairs:
            differs = pc.not_equal(before.slice(0, count - 1), after.slice(1))
            breaks = differs if breaks is None else pc.or_(breaks, differs)
        found = pc.indices_nonzero(pc.fill_null(breaks, True)).cast(pa.int64())
        starts = pa.concat_arrays([starts, pc.add(found, 1)])
    lasts = pa.concat_arrays([pc.subtract(starts.slice(1), 1), pa.array([count - 1], pa.int64())])
    return pa.RecordBatch.from_arrays(
        [
            batch["topic"].take(starts),
            batch["broker_partition"].take(starts),
            batch["seen"].take(starts),
            offset.take(starts),
            index.take(starts),
            end_offset.take(lasts),
            end_index.take(lasts),
            pc.add(pc.subtract(lasts, starts), 1),
            _sums(batch["hash"], starts, lasts),
        ],
        schema=_SCHEMA,
    )


def _sums(hashes: pa.Array, starts: pa.Array, lasts: pa.Array) -> pa.Array:
    """The sum over each run, modulo 2**64: differences of the running sum."""
    running = pc.cumulative_sum(hashes)
    before = pc.subtract(running.take(starts), hashes.take(starts))
    return pc.subtract(running.take(lasts), before)
