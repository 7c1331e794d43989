"""A checkpoint that is damaged, older than its table or in use, and a file system that is full, get a sentence each."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.spark.checkpoints import CheckpointLockedError
from consumerd.spark.failures import FileFailedError, declared
from consumerd.spark.lake.checkpoint import CheckpointTakenError
from consumerd.spark.land import land
from consumerd.spark.queries import run_query
from consumerd.spark.spec import PipelineSpec
from consumerd.wire.v07 import encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineSpec:
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    sets = [encode_message_set([b"%d" % number]) for number in range(300)]
    (folder / f"{0:020}.kafka").write_bytes(b"".join(sets))
    source = {"path": str(tmp_path / "logs"), "subscribe": "t", "maxBytesPerTrigger": "1500"}
    return PipelineSpec("p", str(tmp_path / "lake"), source)


def last(folder: Path) -> Path:
    return max((each for each in folder.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))


def without(file: Path) -> None:
    """Remove it, and its sum with it."""
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink()


def halved(file: Path) -> None:
    """Cut a file in half, as a loss of power may."""
    data = file.read_bytes()
    without(file)
    file.write_bytes(data[: len(data) // 2])


def older(checkpoint: Path) -> None:
    """The checkpoint as it was one batch ago, as a backup has it."""
    without(last(checkpoint / "offsets"))
    without(last(checkpoint / "commits"))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda at: without(last(at / "offsets")), r"/offsets/\d+ is missing, and .*/commits says that batch \d+ is"),
        (lambda at: shutil.rmtree(at / "offsets"), r"/offsets/\d+ is missing"),
        (
            lambda at: halved(last(at / "offsets")),
            r"/offsets/\d+ (is not a valid entry of an offset log|contains no valid offsets)",
        ),
        (
            lambda at: last(at / "offsets").write_bytes(b'v1\n{}\n{"t": {"0": '),
            r"/offsets/\d+ contains no valid offsets",
        ),
        (lambda at: halved(last(at / "commits")), r"/commits/\d+ is not a valid entry of a commit log"),
        (lambda at: halved(at / "metadata"), "/metadata does not contain the id of a query"),
        (lambda at: (at / "metadata").unlink(), "/metadata does not contain the id of a query"),
        (older, r"has batches up to \d+, and the checkpoint .* counts \d+ in all, so it is older than the table"),
    ],
)
def test_names_the_damaged_file_of_a_checkpoint(
    spark: SparkSession, pipeline: PipelineSpec, damage: Callable[[Path], None], sentence: str
) -> None:
    assert land(spark, pipeline).batches > 1
    damage(Path(pipeline.checkpoint("land")))
    with pytest.raises(ConsumerdError, match=sentence) as caught:
        land(spark, pipeline)
    assert caught.value.exit_code is ExitCode.CORRUPT
    assert "restore the checkpoint from a backup" in str(caught.value)


def test_accepts_a_checkpoint_that_spark_can_continue_from(spark: SparkSession, pipeline: PipelineSpec) -> None:
    rows = land(spark, pipeline).rows
    checkpoint = Path(pipeline.checkpoint("land"))
    without(last(checkpoint / "commits"))  # killed between the table and the commit
    assert land(spark, pipeline).rows == 0
    without(checkpoint / "offsets" / "0")  # Spark forgets old batches
    without(checkpoint / "commits" / "0")
    assert land(spark, pipeline).rows == 0
    assert rows == 300


def test_refuses_a_second_run_on_the_same_checkpoint(
    spark: SparkSession, pipeline: PipelineSpec, tmp_path: Path
) -> None:
    checkpoint = pipeline.checkpoint("land")
    others: list[str] = []

    def second(frame: DataFrame, batch: int) -> None:
        with pytest.raises(CheckpointLockedError) as caught:
            land(spark, pipeline)
        others.append(str(caught.value))

    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("one\n")
    stream = spark.readStream.format("text").load(str(tmp_path / "lines"))
    assert run_query(spark, pipeline, "land", stream, second).batches == 1
    (sentence,) = others
    assert sentence.startswith(f"process {os.getpid()} on ")
    assert f" is using the checkpoint {checkpoint}" in sentence
    assert CheckpointLockedError.exit_code is ExitCode.REFUSED


@contextmanager
def completed_by_another(checkpoint: Path, batch: int) -> Iterator[None]:
    """A batch is noted as complete as soon as it is planned in the block."""
    planned, done = checkpoint / "offsets" / str(batch), threading.Event()

    def complete() -> None:
        while not planned.exists() and not done.is_set():
            done.wait(0.001)
        (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        (checkpoint / "commits" / str(batch)).write_bytes(b'v1\n{"nextBatchWatermarkMs":0}')

    thread = threading.Thread(target=complete, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_reports_two_runs_on_a_checkpoint_without_locks(
    spark: SparkSession, pipeline: PipelineSpec, tmp_path: Path
) -> None:
    land(spark, pipeline)
    checkpoint = Path(pipeline.checkpoint("land"))
    ahead = max(int(each.name) for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()) + 1
    with (Path(pipeline.source["path"]) / "t-0" / f"{0:020}.kafka").open("ab") as file:
        file.write(encode_message_set([b"more"] * 3))
    with (
        completed_by_another(checkpoint, ahead),
        pytest.raises(CheckpointTakenError, match=f"{checkpoint}/commits/{ahead} was written by another run"),
    ):
        land(spark, pipeline)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("one\n")
    stream = spark.readStream.format("text").load(str(tmp_path / "lines"))
    checkpoint = Path(pipeline.checkpoint("refine"))
    with (
        completed_by_another(checkpoint, 0),
        pytest.raises(ConsumerdError, match=f"another run is using the checkpoint {checkpoint}: stop one") as caught,
    ):
        run_query(spark, pipeline, "refine", stream, lambda frame, batch: None)
    assert caught.value.exit_code is ExitCode.SPARK


def test_finds_a_full_disk_in_the_chain_of_java_causes(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.jvm
    stream = jvm.java.io.FileOutputStream("/dev/full")
    with pytest.raises(Py4JJavaError) as caught:
        stream.write(1)
    full = caught.value.java_exception
    wrapped = jvm.java.lang.RuntimeException("o240.parquet", jvm.java.lang.RuntimeException("Job aborted", full))
    error = declared(Py4JJavaError("An error occurred while calling o240.parquet", wrapped), "/lake/p")
    assert type(error) is FileFailedError
    assert str(error).startswith("/lake/p cannot be read or written (No space left on device): check free space")
    assert error.exit_code is ExitCode.SPARK
    denied = jvm.java.io.FileNotFoundException("/elsewhere/part-0 (Permission denied)")
    said = str(declared(Py4JJavaError("An error occurred while calling o241.parquet", denied), "/lake/p"))
    assert said.startswith("/elsewhere/part-0 cannot be read or written (Permission denied): check free space")


def test_names_our_own_file_on_a_full_disk(tmp_path: Path) -> None:
    import resource

    from consumerd.base.files import SystemFiles
    from consumerd.spark.failures import declared_errors

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with (
            pytest.raises(FileFailedError, match=f"{tmp_path}/began.json cannot be read or written"),
            declared_errors(),
        ):
            SystemFiles().create(f"{tmp_path}/began.json", b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
