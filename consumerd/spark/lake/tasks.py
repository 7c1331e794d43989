"""What one task does: rows -> one file of a table, and for the driver one row that describes it.

Nothing else goes from a task to the driver, so no row of a table passes through the JVM's Parquet writer. A task that
is repeated writes another file; the driver gets the row of one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from consumerd.spark.lake.arrays import repeated, texts
from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.lake.days import Days, DayWriter
from consumerd.spark.lake.table import BATCH
from consumerd.spark.source.columns import ParseMode, arrow_schema, offered

if TYPE_CHECKING:
    from consumerd.spark.source.options import SourceOptions

#: The only column of the row that a task returns: `DataFile.to_json`.
FILE: Final = "file"
#: The column with the time at which a row was landed.
LANDED_AT: Final = "landed_at"
FILE_DDL: Final = f"{FILE} string"
_FILE_SCHEMA: Final = pa.schema([(FILE, pa.string())])


#: The option of data sources whose tasks use a table: its store's options as JSON. Spark does not show the values of
#: options with such a name.
STORE_OPTION: Final = "table.secret.store"


def store_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the object store, from those of a data source."""
    found: dict[str, str] = json.loads(options.get(STORE_OPTION, "{}"))
    return found


def landed_schema(options: SourceOptions) -> pa.Schema:
    """The columns of files that are landed from a source with these options."""
    return bronze_schema(headers=options.include_headers, mode=options.mode)


def bronze_schema(*, headers: bool, mode: ParseMode = ParseMode.PERMISSIVE) -> pa.Schema:
    """The columns of landed files: the source's, the time of landing, and the batch."""
    columns = arrow_schema(column.name for column in offered(include_headers=headers, mode=mode))
    return pa.schema([*columns, (LANDED_AT, pa.timestamp("us", "UTC")), (BATCH, pa.int64())])


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where the tasks of a batch write, and what their files have beside the rows' own columns.

    `folder` and `storage_options`: as for DataFileWriter. `schema`: the columns of the files. `constants`: the values
    of columns that are the same in all rows; they replace the rows' own.
    """

    folder: str
    schema: pa.Schema
    constants: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: How the table is divided, whose files have the day's column behind those of `schema`.
    days: Days | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows to a file, or one for each day; yields the description of each as one row.

        Columns are found by their names and cast. Raises OSError, ValueError for rows that lack a column.
        """
        complete = _Completion(self)
        with DayWriter(self.folder, self.schema, self.days, storage_options=self.storage_options) as writer:
            for rows in batches:
                writer.write(complete(rows))
            files = writer.close()
        if files:
            found = texts([file.to_json() for file in files])
            yield pa.RecordBatch.from_arrays([found], schema=_FILE_SCHEMA)


class TargetWriter(DataFileWriter):
    """Writes one file: takes rows whose columns are completed to those of the file."""

    def __init__(self, target: FileTarget) -> None:
        super().__init__(target.folder, target.schema, storage_options=target.storage_options)
        self._complete = _Completion(target)

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows. Raises as `FileTarget.write`."""
        super().write(self._complete(rows))


class _Completion:
    """Completes the columns of rows to those of a target."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target
        self._filled: dict[str, pa.Array] = {}

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for each in self._target.schema:
            if each.name in self._target.constants:
                array = self._filled.get(each.name)
                if array is None or len(array) < rows.num_rows:
                    array = repeated(self._target.constants[each.name], each.type, rows.num_rows)
                    self._filled[each.name] = array
                arrays.append(array.slice(0, rows.num_rows))
                continue
            at = rows.schema.get_field_index(each.name)
            if at < 0:
                raise ValueError(f"the rows have columns {rows.schema.names}, and lack {each.name}")
            array = rows.column(at)
            arrays.append(array if array.type == each.type else array.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._target.schema)
