"""Data files: what is said of one agrees with its rows, and what fails leaves nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.spark.lake import data_file
from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.reading import read_file
from consumerd.spark.seen import OffsetStretch, SeenPartition

MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("offset", pa.int64()),
        ("index", pa.int32()),
        ("next_offset", pa.int64()),
    ]
)
VALUES = pa.schema(
    [
        ("number", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("flag", pa.bool_()),
        ("value", pa.binary()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)


def written(folder: Path, schema: pa.Schema, *batches: list[dict[str, Any]]) -> DataFile | None:
    with DataFileWriter(str(folder), schema) as writer:
        for rows in batches:
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        return writer.close()


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


sources = st.tuples(
    st.sampled_from(["a", "b"]), st.none() | st.just(0), st.integers(0, 1), st.none() | st.sampled_from(["x", "y"])
)
places = st.tuples(st.integers(0, 20), st.integers(0, 2), st.none() | st.integers(0, 30))


@given(st.lists(st.lists(st.tuples(sources, places), max_size=6), max_size=4), st.sampled_from([0, 64]), st.booleans())
def test_ranges_of_identities_match_the_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[Any, Any]]], runs: int, in_order: bool
) -> None:
    if in_order:
        batches = [sorted(batch, key=lambda row: row[1][:2]) for batch in batches]
    rows = [dict(zip(MESSAGES.names, (*source, *place), strict=True)) for batch in batches for source, place in batch]
    each = iter(rows)
    folder = tmp_path_factory.mktemp("t")
    with mock.patch.object(data_file, "_MAX_RUNS", runs), mock.patch.object(data_file, "GROUP_BYTES", 100):
        found = written(folder, MESSAGES, *([next(each) for _ in batch] for batch in batches))
    if found is None:
        assert not rows
        assert not files(folder)
        return
    ranges: dict[SeenPartition, list[int]] = {}
    last: dict[SeenPartition, tuple[int, int]] = {}
    ascending = True
    for row in rows:
        source = SeenPartition(row["topic"], row["broker"], row["partition"], row["topic_id"])
        ends = ranges.setdefault(source, [row["offset"], 0])
        ends[:] = min(ends[0], row["offset"]), max(ends[1], row["offset"] + 1, row["next_offset"] or 0)
        ascending &= last.get(source, (-1, 0)) < (row["offset"], row["index"])
        last[source] = row["offset"], row["index"]
    assert set(found.stretches) == {OffsetStretch(source, *ends) for source, ends in ranges.items()}
    assert len(found.stretches) == len(ranges)
    assert found.ascending == ascending
    assert found.rows == len(rows) == pq.ParquetFile(folder / found.path).metadata.num_rows
    assert DataFile.from_json(found.to_json()) == found
    stored = pq.read_table(folder / found.path)
    assert stored.to_pylist() == rows
    assert stored.schema.types == MESSAGES.types  # as readers see them, however they were written
    for name in ("topic", "topic_id"):
        texts = [row[name] for row in rows if row[name] is not None]
        bounds = found.minimums.get(name), found.maximums.get(name), found.nulls[name]
        assert bounds == (min(texts, default=None), max(texts, default=None), len(rows) - len(texts))


moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
values = st.fixed_dictionaries(
    {},
    optional={
        "number": st.integers(-(2**63), 2**63 - 1),
        "real": st.floats(),
        "text": st.text(max_size=40) | st.text(st.sampled_from("aé\U0010ffff"), min_size=30, max_size=36),
        "day": st.dates(),
        "at": moments.map(lambda moment: moment.replace(tzinfo=UTC)),
        "wall": moments,
        "flag": st.booleans(),
        "value": st.binary(max_size=3),
        "tags": st.lists(st.text(max_size=2), max_size=2),
    },
)


def parsed(name: str, bound: Any) -> Any:
    match name:
        case "day":
            return date.fromisoformat(bound)
        case "at":
            assert bound.endswith("Z")
            return datetime.fromisoformat(bound)
        case "wall":
            return datetime.fromisoformat(bound)
    return bound


@given(st.lists(st.lists(values, max_size=4), max_size=3))
def test_bounds_hold_all_values_and_nulls_are_counted(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[dict[str, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    with mock.patch.object(data_file, "GROUP_BYTES", 1):  # a row group for each batch
        found = written(folder, VALUES, *batches)
    rows = [row for batch in batches for row in batch]
    if found is None:
        assert not rows
        return
    again = json.loads(found.to_json())
    assert found.nulls == {name: sum(row.get(name) is None for row in rows) for name in VALUES.names if name != "tags"}
    assert not found.stretches
    assert not found.ascending
    exact = {
        "number": 0,
        "real": 0,
        "day": timedelta(),
        "at": timedelta(milliseconds=1),
        "wall": timedelta(milliseconds=1),
    }
    for name, allowance in exact.items():
        present = [row[name] for row in rows if row.get(name) is not None]
        if not present or (name == "real" and not all(map(math.isfinite, present))):
            assert name not in found.minimums.keys() & found.maximums.keys()
        else:
            low, high = parsed(name, again["minimums"][name]), parsed(name, again["maximums"][name])
            assert low <= min(present) <= low + allowance
            assert high - allowance <= max(present) <= high
    texts = [row["text"] for row in rows if row.get("text") is not None]
    assert not texts or found.minimums["text"] <= min(texts)
    assert "text" not in found.maximums or found.maximums["text"] >= max(texts)
    assert not {"flag", "value", "tags"} & {*found.minimums, *found.maximums}
    kept = pq.ParquetFile(folder / found.path)
    assert kept.read(columns=["number", "text", "tags"]).to_pylist() == [
        {name: row.get(name) for name in ("number", "text", "tags")} for row in rows
    ]


def test_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    rows = [{"number": number, "value": bytes(1000)} for number in range(100)]
    with mock.patch.object(data_file, "GROUP_BYTES", 20_000):
        found = written(tmp_path, VALUES, *(rows[at : at + 10] for at in range(0, 100, 10)))
    assert found is not None
    metadata = pq.ParquetFile(tmp_path / found.path).metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sizes == [20] * 5
    assert found.size == (tmp_path / found.path).stat().st_size
    assert (found.minimums["number"], found.maximums["number"]) == (0, 99)
    encodings = {
        metadata.row_group(0).column(at).path_in_schema: metadata.row_group(0).column(at).encodings
        for at in range(metadata.num_columns)
    }
    assert not any("DICTIONARY" in each for each in encodings["value"])
    assert any("DICTIONARY" in each for each in encodings["text"])


def test_offsets_are_stored_as_differences_with_their_bounds(tmp_path: Path) -> None:
    offsets = [at * 137 for at in range(10_000)]
    rows = [{"topic": "t", "partition": 0, "offset": at, "next_offset": at + 137} for at in offsets]
    found = written(tmp_path, MESSAGES, rows)
    assert found is not None
    assert found.size < 4 * len(rows)  # two columns of 8 bytes
    assert (found.minimums["offset"], found.maximums["next_offset"]) == (0, offsets[-1] + 137)
    assert pq.read_table(tmp_path / found.path)["offset"].to_pylist() == offsets
    texts = pa.schema([("offset", pa.string())])  # a column of the user's own
    assert written(tmp_path, texts, [{"offset": "x"}]) is not None


def test_failed_writer_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    batch = pa.RecordBatch.from_pylist([{"number": 1}], schema=VALUES)
    with mock.patch.object(data_file, "GROUP_BYTES", 1), DataFileWriter(str(folder), VALUES) as writer:
        writer.write(batch)
        assert files(folder)
        with pytest.raises(ValueError, match="the rows have columns"):
            writer.write(pa.RecordBatch.from_pylist([{"other": 1}]))
    assert not files(folder)


def test_file_that_cannot_be_synced_is_removed(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([{"number": 1}], schema=VALUES)
    with DataFileWriter(str(tmp_path), VALUES) as writer:
        writer.write(batch)
        with (
            mock.patch.object(writer._folder._files.system, "sync", side_effect=OSError(5, "EIO")),  # type: ignore[attr-defined]
            pytest.raises(OSError, match="EIO") as raised,
        ):
            writer.close()
    assert raised.value.filename
    assert not files(tmp_path)


def test_damaged_description_is_refused() -> None:
    for text in ("", "null", "{}", '{"stretches": [1]}', '{"stretches": [], "path": 1}'):
        with pytest.raises(ValueError):
            DataFile.from_json(text)


def test_tasks_import_no_more_than_they_need() -> None:
    code = (
        "import sys, consumerd.spark.lake.land_tasks, consumerd.spark.lake.refine_tasks;"
        "sys.exit(len({'pyspark', 'pydantic', 'structlog'} & sys.modules.keys()))"  # executors have no pydantic
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_columns_of_one_value_are_read_from_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "e" * 5000  # without statistics
    columns: dict[str, list[object]] = {
        "topic": ["t", "t", "t"],
        "offset": [1, 2, 3],
        "index": [0, 0, 0],
        "crc_ok": [True, True, True],
        "text": ["a", "a", None],
        "long": [long, long, long],
        "empty": ["", "", ""],
        "zero": [0.0, -0.0, 0.0],
    }
    written = pa.table(columns)
    pq.write_table(written, tmp_path / "f.parquet")
    decoded: list[list[str]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def spied(file: Any, *, columns: list[str], **options: Any) -> Any:
        decoded.append(columns)
        return iter_batches(file, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    folder = open_folder(str(tmp_path), None)
    assert pa.Table.from_batches(read_file(folder, "f.parquet", written.schema)).equals(written)
    assert decoded == [["offset", "text", "long", "zero"]]
    constant = written.select(["topic", "crc_ok"])
    assert pa.Table.from_batches(read_file(folder, "f.parquet", constant.schema)).equals(constant)
