"""Bronze into silver and quarantine: every identity once, with a reason where it does not fit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.base.errors import ConfigError, ConsumerdError, NotFoundError
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import PlannedBatch
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.refine import RefinedFiles
from consumerd.spark.land import land
from consumerd.spark.queries import run_query
from consumerd.spark.refine import _Refining, preview, refine, refine_again
from consumerd.spark.spec import PipelineSpec, parse_spark
from consumerd.spark.tables import open_table
from consumerd.spark.tables.errors import TableBehindError, TableOwnedError
from consumerd.wire.v07 import encode_message_set
from tests.spark.landing import land_stream
from tests.unit.spark.lake.test_refine_step import land as land_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "value binary, topic string, partition int, offset bigint, broker int, broker_partition string, index int, "
    "next_offset bigint, crc_ok boolean, _corrupt string"
)
FIELDS = {"id": "bigint not null", "at": "timestamp_ms", "tags": "array<string>", "page": "string"}


def pipeline_of(root: Path, **refined: Any) -> PipelineSpec:
    table = {"root": str(root), "pipelines": {"p": {"source": {"path": "/nowhere"}, "batches_per_trigger": 1}}}
    if refined:
        table["pipelines"]["p"]["refine"] = refined  # type: ignore[index]
    return parse_spark({"spark": table}, "test").pipeline("p")


@pytest.fixture
def lander(spark: SparkSession, tmp_path: Path) -> Callable[..., int]:
    """Land rows (offset, value, and what differs from a good message) as one batch of bronze."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    spark.createDataFrame([], COLUMNS).write.mode("overwrite").parquet(str(inbox / "none"))

    def run(pipeline: PipelineSpec, rows: list[tuple[Any, ...]]) -> int:
        made = []
        for offset, value, *rest in rows:
            given = rest[0] if rest else {}
            data = json.dumps(value).encode() if not isinstance(value, bytes) else value
            row = {
                "value": bytearray(data), "topic": "t", "partition": 0, "offset": offset, "broker": None,
                "broker_partition": "0", "index": 0, "next_offset": offset + 10, "crc_ok": True, "_corrupt": None,
            }  # fmt: skip
            made.append(tuple((row | given).values()))
        spark.createDataFrame(made, COLUMNS).coalesce(1).write.mode("append").parquet(str(inbox / "rows"))
        stream = spark.readStream.schema(COLUMNS).parquet(str(inbox / "rows"))
        return land_stream(spark, pipeline, stream)

    return run


@pytest.mark.timeout(300, func_only=True)
def test_refines_each_identity_once_with_its_reason(
    spark: SparkSession, tmp_path: Path, lander: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark: list[int] = []
    written = _Refining._by_spark

    def noted(work: _Refining, batch: PlannedBatch) -> list[RefinedFiles]:
        by_spark.append(batch.number)
        return written(work, batch)

    monkeypatch.setattr(_Refining, "_by_spark", noted)
    pipeline = pipeline_of(tmp_path / "lake", fields=FIELDS, event_time="at")
    with pytest.raises(NotFoundError, match="run the step that writes it first"):
        refine(spark, pipeline)
    good = {"id": 1, "at": 1295000000123, "tags": ["a"], "page": "x"}
    landed = lander(
        pipeline,
        [
            (0, good),
            (10, good | {"id": "seven"}),
            (20, {"at": 1}),
            (30, {"id": 3}),
            (40, b"{"),
            (50, b"\xff\xfe"),
            (60, good | {"tags": 5}),
            (70, b"junk", {"crc_ok": False}),
            (80, good, {"_corrupt": "offset 80 is not there", "value": None}),
            (90, good | {"id": 9}, {"next_offset": 90}),
            (90, good | {"id": 10}, {"index": 1, "next_offset": 100}),
            (100, good | {"id": 11}),
            (100, b"the same once more, broken"),
        ],
    )
    assert landed == 13
    (file,) = (tmp_path / "lake/p/bronze").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    dictionaries = {
        group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(group.num_columns)
    }
    assert not dictionaries["value"]
    assert dictionaries["topic"]
    result = refine(spark, pipeline)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates, result.batches) == (4, 8, 1, 1)
    assert result.reasons == {
        "id is not a bigint": 1,
        "id is missing": 1,
        "at is missing": 1,
        "the message is not a JSON object": 1,
        "the message is not UTF-8": 1,
        "a nested field does not have its declared type": 1,
        "the CRC is wrong": 1,
        "corrupt in the log": 1,
    }
    # Later batches: one that lies behind all before it, one that holds old rows again, and one that fills a hole.
    lander(pipeline, [(200, good | {"id": 20}), (210, good | {"id": 21})])
    again = lander(pipeline, [(0, good | {"id": 99}), (40, good), (205, good | {"id": 30}), (210, good), (220, good)])
    assert again == 5
    more = refine(spark, pipeline)
    assert (more.rows_silver, more.rows_quarantined, more.duplicates, more.batches) == (4, 0, 3, 2)
    assert by_spark == [0, 2]  # tasks wrote the batch whose offsets were not there
    # Tables have no other files than those that commits name: a batch that is refined by Spark leaves none behind.
    for name in ("silver", "quarantine"):
        folder = tmp_path / "lake/p" / name
        assert {path.name for path in folder.glob("*.parquet")} == {
            each.path for each in open_lake_table(str(folder)).files()
        }
    silver = open_table(spark, pipeline.silver).read().orderBy("offset", "index").collect()
    assert [(row.offset, row["index"], row.id) for row in silver] == [
        (0, 0, 1), (90, 0, 9), (90, 1, 10), (100, 0, 11), (200, 0, 20), (205, 0, 30), (210, 0, 21), (220, 0, 1),
    ]  # fmt: skip
    assert silver[0].at.isoformat() == "2011-01-14T10:13:20.123000"
    assert silver[0].tags == ["a"]
    quarantine = open_table(spark, pipeline.quarantine).read()
    assert {"value", "reason", "refined_at", "landed_at"} <= set(quarantine.columns)


def test_completes_a_batch_of_which_only_silver_was_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(tmp_path / "lake", fields={"id": "int not null"})
    commit = DeltaLakeTable.commit

    def stopped(table: DeltaLakeTable, *arguments: Any, **named: Any) -> bool:
        if table.path == pipeline.quarantine:
            raise ConsumerdError("stopped")
        return commit(table, *arguments, **named)

    # Tasks write the first batch, and Spark the second one, which begins with the last message of the first.
    for batch in range(2):
        start = 2 * batch
        land_batch(pipeline, *(b'{"id":%d}' % offset for offset in (start, start + 1)), b"{", batch=batch, start=start)
        with monkeypatch.context() as patched:
            patched.setattr(DeltaLakeTable, "commit", stopped)
            with pytest.raises(ConsumerdError, match="stopped"):
                refine(spark, pipeline)
        tables = [open_lake_table(path) for path in (pipeline.silver, pipeline.quarantine)]
        assert [sum(map(len, table.batches())) for table in tables] == [batch + 1, batch]
        assert refine(spark, pipeline).batches == 1
        ids = [row["id"] for row in tables[0].dataset().to_table().sort_by("offset").to_pylist()]
        refused = [row["offset"] for row in tables[1].dataset().to_table().sort_by("offset").to_pylist()]
        assert (ids, refused) == [([0, 1], [2]), ([0, 1, 3], [2, 4])][batch]


@pytest.mark.timeout(200, func_only=True)
def test_again_refines_all_rows_or_those_that_landed_in_a_time(
    spark: SparkSession, tmp_path: Path, lander: Callable[..., int]
) -> None:
    daily = {"partition_by": ["date(landed_at)"]}
    first = pipeline_of(tmp_path / "lake", fields={"id": "int not null"}, **daily)
    lander(first, [(offset, {"id": offset, "page": f"p{offset}"}) for offset in (0, 10)])
    between = datetime.now(UTC)
    lander(first, [(10, {"id": 10, "page": "again"}), (20, b"bad"), (30, {"id": 30, "page": "p30"})])
    assert refine(spark, first).duplicates == 1
    lander(first, [(40, {"id": 40, "page": "p40"})])  # new in bronze, for the step itself
    second = pipeline_of(tmp_path / "lake", fields={"id": "bigint not null", "page": "string"}, **daily)
    assert preview(spark, second, since=between).as_json() == {
        "pipeline": "p", "rows_valid": 2, "rows_refused": 1, "reasons": {"the message is not a JSON object": 1},
    }  # fmt: skip

    def pages() -> list[tuple[int, str | None]]:
        rows = open_lake_table(second.silver).dataset().to_table().sort_by("offset").to_pylist()
        return [(row["id"], row["page"]) for row in rows]

    partly = refine_again(spark, second, since=between)
    assert (partly.rows_silver, partly.rows_quarantined, partly.duplicates) == (3, 1, 1)
    assert pages() == [(0, None), (10, None), (30, "p30")]
    result = refine_again(spark, second)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates, result.last_batch) == (3, 1, 1, 1)
    assert result.reasons == {"the message is not a JSON object": 1}
    assert pages() == [(0, "p0"), (10, "p10"), (30, "p30")]
    assert open_lake_table(second.silver).schema().field("id").type == pa.int64()
    assert open_lake_table(second.quarantine).dataset().count_rows() == 1
    assert refine(spark, second).rows_silver == 1
    assert pages()[3:] == [(40, "p40")]
    (new,) = open_table(spark, second.silver).read(after=1).collect()
    assert new.landed_at_date == new.landed_at.date()
    for path in (second.silver, second.quarantine):
        assert all(file.partition["landed_at_date"] for file in open_lake_table(path).files())


def test_fields_may_have_the_names_of_columns_of_bronze(spark: SparkSession, tmp_path: Path) -> None:
    names = ("value", "Key", "codec", "timestamp", "headers", "crc_ok", "reason", "refined_at", "parsed", "number")
    other = {"a": {"type": "int", "from": "id"}, "b": {"type": "int", "from": "ID"}}
    pipeline = pipeline_of(tmp_path / "lake", fields=dict.fromkeys(names, "int") | other)
    good = dict(zip(names, range(10), strict=True)) | {"id": 10, "ID": 11}
    values = [json.dumps(each).encode() for each in (good, good | {"codec": "x"}, good)]
    land_batch(pipeline, *values[:2], batch=0)
    land_batch(pipeline, *values[1:], values[2], batch=1, start=1)  # the second message once more, so Spark parses
    again = datetime(2100, 1, 1, tzinfo=UTC)
    for result in (refine(spark, pipeline), refine_again(spark, pipeline), refine_again(spark, pipeline, since=again)):
        assert (result.rows_silver, result.reasons) == (3, {"codec is not a int": 1})
        silver = open_lake_table(pipeline.silver).dataset().to_table().sort_by("offset")
        assert (
            silver.select([*names, "a", "b"]).to_pylist() == [dict(zip([*names, "a", "b"], range(12), strict=True))] * 3
        )
        (row,) = open_lake_table(pipeline.quarantine).dataset().to_table().to_pylist()
        assert (row["offset"], row["value"], row["crc_ok"], row["codec"]) == (1, values[1], True, None)


def test_names_the_jar_that_avro_requires(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text('{"type": "record", "name": "a", "fields": [{"name": "id", "type": "int"}]}')
    fields = {"id": "int"}
    pipeline = pipeline_of(tmp_path / "lake", parse="avro", avro_schema=str(tmp_path / "a.avsc"), fields=fields)
    land_batch(pipeline, b"\x02", batch=0)
    with pytest.raises(ConfigError, match=r"does not have: start it with --packages org\.apache\.spark:spark-avro"):
        refine(spark, pipeline)


def test_reports_a_lost_checkpoint_or_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    (tmp_path / "logs" / "t-0" / f"{0:020}.kafka").write_bytes(encode_message_set([b"{}"]))
    source = {"path": str(tmp_path / "logs"), "subscribe": "t"}
    pipeline = replace(pipeline_of(tmp_path / "lake"), source=source)
    assert land(spark, pipeline).rows == 1
    with pytest.raises(ConfigError, match=r"has no \[refine\] table"):
        refine(spark, pipeline)
    base = tmp_path / "lake/p"
    (base / "_checkpoints/land").rename(tmp_path / "lost")
    with pytest.raises(
        TableOwnedError, match=f"land of the pipeline p: .* another checkpoint .* or move {base}/bronze"
    ):
        land(spark, pipeline)
    (base / "_checkpoints/land").rename(tmp_path / "wrong")
    (tmp_path / "lost").rename(base / "_checkpoints/land")
    (base / "bronze").rename(tmp_path / "gone")
    with pytest.raises(TableBehindError, match=r"lists batches 0-0, but the table .* has no batches"):
        land(spark, pipeline)


def test_a_signal_ends_a_query_between_two_batches(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    for number in range(30):
        (tmp_path / "lines" / f"{number}.txt").write_text(f"{number}\n")
    before = signal.getsignal(signal.SIGTERM)

    def stop(frame: DataFrame, batch: int) -> None:
        if batch == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "lines"))
    run = run_query(spark, pipeline_of(tmp_path / "lake"), "aggregate", stream, stop)
    assert (run.batches < 30, run.stopped) == (True, True)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not spark.streams.active


def test_parses_lines_with_a_pattern(spark: SparkSession, tmp_path: Path, lander: Callable[..., int]) -> None:
    pattern = r"(?<at>\d+)(?: (x))? \[(?<level>[A-Z(]+)\] (?<text>.*)"
    fields = {"at": "timestamp_s", "level": "string not null", "text": "string"}
    pipeline = pipeline_of(tmp_path / "lake", parse="regex", pattern=pattern, fields=fields)
    lander(pipeline, [(0, b"12 x [AB(] hi"), (10, b"12 [A] "), (20, b"zz"), (30, b"12 [A] two\nlines")])
    result = refine(spark, pipeline)
    assert result.reasons == {"the message does not match the pattern": 2}
    rows = open_table(spark, pipeline.silver).read().orderBy("offset").collect()
    assert [(row.at.second, row.level, row.text) for row in rows] == [(12, "AB(", "hi"), (12, "A", None)]
    broken = pipeline_of(tmp_path / "lake", parse="regex", pattern="(?<at>x) [", fields={"at": "string"})
    with pytest.raises(ConfigError, match=r"invalid pattern '\(\?<at>x\) \[': Unclosed character class"):
        refine(spark, broken)
