"""Every offset of a log has landed or is missing for a reported reason; otherwise the reconciliation is not clean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.report.page import partition_findings, report_verdict
from consumerd.spark.spec import GoneSpec, PipelineSpec
from consumerd.wire.compression import compress
from consumerd.wire.v07 import Codec, encode_message, encode_message_set
from tests.support.lake_tables import change_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An empty compressed message: a place in the log without a message.
EMPTY = encode_message(compress(Codec.GZIP, b""), codec=Codec.GZIP)
LOST = 200


def messages(first: int, count: int) -> bytes:
    return encode_message_set([b"message %08d" % number for number in range(first, first + count)])


def write(root: Path, offset: int, data: bytes, partition: int = 0) -> int:
    """One segment; the offset behind it."""
    folder = root / f"t-{partition}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{offset:020}.kafka").write_bytes(data)
    return offset + len(data)


def remove(root: Path, offset: int, partition: int = 0) -> None:
    (root / f"t-{partition}" / f"{offset:020}.kafka").unlink()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def pipeline(tmp_path: Path, logs: Path) -> PipelineSpec:
    return PipelineSpec("p", str(tmp_path / "lake"), {"path": str(logs), "broker": "0", "subscribe": "t"})


def lenient(pipeline: PipelineSpec, **options: str) -> PipelineSpec:
    return replace(pipeline, source={**pipeline.source, "failOnDataLoss": "false", **options})


def lose(spark: SparkSession, pipeline: PipelineSpec, logs: Path, *, head: bool) -> tuple[int, int]:
    """Land around 200 messages that are removed before they are landed; where these were."""
    first = write(logs, 0, messages(0, 100))
    assert land(spark, pipeline).rows == 100
    second = write(logs, first, messages(100, LOST))
    write(logs, second, messages(300, 100))
    remove(logs, first)
    if head:
        remove(logs, 0)  # retention that was faster
    assert land(spark, pipeline).rows == 100
    return first, second


# Losses at the head are reported every day below, where they are declared and no longer declared.
@pytest.mark.parametrize(
    "head", [False, pytest.param(True, marks=pytest.mark.long)], ids=["in the midst", "at the head"]
)
def test_messages_lost_before_landing_are_not_clean(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path, head: bool
) -> None:
    pipeline = lenient(pipeline)
    first, second = lose(spark, pipeline, logs, head=head)
    for shallow in (False, True):
        lossy = reconcile(spark, pipeline, shallow=shallow)
        (check,) = lossy.partitions
        assert not lossy.is_clean
        assert [str(each) for each in check.trimmed.first] == [f"[{first}, {second})"]
        assert (check.start, check.empty.count, check.landed) == (0, 0, 200)
        assert report_verdict(lossy).bad
        assert f"lost before they landed: [{first}, {second})" in partition_findings(check)[0].text


def test_reports_declared_losses_with_their_reason_and_others_as_lost(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path
) -> None:
    pipeline = lenient(pipeline)
    first, second = lose(spark, pipeline, logs, head=True)
    gone = GoneSpec(topic="t", partition="0-0", start=first, end=second, reason="a disk of May")
    declared = reconcile(spark, replace(pipeline, gone=(gone,)))
    (check,) = declared.partitions
    assert declared.is_clean
    assert (check.trimmed.count, [str(each) for each in check.declared.first]) == (0, [f"[{first}, {second})"])
    assert declared.as_json()["partitions"][0]["reasons"] == [f"[{first}, {second}): a disk of May"]
    assert "but for 1 stretch declared gone" in report_verdict(declared).text
    # A declaration of a part, or one that is withdrawn: what was proven meanwhile was proven with the declaration.
    half = gone.replace(end=second - 1)
    (check,) = reconcile(spark, replace(pipeline, gone=(half,)), shallow=True).partitions
    assert [str(each) for each in check.trimmed.first] == [f"[{second - 1}, {second})"]
    assert not reconcile(spark, pipeline, shallow=True).is_clean


def test_requested_offsets_deleted_before_the_first_batch_are_lost(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path
) -> None:
    first = write(logs, 0, messages(0, LOST))
    write(logs, first, messages(LOST, 50))
    remove(logs, 0)
    pipeline = lenient(pipeline, startingOffsets='{"t": {"0-0": 0}}')
    assert land(spark, pipeline).rows == 50
    (check,) = reconcile(spark, pipeline).partitions
    assert ([str(each) for each in check.trimmed.first], check.is_clean) == ([f"[0, {first})"], False)


def test_remembers_empty_offsets_after_retention_without_hiding_lost_rows(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path
) -> None:
    head = messages(0, 10) + EMPTY + messages(10, 10)
    first = write(logs, 0, head)
    write(logs, first, messages(20, 20))
    land(spark, pipeline)
    (check,) = reconcile(spark, pipeline).partitions
    assert (check.is_clean, check.empty.count) == (True, 1)
    remove(logs, 0)
    for shallow in (False, True):
        (later,) = reconcile(spark, pipeline, shallow=shallow).partitions
        assert (later.is_clean, later.empty) == (True, check.empty)

    change_batch(spark, pipeline.bronze, lambda rows: rows.where("offset > 0"))
    for shallow in (False, True):
        (wrong,) = reconcile(spark, pipeline, shallow=shallow).partitions
        assert not wrong.is_clean
        assert wrong.gaps.first[0].start == 0


def test_reports_malformed_bytes_that_the_pipeline_drops(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path
) -> None:
    good, bad = messages(0, 20), bytearray(messages(20, 1))
    bad[-1] ^= 0xFF  # so that its CRC is wrong
    write(logs, 0, good + bytes(bad) + messages(21, 20))
    pipeline = replace(pipeline, source={**pipeline.source, "mode": "dropmalformed"})
    assert land(spark, pipeline).rows == 40
    for shallow in (False, True):
        (check,) = reconcile(spark, pipeline, shallow=shallow).partitions
        assert check.is_clean
        assert [str(each) for each in check.dropped.first] == [f"[{len(good)}, {len(good) + len(bad)})"]
        assert check.empty.count == 0


def test_expects_a_later_partition_from_its_first_known_offset(
    spark: SparkSession, pipeline: PipelineSpec, logs: Path
) -> None:
    write(logs, 0, messages(0, 20))
    land(spark, pipeline)
    first = write(logs, 0, messages(0, 20), partition=1)
    write(logs, first, messages(20, 20), partition=1)
    land(spark, pipeline)
    # Its first messages are lost in bronze, and retention has deleted them since.
    remove(logs, 0, partition=1)
    # The first batch with the new partition says where it begins, the next one has its messages.
    change_batch(spark, pipeline.bronze, lambda rows: rows.where(f"partition = 0 OR offset >= {first}"), batch=2)
    result = reconcile(spark, pipeline)
    assert [(each.start, each.is_clean) for each in result.partitions] == [(0, True), (0, False)]
    assert [str(each) for each in result.partitions[1].gaps.first] == [f"[0, {first})"]
