"""The stream over a table, without a session: the offsets that it returns, and the rows that are read."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake import parts as table_parts
from consumerd.spark.lake.batch_files import BatchFile, LakeFiles
from consumerd.spark.lake.data_file import DataFileWriter, describe
from consumerd.spark.lake.parts import TablePart, grouped
from consumerd.spark.tables.batch_stream import BatchStreamReader, TableStream
from consumerd.spark.tables.errors import TableCorruptError, TableError

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("at", TimestampType()),
        StructField("later", StringType()),
        StructField("batch", LongType()),
    ]
)
NOON = datetime(2011, 1, 14, 12, tzinfo=UTC)


#: The column `later` is in no file.
COLUMNS = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", tz="UTC")), ("batch", pa.int64())])


def write(table: Path, batch: int, numbers: list[int], *, group: int = 1000) -> Path:
    """A batch in one file as Spark writes it by default, and as converted tables have them: timestamps as INT96."""
    table.mkdir(parents=True, exist_ok=True)
    rows = [{"id": each, "at": NOON, "batch": batch} for each in numbers]
    path = table / f"part-{batch}.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows, COLUMNS), path, row_group_size=group, use_deprecated_int96_timestamps=True
    )
    file = describe(path.name, pq.read_metadata(path), size=path.stat().st_size, modified=0)
    assert open_lake_table(str(table)).commit([file], writer="w", batch=batch, schema=COLUMNS)
    return path


def reader_of(table: Path, limit: int | None = None) -> BatchStreamReader:
    options = {"path": str(table), "tableFormat": "delta"} | (
        {} if limit is None else {"batchesPerTrigger": str(limit)}
    )
    return TableStream(options).streamReader(SCHEMA)


def ids(reader: BatchStreamReader, after: int, to: int) -> list[int]:
    found: list[int] = []
    for parts in reader.partitions({"batch": after}, {"batch": to}):
        for rows in reader.read(parts):
            assert rows.schema.names == ["id", "at", "later", "batch"]
            assert set(rows.column("later").to_pylist()) == {None}
            assert set(rows.column("at").to_pylist()) == {NOON}
            found += rows.column("id").to_pylist()
    return sorted(found)


def test_assigns_batches_by_number(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 2)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    for batch in range(5):
        write(tmp_path, batch, [batch])
    assert reader.getDefaultReadLimit() == ReadMaxFiles(2)
    assert reader_of(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    assert reader.latestOffset(start, ReadMaxFiles(2)) == {"batch": 1}
    assert reader.latestOffset({"batch": 3}, ReadMaxFiles(2)) == {"batch": 4}
    assert reader.reportLatestOffset() == {"batch": 4}
    reader.prepareForTriggerAvailableNow()
    write(tmp_path, 5, [5])
    assert reader.latestOffset({"batch": 0}, ReadAllAvailable()) == {"batch": 4}
    assert reader.latestOffset({"batch": 4}, ReadAllAvailable()) == {"batch": 4}
    assert ids(reader, 1, 3) == [2, 3]
    assert reader.partitions({"batch": 4}, {"batch": 4}) == []


def test_reads_a_merged_file_by_batch_number(tmp_path: Path) -> None:
    batches = {batch: [batch * 10 + n for n in range(10)] for batch in range(6)}
    for batch in range(4):
        write(tmp_path, batch, batches[batch], group=7)
    assert open_lake_table(str(tmp_path)).optimize(1 << 20).merged == 1
    for batch in range(4, 6):
        write(tmp_path, batch, batches[batch])
    reader = reader_of(tmp_path)
    for after in range(-1, 6):
        for to in range(after, 6):
            expected = [each for batch in range(after + 1, to + 1) for each in batches[batch]]
            assert ids(reader, after, to) == expected


def test_shares_of_a_large_file_cover_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = write(tmp_path, 0, list(range(1000)), group=64).stat().st_size
    monkeypatch.setattr(table_parts, "TASK_BYTES", size // 5)
    reader = reader_of(tmp_path)
    assert len(reader.partitions({"batch": -1}, {"batch": 0})) == 5
    assert ids(reader, -1, 0) == list(range(1000))


def test_holds_few_rows_at_a_time(tmp_path: Path) -> None:
    rng = random.Random(3)
    values = [rng.randbytes(200_000) for _ in range(100)]
    table = pa.table({"value": pa.array(values, pa.binary()), "batch": pa.array([0] * 100, pa.int64())})
    pq.write_table(table, tmp_path / "part-0.parquet")
    schema = StructType([StructField("value", BinaryType()), StructField("batch", LongType())])
    reader = TableStream({"path": str(tmp_path), "tableFormat": "delta"}).streamReader(schema)
    sizes = [rows.nbytes for rows in reader.read(part_of(tmp_path, "part-0.parquet"))]
    assert max(sizes) < 5 << 20
    assert sum(sizes) > 20_000_000


def part_of(table: Path, name: str) -> InputPartition:
    """A file as a partition of its own."""
    return InputPartition((TablePart(LakeFiles(str(table), "delta"), BatchFile(name, 0, 0, 0)),))


def test_small_files_share_a_task() -> None:
    files, sizes = LakeFiles("", "delta"), [10, 20, 80, 100, 5, 5, 200]
    parts = [TablePart(files, BatchFile(str(n), size, 0, 0)) for n, size in enumerate(sizes)]
    found = [
        [int(each.file.path) for each in together if isinstance(each, TablePart)] for together in grouped(parts, 100)
    ]
    assert found == [[0, 1], [2], [3], [4, 5], [6]]
    assert grouped([], 100) == []


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [(None, TableError, "was deleted"), (b"PAR1 and no more", TableCorruptError, "is not a valid Parquet file")],
)
def test_names_an_unreadable_file(tmp_path: Path, content: bytes | None, error: type[Exception], sentence: str) -> None:
    path = tmp_path / "part-0.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=f"^{path.name} {sentence}"):
        list(reader_of(tmp_path).read(part_of(tmp_path, path.name)))


def test_reports_a_column_of_another_type(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(["x"]), "batch": pa.array([0], pa.int64())})
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(TableCorruptError, match="column id does not match the table's declaration"):
        list(reader_of(tmp_path).read(part_of(tmp_path, "f.parquet")))


NUMBERS = pa.schema([("id", pa.int64()), ("batch", pa.int64())])


def commit(path: Path, batch: int, numbers: list[int]) -> None:
    with DataFileWriter(str(path), NUMBERS) as writer:
        writer.write(pa.RecordBatch.from_pylist([{"id": each, "batch": batch} for each in numbers], schema=NUMBERS))
        file = writer.close()
    assert open_lake_table(str(path)).commit([file] if file else [], writer="w", batch=batch, schema=NUMBERS)


def lake_ids(reader: BatchStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        each
        for parts in reader.partitions(start, end)
        for rows in reader.read(parts)
        for each in rows.column("id").to_pylist()
    ]


def test_reads_the_files_that_a_table_names_by_batch(tmp_path: Path) -> None:
    schema = StructType([StructField("id", LongType()), StructField("batch", LongType())])
    reader = TableStream({"path": str(tmp_path), "tableFormat": "delta"}).streamReader(schema)
    for batch, numbers in enumerate(([1, 2], [], [3], [4])):
        commit(tmp_path, batch, numbers)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"batch": 3}
    assert reader.latestOffset(reader.initialOffset(), ReadMaxFiles(2)) == {"batch": 1}
    assert lake_ids(reader, {"batch": -1}, {"batch": 2}) == [1, 2, 3]
    open_lake_table(str(tmp_path)).optimize(1 << 20)
    assert lake_ids(reader, {"batch": 0}, {"batch": 2}) == [3]
    assert lake_ids(reader, {"batch": -1}, {"batch": 3}) == [1, 2, 3, 4]
    assert reader.partitions({"batch": 3}, {"batch": 3}) == []


def test_continues_at_an_offset_of_deltas_own_stream(tmp_path: Path) -> None:
    files = LakeFiles(str(tmp_path), "delta", {})
    versions = {}
    for batch in range(3):
        commit(tmp_path, batch, [batch])
        versions[batch] = open_lake_table(str(tmp_path)).version()

    def reached(version: int, index: int = -1) -> int:
        return files.reached({"reservoirVersion": version, "index": index, "isStartingVersion": False})

    assert [reached(versions[batch]) for batch in range(3)] == [-1, 0, 1]
    assert (reached(0), reached(versions[2] + 1), files.reached({"batch": 7})) == (-1, 2, 7)
    with pytest.raises(TableError, match="an earlier release stopped within version"):
        reached(versions[1], index=0)
