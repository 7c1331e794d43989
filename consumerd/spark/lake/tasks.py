"""What one task does: rows -> one file of a table, and for the driver one row that describes it.

Nothing else goes from a task to the driver, so no row of a table passes through the JVM's Parquet writer. A task that
is repeated writes another file; the driver gets the row of one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from consumerd.spark.lake.arrays import repeated, texts
from consumerd.spark.lake.data_file import DataFile, DataFileWriter

#: The only column of the row that a task returns: `DataFile.to_json`.
FILE: Final = "file"
FILE_DDL: Final = f"{FILE} string"
_FILE_SCHEMA: Final = pa.schema([(FILE, pa.string())])


#: Options of data sources whose tasks use a table: its folder, and its store's options as JSON. Spark does not show
#: the values of options with such a name.
FOLDER_OPTION: Final = "table.folder"
STORE_OPTION: Final = "table.secret.store"


def store_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the object store, from those of a data source."""
    found: dict[str, str] = json.loads(options.get(STORE_OPTION, "{}"))
    return found


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

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows to a file; yields its description as one row, or nothing if there are no rows.

        Columns are found by their names and cast. Raises OSError, ValueError for rows that lack a column.
        """
        file = self.write_file(batches)
        if file is not None:
            yield pa.RecordBatch.from_arrays([texts([file.to_json()])], schema=_FILE_SCHEMA)

    def write_file(self, batches: Iterable[pa.RecordBatch]) -> DataFile | None:
        """As `write`; None if there are no rows."""
        filled: dict[str, pa.Array] = {}
        with DataFileWriter(self.folder, self.schema, storage_options=self.storage_options) as writer:
            for rows in batches:
                writer.write(self._completed(rows, filled))
            return writer.close()

    def _completed(self, rows: pa.RecordBatch, filled: dict[str, pa.Array]) -> pa.RecordBatch:
        arrays = []
        for each in self.schema:
            if each.name in self.constants:
                array = filled.get(each.name)
                if array is None or len(array) < rows.num_rows:
                    array = filled[each.name] = repeated(self.constants[each.name], each.type, rows.num_rows)
                arrays.append(array.slice(0, rows.num_rows))
                continue
            at = rows.schema.get_field_index(each.name)
            if at < 0:
                raise ValueError(f"the rows have columns {rows.schema.names}, and lack {each.name}")
            array = rows.column(at)
            arrays.append(array if array.type == each.type else array.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
