"""`refine` without Spark: each message once in silver or quarantine, whatever is killed or landed twice."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.service.config.validation import table_of
from consumerd.spark.lake import duplicates, open_lake_table
from consumerd.spark.lake.again import RebuiltTables
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.compact import compact
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.folders import LocalFolder
from consumerd.spark.lake.refine_step import preview, refine, refine_again
from consumerd.spark.lake.refine_tasks import refine_files
from consumerd.spark.lake.table import BATCH
from consumerd.spark.lake.tasks import LANDED_AT, FileTarget, TargetWriter, landed_schema
from consumerd.spark.seen import SeenLog
from consumerd.spark.source.options import read_options
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.spec_model import RefineSpec
from consumerd.spark.tables.errors import TableError, TableSchemaError
from tests.unit.spark.lake.test_land import InlinePool, Killed, dying

SCHEMA = landed_schema(read_options({"path": "/", "subscribe": "t"}))
GOOD, BAD = b'{"user": %d}', b"no JSON %d"


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineSpec:
    monkeypatch.setattr("consumerd.spark.lake.refine_step.WorkerPool", InlinePool)
    spec = table_of(RefineSpec, {"parse": "json", "fields": {"user": {"type": "bigint not null"}}})
    return PipelineSpec("p", str(tmp_path / "lake"), {}, refine=spec, batches_per_trigger=2)


def land(pipeline: PipelineSpec, *values: bytes, batch: int, start: int = 0, at: int | None = None) -> None:
    """A batch of bronze with these values at ascending offsets from `start`, each in a file of its own and a row.

    `at`: when they landed, in microseconds.
    """
    rows = [
        {"topic": "t", "partition": 0, "broker_partition": "0", "offset": start + number, "index": 0,
         "next_offset": start + number + 1, "value": value, "crc_ok": True}
        for number, value in enumerate(values)
    ]  # fmt: skip
    target = FileTarget(pipeline.bronze, SCHEMA, {LANDED_AT: batch if at is None else at, BATCH: batch})
    names = [name for name in SCHEMA.names if name not in target.constants]
    with TargetWriter(target) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=pa.schema([SCHEMA.field(name) for name in names])))
        file = writer.close()
    assert file is not None
    assert open_lake_table(pipeline.bronze, pipeline.format).commit([file], writer="land", batch=batch, schema=SCHEMA)


def rows(path: str, *columns: str, form: str = "delta") -> list[tuple[Any, ...]]:
    found = open_lake_table(path, form).dataset().to_table().sort_by("offset")
    return [tuple(row[name] for name in columns) for row in found.select(columns).to_pylist()]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Of each three messages two that can be parsed."""
    return [(BAD if number % 3 == 2 else GOOD) % number for number in range(start, start + count)]


def test_each_message_is_in_silver_or_quarantine_once(pipeline: PipelineSpec) -> None:
    for batch in range(3):
        land(pipeline, *numbered(9, 9 * batch), batch=batch, start=9 * batch)
    result = refine(pipeline)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates, result.batches) == (18, 9, 0, 2)
    assert result.reasons == {"the message is not a JSON object": 9}
    good = [number for number in range(27) if number % 3 != 2]
    assert rows(pipeline.silver, "offset", "user") == [(number, number) for number in good]
    bad = [number for number in range(27) if number % 3 == 2]
    assert rows(pipeline.quarantine, "offset", "value") == [(number, BAD % number) for number in bad]
    assert WritableCheckpoint(pipeline.checkpoint("refine")).end(1) == {"batch": 2}
    assert refine(pipeline).batches == 0


def test_drops_what_was_there_before_and_keeps_what_can_be_parsed(pipeline: PipelineSpec) -> None:
    land(pipeline, GOOD % 0, GOOD % 1, BAD % 2, batch=0)
    assert refine(pipeline).duplicates == 0
    # Offset 1 again, 2 now parsed: both are there before. 3 twice in one batch, first refused.
    land(pipeline, GOOD % 10, GOOD % 20, BAD % 3, batch=1, start=1)
    land(pipeline, GOOD % 30, GOOD % 4, batch=2, start=3)
    result = refine(pipeline)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates) == (2, 0, 3)
    assert rows(pipeline.silver, "offset", "user", "batch") == [(0, 0, 0), (1, 1, 0), (3, 30, 1), (4, 4, 1)]
    assert rows(pipeline.quarantine, "offset") == [(2,)]
    files = list(Path(pipeline.silver).glob("*.parquet")) + list(Path(pipeline.quarantine).glob("*.parquet"))
    committed = open_lake_table(pipeline.silver).files() + open_lake_table(pipeline.quarantine).files()
    assert {file.name for file in files} == {file.path for file in committed}
    # Without the file that says what was seen, the tables do.
    for state in Path(pipeline.checkpoint("refine-seen")).iterdir():
        state.unlink()
    land(pipeline, GOOD % 40, GOOD % 5, batch=3, start=4)
    assert (refine(pipeline).duplicates, len(rows(pipeline.silver, "offset"))) == (1, 5)


def test_keeps_duplicates_where_they_are_allowed(pipeline: PipelineSpec) -> None:
    assert pipeline.refine is not None
    allowed = replace(pipeline, refine=pipeline.refine.replace(dedup=False))
    for batch in range(2):
        land(allowed, GOOD % 0, batch=batch)
    assert (refine(allowed).duplicates, len(rows(allowed.silver, "offset"))) == (0, 2)


def test_a_kill_at_any_step_of_refine_neither_loses_nor_doubles_a_message(
    pipeline: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(pipeline, GOOD % 0, BAD % 1, GOOD % 2, batch=0)
    land(pipeline, GOOD % 20, BAD % 3, GOOD % 4, batch=1, start=2)  # offset 2 again
    died = 0
    while True:
        each = replace(pipeline, root=str(tmp_path / f"lake-{died}"), batches_per_trigger=1)
        shutil.copytree(pipeline.root, each.root)
        with monkeypatch.context() as patched:
            dying(patched, died, (WritableCheckpoint, "_write"), (SeenLog, "store"), (duplicates, "_rewritten"))
            try:
                refine(each)
                break
            except Killed:
                died += 1
        refine(each)
        assert rows(each.silver, "offset", "user", "batch") == [(0, 0, 0), (2, 2, 0), (4, 4, 1)], f"step {died - 1}"
        assert rows(each.quarantine, "offset", "batch") == [(1, 0), (3, 1)], f"step {died - 1}"
    assert died > 12


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, r"has no \[refine\] table"),
        (
            {"parse": "regex", "pattern": r"(?<user>\p{javaLowerCase}+)", "fields": {"user": {"type": "string"}}},
            "`consumerd spark refine`",
        ),
    ],
)
def test_says_what_it_cannot_refine(pipeline: PipelineSpec, spec: dict[str, Any] | None, words: str) -> None:
    declared = None if spec is None else table_of(RefineSpec, spec)
    with pytest.raises(ConfigError, match=words):
        refine(replace(pipeline, refine=declared))


def declared(pipeline: PipelineSpec, **fields: str) -> PipelineSpec:
    spec = table_of(RefineSpec, {"parse": "json", "fields": fields})
    return replace(pipeline, refine=spec)


BOTH = [b'{"user": %d, "page": "p%d"}' % (number, number) for number in range(9)]
SHORT = {"user": "int not null"}
LONG = {"user": "bigint not null", "page": "string"}


def begun(pipeline: PipelineSpec, batches_per_trigger: int = 1) -> PipelineSpec:
    """Eight messages in three batches of bronze, one of them bad and one there twice, refined without `page`."""
    each = replace(declared(pipeline, **SHORT), batches_per_trigger=batches_per_trigger)
    land(each, *BOTH[:4], BAD % 4, batch=0)
    land(each, *BOTH[5:7], batch=1, start=5)
    land(each, *BOTH[6:8], batch=2, start=6)
    assert refine(each).duplicates == 1
    return declared(each, **LONG)


GOOD_ROWS = [(number, f"p{number}") for number in (0, 1, 2, 3, 5, 6, 7)]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_again_fills_in_a_new_field_in_all_rows_and_widens_a_type(pipeline: PipelineSpec, form: str) -> None:
    each = begun(replace(pipeline, format=form))
    before = open_lake_table(each.silver, form).version()
    result = refine_again(each)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates, result.last_batch) == (7, 1, 1, 2)
    assert result.reasons == {"the message is not a JSON object": 1}
    silver = open_lake_table(each.silver, form)
    assert silver.schema().field("user").type == pa.int64()
    assert rows(each.silver, "user", "page", form=form) == GOOD_ROWS
    assert rows(each.quarantine, "offset", form=form) == [(4,)]
    assert silver.batches() == (range(3),)
    assert {row["batch"] for row in silver.dataset().to_table().to_pylist()} <= {0, 1, 2}
    assert silver.as_of(before).dataset().count_rows() == 7
    assert not Path(each.base, "p-again").exists()
    # The step continues with what is new, and knows what was there.
    land(each, *BOTH[7:], batch=3, start=7)
    result = refine(each)
    assert (result.rows_silver, result.duplicates, result.last_batch) == (1, 1, 3)
    assert rows(each.silver, "user", "page", form=form) == [*GOOD_ROWS, (8, "p8")]


def test_a_kill_at_any_step_of_the_replacement_leaves_whole_tables_and_the_next_run_completes(
    pipeline: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(pipeline)
    identities = {0, 1, 2, 3, 4, 5, 6, 7}
    died = 0
    while True:
        each = replace(declared(pipeline, **LONG), root=str(tmp_path / f"lake-{died}"))
        shutil.copytree(pipeline.root, each.root)
        with monkeypatch.context() as patched:
            dying(
                patched,
                died,
                (DeltaLakeTable, "replace"),
                (LocalFolder, "take"),
                (RebuiltTables, "_replaced"),
                (RebuiltTables, "complete"),
                (RebuiltTables, "_forget"),
                (RebuiltTables, "_remove"),
                kinds=(),
            )
            try:
                refine_again(each)
                break
            except Killed:
                died += 1
        assert {offset for (offset,) in rows(each.silver, "offset")} == identities - {4}, f"step {died - 1}"
        if died % 2:
            assert refine_again(each).rows_silver == 7, f"step {died - 1}"
        else:
            # Whichever run is next completes a replacement; one that has not begun does not concern it.
            land(each, BOTH[8], batch=3, start=8)
            if Path(each.base, "p-again", "replacing.json").exists():
                refine(each)
            assert refine_again(each).rows_silver in (7, 8), f"step {died - 1}"
            refine(each)
        users = rows(each.silver, "user", "page")
        assert users == [*GOOD_ROWS, (8, "p8")][: len(users)], f"step {died - 1}"
        assert len(users) == 8 - died % 2
        assert rows(each.quarantine, "offset") == [(4,)]
        assert not Path(each.base, "p-again").exists()
    assert died > 10


def test_a_table_that_was_replaced_is_left_alone_when_the_other_one_follows(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = begun(pipeline)
    with monkeypatch.context() as patched:
        dying(patched, 1, kinds=((DeltaLakeTable, "replace"),))
        with pytest.raises(Killed):
            refine_again(each)
    silver = open_lake_table(each.silver)
    assert silver.optimize(1 << 20).merged == 1
    assert silver.vacuum(0)
    version = silver.version()
    assert refine(each).batches == 0
    assert (silver.version(), rows(each.silver, "user", "page")) == (version, GOOD_ROWS)
    assert not Path(each.base, "p-again").exists()


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_type_that_a_table_cannot_change_to_leaves_the_step_as_it_was(pipeline: PipelineSpec, form: str) -> None:
    first = replace(declared(pipeline, user="int"), format=form)
    land(first, GOOD % 0, batch=0)
    refine(first)
    other = replace(declared(pipeline, user="string"), format=form)
    if form == "delta":
        assert refine_again(other).rows_silver == 1
        return
    with pytest.raises(TableSchemaError, match="Cannot change column type: user: int -> string"):
        refine_again(other)
    land(first, GOOD % 1, batch=1, start=1)
    assert refine(first).rows_silver == 1
    assert refine_again(first).rows_silver == 2
    assert rows(first.silver, "user", form=form) == [(0,), (1,)]


def test_again_starts_over_with_another_declaration(pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    each = begun(pipeline)
    with monkeypatch.context() as patched:
        dying(patched, 6)
        with pytest.raises(Killed):
            refine_again(each)
    assert open_lake_table(f"{each.base}/p-again/silver").dataset().count_rows() > 0
    assert refine_again(declared(each, page="string")).rows_silver == 7
    assert rows(each.silver, "page") == [(page,) for _, page in GOOD_ROWS]
    assert "user" not in open_lake_table(each.silver).schema().names


def test_again_refines_what_landed_in_a_time_and_keeps_the_other_rows(pipeline: PipelineSpec) -> None:
    # The batches landed at 0, 1 and 2 microseconds after 1970, and were one of the step: all rows have its number then.
    each = replace(begun(pipeline, 3), batches_per_trigger=1)
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    within: dict[str, Any] = {"since": moment + timedelta(microseconds=1), "until": moment + timedelta(microseconds=2)}
    assert preview(each, **within).as_json() == {
        "pipeline": "p", "rows_valid": 2, "rows_refused": 0, "reasons": {}
    }  # fmt: skip
    result = refine_again(each, **within)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates) == (7, 1, 1)
    pages = [f"p{number}" if number in (5, 6) else None for number in (0, 1, 2, 3, 5, 6, 7)]
    assert rows(each.silver, "page", "batch") == [(page, 0) for page in pages]
    assert rows(each.quarantine, "offset") == [(4,)]


def test_dry_run_counts_and_writes_nothing(pipeline: PipelineSpec) -> None:
    each = declared(begun(pipeline), user="bigint not null", other="string not null")
    before = {path: path.stat().st_mtime_ns for path in Path(each.root).rglob("*")}
    found = preview(each)
    assert (found.rows_valid, found.rows_refused, sum(found.reasons.values())) == (0, 9, 9)
    assert sorted(found.reasons.values()) == [1, 8]
    assert {path: path.stat().st_mtime_ns for path in Path(each.root).rglob("*")} == before


def test_a_clock_that_jumps_changes_no_verdict(pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by an hour, or ahead by a day, before and while each batch is refined; files are compacted between."""
    now, hour = time.time(), 3_600
    shifts = [0, -hour, 24 * hour, -hour]
    clock = [now]
    monkeypatch.setattr(time, "time_ns", lambda: int(clock[0] * 1e9))
    monkeypatch.setattr(time, "time", lambda: clock[0])

    def jumping(*arguments: Any, **named: Any) -> Any:
        clock[0] += 24 * hour if clock[0] <= now else -25 * hour
        return write(*arguments, **named)

    write = refine_files
    monkeypatch.setattr("consumerd.spark.lake.refine_step.refine_files", jumping)
    for batch, shift in enumerate(shifts):
        clock[0] = now + shift
        # Of each batch the first two messages were in the one before.
        land(pipeline, *numbered(8, 6 * batch), batch=batch, start=6 * batch, at=round((now + shift) * 1e6))
        refine(pipeline)
        compact(pipeline)
    count = 6 * len(shifts) + 2
    good = [number for number in range(count) if number % 3 != 2]
    bad = [number for number in range(count) if number % 3 == 2]
    begun = datetime.fromtimestamp(now, UTC)
    for since in (None, begun - timedelta(minutes=1)):
        if since is not None:
            refine_again(pipeline, since=since, until=begun + timedelta(minutes=1))
        assert rows(pipeline.silver, "offset", "user") == [(number, number) for number in good]
        assert rows(pipeline.quarantine, "offset") == [(number,) for number in bad]


def test_again_requires_that_the_steps_before_and_after_are_done(pipeline: PipelineSpec) -> None:
    with pytest.raises(NotFoundError, match="run it without --again"):
        refine_again(pipeline)
    each = begun(pipeline)
    aggregate = WritableCheckpoint(each.checkpoint("aggregate"))
    aggregate.begin()
    aggregate.plan(0, {"batch": 1})
    aggregate.complete(0)
    with pytest.raises(ConfigError, match="aggregate of the pipeline p has not read all of silver"):
        refine_again(each)
    aggregate.plan(1, {"batch": 2})
    aggregate.complete(1)
    assert refine_again(each).rows_silver == 7


NOON = 1_325_419_200_000  # 2012-01-01T12:00Z in milliseconds
DAY = 86_400_000
TIMED = {"user": "bigint not null", "at": "timestamp_ms"}


def by_day(pipeline: PipelineSpec, form: str, **more: Any) -> PipelineSpec:
    spec = {"parse": "json", "fields": TIMED, "partition_by": ["date(at)"], **more}
    return replace(pipeline, format=form, refine=table_of(RefineSpec, spec), batches_per_trigger=1)


def days_of_files(path: str, form: str) -> list[set[Any]]:
    """Of each file the days of its rows, and beside them what its name for the table's partition says."""
    found = []
    for file in open_lake_table(path, form).files():
        rows = pq.ParquetFile(f"{path}/{file.path}").read().to_pylist()
        time = "landed_at" if path.endswith("quarantine") else "at"
        days = {None if row[time] is None else str(row[time].date()) for row in rows}
        if form == "delta":
            assert {None if row[f"{time}_date"] is None else str(row[f"{time}_date"]) for row in rows} == days
        assert set(file.partition.values()) == days
        found.append(days)
    return found


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_time_without_a_day_goes_to_quarantine_where_silver_is_divided(pipeline: PipelineSpec, form: str) -> None:
    far = b'{"user": 1, "at": "12020-07-02T00:00:00Z"}'
    fields = {"user": "bigint", "at": "timestamp"}
    for name, wanted in (("undivided", [(0,), (1,)]), ("divided", [(0,)])):
        parts = ["date(at)"] if name == "divided" else []
        each = replace(by_day(pipeline, form, fields=fields, partition_by=parts), name=name)
        land(each, b'{"user": 0, "at": "9999-12-31T23:59:59.999999Z"}', far, batch=0)
        reasons = refine(each).reasons
        assert rows(each.silver, "user", form=form) == wanted
        assert reasons == ({"at is not a timestamp": 1} if parts else {})
        assert not parts or rows(each.quarantine, "value", form=form) == [(far,)]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_tables_are_divided_by_day_also_after_compaction_and_refining_again(pipeline: PipelineSpec, form: str) -> None:
    each = by_day(pipeline, form)
    for batch in range(2):
        times = [NOON, NOON + DAY, NOON - 1, None, NOON + DAY]
        values = [json.dumps({"user": 10 * batch + n, "at": at}).encode() for n, at in enumerate(times)]
        land(each, *values, BAD % 9, *values[:1], batch=batch, start=10 * batch)
    land(each, *[b'{"user": 10}'] * 2, batch=2, start=10)  # there already
    result = refine(each)
    assert (result.rows_silver, result.rows_quarantined, result.duplicates) == (12, 2, 2)
    assert result.reasons == {"the message is not a JSON object": 2}
    three: list[set[Any]] = [{"2012-01-01"}, {"2012-01-02"}, {None}]
    assert sorted(days_of_files(each.silver, form), key=str) == sorted([*three, *three], key=str)
    assert days_of_files(each.quarantine, form) == [{"1970-01-01"}] * 2
    silver = open_lake_table(each.silver, form)
    assert silver.optimize(1 << 20).merged == 3
    assert sorted(days_of_files(each.silver, form), key=str) == sorted(three, key=str)
    assert (silver.dataset().count_rows(), silver.dataset(after=0).count_rows()) == (12, 6)
    again = refine_again(by_day(pipeline, form, fields={**TIMED, "page": "string"}))
    assert (again.rows_silver, again.rows_quarantined, again.duplicates) == (12, 2, 2)
    assert sorted(days_of_files(each.silver, form), key=str) == sorted([*three, *three], key=str)
    assert silver.optimize(1 << 20).merged == 3
    for changed in ([], ["date(landed_at)"]):
        other = by_day(pipeline, form, partition_by=changed)
        land(each, b'{"user": 30}', batch=3 + len(changed), start=30 + len(changed))
        with pytest.raises(TableError, match=r"silver is partitioned by \S+, and the configuration says .*: restore"):
            refine(other)
        with pytest.raises(TableError, match=r"silver is partitioned by \S+, and the configuration says .*: restore"):
            refine_again(other)
