"""`reconcile` without Spark: what is lost, there twice or altered is named, and nothing of intact tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from consumerd.base.errors import NotFoundError
from consumerd.service.config.validation import table_of
from consumerd.spark.former_logs import FormerLog
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.land import land
from consumerd.spark.lake.reconcile import reconcile
from consumerd.spark.lake.reconcile_tasks import by_log
from consumerd.spark.lake.refine_step import refine
from consumerd.spark.lake.row_hash import content_hashes
from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.spec_model import RefineSpec
from consumerd.wire.v07 import Codec, encode_message_set
from tests.support.lake_tables import replace_files
from tests.unit.spark.lake.test_land import InlinePool

COUNT = 120


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineSpec:
    """Three partitions of plain and compressed sets, in which one message in eight cannot be parsed, in batches."""
    for step in ("land", "refine_step", "reconcile"):
        monkeypatch.setattr(f"consumerd.spark.lake.{step}.WorkerPool", InlinePool)
    rng = random.Random(7)
    for partition in range(3):
        sets = []
        for number in range(COUNT // 2):
            values = [b"no" if rng.random() < 1 / 8 else b'{"user": %d}' % rng.getrandbits(40) for _ in range(2)]
            sets.append(encode_message_set(values, codec=Codec.GZIP if number % 3 else Codec.NONE))
        folder = tmp_path / "logs" / f"t-{partition}"
        folder.mkdir(parents=True)
        (folder / f"{0:020}.kafka").write_bytes(b"".join(sets))
    refined = table_of(RefineSpec, {"parse": "json", "fields": {"user": {"type": "bigint not null"}}})
    source = {"path": str(tmp_path / "logs"), "broker": "0", "subscribe": "t", "maxBytesPerTrigger": "6000"}
    return PipelineSpec("p", str(tmp_path / "lake"), source, refine=refined, batches_per_trigger=1)


@pytest.fixture
def refined(pipeline: PipelineSpec) -> PipelineSpec:
    assert land(pipeline).batches > 1
    assert refine(pipeline).rows_quarantined
    return pipeline


def change(path: str, changed: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows in the place of all."""
    files = [each.path for each in open_lake_table(path).files()]
    rows = pa.concat_tables(pq.read_table(f"{path}/{file}", partitioning=None) for file in files)
    order = [(name, "ascending") for name in ("partition", "offset", "index")]
    replace_files(path, files, changed(rows.sort_by(order)))


def check(result: ReconcileResult, partition: int) -> PartitionCheck:
    return next(each for each in result.partitions if each.broker_partition == f"0-{partition}")


def row(rows: pa.Table, partition: int, number: int) -> int:
    """Where the message of that number is, of a partition in `rows`."""
    return int(pc.indices_nonzero(pc.equal(rows["partition"], partition))[number].as_py())


@pytest.mark.parametrize("shallow", [False, True])
def test_intact_tables_are_clean(refined: PipelineSpec, shallow: bool) -> None:
    result = reconcile(refined, shallow=shallow)
    assert result.is_clean
    assert (result.rows_landed, result.rows_refined + result.rows_quarantined) == (3 * COUNT, 3 * COUNT)
    for partition in range(3):
        found = check(result, partition)
        assert (found.expected, found.same_hash) == ((None, None) if shallow else (COUNT, True))


def test_what_was_not_landed_or_refined_yet_is_not_a_defect(pipeline: PipelineSpec) -> None:
    with pytest.raises(NotFoundError, match="run land first"):
        reconcile(pipeline)
    land(pipeline)
    result = reconcile(pipeline)
    assert (result.is_clean, result.rows_refined, result.partitions[0].pending) == (True, 0, 0)


@pytest.mark.parametrize("shallow", [False, True])
def test_lost_doubled_and_altered_rows_of_bronze_are_named(refined: PipelineSpec, shallow: bool) -> None:
    places: list[dict[str, Any]] = []

    def changed(rows: pa.Table) -> pa.Table:
        lost, twice, other = (row(rows, partition, number) for partition, number in ((0, 50), (1, 7), (2, 90)))
        places.extend(rows.slice(each, 1).to_pylist()[0] for each in (lost, twice, other))
        values = rows["value"].to_pylist()
        values[other] = b"!"
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
        left = [number for number in range(rows.num_rows) if number != lost]
        return rows.take([*left, twice])

    change(refined.bronze, changed)
    result = reconcile(refined, shallow=shallow)
    lost, twice, other = places
    gap = check(result, 0).gaps
    assert (gap.count, gap.first[0].start, gap.first[0].start_index) == (1, lost["offset"], lost["index"])
    assert check(result, 0).surplus.count == 1  # silver has what bronze lacks
    assert (check(result, 1).duplicates, check(result, 1).gaps.count, twice["partition"]) == (1, 0, 1)
    altered = check(result, 2).altered
    assert not check(result, 0).is_clean
    assert not check(result, 1).is_clean
    if shallow:
        assert check(result, 2).is_clean
        return
    assert [check(result, partition).missing for partition in range(3)] == [1, 0, 0]
    assert [check(result, partition).same_hash for partition in range(3)] == [False, False, False]
    assert [check(result, partition).altered.count for partition in range(3)] == [0, 0, 1]
    assert (altered.first[0].start, altered.first[0].start_index) == (other["offset"], other["index"])


def test_rows_that_silver_lacks_or_has_twice_are_named(refined: PipelineSpec) -> None:
    def changed(rows: pa.Table) -> pa.Table:
        lost, twice = row(rows, 0, 20), row(rows, 1, 20)
        return rows.take([*(number for number in range(rows.num_rows) if number != lost), twice])

    change(refined.silver, changed)
    result = reconcile(refined, shallow=True)
    kinds = [(check(result, each).unrefined.count, check(result, each).surplus.count) for each in range(3)]
    assert kinds == [(1, 0), (0, 1), (0, 0)]


def test_what_retention_took_is_proven_by_an_earlier_comparison_until_a_row_is_lost(refined: PipelineSpec) -> None:
    logs = Path(refined.source["path"])
    segment = logs / "t-0" / f"{0:020}.kafka"
    end = len(segment.read_bytes())
    lossy = replace(refined, source={**refined.source, "failOnDataLoss": "false"})
    assert reconcile(lossy).is_clean
    segment.rename(segment.with_name(f"{end:020}.kafka"))
    later = reconcile(lossy)
    assert (later.is_clean, check(later, 0).compared, check(later, 0).landed) == (True, 0, COUNT)
    change(refined.bronze, lambda rows: rows.filter(pc.not_equal(pa.array(range(rows.num_rows)), row(rows, 0, 3))))
    assert check(reconcile(lossy, shallow=True), 0).trimmed.count == 1


def test_hash_is_that_of_spark() -> None:
    rows = pa.record_batch(
        {
            "offset": pa.array([0, 1 << 40, 7, 8, 9], pa.int64()),
            "index": pa.array([0, 2, 0, 0, 1], pa.int32()),
            "value": pa.array([b"", b"a" * 100, None, b"abc", b"abc"], pa.binary()),
            "key": pa.array([None, None, b"k", b"", None], pa.binary()),
        }
    )
    assert content_hashes(rows, "topic", "0-1").view(pa.int64()).to_pylist() == HASHES
    parts = [content_hashes(rows.slice(at, 1), "topic", "0-1")[0] for at in range(rows.num_rows)]
    assert pa.array(parts).view(pa.int64()).to_pylist() == HASHES


#: `xxhash64(topic, broker_partition, offset, index, value, CASE WHEN key IS NOT NULL THEN true END, key)` of Spark 4.2.
HASHES = [-4236184192368106220, 8334358126292363842, -8696782294352417134, -8852328428887911126, 3053605915943769424]


def test_rows_have_the_name_of_the_log_that_they_were_landed_from() -> None:
    former = [
        FormerLog("events", "0", "f", 60, 100, 3),
        FormerLog("events", "0", "f", 40, 60, 3),
        FormerLog("events", "0", "f", 0, 120),
        FormerLog("events", "0", "n", 5, 9, 1),
    ]
    expected = {
        (None, None, 70): "0@f:3:100",
        (None, None, 50): "0@f:3:60",
        (None, None, 10): "0@f",
        ("f", 2, 10): "0@f",
        ("f", 2, 50): "0@f:3:60",
        ("f", 3, 99): "0@f:3:100",
        ("f", 4, 99): "0@f",
        ("f", 4, 50): "0@f",
        ("n", 0, 4): "0",
        ("n", 0, 5): "0@n:1:9",
        ("n", 1, 9): "0",
        ("n", 2, 7): "0",
        ("n", None, 7): "0@n:1:9",
    }
    kinds = {"topic_id": pa.string(), "leader_epoch": pa.int32(), "offset": pa.int64()}
    columns = zip(*expected, strict=True)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds.values(), strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, names=list(kinds))
    named = {
        tuple(place.values()): key[1]
        for key, held in by_log(former, ("events", "0"), rows)
        for place in held.to_pylist()
    }
    assert named == expected
    assert [key for key, _ in by_log(former, ("events", "1"), rows)] == [("events", "1")]
    (first,) = by_log(former[2:3], ("events", "0"), rows.select(["offset"]))
    assert first == (("events", "0@f"), rows.select(["offset"]))
