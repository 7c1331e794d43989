"""A pipeline moves between Spark and `consumerd lake` in the middle of its batches: one checkpoint, every row once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.errors import ConsumerdError
from consumerd.spark.beginning import began, began_at, begin, source_options
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchRunner, PlannedBatch
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.handover import catch_up
from consumerd.spark.land import land
from consumerd.spark.progress import open_log
from consumerd.spark.queries import run_query
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner
from consumerd.spark.source.reading import read_rows
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.spec import PipelineSpec
from consumerd.wire.v07 import encode_message_set
from tests.unit.spark.lake.test_handover import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Pipeline:
    """One partition in small batches, and what each run stored of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        (folder / "logs" / "t-0").mkdir(parents=True)
        source = {"path": str(folder / "logs"), "subscribe": "t", "maxBytesPerTrigger": "600"}
        self.spec = PipelineSpec("p", str(folder / "lake"), source)
        self.written = 0
        #: Batch -> values, of those that were stored.
        self.stored: dict[int, list[bytes]] = {}
        self._spark = spark
        self._segment = folder / "logs" / "t-0" / f"{0:020}.kafka"

    def append(self) -> None:
        """100 more messages."""
        with self._segment.open("ab") as file:
            for _ in range(100):
                file.write(encode_message_set([b"%d" % self.written]))
                self.written += 1

    def store(self, batch: int, values: list[bytes]) -> None:
        assert batch not in self.stored
        self.stored[batch] = values

    def by_spark(self, fail_at: int | None = None) -> None:
        options = begin(self._spark, self.spec, source_options(self.spec))

        def store(frame: DataFrame, batch: int) -> None:
            if batch == fail_at:
                raise ConsumerdError("as planned")
            self.store(batch, sorted(bytes(row.value) for row in frame.select("value").collect()))

        stream = self._spark.readStream.format("consumerd").options(**options).load()
        run_query(self._spark, self.spec, "land", stream, store)

    def by_lake(self, fail_at: int | None = None) -> None:
        options = read_options(begin(None, self.spec, source_options(self.spec)))
        source = StreamPlanner(options, options.max_per_trigger)
        request = ReadRequest.of(options, ("value",))

        def store(batch: PlannedBatch, tick: Callable[[], None]) -> None:
            if batch.number == fail_at:
                raise ConsumerdError("as planned")
            splits = source.splits(batch.start, batch.end)
            rows: list[Any] = [
                row for split in splits for part in read_rows(split, request) for row in part.to_pylist()
            ]
            self.store(batch.number, sorted(row["value"] for row in rows))

        path = self.spec.checkpoint("land")
        progress, stop = open_log(None, self.spec), threading.Event()
        with locked(None, path):
            BatchRunner(WritableCheckpoint(path), source, store, progress=progress, stop=stop).run()


class MountedSpec(PipelineSpec):
    """A pipeline whose checkpoints are on another file system of Hadoop's, which the daemon has as a folder."""

    def checkpoint(self, step: str) -> str:
        return f"viewfs://{mount_table(Path(self.root))}{PipelineSpec.checkpoint(self, step)}"


def mount_table(root: Path) -> str:
    """A name of its own for each test: Hadoop keeps file systems by their names."""
    return root.parent.name.replace("_", "-").lower()


@pytest.fixture(params=[PipelineSpec, MountedSpec])
def world(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """A table that the daemon appends to, and its checkpoint here and elsewhere."""
    gateway: Any = spark.sparkContext._gateway
    made = World(tmp_path, "delta")
    here = made.pipeline
    name, target = f"fs.viewfs.mounttable.{mount_table(Path(here.root))}.link.{tmp_path}", f"file://{tmp_path}"
    hadoop = gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
    hadoop.set(name, target)
    spark.conf.set(name, target)
    made.pipeline = request.param(here.name, here.root, here.source, format=here.format)
    yield made
    hadoop.unset(name)
    spark.conf.unset(name)


@pytest.mark.long
def test_spark_continues_a_table_that_the_daemon_appended_to(spark: SparkSession, world: World) -> None:
    for appended in (20, 60):
        world.consume(appended - 10)
        world.consume(appended)
        world.grow(appended + 20)
        assert land(spark, world.pipeline).rows == 20
        world.must_have(appended + 20)


@pytest.mark.parametrize("world", [MountedSpec], indirect=True)
def test_a_checkpoint_on_another_file_system_is_brought_up_to_the_table(spark: SparkSession, world: World) -> None:
    for appended in (10, 20):
        world.consume(appended)
    there = WritableCheckpoint(world.pipeline.checkpoint("land"), spark)
    table = open_lake_table(world.pipeline.bronze)
    catch_up(world.pipeline, there, table, spark)
    here = world.checkpoint
    assert here.begin() == there.begin()
    assert (here.last_planned(), here.last_committed()) == (1, 1)
    reached = table.offsets()
    assert reached is not None
    assert reached.ends_at(here.end(1))
    assert began_at(None, here.path) == began(spark, world.pipeline) == {"t": {"0": 0}}


def test_spark_and_lake_continue_what_the_other_planned(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path)
    checkpoint = WritableCheckpoint(pipeline.spec.checkpoint("land"))
    ends = {}
    for run, fail_at in ((pipeline.by_lake, 1), (pipeline.by_spark, 3)):
        pipeline.append()  # from the second time on not part of the batch that was planned before
        with pytest.raises(ConsumerdError, match="as planned"):
            run(fail_at=fail_at)
        assert (checkpoint.last_planned(), checkpoint.last_committed()) == (fail_at, fail_at - 1)
        ends[fail_at] = checkpoint.end(fail_at)
    pipeline.append()
    pipeline.by_lake()
    assert {batch: checkpoint.end(batch) for batch in ends} == ends
    assert sorted(pipeline.stored) == list(range(len(pipeline.stored)))
    stored = sorted(chain.from_iterable(pipeline.stored.values()))
    assert stored == sorted(b"%d" % number for number in range(pipeline.written))
