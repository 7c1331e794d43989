"""Tables divided by day: which files the rows of a task go to.

Strategy: a file has rows of one day, by UTC. In Delta's format the day is a column of its own, `<source>_date`, by
which the table is partitioned; it is in the files, too, so that a reader of files alone has it. In Iceberg's the table
is partitioned by the day of the source itself, which readers need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.data_file import GROUP_BYTES, DataFile, DataFileWriter

if TYPE_CHECKING:
    from datetime import date

#: Bytes of rows in memory that all files of one writer may hold, about.
_HELD: Final = 2 * GROUP_BYTES


class Days(NamedTuple):
    """The division of a table. `source`: a timestamp column; `column`: that of the day, None in Iceberg's format."""

    source: str
    column: str | None

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table, whose rows have these."""
        return schema if self.column is None else schema.append(pa.field(self.column, pa.date32()))


def days_of(source: str | None, table_format: str) -> tuple[Days | None, Days | None]:
    """The division of silver by this column, and of quarantine, whose rows have no fields: by when they landed."""
    if source is None:
        return None, None
    silver, quarantine = (
        Days(name, f"{name}_date" if table_format == "delta" else None) for name in (source, "landed_at")
    )
    return silver, quarantine


class DayWriter:
    """Writes rows to a file for each day, or to one file. As DataFileWriter, but for `close`."""

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        days: Days | None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`schema`: the columns of the rows."""
        self._folder = folder
        self._days = days
        self._schema = schema if days is None else days.stored(schema)
        self._options = storage_options
        self._open = ExitStack()
        self._writers: dict[date | None, DataFileWriter] = {}

    def __enter__(self) -> DayWriter:
        self._open.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)  # type: ignore[arg-type]  # as it came

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        if self._days is None:
            self._writer(None).write(rows)
            return
        day = rows.column(self._days.source).cast(pa.date32())
        for each in pc.unique(day).to_pylist():
            found = rows.filter(pc.is_null(day) if each is None else pc.equal(day, pa.scalar(each, pa.date32())))
            columns = found.columns
            if self._days.column is not None:
                columns = [*columns, repeated(each, pa.date32(), found.num_rows)]
            self._writer(each).write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        while sum(each.held_bytes for each in self._writers.values()) > _HELD:
            max(self._writers.values(), key=lambda each: each.held_bytes).flush()

    def close(self) -> list[DataFile]:
        """Finish the files, which are durable then; those with rows."""
        found = []
        for day, writer in self._writers.items():
            file = writer.close()
            if file is not None:
                found.append(file if self._days is None else file.on(self._days.column, day))
        return found

    def _writer(self, day: date | None) -> DataFileWriter:
        if day not in self._writers:
            writer = DataFileWriter(self._folder, self._schema, storage_options=self._options)
            self._writers[day] = self._open.enter_context(writer)
        return self._writers[day]
