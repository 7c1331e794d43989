"""What the tasks of `land` write, and what they report of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.land_tasks import write_splits
from consumerd.spark.lake.tasks import FileTarget, landed_schema
from consumerd.spark.lake.worker import followed
from consumerd.spark.seen import OffsetStretch, SeenPartition
from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner
from consumerd.spark.source.request import ReadRequest
from consumerd.wire.v07 import Codec, encode_message_set

AT = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for partition, count in enumerate((30, 0, 7)):
        folder = tmp_path / "archive" / f"t-{partition}"
        folder.mkdir(parents=True)
        sets = [encode_message_set([b"%d" % number] * 3, codec=Codec(number % 3)) for number in range(count)]
        (folder / f"{0:020}.kafka").write_bytes(b"".join(sets))
    return tmp_path / "archive"


def landed(archive: Path, table: Path) -> list[DataFile]:
    """The files of one batch with everything, one task after the other."""
    options = read_options({"path": str(archive), "broker": "4", "subscribe": "t", "startingOffsets": "earliest"})
    source = StreamPlanner(options)
    constants: Mapping[str, Any] = {"landed_at": AT, "batch": 7}
    target = FileTarget(str(table), landed_schema(options), constants)
    files = []
    start = source.initial()
    for split in source.splits(start, source.latest(start)):
        yielded, found = followed(write_splits, ((split,), ReadRequest.of(options), target))
        file = pickle.loads(pickle.dumps(found))
        assert isinstance(file, DataFile)
        assert [sum(each) for each in zip(*yielded, strict=True)] == [split.end - split.start, file.rows]
        files.append(file)
    return files


def test_each_task_writes_one_file_with_all_columns_and_the_batch(archive: Path, tmp_path: Path) -> None:
    files = landed(archive, tmp_path / "bronze")
    assert [(each.rows, each.ascending) for each in files] == [(90, True), (21, True)]
    assert {each.path for each in files} == {path.name for path in (tmp_path / "bronze").iterdir()}
    for file, partition in zip(files, (0, 2), strict=True):
        end = (archive / f"t-{partition}" / f"{0:020}.kafka").stat().st_size
        assert file.stretches == (OffsetStretch(SeenPartition("t", 4, partition), 0, end),)
        assert (file.minimums["batch"], file.maximums["batch"]) == (7, 7)
        rows = pq.ParquetFile(tmp_path / "bronze" / file.path).read()
        names = [each.name for each in COLUMNS if each.name != "headers"]
        assert rows.column_names == [*names, "landed_at", "batch"]
        assert [rows[name].type for name in names] == [each.arrow for each in COLUMNS if each.name != "headers"]
        assert set(rows["landed_at"].to_pylist()) == {AT}


def test_repeated_batch_has_the_same_rows_in_other_files(archive: Path, tmp_path: Path) -> None:
    first, second = landed(archive, tmp_path / "bronze"), landed(archive, tmp_path / "bronze")
    assert {each.path for each in first}.isdisjoint(each.path for each in second)
    assert [(each.rows, each.stretches) for each in first] == [(each.rows, each.stretches) for each in second]
