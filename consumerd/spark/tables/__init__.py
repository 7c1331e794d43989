"""Tables of the pipeline: batches that are written once, read as a whole or as a stream, and compacted."""

from consumerd.spark.tables.errors import (
    TableBehindError,
    TableCorruptError,
    TableError,
    TableOwnedError,
    TablePathError,
    TableSchemaError,
)
from consumerd.spark.tables.table import CompactResult, Table, open_table

__all__ = [
    "CompactResult",
    "Table",
    "TableBehindError",
    "TableCorruptError",
    "TableError",
    "TableOwnedError",
    "TablePathError",
    "TableSchemaError",
    "open_table",
]
