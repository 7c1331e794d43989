"""Checkpoints written without Spark have the bytes that Spark writes, and repeat what a crash interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.spark.checkpoints import CheckpointError
from consumerd.spark.lake.checkpoint import KEPT_BATCHES, CheckpointTakenError, WritableCheckpoint, checksums


@pytest.fixture
def checkpoint(tmp_path: Path) -> WritableCheckpoint:
    return WritableCheckpoint(str(tmp_path / "land"))


def completed(checkpoint: WritableCheckpoint, batches: int) -> None:
    checkpoint.begin()
    for batch in range(batches):
        checkpoint.plan(batch, {"t": {"0": batch + 1}})
        checkpoint.complete(batch)


def test_writes_what_spark_writes(checkpoint: WritableCheckpoint) -> None:
    query = checkpoint.begin()
    checkpoint.plan(0, {"t": {"0": 5962}})
    checkpoint.complete(0)
    at = Path(checkpoint.path)
    assert (at / "metadata").read_text() == f'{{"id":"{query}"}}'
    version, facts, end = (at / "offsets" / "0").read_text().split("\n")
    assert (version, end) == ("v1", '{"t": {"0": 5962}}')
    assert list(json.loads(facts)) == ["batchWatermarkMs", "batchTimestampMs", "conf"]
    assert " " not in facts
    assert (at / "commits" / "0").read_bytes() == b'v1\n{"nextBatchWatermarkMs":0}'
    # As Spark 4.2 wrote it beside a file with these bytes.
    assert (at / "commits" / ".0.crc").read_bytes() == bytes.fromhex("6372630000000200f32abfdd")


def test_sums_every_512_bytes() -> None:
    sums = checksums(bytes(1200))
    assert sums[:8] == b"crc\0\0\0\x02\0"
    assert len(sums) == 8 + 3 * 4
    assert sums[8:12] == sums[12:16] != sums[16:]


def test_keeps_the_id_and_continues_after_the_last_batch(checkpoint: WritableCheckpoint) -> None:
    completed(checkpoint, 2)
    again = WritableCheckpoint(checkpoint.path)
    assert again.begin() == checkpoint.query_id()
    assert (again.last_planned(), again.last_committed(), again.end(1)) == (1, 1, {"t": {"0": 2}})


def test_keeps_the_settings_and_the_watermark_of_the_batch_before(checkpoint: WritableCheckpoint) -> None:
    checkpoint.begin()
    at = Path(checkpoint.path)
    (at / "offsets" / "4").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"a":"b"}}\n{"batch": 1}')
    (at / "commits" / "4").write_text('v1\n{"nextBatchWatermarkMs":7}')
    checkpoint.plan(5, {"batch": 2})
    facts = json.loads((at / "offsets" / "5").read_text().split("\n")[1])
    assert (facts["conf"], facts["batchWatermarkMs"]) == ({"a": "b"}, 7)


def test_removes_entries_that_spark_would_remove(checkpoint: WritableCheckpoint) -> None:
    completed(checkpoint, KEPT_BATCHES + 3)
    for folder in ("offsets", "commits"):
        names = {each.name for each in Path(checkpoint.path, folder).iterdir()}
        kept = range(2, KEPT_BATCHES + 3)
        assert names == {f"{batch}" for batch in kept} | {f".{batch}.crc" for batch in kept}


def test_never_overwrites_an_entry(checkpoint: WritableCheckpoint) -> None:
    completed(checkpoint, 1)
    with pytest.raises(CheckpointTakenError, match="offsets/0 was written by another run meanwhile: stop one of them"):
        checkpoint.plan(0, {})
    with pytest.raises(CheckpointTakenError, match="commits/0 was written by another run meanwhile"):
        checkpoint.complete(0)
    assert checkpoint.end(0) == {"t": {"0": 1}}


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "commits/1"])
def test_names_the_file_whose_checksum_differs(checkpoint: WritableCheckpoint, name: str) -> None:
    completed(checkpoint, 2)
    file = Path(checkpoint.path, name)
    file.write_bytes(file.read_bytes().replace(b"1", b"2").replace(b"0", b"3"))
    with pytest.raises(CheckpointError, match=rf"{name} does not match its checksum .*\.crc: restore the checkpoint"):
        WritableCheckpoint(checkpoint.path).begin()


@pytest.mark.parametrize("name", ["offsets/.1.crc", ".metadata.crc"])
def test_reads_a_file_whose_checksum_was_not_written_yet(checkpoint: WritableCheckpoint, name: str) -> None:
    completed(checkpoint, 2)
    Path(checkpoint.path, name).unlink()
    again = WritableCheckpoint(checkpoint.path)
    assert (again.begin(), again.end(1)) == (checkpoint.query_id(), {"t": {"0": 2}})
