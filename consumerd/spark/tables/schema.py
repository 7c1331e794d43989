"""The files that describe a Parquet table: its columns (`_schema.json`) and its owner (`_table.json`).

Strategy: `_schema.json` has all columns of all batches, so that readers need not open data to know them. It is replaced
before the first batch with a new column is committed, so a reader knows every column that it can meet. Columns are only
added; they are null in batches without them. A column with another type is refused, since no reader could take both.

`_table.json` has the id of the one checkpoint whose batch numbers the table uses. It is created atomically by the first
write and never changed. Batch numbers tell which rows were written only together with the checkpoint that counted them:
with another one, batch 0 would count as written and its rows would be lost silently. Therefore a table without batches
is not taken over either, since its owner may be about to commit the first.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql.types import LongType, StructField, StructType

from consumerd.base.files import Files
from consumerd.spark.tables.errors import TableCorruptError, TableOwnedError, TableSchemaError
from consumerd.spark.tables.layout import OWNER_FILE, SCHEMA_FILE, TABLE_VERSION, owner_of

#: The column with the batch of each row.
BATCH: Final = "batch"


def stored_schema(files: Files, table: str) -> StructType | None:
    """The table's columns; None before the first write. Raises TableCorruptError."""
    path = f"{table}/{SCHEMA_FILE}"
    data = files.read(path)
    if data is None:
        return None
    try:
        return StructType.fromJson(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise TableCorruptError(f"{path} is not a valid list of columns ({error}): restore it from a backup.") from None


def widen(files: Files, table: str, schema: StructType) -> StructType:
    """Add the columns of `schema` to the table; returns all columns. Raises TableSchemaError."""
    stored = stored_schema(files, table)
    wanted = merged(stored, schema, table)
    if wanted != stored:
        files.replace(f"{table}/{SCHEMA_FILE}", (wanted.json() + "\n").encode())
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


def claim(files: Files, table: str, *, kind: str, writer: str) -> None:
    """Make `writer` the owner of the table, or verify that it is. Raises TableOwnedError, TableCorruptError."""
    path = f"{table}/{OWNER_FILE}"
    data = files.read(path)
    if data is None:
        files.make_directory(table)
        text = json.dumps({"consumerd_table": TABLE_VERSION, "kind": kind, "writer": writer}) + "\n"
        if files.create(path, text.encode()):
            return
        data = files.read(path) or b""
    owner = owner_of(data, path, kind)
    if owner != writer:
        raise TableOwnedError(
            f"the table {table} was written with another checkpoint ({owner}, this one is {writer}): restore that "
            "checkpoint, or move the table away to land everything again."
        )
