"""The columns of the source, for Spark and for Arrow, and which of them a query selects.

Strategy: one table, from which the schema for Spark, the schema of batches and the check of a user's schema are made.
Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from consumerd.base.errors import did_you_mean
from consumerd.spark.source.errors import ColumnError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ParseMode(StrEnum):
    """The policy for bytes that are not a valid message (option `mode`, with the values of Spark's readers)."""

    #: A row each, with the reason in `_corrupt`.
    PERMISSIVE = "PERMISSIVE"
    #: No row; the number is logged.
    DROPMALFORMED = "DROPMALFORMED"
    #: The read fails.
    FAILFAST = "FAILFAST"


class SourceColumn(NamedTuple):
    """One column. `ddl` is its type in Spark's DDL, `arrow` the same type as Arrow names it."""

    name: str
    ddl: str
    arrow: pa.DataType


HEADERS: Final = SourceColumn(
    "headers",
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
)
CORRUPT: Final = SourceColumn("_corrupt", "string", pa.string())

#: All columns, in order. Of a 0.7 message `key`, `timestamp`, `timestampType` and `headers` are always null; of one of
#: 0.8 and later `broker` is, and `index` is 0. `topic_id` is null where the brokers have none (before 2.8), and
#: `leader_epoch` where the messages have none (before the record batches of 0.11).
COLUMNS: Final = (
    SourceColumn("key", "binary", pa.binary()),
    SourceColumn("value", "binary", pa.binary()),
    SourceColumn("topic", "string", pa.string()),
    SourceColumn("partition", "int", pa.int32()),
    SourceColumn("offset", "bigint", pa.int64()),
    SourceColumn("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    SourceColumn("timestampType", "int", pa.int32()),
    HEADERS,
    SourceColumn("broker", "int", pa.int32()),
    SourceColumn("broker_partition", "string", pa.string()),
    SourceColumn("topic_id", "string", pa.string()),
    SourceColumn("leader_epoch", "int", pa.int32()),
    SourceColumn("index", "int", pa.int32()),
    SourceColumn("next_offset", "bigint", pa.int64()),
    SourceColumn("codec", "string", pa.string()),
    SourceColumn("crc_ok", "boolean", pa.bool_()),
    CORRUPT,
)
#: The columns that identify a message; `broker`, `topic_id` and `leader_epoch` may be null.
IDENTITY: Final = ("topic", "broker", "partition", "topic_id", "leader_epoch", "offset", "index")

_BY_NAME: Final = {column.name: column for column in COLUMNS}


def offered(*, include_headers: bool, mode: ParseMode) -> tuple[SourceColumn, ...]:
    """The columns that a source with these options has."""
    left_out = set() if include_headers else {HEADERS}
    if mode is not ParseMode.PERMISSIVE:
        left_out.add(CORRUPT)
    return tuple(column for column in COLUMNS if column not in left_out)


def schema_ddl(include_headers: bool = False, mode: ParseMode = ParseMode.PERMISSIVE) -> str:
    """The whole schema as DDL."""
    columns = offered(include_headers=include_headers, mode=mode)
    return ", ".join(f"{column.name} {column.ddl}" for column in columns)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The schema of batches that hold these columns."""
    return pa.schema([pa.field(name, _BY_NAME[name].arrow) for name in names])


def requested(
    schema: StructType, *, include_headers: bool = False, mode: ParseMode = ParseMode.PERMISSIVE
) -> tuple[str, ...]:
    """The names of a user's own schema, which may leave columns out and have them in any order. Raises ColumnError."""
    known = {column.name: column for column in offered(include_headers=include_headers, mode=mode)}
    names: list[str] = []
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise ColumnError(_unknown(field.name, known))
        if field.name in names:
            raise ColumnError(f"the schema names the column {field.name} twice; remove one of them")
        found = field.dataType.simpleString()
        if found != column.ddl:
            raise ColumnError(
                f"the column {field.name} has type {column.ddl}, not {found}; declare that type and cast the column"
            )
        if not field.nullable:
            raise ColumnError(f"the column {field.name} cannot be NOT NULL; remove that from the schema")
        names.append(field.name)
    return tuple(names)


def _unknown(name: str, known: Iterable[str]) -> str:
    if name == HEADERS.name:
        return "the column headers requires option includeHeaders=true; set it"
    if name == CORRUPT.name:
        return "the column _corrupt requires mode=PERMISSIVE; set that mode or remove the column"
    existing = f"; existing columns: {', '.join(known)}"
    return f"the source has no column {name}{did_you_mean(name, known, existing)}"
