"""Windows are written once, whatever is killed when; what is late, open or without a time is counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.spark.aggregate import aggregate, current_windows
from consumerd.spark.spec import PipelineSpec, parse_spark
from consumerd.spark.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SILVER = "at timestamp, user string, amount int, big bigint, exact decimal(38,2)"
MOST = (1 << 63) - 1


def pipeline_of(root: Path, **changes: Any) -> PipelineSpec:
    declared = {
        "window": "10 minutes",
        "watermark": "10 minutes",
        "group_by": ["user"],
        "sums": ["amount", "big", "exact"],
    }
    fields = {"at": "timestamp", "user": "string", "amount": "int", "big": "bigint", "exact": "decimal(38,2)"}
    table = {
        "source": {"path": "/nowhere"},
        "batches_per_trigger": 1,
        "refine": {"fields": fields, "event_time": "at"},
        "aggregate": declared | changes,
    }
    return parse_spark({"spark": {"root": str(root), "pipelines": {"p": table}}}, "test").pipeline("p")


class Silver:
    """A table of silver, to which events are added a batch at a time."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec) -> None:
        self._spark = spark
        self._table = open_table(spark, pipeline.silver)
        self._batch = 0

    def add(self, *events: tuple[int | None, str | None, int]) -> None:
        """Events as (minute, user, amount)."""
        rows = [
            (None if minute is None else START + timedelta(minutes=minute), user, amount, MOST, Decimal(amount))
            for minute, user, amount in events
        ]
        frame: DataFrame = self._spark.createDataFrame(rows, SILVER)
        self._table.append(frame, writer="refine", batch=self._batch)
        self._batch += 1


def minutes(moment: datetime) -> int:
    return round((moment.replace(tzinfo=UTC) - START).total_seconds() / 60)


def windows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    rows = frame.selectExpr(
        "unix_seconds(window_start) AS start", "unix_seconds(window_end) AS end", *columns
    ).collect()
    found = [((row.start - START.timestamp()) / 60, (row.end - START.timestamp()) / 60, *row[2:]) for row in rows]
    return sorted(found, key=str)


def test_counts_each_event_once_per_window_and_reports_late_ones(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    silver = Silver(spark, pipeline)
    silver.add((1, "a", 1), (2, "b", 2), (3, "a", 3), (None, "a", 100))
    silver.add((12, "a", 4), (9, None, 5))
    silver.add((31, "a", 6), (5, "a", 7))
    first = aggregate(spark, pipeline)
    table = open_table(spark, pipeline.aggregate)
    written = [(0, 10, "a", 3, 11), (0, 10, "b", 1, 2), (0, 10, None, 1, 5), (10, 20, "a", 1, 4)]
    assert windows(table.read(), "user", "count", "sum_amount") == sorted(written, key=str)
    (row,) = table.read().where("user = 'a' AND count = 3").select("sum_big", "sum_exact").collect()
    assert (row.sum_big, row.sum_exact) == (3 * MOST, 11), "sums of large numbers neither overflow nor fail"
    assert (first.rows, first.windows, first.open_windows, first.late, first.without_time) == (8, 4, 1, 0, 1)
    assert first.watermark == "2026-03-01T12:21:00.000Z"

    # Killed after the table had its last batch and before the checkpoint knew: it comes again and changes nothing.
    commits = Path(pipeline.checkpoint("aggregate"), "commits")
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    silver.add((3, "a", 1000), (18, "c", 1000), (22, "c", 8))
    second = aggregate(spark, pipeline)
    assert windows(table.read(), "user", "count", "sum_amount") == sorted(written, key=str)
    assert (second.late, second.windows, second.open_windows) == (2, 0, 2)
    now = windows(current_windows(spark, pipeline), "user", "count", "is_open", "missed")
    assert now == sorted(
        [
            (0, 10, "a", 4, False, 1),
            (0, 10, "b", 1, False, 0),
            (0, 10, None, 1, False, 0),
            (10, 20, "a", 1, False, 0),
            (10, 20, "c", 1, False, 1),
            (20, 30, "c", 1, True, 0),
            (30, 40, "a", 1, True, 0),
        ],
        key=str,
    )
    nothing = aggregate(spark, pipeline)
    assert (nothing.rows, nothing.batches, nothing.windows, nothing.open_windows) == (0, 0, 0, None)
    with pytest.raises(ConfigError, match="had a different declaration"):
        aggregate(spark, pipeline_of(tmp_path, slide="5 minutes"))


def test_counts_an_event_in_each_overlapping_window(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, slide="5 minutes", group_by=[], sums=["amount"], watermark="1 minute")
    silver = Silver(spark, pipeline)
    silver.add((7, "a", 1), (12, "b", 2))
    silver.add((40, "a", 3))
    aggregate(spark, pipeline)
    expected = [(0, 10, 1, 1), (5, 15, 2, 3), (10, 20, 1, 2)]
    assert windows(open_table(spark, pipeline.aggregate).read(), "count", "sum_amount") == sorted(expected, key=str)
    silver.add((8, "a", 4))
    assert aggregate(spark, pipeline).late == 2


def test_rejects_colliding_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = {
        "source": {"path": "/nowhere"},
        "refine": {"fields": {"at": "timestamp", "count": "string"}, "event_time": "at"},
        "aggregate": {"group_by": ["count"]},
    }
    pipeline = parse_spark({"spark": {"root": str(tmp_path), "pipelines": {"p": table}}}, "test").pipeline("p")
    with pytest.raises(ConfigError, match="two columns 'count'"):
        aggregate(spark, pipeline)
