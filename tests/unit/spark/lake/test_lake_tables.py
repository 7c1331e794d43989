"""What tables of each format do alike."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.base.errors import NotFoundError
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.tables.errors import TableOwnedError

COLUMNS = pa.schema([("page", pa.string()), ("ms", pa.int32()), ("batch", pa.int64())])
WRITER = "c0ffee"


def write_file(table: str | Path, batch: int, rows: int = 3, schema: pa.Schema = COLUMNS, **values: Any) -> DataFile:
    """A file in the table's folder that no commit names yet."""
    columns = {"page": [f"p{batch}-{row}" for row in range(rows)], "ms": list(range(rows)), "batch": [batch] * rows}
    columns |= {name: [value] * rows for name, value in values.items()}
    with DataFileWriter(str(table), schema) as writer:
        writer.write(pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema))
        written = writer.close()
    assert written is not None
    return written


def add(table: Any, batch: int, schema: pa.Schema = COLUMNS, *, writer: str = WRITER, **values: Any) -> bool:
    done = table.commit(
        [write_file(table.path, batch, schema=schema, **values)], writer=writer, batch=batch, schema=schema
    )
    assert isinstance(done, bool)
    return done


def pages(table: Any) -> list[str]:
    return sorted(table.dataset().to_table().column("page").to_pylist())


def expected(*batches: int, rows: int = 3) -> list[str]:
    return sorted(f"p{batch}-{row}" for batch in batches for row in range(rows))


@pytest.fixture(params=["delta", "iceberg"])
def form(request: pytest.FixtureRequest) -> str:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    return str(request.param)


@pytest.fixture
def table(tmp_path: Path, form: str) -> Any:
    return open_lake_table(str(tmp_path / "clicks" / "bronze"), form)


@pytest.fixture
def again(table: Any, form: str) -> Callable[[], Any]:
    """Another process's view of the same table."""
    return lambda: open_lake_table(table.path, form)


def test_holds_what_was_committed(table: Any, again: Callable[[], Any]) -> None:
    assert (table.exists, table.batches(), table.owner()) == (False, (), None)
    assert table.accepts(writer=WRITER, batch=0, schema=COLUMNS)
    assert [add(table, 0), add(table, 1)] == [True, True]
    assert table.commit([], writer=WRITER, batch=2, schema=COLUMNS)
    assert not table.commit([], writer=WRITER, batch=2, schema=COLUMNS)
    assert not table.accepts(writer=WRITER, batch=2, schema=COLUMNS)
    for each in (table, again()):
        assert (each.exists, each.batches(), each.owner(), each.schema()) == (True, (range(3),), WRITER, COLUMNS)
        assert pages(each) == expected(0, 1)


def test_accepts_a_batch_once_also_with_a_snapshot_that_has_it(table: Any, again: Callable[[], Any]) -> None:
    add(table, 0)
    assert not add(table, 0)
    assert not add(again(), 0)
    assert pages(table) == expected(0)


@pytest.mark.parametrize("with_rows", [True, False])
def test_accepts_a_batch_once_with_a_snapshot_that_does_not_have_it_yet(
    table: Any, again: Callable[[], Any], with_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, 0)
    rival, files = again(), [write_file(table.path, 1)] if with_rows else []
    compare = type(table)._last_batch

    def commit_between(*snapshot: Any) -> int | None:
        last: int | None = compare(*snapshot)
        monkeypatch.setattr(type(table), "_last_batch", compare)
        assert rival.commit(files, writer=WRITER, batch=1, schema=COLUMNS)
        return last

    monkeypatch.setattr(type(table), "_last_batch", commit_between)
    assert not table.commit(files, writer=WRITER, batch=1, schema=COLUMNS)
    assert pages(table) == expected(0, *([1] if with_rows else []))


def test_refuses_the_table_of_another_checkpoint(table: Any) -> None:
    add(table, 0)
    with pytest.raises(TableOwnedError, match=rf"{table.path} was written with another checkpoint \(c0ffee, this"):
        add(table, 1, writer="other")
    assert table.batches() == (range(1),)


def test_files_of_some_batches_are_found_by_their_bounds(table: Any) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    schema = COLUMNS.insert(2, pa.field("at", pa.timestamp("us", "UTC"))).insert(3, pa.field("day", pa.date32()))
    for batch in range(5):
        add(table, batch, schema, at=at, day=date(2026, 1, 2))
    names = [file.path for file in table.files()]
    assert [file.path for file in table.files(after=1)] == names[2:]
    assert [file.path for file in table.files(after=1, to=3)] == names[2:4]
    assert [file.path for file in table.files(to=0)] == names[:1]
    assert table.files(after=4) == []
    assert sorted(table.dataset(after=1, to=2).to_table().column("page").to_pylist()) == expected(2)
    (file,) = table.files(after=3)
    day = {"day": "2026-01-02"}
    assert file.minimums == {"page": "p4-0", "ms": 0, "at": "2026-01-02T03:04:05.678Z", "batch": 4, **day}
    assert file.maximums == {"page": "p4-2", "ms": 2, "at": "2026-01-02T03:04:05.679Z", "batch": 4, **day}
    assert (file.rows, file.nulls) == (3, dict.fromkeys(schema.names, 0))


def test_reads_a_former_version_by_number_and_by_time(table: Any) -> None:
    add(table, 0)
    old, then = table.version(), table.history()[0].at
    while datetime.now(UTC) <= then:
        pass  # times of versions have milliseconds
    add(table, 1)
    assert pages(table.as_of(old)) == pages(table.as_of(then)) == expected(0)
    assert pages(table.as_of(datetime.now(UTC))) == expected(0, 1)
    versions = [each.version for each in table.history()]
    assert versions == list(range(table.version(), versions[-1] - 1, -1))
    with pytest.raises(ValueError, match="for reading only"):
        add(table.as_of(old), 2)
    with pytest.raises(NotFoundError, match=r"no version (that is as old as )?2001"):
        table.as_of(datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(NotFoundError, match="no version 99"):
        table.as_of(99)


def test_vacuum_removes_orphans_and_merged_files_that_are_old_enough(table: Any) -> None:
    add(table, 0)
    add(table, 1)
    merged = [file.path for file in table.files()]
    orphan = write_file(table.path, 9).path
    table.optimize(1 << 20)
    assert table.vacuum(3600) == []
    assert table.vacuum(0, dry_run=True) == sorted([*merged, orphan])
    assert Path(table.path, orphan).exists()
    assert table.vacuum(0) == sorted([*merged, orphan])
    assert [each.name for each in Path(table.path).glob("*.parquet")] == [table.files()[0].path]
    assert pages(table) == expected(0, 1)
    before = table.version()
    assert table.vacuum(0) == []
    assert table.version() == before
    assert add(table, 2)


def test_keeps_times_beyond_the_years_that_python_has(table: Any) -> None:
    times = [pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("day", pa.date32())]
    schema = pa.schema([*COLUMNS, *times])
    for batch, at in enumerate((317_163_168_000_000_000, 0, -65_307_168_000_000_000)):
        assert add(table, batch, schema, at=at, day=at // 86_400_000_000)
    # Of other columns, and of those that are within these years, files keep their bounds.
    bounds = {file.minimums["batch"]: sorted(file.minimums) for file in table.files()}
    assert bounds == {0: ["batch", "ms", "page"], 1: ["at", "batch", "day", "ms", "page"], 2: ["batch", "ms", "page"]}
    assert table.optimize(1 << 20).files_after == 1
    numbers = pa.schema([("batch", pa.int64()), ("at", pa.int64()), ("day", pa.int32())])
    found = table.dataset().to_table(columns=numbers.names).cast(numbers).to_pylist()
    assert {tuple(row.values()) for row in found} == {
        (0, 317_163_168_000_000_000, 3_670_870), (1, 0, 0), (2, -65_307_168_000_000_000, -755_870),
    }  # fmt: skip
