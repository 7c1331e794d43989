"""The files that a task of `refine` writes, and what their ranges say about duplicates."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.service.config.validation import table_of
from consumerd.spark.lake.decode import MessageFormat
from consumerd.spark.lake.refine import RefineTarget, may_repeat, refine_rows
from consumerd.spark.seen import OffsetStretch, SeenOffsets, SeenPartition
from consumerd.spark.spec_model import RefineSpec

NOW = datetime(2026, 1, 2, tzinfo=UTC)
#: Bronze of a release that had neither topic ids nor leader epochs.
BRONZE = pa.schema(
    [
        ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("broker", pa.int32()), ("broker_partition", pa.string()), ("index", pa.int32()), ("next_offset", pa.int64()),
        ("crc_ok", pa.bool_()), ("_corrupt", pa.string()), ("landed_at", pa.timestamp("us", "UTC")),
        ("batch", pa.int64()),
    ]
)  # fmt: skip


def rows_of(target: RefineTarget, *given: tuple[int, int, bytes], partition: int = 0) -> pa.RecordBatch:
    """Rows with these offsets, indices and values, as bronze has them."""
    made = [
        {"value": value, "topic": "t", "partition": partition, "offset": offset, "index": index,
         "broker_partition": "0", "next_offset": offset + 1, "crc_ok": True, "landed_at": NOW, "batch": 3}
        for offset, index, value in given
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(made, schema=target.bronze)


@pytest.fixture
def target(tmp_path: Path) -> RefineTarget:
    messages = MessageFormat.of(table_of(RefineSpec, {"fields": {"id": "int not null", "tags": "array<string>"}}))
    made = RefineTarget.of(messages, BRONZE, (str(tmp_path / "silver"), str(tmp_path / "quarantine")), "UTC")
    assert pickle.loads(pickle.dumps(made)) == made
    return made


def test_writes_each_row_to_one_of_two_files(target: RefineTarget, tmp_path: Path) -> None:
    first = rows_of(target, (0, 0, b'{"id":1,"tags":["a"]}'), (1, 0, b"{}"))
    second = rows_of(target, (2, 0, b'{"id":2}'), (3, 0, b"{"))
    (found,) = refine_rows([first, second], target, 7, NOW)
    assert pickle.loads(pickle.dumps(found)) == found
    assert (found.ascending, found.stretches) == (True, (OffsetStretch(SeenPartition("t", None, 0), 0, 4),))
    assert found.reasons == {"id is missing": 1, "the message is not a JSON object": 1}
    assert found.silver is not None
    assert found.quarantine is not None
    silver = pq.read_table(tmp_path / "silver" / found.silver.path).to_pylist()
    assert [(row["offset"], row["id"], row["tags"], row["batch"]) for row in silver] == [
        (0, 1, ["a"], 7),
        (2, 2, None, 7),
    ]
    quarantine = pq.read_table(tmp_path / "quarantine" / found.quarantine.path).to_pylist()
    assert [(row["offset"], row["value"], row["reason"], row["batch"]) for row in quarantine] == [
        (1, b"{}", "id is missing", 7), (3, b"{", "the message is not a JSON object", 7),
    ]  # fmt: skip
    assert {row["refined_at"] for row in quarantine} == {NOW}
    assert {row["topic_id"] for row in silver + quarantine} == {None}


def test_writes_no_file_without_rows_for_it(target: RefineTarget, tmp_path: Path) -> None:
    (found,) = refine_rows([rows_of(target, (0, 0, b"{}"))], target, 0, NOW)
    assert found.silver is None
    assert refine_rows([], target, 0, NOW)[0].stretches == ()
    assert not list(tmp_path.glob("silver/*"))


@pytest.mark.parametrize(
    ("batches", "earlier", "expected"),
    [
        ([[(0, 0), (1, 0)], [(2, 0)]], [], False),
        ([[(0, 0), (0, 1)], [(1, 0)]], [], False),  # of one compressed message
        ([[(1, 0)], [(0, 0)]], [], False),
        ([[(0, 0), (0, 0)]], [], True),
        ([[(1, 0), (0, 0)]], [], True),
        ([[(0, 0), (5, 0)], [(3, 0)]], [], True),
        ([[(0, 0)], [(1, 0)]], [(1, 2)], True),
        ([[(0, 0)], [(5, 0)]], [(1, 5)], False),
    ],
)
def test_knows_by_ranges_whether_an_identity_may_be_there_twice(
    target: RefineTarget, batches: list[list[tuple[int, int]]], earlier: list[tuple[int, int]], expected: bool
) -> None:
    found: list[Any] = [
        refine_rows([rows_of(target, *((offset, index, b"{}") for offset, index in each))], target, 0, NOW)[0]
        for each in batches
    ]
    seen = SeenOffsets({SeenPartition("t", None, 0): earlier})
    assert may_repeat(found, seen) is expected
    other = refine_rows([rows_of(target, (0, 0, b"{}"), partition=1)], target, 0, NOW)
    assert may_repeat(other, seen) is False
