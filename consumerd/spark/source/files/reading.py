"""A split of the `files` handler's output -> its rows as Arrow batches: what an executor's task does.

Strategy: file by file, piece by piece (`consumerd.spark.source.files.lines`). A line tells where its message begins,
not where it ends; that is the start of the next line, or the end of the range. So one piece is held back until the next
one is known, and of the messages within a compressed one only the last moves `next_offset`, as everywhere.

What such a file does not record is null: `codec`. `crc_ok` is true, because the daemon delivers no other messages;
for a line that cannot be read it is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.source.errors import FileReadError
from consumerd.spark.source.files.lines import ExpectedRange, LineRows, read_rows
from consumerd.spark.source.request import ConstantColumns, ReadRequest, SplitReader
from consumerd.spark.source.split import FilesSplit, RangeFile


def read_files_split(split: FilesSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for a file that is gone where that is to fail, and
    FileReadError. Memory: some times the longest line, and a batch.
    """
    reader = _Reader(split, request)
    for file in split.files:
        yield from reader.read(file)
    reader.end("lines")


class _Reader(SplitReader):
    _split: FilesSplit

    def __init__(self, split: FilesSplit, request: ReadRequest) -> None:
        super().__init__(split, request)
        self._same = ConstantColumns(split, request.columns, codec=None)

    def read(self, file: RangeFile) -> Iterator[pa.RecordBatch]:
        split = self._split
        expected = ExpectedRange(split.topic, split.broker, split.partition, file.start, file.end)
        held: LineRows | None = None
        for rows in self._rows(file, expected):
            if held is not None and (batch := self._batch(held, rows.offsets[0].as_py())) is not None:
                yield batch
            held = rows
        if held is not None and (batch := self._batch(held, file.end)) is not None:
            yield batch

    def _rows(self, file: RangeFile, expected: ExpectedRange) -> Iterator[LineRows]:
        try:
            with Path(file.path).open("rb", buffering=0) as opened:
                for rows in read_rows(opened, expected):
                    kept = self._judged(rows, file)
                    if len(kept.offsets):
                        yield kept
        except FileNotFoundError:
            what = (
                f"the offsets {file.start} to {file.end} of {self._split.topic}/{self._split.broker_partition} are "
                f"lost: {file.path} was deleted after the read was planned"
            )
            self.lost(what, "set failOnDataLoss=false")
        except OSError as error:
            reason = error.strerror or error
            raise FileReadError(f"cannot read {file.path}: {reason}; make it readable for Spark's workers") from error

    def _judged(self, rows: LineRows, file: RangeFile) -> LineRows:
        """Apply the mode to rows that may have problems."""
        if rows.problems is None:
            return rows
        fine = rows.problems.is_null()
        for bad in pc.indices_nonzero(pc.invert(fine)).to_pylist():
            if self.is_row(f"{file.path} cannot be read after offset {rows.offsets[bad]}: {rows.problems[bad]}"):
                return rows
        return LineRows(rows.offsets.filter(fine), rows.indexes.filter(fine), rows.values.filter(fine), None)

    def _batch(self, rows: LineRows, following: int) -> pa.RecordBatch | None:
        """The rows as a batch, given the offset of what follows; None where the split has none of them."""
        nexts = pa.concat_arrays([rows.offsets.slice(1), pa.array([following], pa.int64())])
        varying = {
            "offset": rows.offsets,
            "index": rows.indexes,
            "next_offset": nexts,
            "value": rows.values,
        }
        count = len(rows.offsets)
        if rows.problems is not None:
            varying["_corrupt"] = rows.problems
            varying["crc_ok"] = pc.if_else(rows.problems.is_null(), True, pa.scalar(None, pa.bool_()))
        return self._cut(self._same.batch(varying, count), rows.offsets)

    def _cut(self, batch: pa.RecordBatch, offsets: pa.Array) -> pa.RecordBatch | None:
        """Drop the rows of the first and last file that are outside the split."""
        start, end = self._split.start, self._split.end
        if offsets[0].as_py() < start or offsets[-1].as_py() >= end:
            batch = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
        return batch if batch.num_rows else None
