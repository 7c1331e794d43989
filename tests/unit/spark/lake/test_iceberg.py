"""Tables of Iceberg, committed without a JVM, in the embedded catalog."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.source.offsets import LogOffset
from consumerd.spark.tables.errors import (
    TableCorruptError,
    TableError,
    TablePathError,
    TableSchemaError,
)
from tests.unit.spark.lake.test_lake_tables import COLUMNS, WRITER, add, expected, pages, write_file

iceberg = pytest.importorskip("consumerd.spark.lake.iceberg", reason="pyiceberg is not installed")


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return open_lake_table(str(tmp_path / "clicks" / "bronze"), "iceberg")


def again(table: Any) -> Any:
    """Another process's view of the same table."""
    return open_lake_table(table.path, "iceberg")


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
