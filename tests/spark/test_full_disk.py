"""`spark land` on a disk that is really full, and with failed syncs of the driver: one sentence, and nothing is lost.

What the table has is read with deltalake, without our code.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.files import OsSystemCalls
from consumerd.spark.land import land
from consumerd.spark.spec import PipelineSpec
from consumerd.wire.v07 import encode_message_set
from tests.support.small_disk import fill, small_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

#: Bytes that are left on the disk: for nothing, and for files of the checkpoint and part of the table.
SPARES = [0, 40 << 10]


class Scene:
    """A log that grows, and the pipeline that lands it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._segment = folder / "log" / "t-0" / f"{0:020}.kafka"
        self._segment.parent.mkdir(parents=True)
        self.pipeline = PipelineSpec("p", str(root), {"path": str(folder / "log"), "subscribe": "t"})

    def grow(self) -> None:
        """Append messages that no codec makes much smaller."""
        with self._segment.open("ab") as file:
            file.write(encode_message_set([os.urandom(500) for _ in range(200)]))

    def failed(self, spark: SparkSession) -> list[ConsumerdError]:
        """Land; the error, if that failed: some writes may fail and do no harm."""
        try:
            land(spark, self.pipeline)
        except ConsumerdError as error:
            return [error]
        return []

    def must_be_whole(self) -> None:
        rows = DeltaTable(self.pipeline.bronze).to_pyarrow_dataset().to_table(columns=["offset"])
        assert isinstance(rows, pa.Table)
        held = self._segment.stat().st_size
        size = held // (rows.num_rows or 1)
        assert Counter(rows["offset"].to_pylist()) == Counter(range(0, held, size))


def must_be_sentences(errors: list[ConsumerdError], reason: str) -> None:
    for error in errors:
        assert error.exit_code == ExitCode.SPARK
        assert re.fullmatch(rf"[^\n]*\b{reason}[^\n]*", str(error)), error


def test_a_full_disk_is_one_sentence_and_the_same_command_continues(spark: SparkSession, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        scene = Scene(tmp_path, disk / "lake")
        scene.grow()
        land(spark, scene.pipeline)
        failed = list[ConsumerdError]()
        for spare in SPARES:
            scene.grow()
            ballast = fill(disk, spare)
            failed += scene.failed(spark)
            ballast.unlink()
            land(spark, scene.pipeline)
        assert len(failed) == len(SPARES)
        must_be_sentences(failed, "No space left on device")
        scene.must_be_whole()


@pytest.mark.long  # the driver commits as `lake` does, where each sync has failed
def test_a_failed_sync_of_the_driver_is_one_sentence_and_the_same_command_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, tmp_path / "lake")
    scene.grow()
    land(spark, scene.pipeline)
    failed = list[ConsumerdError]()
    for number in (1, 3):
        syncs = count(1)

        def sync(descriptor: int, syncs: Iterator[int] = syncs, at: int = number) -> None:
            if next(syncs) == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fsync(descriptor)

        scene.grow()
        with monkeypatch.context() as patched:
            patched.setattr(OsSystemCalls, "sync", staticmethod(sync))
            patched.setattr(OsSystemCalls, "sync_data", staticmethod(sync))
            failed += scene.failed(spark)
        land(spark, scene.pipeline)
    assert failed
    must_be_sentences(failed, "Input/output error")
    scene.must_be_whole()
