"""The columns of a Parquet table, in a file of its own, so that nobody has to open data to know them.

Strategy: `_schema.json` holds all columns that any batch has; it is replaced before the first batch with a new column
is committed, so a reader knows at least what it can meet. Columns are only added; where a batch has none of them, they
are null. A column that comes with another type is refused, since no reader could take both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import LongType, StructField, StructType

from consumerd.spark.tables.errors import TableCorruptError, TableSchemaError

if TYPE_CHECKING:
    from consumerd.spark.tables.files import Files

FILE: Final = "_schema.json"
#: The column that tells of each row which batch it came with.
BATCH: Final = "batch"


def stored_schema(files: Files, table: str) -> StructType | None:
    """The table's columns; None before the first write. Raises TableCorruptError."""
    path = f"{table}/{FILE}"
    data = files.read(path)
    if data is None:
        return None
    try:
        return StructType.fromJson(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise TableCorruptError(f"{path} is not a valid list of columns ({error}): restore it from a backup.") from None


def widen(files: Files, table: str, schema: StructType) -> StructType:
    """Let the table have the columns of `schema` too; all its columns. Raises TableSchemaError."""
    stored = stored_schema(files, table)
    wanted = merged(stored, schema, table)
    if wanted != stored:
        files.replace(f"{table}/{FILE}", (wanted.json() + "\n").encode())
    return wanted


def merged(stored: StructType | None, schema: StructType, table: str) -> StructType:
    """The columns of both, all of them nullable, the stored ones first."""
    fields = [*(stored.fields if stored else ())]
    known = {field.name.lower(): field for field in fields}
    for field in schema.toNullable().fields:
        before = known.get(field.name.lower())
        if before is None:
            fields.append(field)
            known[field.name.lower()] = field
        elif before.dataType != field.dataType:
            raise TableSchemaError(
                f"column {field.name!r} of {table} is {before.dataType.simpleString()}, and the new rows have "
                f"{field.dataType.simpleString()}: give the new column another name, or move the table and its "
                "checkpoint away to write everything again."
            )
    return StructType(fields)


def with_batch(schema: StructType) -> StructType:
    """The columns as they are stored: with `batch`, last."""
    kept = [field for field in schema.fields if field.name.lower() != BATCH]
    return StructType([*kept, StructField(BATCH, LongType(), nullable=True)])
