"""The start of landing is decided once, whatever happens between that and the first batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.spark.beginning import began, begin
from consumerd.spark.land import land
from consumerd.spark.source.offsets import format_offsets
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables import open_table
from consumerd.wire.v07 import encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def grow(root: Path, partition: int, *payloads: bytes) -> int:
    """Add messages to a segment; its size after that."""
    file = root / f"t-{partition}" / f"{0:020}.kafka"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as segment:
        segment.write(encode_message_set(payloads))
        return segment.tell()


def test_lands_everything_after_the_start_however_late_the_first_batch_is(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = grow(logs, 0, b"before")
    pipeline = PipelineSpec("p", str(tmp_path / "lake"), {"path": str(logs), "broker": "4", "subscribe": "t"})
    source = dict(pipeline.source) | {"startingOffsets": "latest"}
    assert began(spark, pipeline) is None
    first = begin(spark, pipeline, source)
    assert first["startingOffsets"] == format_offsets({"t": {"4-0": end}})
    grow(logs, 0, b"after")
    grow(logs, 1, b"new")
    # The process that began was killed before Spark wrote anything down.
    assert begin(spark, pipeline, source)["startingOffsets"] == format_offsets({"t": {"4-0": end, "4-1": 0}})
    latest = PipelineSpec("p", str(tmp_path / "lake"), source)
    assert land(spark, latest).rows == 2
    values = [bytes(row.value) for row in open_table(spark, pipeline.bronze).read().orderBy("partition").collect()]
    assert values == [b"after", b"new"]
    assert begin(spark, pipeline, source) == source, "from now on the checkpoint says where to go on"


def test_reports_a_partition_deleted_before_it_was_read(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    grow(logs, 0, b"a")
    grow(logs, 1, b"b")
    pipeline = PipelineSpec("p", str(tmp_path / "lake"), {"path": str(logs), "broker": "4", "subscribe": "t"})
    begin(spark, pipeline, dict(pipeline.source) | {"startingOffsets": "earliest"})
    with pytest.raises(OptionError, match="t/4-0 was to be landed and option broker is 5 now; set it as it was"):
        begin(spark, pipeline, dict(pipeline.source) | {"broker": "5"})
    (logs / "t-1" / f"{0:020}.kafka").unlink()
    with pytest.raises(NotFoundError, match="t/4-1 was to be landed and no longer exists"):
        begin(spark, pipeline, pipeline.source)
