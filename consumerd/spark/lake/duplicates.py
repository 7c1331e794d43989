"""Rows whose identity is there already, out of the files of a batch that is not committed yet.

Strategy: only where ranges of identities meet. The identities of the batch are in memory, as columns of Arrow; those of
earlier batches go by in pieces. Of rows with one identity the one that could be parsed is kept, of several such the
first landed; a row whose identity was stored before is dropped. Files that lose rows are written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.decode import REASON
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.refine import RefinedFiles, RefineTarget
from consumerd.spark.source.columns import IDENTITY, arrow_schema

#: In place of null: a join does not find null in null.
_NULLS: Final = {name: "" if name in ("topic", "topic_id") else -1 for name in IDENTITY}
_KIND: Final = "__refused"
_FILE: Final = "__file"
_ROW: Final = "__row"


def without_duplicates(
    found: Sequence[RefinedFiles], target: RefineTarget, earlier: Iterable[pa.RecordBatch]
) -> tuple[list[RefinedFiles], int]:
    """The files that are left, and how many rows were dropped. `earlier`: identities of earlier batches.

    Raises OSError, and what reading a file raises.
    """
    parts = [_identities(files, number, target) for number, files in enumerate(found)]
    rows = pa.concat_tables(parts) if parts else None
    if rows is None or not rows.num_rows:
        return list(found), 0
    order = [(name, "ascending") for name in (*IDENTITY, _KIND, _FILE, _ROW)]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()
    first = None
    for name in IDENTITY:
        column = rows.column(name).combine_chunks()
        differs = pc.not_equal(column.slice(0, len(column) - 1), column.slice(1))
        first = differs if first is None else pc.or_(first, differs)
    kept = rows.filter(pa.concat_arrays([pa.array([True]), first]))
    for piece in earlier:
        if piece.num_rows:
            kept = kept.join(pa.table(_filled(piece)), list(IDENTITY), join_type="left anti", use_threads=False)
    result = []
    reasons = Counter[str]()  # of a task the first part has all of them
    for number, files in enumerate(found):
        left = kept.filter(pc.equal(kept.column(_FILE), number))
        silver, _ = _rewritten(files.silver, target.folders[0], target.stored[0], _rows_of(left, refused=False))
        quarantine, dropped = _rewritten(
            files.quarantine, target.folders[1], target.stored[1], _rows_of(left, refused=True)
        )
        reasons.update(files.reasons)
        reasons.subtract(dropped)
        result.append(replace(files, silver=silver, quarantine=quarantine, reasons={}))
    result[0] = replace(result[0], reasons=dict(+reasons))
    return result, rows.num_rows - kept.num_rows


def _identities(files: RefinedFiles, number: int, target: RefineTarget) -> pa.Table:
    """The identities of all rows of a task, with the place of each."""
    tables = []
    for refused, file, folder, schema in _both(files, target):
        if file is None:
            continue
        wanted = pa.schema([schema.field(name) for name in IDENTITY])
        at = 0
        for piece in read_file(open_folder(folder), file.path, wanted):
            places = pa.array(range(at, at + piece.num_rows), pa.int64())
            at += piece.num_rows
            columns = _filled(piece) | {_KIND: pa.repeat(pa.scalar(int(refused), pa.int8()), len(places)), _ROW: places}
            tables.append(pa.table(columns | {_FILE: pa.repeat(number, len(places))}))
    return pa.concat_tables(tables) if tables else _EMPTY


def _both(files: RefinedFiles, target: RefineTarget) -> list[tuple[bool, DataFile | None, str, pa.Schema]]:
    return [
        (False, files.silver, target.folders[0], target.stored[0]),
        (True, files.quarantine, target.folders[1], target.stored[1]),
    ]


def _filled(piece: pa.RecordBatch) -> dict[str, Any]:
    """The columns of the identity, with values in place of nulls."""
    filled = {}
    for name in IDENTITY:
        at = piece.schema.get_field_index(name)
        kind = _EMPTY.schema.field(name).type
        column = pa.nulls(piece.num_rows, kind) if at < 0 else piece.column(at).cast(kind)
        filled[name] = pc.fill_null(column, pa.scalar(_NULLS[name], kind))
    return filled


def _rows_of(left: pa.Table, *, refused: bool) -> pa.Array:
    """The places of rows in the file of that table, ascending."""
    places = left.filter(pc.equal(left.column(_KIND), int(refused))).column(_ROW).combine_chunks()
    return places.take(pc.sort_indices(places))


def _rewritten(
    file: DataFile | None, folder: str, schema: pa.Schema, places: pa.Array
) -> tuple[DataFile | None, Counter[str]]:
    """A file with these rows alone, in place of `file`, and its other rows by reason; `file` itself without others."""
    dropped: Counter[str] = Counter()
    if file is None or len(places) == file.rows:
        return file, dropped
    with DataFileWriter(folder, schema) as writer:
        at = taken = 0
        numbers = places.to_pylist()
        for piece in read_file(open_folder(folder), file.path, schema):
            end = at + piece.num_rows
            stop = bisect_left(numbers, end)
            rows = piece.take(pc.subtract(places.slice(taken, stop - taken), at))
            writer.write(rows)
            if REASON in schema.names:
                dropped.update(piece.column(REASON).to_pylist())
                dropped.subtract(rows.column(REASON).to_pylist())
            at, taken = end, stop
        written = writer.close()
    open_folder(folder).remove(file.path)
    return None if written is None else replace(written, partition=file.partition), dropped


_EMPTY: Final = pa.schema(
    [*arrow_schema(IDENTITY), (_KIND, pa.int8()), (_ROW, pa.int64()), (_FILE, pa.int64())]
).empty_table()
