"""The measurements of the tables in a report, and the page of a real pipeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.progress import open_log
from consumerd.spark.report.facts import (
    EventFacts,
    GroupRow,
    LandedFacts,
    LandedInterval,
    QuarantineFacts,
    QuarantineSample,
    StepResult,
)
from consumerd.spark.report.measure import (
    MAX_VALUE,
    TOP_GROUPS,
    measure_events,
    measure_groups,
    measure_landed,
    measure_quarantine,
    measure_trend,
)
from consumerd.spark.report.wording import size
from consumerd.spark.report.writing import write_report
from consumerd.spark.run import perform
from consumerd.spark.source.columns import schema_ddl
from consumerd.spark.spec import parse_spark
from consumerd.spark.step_history import read_runs
from consumerd.wire.v07 import Codec, encode_message_set

START = datetime(2026, 11, 21, 17, tzinfo=UTC)
BRONZE = f"{schema_ddl()}, landed_at timestamp, batch bigint"


def bronze(spark: SparkSession, rows: list[dict[str, Any]], *more: str) -> DataFrame:
    schema = ", ".join((BRONZE, *more))
    columns = [part.split(" ")[0] for part in schema.split(", ")]
    defaults = {"topic": "clicks", "broker": 0, "partition": 1, "broker_partition": "0-1", "index": 0, "codec": "none"}
    return spark.createDataFrame([tuple((defaults | row).get(name) for name in columns) for row in rows], schema)


def row(batch: int, value: bytes | None, *, offset: int = 0, minutes: int = 0, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "value": value, "offset": offset, "landed_at": START + timedelta(minutes=minutes), **more}


def test_nothing(spark: SparkSession) -> None:
    assert measure_landed(bronze(spark, [])) == LandedFacts()
    assert measure_quarantine(bronze(spark, [], "reason string")) == QuarantineFacts()


def test_shows_few_batches_one_by_one(spark: SparkSession) -> None:
    rows = [row(0, b"x" * 7), row(0, b""), row(3, b"x" * 1000, minutes=1), row(3, None, minutes=1, _corrupt="torn")]
    landed = measure_landed(bronze(spark, rows))
    assert (landed.rows, landed.size, landed.corrupt, landed.batches, landed.width) == (4, 1007, 1, 2, None)
    assert (landed.first, landed.last) == (START, START + timedelta(minutes=1))
    assert [(one.batch, one.start, one.rows, one.size) for one in landed.intervals] == [
        (0, START, 2, 7),
        (3, START + timedelta(minutes=1), 2, 1000),
    ]
    assert landed.sizes.rows == 3
    assert [landed.sizes.percentile(share) for share in (0, 0.5, 1)] == [0, 7, 1000]


def test_shows_many_batches_by_time_with_sizes_within_nine_percent(spark: SparkSession) -> None:
    frame = spark.range(20_000).select(
        F.expr("cast(repeat('x', cast(id % 1000 as int)) as binary)").alias("value"),
        (F.col("id") % 100).alias("batch"),
        F.timestamp_seconds(F.lit(int(START.timestamp())) + F.col("id") % 100 * 60 + 30).alias("landed_at"),
    )
    landed = measure_landed(frame)
    assert (landed.rows, landed.batches, landed.corrupt) == (20_000, 100, 0)
    assert landed.width == timedelta(minutes=1)
    assert [one.start for one in landed.intervals] == [START + timedelta(minutes=n) for n in range(100)]
    assert sum(one.rows for one in landed.intervals) == 20_000
    assert landed.size == sum(one.size for one in landed.intervals) == 20 * 999 * 500
    for share in (0.1, 0.5, 0.9, 0.99):
        assert landed.sizes.percentile(share) == pytest.approx(1000 * share, rel=0.09)


def test_lists_reasons_by_frequency_with_samples(spark: SparkSession) -> None:
    hostile = "<script>alert(1)</script>"
    rows = [row(0, b"\xff\x00" + b"y" * 500, offset=n, reason="often") for n in range(5, 10)]
    rows += [row(0, None, offset=1, reason=hostile), row(0, b"", offset=2, reason=hostile)]
    rows += [row(0, b"z", offset=n, reason="x" * 1000 + str(n)) for n in range(4)]
    found = measure_quarantine(bronze(spark, rows, "reason string"))
    assert (found.rows, found.other_reasons, found.other_rows) == (11, 0, 0)
    assert [(one.text, one.rows) for one in found.reasons] == [("often", 5), ("x" * 300 + "…", 4), (hostile, 2)]
    begin = b"\xff\x00" + b"y" * (MAX_VALUE - 2)
    assert found.reasons[0].samples == (
        QuarantineSample("clicks/0-1 at 5, index 0", begin, truncated=True),
        QuarantineSample("clicks/0-1 at 9, index 0", begin, truncated=True),
    )
    assert [sample.value for sample in found.reasons[2].samples] == [None, b""]


def test_limits_the_number_of_reasons(spark: SparkSession) -> None:
    frame = spark.range(50_000).select(
        F.lit("t").alias("topic"),
        F.lit("0-1").alias("broker_partition"),
        F.col("id").alias("offset"),
        F.lit(0).alias("index"),
        F.lit(b"v").alias("value"),
        F.when(F.col("id") < 10, "common").otherwise(F.concat(F.lit("reason "), F.col("id"))).alias("reason"),
    )
    found = measure_quarantine(frame)
    assert (found.rows, len(found.reasons), found.other_reasons) == (50_000, 20, 49_971)
    assert (found.reasons[0].text, found.reasons[0].rows, found.other_rows) == ("common", 10, 49_971)


def test_counts_events_by_their_time_and_leaves_out_wrong_clocks(spark: SparkSession) -> None:
    minutes = [*[n / 10 for n in range(600)], None, -30 * 525_600.0, 9_000_000_000_000.0]
    frame = spark.createDataFrame([(minute,) for minute in minutes], "minute double").select(
        F.expr(f"timestamp_seconds({int(START.timestamp())} + minute * 60)").alias("at `it`")
    )
    found = measure_events(frame, "at `it`")
    assert (found.rows, found.without_time, found.outside) == (602, 1, 2)
    assert found.width == timedelta(minutes=2), "an hour is shown before and after most events"
    assert found.oldest == START - timedelta(days=30 * 365)
    assert found.newest is not None
    assert found.newest.year == 9999
    assert [rows for _, rows in found.intervals] == [20] * 30
    assert found.intervals[0][0] == START
    assert measure_events(frame.where("`at ``it``` IS NULL"), "at `it`") == EventFacts(without_time=1)


def test_finds_the_groups_with_the_most_events(spark: SparkSession) -> None:
    frame = spark.range(200).selectExpr(
        f"timestamp_seconds({int(START.timestamp())} + id div 100 * 60) AS window_start",
        f"timestamp_seconds({int(START.timestamp())} + id div 100 * 60 + 60) AS window_end",
        "if(id % 50 = 0, null, id % 50) AS `a.b`",
        "id % 50 AS count",
        "cast(id AS decimal(38,2)) AS sum_ms",
    )
    found = measure_groups(frame, ["a.b"], ["ms"])
    assert (found.groups, found.events, found.windows) == (50, 4 * sum(range(50)), 2)
    assert (found.first, found.last) == (START, START + timedelta(minutes=2))
    assert len(found.rows) == TOP_GROUPS
    assert found.rows[0] == GroupRow(("49",), 4 * 49, (f"{49 + 99 + 149 + 199}.00",))
    (everything,) = measure_groups(frame, [], []).rows
    assert everything == GroupRow((), found.events)
    lone = measure_groups(frame.where("id = 0"), ["a.b"], ["ms"])
    assert lone.rows == (GroupRow(("null",), 0, ("0.00",)),)
    assert measure_groups(frame.limit(0), ["a.b"], ["ms"]).windows == 0


def test_counts_quarantined_rows_by_when_they_landed(spark: SparkSession) -> None:
    landed = measure_landed(bronze(spark, [row(n, b"x", minutes=n) for n in (0, 1, 1, 5)]))
    refused = bronze(spark, [row(5, b"x", minutes=5), row(1, b"x", minutes=1), row(1, b"x", minutes=1)])
    assert [one.quarantined for one in measure_trend(refused, landed).intervals] == [0, 2, 1]
    many = LandedFacts(width=timedelta(minutes=5), intervals=(LandedInterval(START, 9, 9), LandedInterval(START, 1, 1)))
    assert [one.quarantined for one in measure_trend(refused, many).intervals] == [0, 3]
    assert measure_trend(refused, LandedFacts()) == LandedFacts()


def test_writes_the_page_of_a_real_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    hostile = b'{"id": "<script>alert(1)</script>"} \xff'
    folder = tmp_path / "logs" / "clicks-0"
    folder.mkdir(parents=True)
    messages = [b'{"id": %d}' % n for n in range(200)]
    log = (
        encode_message_set(messages, codec=Codec.GZIP)
        + encode_message_set([hostile, b""])
        + encode_message_set(messages)
    )
    (folder / f"{0:020d}.kafka").write_bytes(log)
    document = {
        "root": f"{tmp_path}/lake",
        "pipelines": {
            "clicks": {
                "source": {"path": f"{tmp_path}/logs", "broker": 7, "subscribe": "clicks", "maxBytesPerTrigger": 4000},
                "refine": {"fields": {"id": "bigint not null"}, "event_time": "landed_at"},
            }
        },
    }
    pipeline = parse_spark({"spark": document}, "test").pipeline()

    before = write_report(spark, pipeline, {})
    assert before.page == f"{tmp_path}/lake/clicks/report.html"
    assert "Nothing has landed yet." in Path(before.page).read_text("utf-8")

    results: dict[str, StepResult] = {}
    for step in ("land", "refine", "reconcile"):
        results[step], _ = perform(step, spark, pipeline, results)
    written = write_report(spark, pipeline, results)
    text = Path(written.page).read_text("utf-8")
    assert written.as_json() == {"pipeline": "clicks", "page": before.page}
    for words in (
        "Everything that was to land has landed, once: 1 partition, compared message by message.",
        '<dt>Landed</dt><dd><a href="#landing">402</a></dd>',
        '<dt>Refined</dt><dd><a href="#tables">400</a></dd>',
        '<dt>Quarantined</dt><dd><a href="#quarantine">2</a></dd>',
        "&lt;script&gt;alert(1)&lt;/script&gt;&#34;} \\xff",
        "<em>empty</em>",
        "clicks/7-0 at ",
    ):
        assert words in text
    assert "<script" not in text
    runs = read_runs(spark, pipeline)
    assert [(run.step, run.rows) for run in runs] == [("land", 402), ("refine", 402), ("reconcile", 402)]
    folders = [Path(pipeline.bronze), Path(pipeline.silver), Path(pipeline.quarantine)]
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.parquet")) for folder in folders]
    assert [run.written for run in runs] == [sizes[0], sizes[1] + sizes[2], None]
    for step in ("land", "refine", "reconcile"):
        assert f'<th scope="row">{step}</th><td class="moment">' in text
    assert f'<td class="number">{size(sizes[0])}</td>' in text
    batches = open_log(spark, pipeline, "land").read().batches
    assert len(batches) > 1
    assert batches[-1].behind == 0
    assert batches[0].behind == batches[0].furthest[0].behind > 0
    assert (batches[0].furthest[0].topic, batches[0].furthest[0].partition) == ("clicks", "7-0")
