"""The work of one process of `refine`: files of bronze -> files of silver and quarantine, or verdicts alone.

A module of its own, because a worker imports what its task is in, and planning imports several times as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

import pyarrow as pa

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.days import DayWriter
from consumerd.spark.lake.decode import REASON, MessageDecoder
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.parts import TablePart
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.refine import RefinedFiles, RefineTarget, landed_within, refine_rows
from consumerd.spark.lake.table import BATCH
from consumerd.spark.tables.errors import unwritable


def refine_files(
    task: Sequence[TablePart], target: RefineTarget, batch: int, at: datetime
) -> Generator[tuple[int, int], None, list[RefinedFiles]]:
    """Write the rows of these files of bronze into one file of silver and one of quarantine, or one per day.

    Yields bytes and rows that were done. Raises what reading does, and TableError.
    """
    rows = chain.from_iterable(part.read(target.bronze) for part in task)
    try:
        written = refine_rows(rows, target, batch, at)
    except OSError as error:
        raise unwritable(" or ".join(target.folders), error) from None
    count = sum(file.rows for each in written for file in (each.silver, each.quarantine) if file is not None)
    yield sum(part.size for part in task), count
    return written


def keep_rows(
    folder: str, name: str, target: RefineTarget, is_refused: bool
) -> Generator[tuple[int, int], None, list[RefinedFiles]]:
    """Copy the rows of a file of silver, or quarantine, that a rebuild does not refine, into a new one.

    Yields as `refine_files`. They are in the rebuild's first batch, and have the columns of the new tables.
    """
    assert target.rebuild is not None
    schema = target.quarantine if is_refused else target.silver
    reasons: Counter[str] = Counter()
    with DayWriter(target.folders[is_refused], schema, target.days[is_refused]) as writer:
        for rows in landed_within(read_file(open_folder(folder), name, schema), target.rebuild, inside=False):
            number = repeated(0, pa.int64(), rows.num_rows)
            rows = rows.set_column(schema.get_field_index(BATCH), schema.field(BATCH), number)
            writer.write(rows)
            if is_refused:
                reasons.update(rows.column(REASON).to_pylist())
            yield 0, rows.num_rows
        files = writer.close()
    parts = [
        RefinedFiles(
            None if is_refused else file, file if is_refused else None, file.stretches, file.ascending, reasons={}
        )
        for file in files
    ]
    return [replace(parts[0], reasons=dict(reasons)), *parts[1:]] if parts else []


def count_verdicts(
    task: Sequence[TablePart], target: RefineTarget
) -> Generator[tuple[int, int], None, tuple[int, dict[str, int]]]:
    """Count the rows of these files of bronze that a rebuild refines, and those refused by reason.

    Yields as `refine_files`.
    """
    assert target.rebuild is not None
    zone = zone_of(target.zone)
    assert zone is not None
    decoder = MessageDecoder(target.messages, zone)
    count, reasons = 0, Counter[str]()
    for part in task:
        for rows in landed_within(part.read(target.bronze), target.rebuild):
            reasons.update(decoder.decode(rows).reasons.to_pylist())
            count += rows.num_rows
            yield 0, rows.num_rows
        yield part.size, 0
    return count, dict(reasons)
