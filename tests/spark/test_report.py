"""The measurements of the tables in a report, and the page of a real pipeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from consumerd.spark.progress import open_log
from consumerd.spark.report.facts import (
    GroupRow,
    StepResult,
)
from consumerd.spark.report.groups import TOP_GROUPS, measure_groups
from consumerd.spark.report.wording import size
from consumerd.spark.report.writing import write_report
from consumerd.spark.run import perform
from consumerd.spark.spec import parse_spark
from consumerd.spark.step_history import read_runs
from consumerd.wire.v07 import Codec, encode_message_set

START = datetime(2026, 11, 21, 17, tzinfo=UTC)


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
    batches = open_log(spark, pipeline).read().batches
    assert len(batches) > 1
    assert batches[-1].behind == 0
    assert batches[0].behind == batches[0].furthest[0].behind > 0
    assert (batches[0].furthest[0].topic, batches[0].furthest[0].partition) == ("clicks", "7-0")
