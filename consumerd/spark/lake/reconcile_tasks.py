"""What a task of `reconcile` reads: a part of a table or of the source -> runs, or the hashes of some of its rows.

Strategy: rows are cut where another partition begins, so that for each piece the partition, its log and the ranges that
concern it are constants. A task reads in pieces of bounded size and returns few numbers, whatever its size, as long as
its rows follow each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.former_logs import FormerLog
from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.parts import Part, TablePart, size_of
from consumerd.spark.lake.row_hash import content_hashes
from consumerd.spark.lake.table import BATCH
from consumerd.spark.reconcile_result import PARTITION
from consumerd.spark.runs import PLACE, RUN_SCHEMA, joined, runs_of
from consumerd.spark.source.columns import CORRUPT, arrow_schema

if TYPE_CHECKING:
    from consumerd.spark.source.offsets import Key
    from consumerd.spark.source.request import ReadRequest

#: Changes of the partition in one piece of a file; with more of them it is sorted first.
_MAX_CUTS: Final = 64
#: The columns that are hashed, besides the place.
CONTENT: Final = ("value", "key")
#: The columns that tell the logs of a partition apart.
LOG: Final = ("topic_id", "leader_epoch")


Ranges: TypeAlias = "Mapping[Key, Sequence[tuple[int, int]]]"


@dataclass(frozen=True, slots=True)
class RowReading:
    """How to read parts. `schema`: the columns of files; `request`: of splits."""

    schema: pa.Schema
    request: ReadRequest | None = None
    former: tuple[FormerLog, ...] = ()
    hashed: bool = False

    def pieces(self, part: Part) -> Iterator[tuple[Key, str, pa.RecordBatch]]:
        """Rows of one log: as a partition of its own, the partition's plain name, and the rows in their order."""
        if isinstance(part, TablePart):
            batches = part.read(self.schema)
        else:
            from consumerd.spark.source.reading import read_rows  # noqa: PLC0415 - not for those who read files

            assert self.request is not None
            batches = read_rows(part, self.request)
        for rows in batches:
            for cut in _by_partition(rows):
                topic, name = (cut.column(each)[0].as_py() for each in PARTITION)
                for log, of_log in by_log(self.former, (topic, name), cut):
                    yield log, name, of_log


def by_log(former: Iterable[FormerLog], key: Key, rows: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each log of one partition, by its key. The first former log that holds a row has it."""
    left = rows
    for log in former:
        if (log.topic, log.partition) == key and left.num_rows:
            held = _held(log, left)
            if (of_log := left.filter(held)).num_rows:
                yield log.key, of_log
                left = left.filter(pc.invert(held))
    if left.num_rows:
        yield key, left


def _held(log: FormerLog, rows: pa.RecordBatch) -> pa.Array:
    """Whether a former log holds a row. Rows without identities are the earliest."""
    ids = _column(rows, "topic_id")
    same = pc.is_null(ids) if log.topic_id is None else pc.fill_null(pc.equal(ids, log.topic_id), True)
    if log.leader_epoch is None:
        return same
    offset, epoch = rows.column("offset"), _column(rows, "leader_epoch")
    within = pc.and_(pc.greater_equal(offset, log.start), pc.less(offset, log.end))
    until = pc.fill_null(pc.less_equal(epoch, log.leader_epoch), True)
    return pc.fill_null(pc.and_(same, pc.and_(within, until)), False)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    at = rows.schema.get_field_index(name)
    return pa.nulls(rows.num_rows, arrow_schema([name]).field(0).type) if at < 0 else rows.column(at)


def _by_partition(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows, cut where another partition begins."""
    cuts = _cuts(rows)
    if len(cuts) > _MAX_CUTS:
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in PARTITION]))  # stable
        cuts = _cuts(rows)
    for start, stop in pairwise([*cuts, rows.num_rows]):
        yield rows.slice(start, stop - start)


def _cuts(rows: pa.RecordBatch) -> list[int]:
    columns = [rows.column(name) for name in PARTITION]
    differ = [pc.not_equal(each.slice(0, len(each) - 1), each.slice(1)) for each in columns]
    return [0, *(place + 1 for place in pc.indices_nonzero(pc.or_(*differ)).to_pylist())] if rows.num_rows else []


# -- runs


@dataclass(frozen=True, slots=True)
class Marks:
    """The conditions by which runs are kept apart, per partition; see `Reconciliation`. None: true for all rows."""

    seen: Ranges | None = None
    proven: Ranges | None = None
    #: The last batch of bronze that `refine` has done.
    due: int | None = None


def find_runs(parts: Sequence[Part], reading: RowReading, marks: Marks) -> Generator[tuple[int, int], None, pa.Table]:
    """In a worker: the runs of these parts, RUN_SCHEMA. Raises what reading does.

    Yields sizes and numbers of rows that were done since. Of a source that is read with the column `_corrupt`, `seen`
    is false for bytes that are not messages.
    """
    found = []
    for part in parts:
        for key, name, rows in reading.pieces(part):
            hashes = content_hashes(rows, key[0], name).view(pa.int64()) if reading.hashed else _number(0)
            offset, corrupt = rows.column("offset"), rows.schema.get_field_index(CORRUPT.name)
            kinds = (
                _within(offset, marks.seen, key) if corrupt < 0 else pc.is_null(rows.column(corrupt)),
                _TRUE if marks.due is None else _until(rows.column(BATCH), marks.due),
                _within(offset, marks.proven, key),
            )
            partition = (repeated(each, pa.string(), 1)[0] for each in key)
            place = (rows.column(each) for each in PLACE[len(PARTITION) :])
            found.append(runs_of([*partition, *place, *kinds, hashes]))
            yield 0, rows.num_rows
        yield size_of(part), 0
    return joined(pa.Table.from_batches(found, schema=RUN_SCHEMA))


def _within(offset: pa.Array, ranges: Ranges | None, key: Key) -> pa.Array | pa.Scalar:
    """Whether an offset is in one of the ranges of its partition; true as a scalar where there are none."""
    if ranges is None:
        return _TRUE
    bounds = ((_number(low), _number(high)) for low, high in ranges.get(key, ()))
    found = (pc.and_(pc.greater_equal(offset, low), pc.less(offset, high)) for low, high in bounds)
    return pc.fill_null(reduce(pc.or_, found, repeated(False, pa.bool_(), len(offset))), _FALSE)


def _until(batches: pa.Array, last: int) -> pa.Array:
    return pc.fill_null(pc.less_equal(batches, _number(last)), _FALSE)


def _number(value: int) -> pa.Scalar:
    return repeated(value, pa.int64(), 1)[0]


_FALSE, _TRUE = (repeated(each, pa.bool_(), 1)[0] for each in (False, True))


# -- single rows


class Window(NamedTuple):
    """A part of a log: rows from `start` up to, and without, `end`, in `slots` of `width` offsets each."""

    start: int
    end: int
    width: int
    #: None for all of them.
    slots: frozenset[int] | None = None

    def slot(self, offset: pa.Array) -> pa.Array:
        """The number of the slot of each offset."""
        return pc.divide(pc.subtract(offset, self.start), self.width)


def find_rows(
    parts: Sequence[Part], reading: RowReading, windows: Mapping[Key, Window], summed: bool
) -> Generator[tuple[int, int], None, pa.Table]:
    """In a worker: columns PLACE and `hash` of the rows within the windows; bytes that are not a message are left out.

    `summed`: instead of rows, for each slot columns PARTITION, `slot`, `hash` (the sum, modulo 2**64) and `rows`.
    Raises what reading does.
    """
    found = []
    for part in parts:
        for key, name, rows in reading.pieces(part):
            window = windows.get(key)
            if window is None:
                continue
            corrupt = rows.schema.get_field_index(CORRUPT.name)
            if corrupt >= 0:
                rows = rows.filter(pc.is_null(rows.column(corrupt)))
            rows = rows.filter(_within(rows.column("offset"), {key: [window[:2]]}, key))
            if window.slots is not None and rows.num_rows:
                rows = rows.filter(
                    pc.is_in(window.slot(rows.column("offset")), pa.array(sorted(window.slots), pa.int64()))
                )
            if not rows.num_rows:
                continue
            hashes = content_hashes(rows, key[0], name) if reading.hashed else pa.nulls(rows.num_rows, pa.uint64())
            columns = dict(zip(PARTITION, (repeated(each, pa.string(), rows.num_rows) for each in key), strict=True))
            if summed:
                slots = pa.table({"slot": window.slot(rows.column("offset")), "hash": hashes})
                sums = slots.group_by("slot", use_threads=False).aggregate([("hash", "sum"), ([], "count_all")])
                columns = {name: each.slice(0, sums.num_rows) for name, each in columns.items()}
                columns |= {"slot": sums["slot"], "hash": sums["hash_sum"], "rows": sums["count_all"]}
            else:
                columns |= {name: rows.column(name) for name in PLACE[len(PARTITION) :]} | {"hash": hashes}
            found.append(pa.table(columns))
        yield size_of(part), 0
    return pa.concat_tables(found) if found else (SUMS if summed else ROWS).empty_table()


ROWS: Final = pa.schema([*arrow_schema(PLACE), ("hash", pa.uint64())])
SUMS: Final = pa.schema([*arrow_schema(PARTITION), ("slot", pa.int64()), ("hash", pa.uint64()), ("rows", pa.int64())])
