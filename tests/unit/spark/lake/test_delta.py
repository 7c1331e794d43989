"""Tables of Delta, committed without a JVM."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.lake import delta, open_lake_table
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.source.offsets import LogOffset
from consumerd.spark.tables.errors import (
    TableCorruptError,
    TableError,
    TableOwnedError,
    TablePathError,
    TableSchemaError,
)
from tests.unit.spark.lake.test_lake_tables import COLUMNS, WRITER, add, expected, pages, write_file


@pytest.fixture
def table(tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(str(tmp_path / "bronze"))


# -- batches


def test_says_where_the_last_batch_ends(table: DeltaLakeTable) -> None:
    assert table.offsets() is None
    for batch in range(3):
        ends = {("t", "0"): LogOffset(10 * batch, "AAAAAAAAAAAAAAAAAAAAAA", 3)}
        offsets = TableOffsets(batch, ends, {("t", "0"): LogOffset(5)}, (("t", "0", None, 0, 4),))
        assert table.commit([], writer=WRITER, batch=batch, schema=COLUMNS, offsets=offsets)
        assert DeltaLakeTable(table.path).offsets() == offsets
    assert len([*Path(table.path, "_consumerd").iterdir()]) == 1  # of the last batch
    assert table.vacuum(0) == []
    for file in Path(table.path, "_consumerd").iterdir():
        file.unlink()
    assert table.offsets() is None  # copied without it
    add(table, 3)
    assert table.offsets() is None  # that commit does not say


def test_a_commit_that_took_place_although_an_error_was_reported_counts(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, 0)
    offsets = TableOffsets(1, {("t", "0"): LogOffset(7)})
    file = write_file(table.path, 1)
    commit = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        raise CommitFailedError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lost)
        assert table.commit([file], writer=WRITER, batch=1, schema=COLUMNS, offsets=offsets)
    assert table.offsets() == offsets
    assert not table.commit([file], writer=WRITER, batch=1, schema=COLUMNS, offsets=offsets)
    assert table.offsets() == offsets
    assert pages(table) == expected(0, 1)


@pytest.mark.parametrize("damaged", [b"", b"[]", b'{"batch": "0", "ends": {}, "starts": {}, "former": []}', b"\xff"])
def test_damaged_offsets_are_an_error(table: DeltaLakeTable, damaged: bytes) -> None:
    table.commit([], writer=WRITER, batch=0, schema=COLUMNS, offsets=TableOffsets(0, {}))
    (file,) = Path(table.path, "_consumerd").iterdir()
    file.write_bytes(damaged)
    with pytest.raises(TableCorruptError, match=r"_consumerd/\d+\.json cannot be read \(.*restore it from a backup"):
        table.offsets()


def _commit_all(path: str, start: Any, results: Any) -> None:
    start.wait()
    table = DeltaLakeTable(path)
    results.put(sum(add(table, batch) for batch in range(3)))


def test_two_processes_that_commit_the_same_batches_add_each_once(table: DeltaLakeTable) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    racing = [context.Process(target=_commit_all, args=(table.path, start, results)) for _ in range(2)]
    for each in racing:
        each.start()
    assert sum(results.get(timeout=60) for _ in racing) == 3
    for each in racing:
        each.join()
        assert each.exitcode == 0
    assert pages(table) == expected(0, 1, 2)


def test_threads_that_create_the_table_at_once_agree_on_its_owner(table: DeltaLakeTable) -> None:
    start = threading.Barrier(3)
    outcomes: list[str] = []

    def claim(writer: str) -> None:
        start.wait()
        try:
            outcomes.append(f"{writer} {add(DeltaLakeTable(table.path), 0, writer=writer)}")
        except TableOwnedError:
            outcomes.append("refused")

    racing = [threading.Thread(target=claim, args=(writer,)) for writer in ("a", "b", "c")]
    for each in racing:
        each.start()
    for each in racing:
        each.join()
    assert sorted(outcomes) == sorted([f"{table.owner()} True", "refused", "refused"])
    assert pages(table) == expected(0)


def test_refuses_a_table_that_has_files_and_no_owner(table: DeltaLakeTable) -> None:
    from deltalake import write_deltalake

    write_deltalake(table.path, pa.table({"page": ["x"], "ms": pa.array([1], pa.int32()), "batch": [0]}))
    with pytest.raises(TableOwnedError):
        add(table, 0)


def test_goes_on_after_a_kill_between_creation_and_ownership(table: DeltaLakeTable) -> None:
    DeltaTable.create(table.path, COLUMNS)
    assert add(table, 0)
    assert table.owner() == WRITER


def test_knows_its_batches_after_a_checkpoint_replaced_the_log(table: DeltaLakeTable) -> None:
    for batch in range(3):
        add(table, batch)
    DeltaTable(table.path).create_checkpoint()
    for version in range(table.version()):
        Path(table.path, "_delta_log", f"{version:020d}.json").unlink()
    assert not add(table, 2)
    assert add(table, 3)
    assert pages(table) == expected(0, 1, 2, 3)


@pytest.mark.parametrize(("batch", "schema"), [(-1, COLUMNS), (0, COLUMNS.remove(2))])
def test_rejects_a_negative_batch_and_columns_without_batch(
    table: DeltaLakeTable, batch: int, schema: pa.Schema
) -> None:
    with pytest.raises(ValueError, match="batch"):
        table.commit([], writer=WRITER, batch=batch, schema=schema)


#: What Delta's jar 4.4 wrote for a table of an earlier release: its creation, and a batch.
OF_THE_JVM: tuple[dict[str, Any], ...] = (
    {
        "commitInfo": {"timestamp": 1795898307582, "operation": "CREATE TABLE", "isBlindAppend": True,
                       "operationParameters": {"partitionBy": "[]", "properties": '{"consumerd.writer":"c0ffee"}'},
                       "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "txnId": "33ef381b-5a00-4656-930c"},
        "metaData": {"id": "b9daa988-de4f-491b-8fb1-7c941f04316f", "format": {"provider": "parquet", "options": {}},
                     "schemaString": json.dumps({"type": "struct", "fields": [
                         {"name": name, "type": kind, "nullable": True, "metadata": {}}
                         for name, kind in (("page", "string"), ("ms", "integer"), ("batch", "long"))]}),
                     "partitionColumns": [], "configuration": {"consumerd.writer": "c0ffee"},
                     "createdTime": 1795898307379},
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
    },
    {
        "commitInfo": {"timestamp": 1795898342638, "operation": "WRITE", "readVersion": 0, "isBlindAppend": True,
                       "operationParameters": {"mode": "Append", "partitionBy": "[]", "canMergeSchema": True}},
        "txn": {"appId": "c0ffee", "version": 0, "lastUpdated": 1795898342630},
        "add": {"path": "", "partitionValues": {}, "size": 0, "modificationTime": 1795898342574, "dataChange": True,
                "stats": json.dumps({"numRecords": 3, "minValues": {"ms": 0, "page": "p0-0", "batch": 0},
                                     "maxValues": {"ms": 2, "page": "p0-2", "batch": 0},
                                     "nullCount": {"ms": 0, "page": 0, "batch": 0}})},
    },
)  # fmt: skip


def test_goes_on_with_a_table_that_a_jvm_wrote(table: DeltaLakeTable) -> None:
    file = write_file(table.path, 0)
    Path(table.path, "_delta_log").mkdir()
    for version, actions in enumerate(OF_THE_JVM):
        if "add" in actions:
            actions = actions | {"add": actions["add"] | {"path": file.path, "size": file.size}}
        lines = [json.dumps({name: action}) for name, action in actions.items()]
        Path(table.path, "_delta_log", f"{version:020d}.json").write_text("\n".join(lines) + "\n")
        Path(table.path, "_delta_log", f"{version:020d}.crc").write_text("{}")
    assert (table.owner(), table.batches(), table.schema()) == (WRITER, (range(1),), COLUMNS)
    assert not add(table, 0)
    assert add(table, 1)
    assert table.optimize(1 << 20).merged == 1
    assert pages(table) == expected(0, 1)


# -- columns


def test_adds_a_new_column(table: DeltaLakeTable) -> None:
    add(table, 0)
    wider = COLUMNS.insert(1, pa.field("agent", pa.string()))
    assert add(table, 1, wider, agent="curl")
    assert add(table, 2)  # one that has not the new column
    assert table.schema().names == ["page", "ms", "batch", "agent"]
    found = table.dataset().to_table().sort_by("batch")
    assert found.column("agent").to_pylist() == [None] * 3 + ["curl"] * 3 + [None] * 3


def test_accepts_the_batch_once_when_another_writer_adds_the_column_first(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = COLUMNS.append(pa.field("agent", pa.string()))
    add(table, 0)
    compare = delta._new_columns

    def widen_between(*args: Any) -> Any:
        found = compare(*args)
        monkeypatch.setattr(delta, "_new_columns", compare)
        assert add(DeltaLakeTable(table.path), 1, wider, agent="wget")
        return found

    monkeypatch.setattr(delta, "_new_columns", widen_between)
    assert not add(table, 1, wider, agent="curl")
    assert set(table.dataset().to_table().column("agent").to_pylist()) == {None, "wget"}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("ms", pa.int64(), "is int, and the new rows have 'ms', bigint"), ("PAGE", pa.string(), "'page' .* have 'PAGE'")],
)
def test_refuses_a_column_of_another_type_or_case(
    table: DeltaLakeTable, name: str, kind: pa.DataType, message: str
) -> None:
    add(table, 0)
    changed = pa.schema([(name, kind), ("batch", pa.int64())])
    with pytest.raises(TableSchemaError, match=message):
        table.commit([], writer=WRITER, batch=1, schema=changed)
    assert table.batches() == (range(1),)


def test_takes_nested_columns_again_as_the_table_has_them(table: DeltaLakeTable) -> None:
    nested = pa.schema(
        [
            ("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("who", pa.struct([pa.field("id", pa.int64(), nullable=False)]), nullable=False),
            ("batch", pa.int64()),
        ]
    )
    assert table.commit([], writer=WRITER, batch=0, schema=nested)
    assert table.commit([], writer=WRITER, batch=1, schema=nested)
    assert table.commit([], writer=WRITER, batch=2, schema=table.schema())


def test_takes_times_without_a_zone(table: DeltaLakeTable) -> None:
    schema = COLUMNS.append(pa.field("at", pa.timestamp("us")))
    at = datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert add(table, 0, schema, at=at)
    assert add(table, 1, schema, at=at)
    assert table.dataset().to_table().column("at").to_pylist() == [at] * 6


# -- reading


def test_files_of_a_batch_come_in_the_order_of_their_messages(table: DeltaLakeTable) -> None:
    """Tasks finish in any order; rows that are read in order are not suspected to be there twice."""
    schema = COLUMNS.append(pa.field("partition", pa.int32())).append(pa.field("offset", pa.int64()))
    places = [(1, 40), (0, 70), (0, 5), (1, 0), (0, 300)]
    files = [
        write_file(table.path, 0, schema=schema, partition=partition, offset=offset) for partition, offset in places
    ]
    assert table.commit(files, writer=WRITER, batch=0, schema=schema)
    add(table, 1)
    found = [(file.minimums.get("partition"), file.minimums.get("offset")) for file in table.files()]
    assert found == [*sorted(places), (None, None)]


def test_file_without_statistics_may_have_any_batch(table: DeltaLakeTable) -> None:
    file = write_file(table.path, 0)
    bare = DataFile(file.path, file.size, file.rows, file.modified, {}, {}, {})
    table.commit([bare], writer=WRITER, batch=0, schema=COLUMNS)
    assert [each.path for each in table.files(after=7)] == [file.path]


# -- maintenance


def test_optimize_merges_small_files_of_many_batches_and_keeps_every_row(table: DeltaLakeTable) -> None:
    wider = COLUMNS.append(pa.field("agent", pa.string()))
    for batch in range(4):
        add(table, batch)
    add(table, 4, wider, agent="curl")
    result = table.optimize(1 << 20)
    assert (result.files_before, result.files_after, result.merged) == (5, 1, 1)
    assert pages(table) == expected(*range(5))
    (file,) = table.files()
    assert (file.minimums["batch"], file.maximums["batch"], file.rows) == (0, 4, 15)
    assert sorted(table.dataset(after=2, to=3).to_table().column("page").to_pylist()) == expected(3)
    assert table.batches() == (range(5),)
    assert not add(table, 4)
    assert table.optimize(1 << 20).merged == 0


def test_optimize_leaves_large_files_alone(table: DeltaLakeTable) -> None:
    for batch in range(4):
        add(table, batch)
    size = table.files()[0].size
    assert table.optimize(size).merged == 0
    assert table.optimize(2 * size + size // 2).merged == 2
    assert pages(table) == expected(*range(4))


def test_optimize_does_not_disturb_a_commit_and_is_repeated_after_it(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, 0)
    add(table, 1)
    find = delta._files

    def commit_between(*args: Any) -> list[DataFile]:
        found = find(*args)
        monkeypatch.setattr(delta, "_files", find)
        assert add(DeltaLakeTable(table.path), 2)
        return found

    swap = table._swap

    def swap_with_rival(*args: Any) -> bool:
        monkeypatch.setattr(delta, "_files", commit_between)
        return swap(*args)

    monkeypatch.setattr(table, "_swap", swap_with_rival)
    assert table.optimize(1 << 20).merged == 1
    assert pages(table) == expected(0, 1, 2)
    assert len(table.files()) == 2


def test_two_optimizations_at_once_keep_every_row_once(table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    add(table, 0)
    add(table, 1)
    find = delta._files
    rival = DeltaLakeTable(table.path)

    def merge_between(*args: Any) -> list[DataFile]:
        found = find(*args)
        monkeypatch.setattr(delta, "_files", find)
        assert rival.optimize(1 << 20).merged == 1
        return found

    swap = table._swap

    def swap_with_rival(*args: Any) -> bool:
        monkeypatch.setattr(delta, "_files", merge_between)
        return swap(*args)

    monkeypatch.setattr(table, "_swap", swap_with_rival)
    assert table.optimize(1 << 20).merged == 0
    assert pages(table) == expected(0, 1)
    assert len(list(Path(table.path).glob("*.parquet"))) == 3  # the unused one of the second is removed


def test_vacuum_keeps_an_orphan_that_is_younger_than_the_retention(table: DeltaLakeTable) -> None:
    add(table, 0)
    old, young = write_file(table.path, 8).path, write_file(table.path, 9).path
    os.utime(Path(table.path, old), (1, 1))
    assert table.vacuum(3600) == [old]
    assert Path(table.path, young).exists()


# -- errors


def test_missing_table_is_not_found(table: DeltaLakeTable) -> None:
    Path(table.path).mkdir()
    Path(table.path, "notes.txt").write_text("not a table")
    assert not table.exists
    for call in (table.schema, table.files, table.dataset, table.version, table.history):
        with pytest.raises(NotFoundError, match=f"table {table.path} does not exist"):
            call()


@pytest.mark.parametrize("content", [b"\0" * 64, b'{"add":', b"[1]"])
def test_damaged_log_is_one_sentence(table: DeltaLakeTable, content: bytes) -> None:
    add(table, 0)
    Path(table.path, "_delta_log", f"{table.version():020d}.json").write_bytes(content)
    with pytest.raises(TableCorruptError, match=r"^[^\n]*_delta_log is damaged \([^\n]*\): restore[^\n]*\.$"):
        table.files()


def test_missing_version_is_damage(table: DeltaLakeTable) -> None:
    add(table, 0)
    Path(table.path, "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(TableCorruptError, match=r"^[^\n]*_delta_log is damaged \([^\n]*\.$"):
        table.files()


def test_batch_whose_commit_was_lost_with_the_power_is_committed_again(table: DeltaLakeTable) -> None:
    add(table, 0)
    add(table, 1)
    Path(table.path, "_delta_log", f"{table.version():020d}.json").write_bytes(b"")
    assert table.batches() == (range(1),)
    assert add(table, 1)
    assert pages(table) == expected(0, 1)


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 9, "minWriterVersion": 9},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]},
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["x"]},
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
    ],
)
def test_protocol_of_a_newer_release_is_one_sentence(table: DeltaLakeTable, protocol: dict[str, Any]) -> None:
    add(table, 0)
    log = Path(table.path, "_delta_log", f"{table.version() + 1:020d}.json")
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(TableError, match=rf"^the table {table.path} [^\n]*support[^\n]*\.$"):
        add(table, 1)


class _FullDisk(SystemFiles):
    """Has no room for what is synced."""

    def sync_file(self, path: str | Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def replace(self, *args: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_one_sentence_and_the_batch_is_repeated(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, 0)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(
            "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to copy data to file\n"
            "  \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"
        )

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", fail)
        with pytest.raises(TableError, match=rf"table {table.path} cannot be .*: No space left on device\.$"):
            add(table, 1)
    assert add(table, 1)
    with pytest.raises(TableError, match="No space left on device"):
        add(DeltaLakeTable(table.path, files=_FullDisk()), 2)


class _Recorded(SystemFiles):
    """Remembers what was synced, and fails as a broken disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.broken: set[str] = set()
        self.rewritten: list[str] = []

    def sync_file(self, path: str | Path) -> None:
        if Path(path).name in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_file(path)
        self.synced.append(Path(path).name)

    def replace(self, path: str | Path, data: Any, **named: Any) -> None:
        super().replace(path, data, **named)
        self.rewritten.append(Path(path).name)


def test_syncs_what_killed_processes_committed_before_it_reports_a_batch(table: DeltaLakeTable) -> None:
    add(table, 0)
    add(table, 1)
    files = _Recorded()
    later = DeltaLakeTable(table.path, files=files)
    assert not add(later, 1)  # reported as there, so it must be durable
    assert files.synced == [f"{version:020d}.json" for version in range(table.version() + 1)]
    files.synced.clear()
    assert add(later, 2)
    assert files.synced == [f"{table.version():020d}.json"]


def test_commit_whose_sync_failed_is_written_again(table: DeltaLakeTable) -> None:
    files = _Recorded()
    table = DeltaLakeTable(table.path, files=files)
    add(table, 0)
    name = f"{table.version() + 1:020d}.json"
    files.broken.add(name)
    assert add(table, 1)
    assert files.rewritten == [name]
    assert pages(table) == expected(0, 1)


# -- where it is


@pytest.mark.parametrize("name", ["with space", "hash#mark", "ques?tion", "ünïcode", "a=b"])
def test_any_folder_name_holds_a_table(tmp_path: Path, name: str) -> None:
    table = open_lake_table(f"{tmp_path}/{name}/")
    assert add(table, 0)
    assert add(table, 1)
    assert table.optimize(1 << 20).merged == 1
    assert len(table.vacuum(0)) == 2
    assert pages(table) == expected(0, 1)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_path_that_would_be_decoded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TablePathError, match="would decode its %"):
        open_lake_table(f"{tmp_path}/a%20b")


def test_path_may_have_the_scheme_file(tmp_path: Path) -> None:
    table = open_lake_table(f"file://{tmp_path}/bronze")
    assert add(table, 0)
    assert pages(DeltaLakeTable(str(tmp_path / "bronze"))) == expected(0)


def test_unknown_format_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'orc' is not a table format"):
        open_lake_table(str(tmp_path), "orc")
