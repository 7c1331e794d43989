"""Records of 0.8 and later -> Arrow batches of bounded size, with the columns that were asked for and no others.

Strategy: a fetch's records come as lists of values and keys and as *runs* of offsets and timestamps
(`consumerd.wire.v08.records`). Numbers are collected run by run in typed arrays, whose memory becomes the column;
values and keys become columns in pieces of bounded size. What is the same in each row is made once and cut to length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.source.batches import BATCH_BYTES, BATCH_ROWS, Repeated, numbers
from consumerd.spark.source.columns import HEADERS, arrow_schema
from consumerd.wire.v08.records.codecs import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from consumerd.spark.source.v08.split import V08Split
    from consumerd.wire.v08.records import Headers, RecordSet
    from consumerd.wire.v08.records.record_set import Run

#: What the cells of `codec` are, by number.
_CODECS: Final = pa.array([codec.name.lower() for codec in Codec], pa.string())
#: Timestamps beyond are none that Spark can hold: it counts microseconds in 64 bits.
_LAST_MS: Final = ((1 << 63) - 1) // 1000
_INT64: Final = 1 << 63


class V08Rows:
    """Makes the rows of one split. `columns`: names in the order in which the batches have them, at least one."""

    def __init__(self, split: V08Split, columns: Sequence[str]) -> None:
        self._schema = arrow_schema(columns)
        self._wanted = frozenset(columns)
        self._same = Repeated(split)

    def batches(self, records: RecordSet, end: int) -> Iterator[pa.RecordBatch]:
        """The records below offset `end`."""
        count = len(records)
        if records.next_offset > end:
            count = bisect_left(records.offsets, end)
        if not count:
            return
        whole = {name: make(records.runs) for name, make in _BY_RUN.items() if name in self._wanted}
        if "next_offset" in self._wanted:
            offsets = whole["offset"] if "offset" in whole else _offsets(records.runs)
            # Not where the next record is: that would depend on what compaction has left by now.
            whole["next_offset"] = pc.add(offsets, pa.scalar(1, pa.int64()))
        for first, last in _pieces(records, count):
            columns = {name: column.slice(first, last - first) for name, column in whole.items()}
            for name, values in (("value", records.payloads), ("key", records.keys)):
                if name in self._wanted:
                    columns[name] = pa.array(values[first:last], pa.binary())
            if HEADERS.name in self._wanted and records.headers:
                columns[HEADERS.name] = _headers([records.headers.get(number) for number in range(first, last)])
            yield self._batch(columns, last - first)

    def flaw(self, offset: int, next_offset: int, problem: str) -> pa.RecordBatch:
        """One row that says what cannot be read from `offset` on."""
        columns = {
            "offset": pa.array([offset], pa.int64()),
            "next_offset": pa.array([next_offset], pa.int64()),
            "codec": pa.nulls(1, pa.string()),
            "crc_ok": pa.array([False]),
            "_corrupt": pa.array([problem], pa.string()),
        }
        return self._batch(columns, 1)

    def _batch(self, columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
        found = [
            columns[field.name] if field.name in columns else self._same.column(field, rows) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(found, schema=self._schema)


def _pieces(records: RecordSet, count: int) -> Iterator[tuple[int, int]]:
    """Ranges of the first `count` records that fit into a batch each."""
    if records.memory_bytes <= BATCH_BYTES and count <= BATCH_ROWS:
        yield 0, count
        return
    first = size = 0
    pairs = zip(records.payloads[:count], records.keys, strict=False)
    for number, (value, key) in enumerate(pairs):
        size += len(value or b"") + len(key or b"")
        if size >= BATCH_BYTES or number + 1 - first >= BATCH_ROWS:
            yield first, number + 1
            first, size = number + 1, 0
    if first < count:
        yield first, count


def _offsets(runs: Iterable[Run]) -> pa.Array:
    found = array("q")
    for run in runs:
        found.extend(run.offsets)
    return numbers(found, pa.int64())


def _timestamps(runs: Iterable[Run]) -> pa.Array:
    """In microseconds; null where there is none, or none that Spark can hold."""
    found = array("q")
    for run in runs:
        try:
            found.extend(array("q", run.timestamps))
        except OverflowError:  # a delta that no producer writes
            found.extend(each if -_INT64 <= each < _INT64 else -1 for each in run.timestamps)
    milliseconds = numbers(found, pa.int64())
    fine = pc.and_(pc.greater_equal(milliseconds, 0), pc.less_equal(milliseconds, _LAST_MS))
    held = pc.if_else(fine, milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(held, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


def _types(runs: Iterable[Run]) -> pa.Array:
    """0: the producer's time, 1: that of appending; null for messages that have none."""
    found = array("i")
    for run in runs:
        found.extend(array("i", (run.timestamp_type,)) * len(run.offsets))
    kinds = numbers(found, pa.int32())
    return pc.if_else(pc.less(kinds, 0), pa.scalar(None, pa.int32()), kinds)


def _codecs(runs: Iterable[Run]) -> pa.Array:
    found = array("b")
    for run in runs:
        found.extend(array("b", (run.codec,)) * len(run.offsets))
    return _CODECS.take(numbers(found, pa.int8()))


_BY_RUN: Final[dict[str, Callable[[Iterable[Run]], pa.Array]]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _types,
    "codec": _codecs,
}


def _headers(found: Sequence[Headers | None]) -> pa.Array:
    """Null for records without any, as Spark's Kafka connector has it."""
    rows = [None if not headers else [{"key": key, "value": value} for key, value in headers] for headers in found]
    return pa.array(rows, HEADERS.arrow)
