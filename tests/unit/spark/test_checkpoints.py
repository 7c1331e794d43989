from __future__ import annotations

import os
from pathlib import Path

import pytest

from consumerd.spark.checkpoints import Checkpoint, CheckpointError, CheckpointLockedError, locked
from consumerd.spark.tables.errors import TablePathError


@pytest.fixture
def offsets(tmp_path: Path) -> Checkpoint:
    """The log of a checkpoint on this machine, which needs no Spark to be found."""
    (tmp_path / "offsets").mkdir()
    return Checkpoint(None, str(tmp_path))


def test_reads_the_end_and_the_watermark_of_a_batch(offsets: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs": 5}\n{"t": {"0-1": 7}}')
    assert (offsets.end(3), offsets.watermark(3)) == ({"t": {"0-1": 7}}, 5)
    assert (offsets.end(4), offsets.watermark(4)) == (None, None)


@pytest.mark.parametrize("line", ["{", "", pytest.param("[" * 100_000, id="nested")])
def test_names_the_entry_that_is_damaged(offsets: Checkpoint, tmp_path: Path, line: str) -> None:
    (tmp_path / "offsets" / "3").write_text(f"v1\n{line}\n{line}\n")
    for read in (offsets.end, offsets.watermark):
        with pytest.raises(CheckpointError, match=r"/offsets/3 contains no valid offsets .*restore the checkpoint"):
            read(3)


def test_one_run_at_a_time_uses_a_checkpoint(offsets: Checkpoint, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "land")
    with locked(None, checkpoint):
        for _ in range(2):
            with (
                pytest.raises(CheckpointLockedError, match=rf"^process {os.getpid()} on .* is using the checkpoint"),
                locked(None, checkpoint),
            ):
                pass
    with pytest.raises(ZeroDivisionError), locked(None, checkpoint):
        raise ZeroDivisionError
    with locked(None, checkpoint):
        pass


@pytest.mark.parametrize("path", ["/lake/p", "file:///lake/p", "file:/lake/p"])
def test_finds_a_folder_of_this_machine_without_spark(path: str) -> None:
    assert Checkpoint(None, path).path == "/lake/p"


def test_refuses_a_checkpoint_elsewhere_without_spark() -> None:
    with pytest.raises(TablePathError, match=r"^s3://lake/p is not a folder of this machine: .* Spark"):
        Checkpoint(None, "s3://lake/p")
