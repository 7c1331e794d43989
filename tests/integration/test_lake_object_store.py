"""Lake tables in an object store: moto's server of S3, which has its conditional puts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext, load_handler
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.tables.errors import TableError
from consumerd.testing import FakeClock
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.support.s3 import object_store

HERE = TopicPartition("t", 0, 0)
COLUMNS = pa.schema([("page", pa.string()), ("batch", pa.int64())])


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Storage options of a store with the bucket `lake`."""
    with object_store("lake") as found:
        yield found | {"aws_allow_http": "true"}


def written(table: Any, batch: int, options: dict[str, str] | None = None) -> DataFile:
    with DataFileWriter(table.path, COLUMNS, storage_options=options) as writer:
        writer.write(pa.record_batch([pa.array([f"p{batch}"]), pa.array([batch])], schema=COLUMNS))
        file = writer.close()
    assert file is not None
    return file


def commit(table: Any, batch: int, *files: DataFile) -> bool:
    done = table.commit(files, writer="c0ffee", batch=batch, schema=COLUMNS)
    assert isinstance(done, bool)
    return done


def add(table: Any, batch: int, options: dict[str, str] | None = None) -> bool:
    return commit(table, batch, written(table, batch, options))


def pages(table: Any) -> list[str]:
    return sorted(table.dataset().to_table().column("page").to_pylist())


def test_table_is_written_merged_and_vacuumed_with_options_of_the_environment(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)
    table = open_lake_table("s3://lake/environment/bronze")
    assert [add(table, batch) for batch in (0, 1, 1)] == [True, True, False]
    assert table.optimize(1 << 20).merged == 1
    assert len(table.vacuum(0)) == 3  # the two that were merged, and the one that was not committed
    assert (table.batches(), pages(table)) == ((range(2),), ["p0", "p1"])


def test_the_store_refuses_the_second_of_two_commits_on_one_version(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rival = (open_lake_table("s3://lake/stale/bronze", storage_options=options) for _ in range(2))
    add(table, 0, options)
    compare = DeltaLakeTable._last_batch

    def commit_between(*args: Any) -> int | None:
        last = compare(*args)
        monkeypatch.setattr(DeltaLakeTable, "_last_batch", compare)
        assert add(rival, 1, options)
        return last

    monkeypatch.setattr(DeltaLakeTable, "_last_batch", commit_between)
    assert not add(table, 1, options)
    assert pages(table) == ["p0", "p1"]


def test_two_writers_that_race_add_each_batch_once(options: dict[str, str]) -> None:
    start = threading.Barrier(2)
    done: list[bool] = []

    def write() -> None:
        table = open_lake_table("s3://lake/race/bronze", storage_options=options)
        start.wait()
        done.extend(add(table, batch, options) for batch in range(3))

    racing = [threading.Thread(target=write) for _ in range(2)]
    for each in racing:
        each.start()
    for each in racing:
        each.join()
    assert sorted(done) == [False] * 3 + [True] * 3
    assert pages(open_lake_table("s3://lake/race/bronze", storage_options=options)) == ["p0", "p1", "p2"]


async def test_members_of_a_group_that_race_append_each_message_once(options: dict[str, str]) -> None:
    settings = {"directory": "s3://lake/group/bronze", "commit_interval": 0, "storage_options": options}
    members = [load_handler("delta", settings) for _ in range(2)]
    for member in members:
        await member.start(HandlerContext("g", "g_1", FakeClock(auto=True)))
        assert await member.position(HERE) is None
    data = encode_message_set([b"a", b"b", b"c"])
    await asyncio.gather(*(member.handle(Batch(HERE, decode_batch(data, 0))) for member in members))
    assert [await member.position(HERE) for member in members] == [len(data)] * 2
    table = open_lake_table("s3://lake/group/bronze", storage_options=options)
    assert table.dataset().to_table().column("value").to_pylist() == [b"a", b"b", b"c"]
    assert table.vacuum(0) == []


def test_files_of_a_rebuild_are_copied_and_replace_the_others_once(options: dict[str, str]) -> None:
    old, new = (
        open_lake_table(f"s3://lake/{name}/silver", storage_options=options) for name in ("clicks", "clicks-again")
    )
    add(old, 0, options)
    for batch in range(2):
        add(new, batch, options)
    folder = open_folder(old.path, options)
    folder.create(new.files()[0].path).close()  # by a copy that failed
    for file in new.files() * 2:  # also after a kill
        folder.take(new.path, file.path)
    for is_new in (True, False):
        found = old.replace(new.files(), writer="c0ffee", batch=1, schema=COLUMNS, rebuild="a")
        assert found == is_new
    assert old.was_rebuilt("a")
    assert (old.batches(), pages(old)) == ((range(2),), ["p0", "p1"])


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_no_commit_names_a_file_that_vacuum_removed(options: dict[str, str], tmp_path: Path, form: str) -> None:
    """Its clock is ahead by more than it keeps files, which `keep_seconds = 0` stands for."""
    catalog = {}
    if form == "iceberg":
        pytest.importorskip("pyiceberg")
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    table, other = (
        open_lake_table(f"s3://lake/clock-{form}/bronze", form, storage_options={**options, **catalog})
        for _ in range(2)
    )
    add(table, 0, options)
    files = [written(table, 1, options) for _ in range(20)]  # more than one thread asks for
    removed = files[13]
    open_folder(table.path, options).remove(removed.path)
    gone = rf"^{table.path}/{removed.path} was removed before it was committed: "
    with pytest.raises(TableError, match=gone):
        commit(table, 1, *files)
    assert sorted(other.vacuum(0)) == sorted(file.path for file in files if file != removed)
    with pytest.raises(TableError, match=rf"/{files[0].path} was removed before it was committed"):
        commit(table, 1, *files)
    assert (other.batches(), pages(other)) == ((range(1),), ["p0"])
    assert add(table, 1, options)
    assert pages(other) == ["p0", "p1"]


def test_store_that_refuses_the_key_is_one_sentence(options: dict[str, str]) -> None:
    table = open_lake_table("s3://missing/bronze", storage_options=options)
    with pytest.raises(TableError, match=r"^the table s3://missing/bronze cannot be read or written: [^\n]*\.$"):
        table.commit([], writer="c0ffee", batch=0, schema=COLUMNS)
