"""The table of columns against Spark's own idea of them."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from consumerd.spark.source.columns import COLUMNS, IDENTITY, ParseMode, arrow_schema, requested, schema_ddl
from consumerd.spark.source.errors import ColumnError

HEADER = t.StructType().add("key", "string").add("value", "binary")
WHOLE = (
    t.StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
    .add("headers", t.ArrayType(HEADER))
    .add("broker", "integer")
    .add("broker_partition", "string")
    .add("topic_id", "string")
    .add("leader_epoch", "integer")
    .add("index", "integer")
    .add("next_offset", "long")
    .add("codec", "string")
    .add("crc_ok", "boolean")
    .add("_corrupt", "string")
)


def test_batches_have_the_schema_that_spark_expects() -> None:
    names = [column.name for column in COLUMNS]
    assert names == WHOLE.names
    assert arrow_schema(names).equals(to_arrow_schema(WHOLE, timezone="UTC"))


def test_ddl_matches_the_arrow_schema() -> None:
    told = [f"{field.name} {field.dataType.simpleString()}" for field in WHOLE.fields]
    assert schema_ddl(include_headers=True) == ", ".join(told)
    assert schema_ddl() == ", ".join(line for line in told if not line.startswith("headers"))
    assert schema_ddl(mode=ParseMode.FAILFAST) == ", ".join(
        line for line in told if not re.match("headers|_corrupt", line)
    )


def test_identity_consists_of_columns() -> None:
    assert set(IDENTITY) <= {column.name for column in COLUMNS}


def test_schema_may_omit_and_reorder_columns() -> None:
    schema = t.StructType().add("value", "binary").add("offset", "long")
    assert requested(schema) == ("value", "offset")
    assert requested(WHOLE, include_headers=True) == tuple(WHOLE.names)


@pytest.mark.parametrize(
    ("schema", "mode", "sentence"),
    [
        (
            t.StructType().add("payload", "binary"),
            ParseMode.PERMISSIVE,
            "no column payload; existing columns: key, value",
        ),
        (t.StructType().add("ofset", "long"), ParseMode.PERMISSIVE, "no column ofset, did you mean 'offset'?"),
        (t.StructType().add("Offset", "long"), ParseMode.PERMISSIVE, "no column Offset, did you mean 'offset'?"),
        (t.StructType().add("offset", "integer"), ParseMode.PERMISSIVE, "offset has type bigint, not int"),
        (
            t.StructType().add("value", "string"),
            ParseMode.PERMISSIVE,
            "value has type binary, not string; .* cast the column",
        ),
        (t.StructType().add("offset", "long", nullable=False), ParseMode.PERMISSIVE, "offset cannot be NOT NULL"),
        (t.StructType().add("offset", "long").add("offset", "long"), ParseMode.PERMISSIVE, "offset twice"),
        (t.StructType().add("headers", t.ArrayType(HEADER)), ParseMode.PERMISSIVE, "includeHeaders=true"),
        (t.StructType().add("_corrupt", "string"), ParseMode.DROPMALFORMED, "requires mode=PERMISSIVE"),
    ],
)
def test_rejects_a_schema_that_does_not_match(schema: t.StructType, mode: ParseMode, sentence: str) -> None:
    with pytest.raises(ColumnError, match=sentence):
        requested(schema, mode=mode)
