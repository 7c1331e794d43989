"""Tables of Iceberg, committed without a JVM, in the embedded catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.source.offsets import LogOffset
from consumerd.spark.tables.errors import (
    TableCorruptError,
    TableError,
    TableOwnedError,
    TablePathError,
    TableSchemaError,
)

iceberg = pytest.importorskip("consumerd.spark.lake.iceberg", reason="pyiceberg is not installed")

COLUMNS = pa.schema(
    [("page", pa.string()), ("ms", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("batch", pa.int64())]
)
WRITER = "c0ffee"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def write_file(table: str, batch: int, schema: pa.Schema = COLUMNS, **values: Any) -> DataFile:
    rows = [{"page": f"p{batch}-{row}", "ms": row, "at": AT, "batch": batch, **values} for row in range(3)]
    with DataFileWriter(table, schema) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        written = writer.close()
    assert written is not None
    return written


def add(table: Any, batch: int, schema: pa.Schema = COLUMNS, *, writer: str = WRITER, **values: Any) -> bool:
    file = write_file(table.path, batch, schema, **values)
    done = table.commit([file], writer=writer, batch=batch, schema=schema)
    assert isinstance(done, bool)
    return done


def pages(table: Any) -> list[str]:
    return sorted(table.dataset().to_table().column("page").to_pylist())


def expected(*batches: int) -> list[str]:
    return sorted(f"p{batch}-{row}" for batch in batches for row in range(3))


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return open_lake_table(str(tmp_path / "clicks" / "bronze"), "iceberg")


def again(table: Any) -> Any:
    """Another process's view of the same table."""
    return open_lake_table(table.path, "iceberg")


def test_holds_what_was_committed(table: Any) -> None:
    assert (table.exists, table.batches(), table.owner()) == (False, (), None)
    assert table.accepts(writer=WRITER, batch=0, schema=COLUMNS)
    assert [add(table, 0), add(table, 1), add(table, 1), add(again(table), 0)] == [True, True, False, False]
    assert table.commit([], writer=WRITER, batch=2, schema=COLUMNS)
    assert not table.accepts(writer=WRITER, batch=2, schema=COLUMNS)
    assert (table.exists, table.batches(), table.owner(), table.schema()) == (True, (range(3),), WRITER, COLUMNS)
    assert pages(table) == expected(0, 1)


def test_merges_manifests_so_that_planning_stays_fast(table: Any) -> None:
    add(table, 0)
    with table._existing().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    assert [add(table, batch) for batch in range(1, 4)] == [True] * 3
    stored = table._existing()
    assert len(stored.current_snapshot().manifests(stored.io)) < 3
    assert pages(table) == expected(0, 1, 2, 3)


def test_logs_nothing_of_columns_without_bounds(table: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert add(table, 0, COLUMNS.append(pa.field("value", pa.binary())), value=b"x")
    assert table.dataset().to_table().column("value").to_pylist() == [b"x"] * 3
    assert caplog.text == ""


def committing_between(name: str, rival: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Do `rival` after the next call of a function of the module."""
    call = getattr(iceberg, name)

    def between(*args: Any) -> Any:
        found = call(*args)
        patch.setattr(iceberg, name, call)
        assert rival()
        return found

    patch.setattr(iceberg, name, between)


def test_says_where_the_last_batch_ends(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the answer to the commit was lost."""
    offsets = TableOffsets(1, {("t", "0"): LogOffset(10, "AAAAAAAAAAAAAAAAAAAAAA", 3)}, {("t", "0"): LogOffset(5)})
    assert table.offsets() is None
    add(table, 0)
    files = [write_file(table.path, 1)]
    commit = iceberg.SqlCatalog.commit_table

    def lost(*arguments: Any, **named: Any) -> Any:
        commit(*arguments, **named)
        raise iceberg.CommitStateUnknownException("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(iceberg.SqlCatalog, "commit_table", lost)
        assert table.commit(files, writer=WRITER, batch=1, schema=COLUMNS, offsets=offsets)
    assert again(table).offsets() == offsets
    assert not again(table).commit(files, writer=WRITER, batch=1, schema=COLUMNS, offsets=offsets)
    add(table, 2)
    assert table.offsets() is None  # that commit does not say
    assert pages(table) == expected(0, 1, 2)


@pytest.mark.parametrize("with_rows", [True, False])
def test_accepts_a_batch_once_with_metadata_that_does_not_have_it_yet(
    table: Any, with_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, 0)
    rival = again(table)
    files = [write_file(table.path, 1)] if with_rows else []
    committing_between("_last_batch", lambda: rival.commit(files, writer=WRITER, batch=1, schema=COLUMNS), monkeypatch)
    assert not table.commit(files, writer=WRITER, batch=1, schema=COLUMNS)
    assert pages(table) == expected(0, *([1] if with_rows else []))


def test_threads_that_create_and_write_at_once_add_each_batch_once(table: Any) -> None:
    start = threading.Barrier(2)
    done: list[bool] = []

    def write() -> None:
        mine = again(table)
        start.wait()
        done.extend(add(mine, batch) for batch in range(3))

    racing = [threading.Thread(target=write) for _ in range(2)]
    for each in racing:
        each.start()
    for each in racing:
        each.join()
    assert sorted(done) == [False] * 3 + [True] * 3
    assert pages(table) == expected(0, 1, 2)


def test_knows_its_last_batch_after_all_other_snapshots_expired(table: Any) -> None:
    add(table, 0)
    add(table, 1)
    table.optimize(1 << 20)  # its snapshot is of no batch
    table.vacuum(0)
    assert len(table.history()) == 1
    assert table.batches() == (range(2),)
    assert not add(table, 1)


def test_knows_its_last_batch_from_snapshots_without_the_property(table: Any) -> None:
    add(table, 0)
    with table._existing().transaction() as change:
        change.remove_properties(iceberg.LAST_BATCH)
    assert not add(table, 0)


def test_refuses_the_table_of_another_checkpoint(table: Any) -> None:
    add(table, 0)
    with pytest.raises(TableOwnedError, match=r"written with another checkpoint \(c0ffee, this one is other\)"):
        add(table, 1, writer="other")


def test_adds_a_column_and_widens_another(table: Any) -> None:
    add(table, 0)
    wider = pa.schema([COLUMNS.field("page"), ("ms", pa.int64()), ("agent", pa.string()), ("batch", pa.int64())])
    assert add(table, 1, wider, agent="curl", ms=1 << 40)
    assert add(table, 2)  # int, as before
    assert table.schema().field("ms").type == pa.int64()
    rows = table.dataset().to_table().sort_by([("batch", "ascending"), ("page", "ascending")])
    assert rows.column("ms").to_pylist() == [0, 1, 2, *[1 << 40] * 3, 0, 1, 2]
    assert rows.column("agent").to_pylist() == [None] * 3 + ["curl"] * 3 + [None] * 3
    assert table.optimize(1 << 20).merged == 1
    assert table.dataset().to_table().sort_by([("batch", "ascending"), ("page", "ascending")]) == rows


@pytest.mark.parametrize(("name", "kind"), [("ms", pa.string()), ("PAGE", pa.string())])
def test_refuses_a_column_of_another_type_or_case(table: Any, name: str, kind: pa.DataType) -> None:
    add(table, 0)
    with pytest.raises(TableSchemaError, match="give the new column another name"):
        table.commit([], writer=WRITER, batch=1, schema=pa.schema([(name, kind), ("batch", pa.int64())]))
    assert table.batches() == (range(1),)


def test_files_of_some_batches_are_found_by_their_bounds(table: Any) -> None:
    for batch in range(4):
        add(table, batch)
    names = [file.path for file in table.files()]
    assert [file.path for file in table.files(after=0, to=2)] == names[1:3]
    assert sorted(table.dataset(after=1, to=2).to_table().column("page").to_pylist()) == expected(2)
    (file,) = table.files(after=2)
    assert file.minimums == {"page": "p3-0", "ms": 0, "at": "2026-01-02T03:04:05.678Z", "batch": 3}
    assert file.maximums == {"page": "p3-2", "ms": 2, "at": "2026-01-02T03:04:05.679Z", "batch": 3}
    assert (file.rows, file.nulls) == (3, {"page": 0, "ms": 0, "at": 0, "batch": 0})


def test_other_readers_see_every_row_once_also_after_a_merge_and_a_new_column(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    polars = pytest.importorskip("polars", reason="polars is not installed")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    add(table, 0)
    add(table, 1)
    table.optimize(1 << 20)
    add(table, 2, COLUMNS.insert(0, pa.field("agent", pa.string())), agent="curl")
    catalog = SqlCatalog(iceberg.CATALOG, uri=f"sqlite:///{Path(table.path).with_name(iceberg.CATALOG_FILE)}")
    found = catalog.load_table("clicks.bronze")
    assert sorted(found.scan().to_arrow().column("page").to_pylist()) == expected(0, 1, 2)
    assert sorted(polars.scan_iceberg(found).collect()["page"].to_list()) == expected(0, 1, 2)
    catalog.engine.dispose()


def test_reads_a_former_version_by_number_and_by_time(table: Any) -> None:
    add(table, 0)
    old = table.version()
    between = table.history()[0].at
    add(table, 1)
    assert pages(table.as_of(old)) == expected(0)
    assert pages(table.as_of(between)) == expected(0)
    assert pages(table.as_of(datetime.now(UTC))) == expected(0, 1)
    with pytest.raises(ValueError, match="for reading only"):
        add(table.as_of(old), 2)
    with pytest.raises(NotFoundError, match="has no version 2001"):
        table.as_of(datetime(2001, 1, 1, tzinfo=UTC))


def test_two_optimizations_at_once_keep_every_row_once(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(table, 0)
    add(table, 1)
    rival = again(table)
    swap = table._swap

    def swap_later(*args: Any) -> bool:
        assert rival.optimize(1 << 20).merged == 1
        return bool(swap(*args))

    monkeypatch.setattr(table, "_swap", swap_later)
    assert table.optimize(1 << 20).merged == 0
    assert pages(table) == expected(0, 1)


def test_vacuum_removes_orphans_and_merged_files_that_are_old_enough(table: Any) -> None:
    add(table, 0)
    add(table, 1)
    merged = [file.path for file in table.files()]
    orphan = write_file(table.path, 9).path
    table.optimize(1 << 20)
    assert table.vacuum(3600) == []
    assert table.vacuum(0, dry_run=True) == sorted([*merged, orphan])
    assert table.vacuum(0) == sorted([*merged, orphan])
    assert table.vacuum(0) == []
    assert [each.name for each in Path(table.path).glob("*.parquet")] == [table.files()[0].path]
    assert pages(table) == expected(0, 1)
    assert add(table, 2)


def test_metadata_is_durable_before_the_catalog_names_it(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(table, 0)
    synced: list[str] = []
    sync = SystemFiles.sync_file

    def record(self: SystemFiles, path: str | Path) -> None:
        sync(self, path)
        synced.append(str(path))

    monkeypatch.setattr(SystemFiles, "sync_file", record)
    add(table, 1)
    metadata = table._existing().metadata_location.removeprefix("file://")
    assert synced[-1] == metadata
    assert {Path(path).suffix for path in synced} == {".parquet", ".avro", ".json"}


@pytest.mark.parametrize("by", ["options", "environment"])
def test_configured_catalog_has_the_table(table: Any, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db"}
    if by == "environment":
        for name, value in found.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__CONSUMERD__{name.upper()}", value)
    configured = open_lake_table(table.path, "iceberg", storage_options=found if by == "options" else None)
    assert add(configured, 0)
    assert (tmp_path / "elsewhere.db").exists()
    assert not Path(table.path).with_name(iceberg.CATALOG_FILE).exists()
    assert configured.optimize(1 << 20).merged == 0
    assert pages(configured) == expected(0)


def test_lost_metadata_is_one_sentence(table: Any) -> None:
    add(table, 0)
    Path(table._existing().metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(TableCorruptError, match=r"^the table [^\n]* lacks a file [^\n]*\.$"):
        again(table).files()


def test_catalog_that_cannot_be_read_is_one_sentence(table: Any) -> None:
    add(table, 0)
    Path(table.path).with_name(iceberg.CATALOG_FILE).write_bytes(b"not a database, not a database")
    with pytest.raises(TableError, match=r"^the table [^\n]* cannot be read or written: [^\n]*\.$"):
        again(table).files()


def test_what_needs_a_catalog_or_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a catalog there"):
        open_lake_table("s3://lake/clicks/bronze", "iceberg").accepts(writer="w", batch=0, schema=COLUMNS)
    with pytest.raises(TablePathError, match="% would be decoded"):
        open_lake_table(f"{tmp_path}/a%20b", "iceberg")
    with pytest.raises(NotFoundError):
        open_lake_table(f"{tmp_path}/none", "iceberg").files()
