"""The options of a table, which the catalog keeps in the metadata of its schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.datasource import options_in, with_options
from consumerd.spark.source.option_texts import OptionError

OPTIONS = {"path": "/logs", "subscribe": "t"}


def test_options_are_read_from_the_schema_that_keeps_them() -> None:
    kept = with_options(COLUMNS, OPTIONS)
    assert options_in(StructType.fromJson(kept.jsonValue())) == OPTIONS
    assert options_in(StructType([StructField("x", LongType(), metadata={"comment": "of another"})])) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", pytest.param("[" * 100_000, id="nested")])
def test_rejects_options_that_are_not_ours(text: str) -> None:
    (key,) = with_options(COLUMNS, OPTIONS).fields[0].metadata
    schema = StructType([StructField("topic", StringType(), metadata={key: text})])
    with pytest.raises(OptionError, match="create the table again"):
        options_in(schema)
