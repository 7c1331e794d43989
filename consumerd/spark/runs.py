"""Rows -> the ranges of the log that they cover without a gap: a few numbers for many rows.

Strategy: a row knows its position, (offset, index), and the position that follows it: for a message within a compressed
one the next index, after the last one (and after a plain message) the next offset. So rows chain, and a missing row
breaks the chain, even the last message of a compressed one: how many there were need not be known. Rows that follow
each other in a batch become one run, with their number and the sum of their hashes. The result is right in any order of
rows, and short in the order of the log.

Executors import this module: it needs Arrow and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import repeated

#: The columns by which rows chain: the partition, the place, and the start of the next message.
PLACE: Final = ("topic", "broker_partition", "offset", "index", "next_offset")
#: The columns that are equal in all rows of a run, besides the partition (`Marks` of `consumerd.spark.lake`).
KINDS: Final = ("seen", "due", "proven")
#: The columns of a run. A run covers the places from `start_*` up to, and without, `end_*`; `hash` is modulo 2**64.
RUN_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_partition", pa.string()),
        *((name, pa.bool_()) for name in KINDS),
        *((name, pa.int64()) for name in ("start_offset", "start_index", "end_offset", "end_index", "rows", "hash")),
    ]
)


_ZERO, _ONE = (repeated(each, pa.int64(), 1)[0] for each in (0, 1))
_FALSE, _TRUE = (repeated(each, pa.bool_(), 1)[0] for each in (False, True))


def runs_of(columns: Sequence[pa.Array | pa.Scalar]) -> pa.RecordBatch:
    """Columns PLACE, KINDS and `hash` (bigint) of some rows -> their runs, columns RUN_SCHEMA.

    Of partition, KINDS and `hash` a scalar is what all rows have.
    """
    topic, name, offset, index, following, *kinds, hashes = columns
    index = index.cast(pa.int64())
    # A row that says it ends before it begins covers its own place, as a leaf does, and is found by its neighbours.
    moves = pc.fill_null(pc.greater(following, offset), _FALSE)
    end_offset = pc.if_else(moves, following, offset)
    end_index = pc.if_else(moves, _ZERO, pc.add(index, _ONE))
    same = [(each, each) for each in (topic, name, *kinds) if not isinstance(each, pa.Scalar)]
    ends = _last_rows([*same, (end_offset, offset), (end_index, index)], len(offset))
    starts, lasts = _bounds(ends)
    rows = pc.add(pc.subtract(lasts, starts), _ONE)
    found = [
        *(_taken(each, starts) for each in (topic, name, *kinds, offset, index)),
        end_offset.take(lasts),
        end_index.take(lasts),
        rows,
        pc.multiply(rows, hashes) if isinstance(hashes, pa.Scalar) else _sums(hashes, starts, lasts),
    ]
    return pa.RecordBatch.from_arrays(found, schema=RUN_SCHEMA)


def joined(runs: pa.Table) -> pa.Table:
    """Fewer runs that cover the same places as these, of which neighbours that follow each other become one."""
    runs = runs.combine_chunks()
    if not runs.num_rows:
        return runs
    (batch,) = runs.to_batches()
    columns = dict(zip(RUN_SCHEMA.names, batch.columns, strict=True))
    same = [(columns[name], columns[name]) for name in ("topic", "broker_partition", *KINDS)]
    follows = [(columns[f"end_{each}"], columns[f"start_{each}"]) for each in ("offset", "index")]
    starts, lasts = _bounds(_last_rows([*same, *follows], batch.num_rows))
    firsts = {name: columns[name].take(starts) for name in columns}
    ends = {f"end_{each}": columns[f"end_{each}"].take(lasts) for each in ("offset", "index")}
    sums = {name: _sums(columns[name], starts, lasts) for name in ("rows", "hash")}
    found = firsts | ends | sums
    return pa.Table.from_arrays([found[name] for name in RUN_SCHEMA.names], schema=RUN_SCHEMA)


def _taken(column: pa.Array | pa.Scalar, places: pa.Array) -> pa.Array:
    return pa.repeat(column, len(places)) if isinstance(column, pa.Scalar) else column.take(places)


def _bounds(ends: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The first and the last row of each run."""
    lasts = pc.indices_nonzero(ends).cast(pa.int64())
    return pa.concat_arrays([repeated(0, pa.int64(), 1), pc.add(lasts, _ONE)]).slice(0, len(lasts)), lasts


def _last_rows(pairs: Sequence[tuple[pa.Array, pa.Array]], count: int) -> pa.Array:
    """Whether a row is the last one of its run: `before` of it is not `after` of the next one, for any of the pairs."""
    last = repeated(True, pa.bool_(), min(count, 1))
    differs = None
    for before, after in pairs:
        each = pc.not_equal(before.slice(0, max(0, count - 1)), after.slice(1))
        differs = each if differs is None else pc.or_(differs, each)
    return pa.concat_arrays([pc.fill_null(differs, _TRUE), last])


def _sums(hashes: pa.Array, starts: pa.Array, lasts: pa.Array) -> pa.Array:
    """The sum over each run, modulo 2**64: differences of the running sum."""
    running = pc.cumulative_sum(hashes)
    before = pc.subtract(running.take(starts), hashes.take(starts))
    return pc.subtract(running.take(lasts), before)
