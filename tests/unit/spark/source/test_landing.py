"""The stream of `spark land` without a session: what its tasks write, and what they tell the driver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from consumerd.base.errors import ConsumerdError
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.tasks import FOLDER_OPTION
from consumerd.spark.seen import OffsetStretch, SeenPartition
from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.datasource import StreamReader
from consumerd.spark.source.landing import LandingSource
from consumerd.wire.v07 import Codec, encode_message_set

ROW = StructType([StructField("file", StringType())])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for partition, count in enumerate((30, 0, 7)):
        folder = tmp_path / "archive" / f"t-{partition}"
        folder.mkdir(parents=True)
        sets = [encode_message_set([b"%d" % number] * 3, codec=Codec(number % 3)) for number in range(count)]
        (folder / f"{0:020}.kafka").write_bytes(b"".join(sets))
    return tmp_path / "archive"


def reader(archive: Path, table: Path, **options: str) -> StreamReader:
    given = {"path": str(archive), "broker": "4", "subscribe": "t", "startingOffsets": "earliest", **options}
    lowered = {name.lower(): value for name, value in given.items()}  # as Spark passes them
    return LandingSource({**lowered, FOLDER_OPTION: str(table)}).streamReader(ROW)


def landed(stream: StreamReader, batch: int) -> list[DataFile]:
    """The files of a batch with everything, one task after the other."""
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    found = []
    with mock.patch("consumerd.spark.source.landing.TaskContext.get") as context:
        context.return_value.getLocalProperty.side_effect = {"streaming.sql.batchId": str(batch)}.get
        for partition in stream.partitions(start, end):
            for rows in stream.read(partition):
                found += [DataFile.from_json(text) for text in rows.column("file").to_pylist()]
    return found


def test_each_task_writes_one_file_with_all_columns_and_the_batch(archive: Path, tmp_path: Path) -> None:
    began = datetime.now(UTC)
    files = landed(reader(archive, tmp_path / "bronze"), 7)
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
        (at,) = set(rows["landed_at"].to_pylist())
        assert began <= at <= datetime.now(UTC) + timedelta(seconds=1)


def test_repeated_batch_has_the_same_rows_in_other_files(archive: Path, tmp_path: Path) -> None:
    stream = reader(archive, tmp_path / "bronze")
    first, second = landed(stream, 0), landed(stream, 0)
    assert {each.path for each in first}.isdisjoint(each.path for each in second)
    assert [(each.rows, each.stretches) for each in first] == [(each.rows, each.stretches) for each in second]


def test_invalid_options_are_raised_by_the_first_call(archive: Path, tmp_path: Path) -> None:
    for options in ({"endingOffsets": "latest"}, {"nonsense": "1"}):
        with pytest.raises(ConsumerdError, match=next(iter(options))):
            reader(archive, tmp_path, **options).initialOffset()
