"""`lake land` and the daemon append to one table in turns, and at a time by mistake: each message once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.handlers import Batch, HandlerContext, load_handler
from consumerd.spark.beginning import began
from consumerd.spark.checkpoints import CheckpointError
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.land import land
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables.errors import TableOwnedError
from consumerd.testing import FakeClock
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.unit.spark.lake.test_land import InlinePool

HERE = TopicPartition("t", NO_BROKER, 0)
MESSAGES = [b"%03d" % number for number in range(100)]
SIZE = len(encode_message_set([MESSAGES[0]]))


class Killed(BaseException):
    """The process ends here."""


class World:
    """A log of one partition that grows, the pipeline that lands it, and the daemon."""

    def __init__(self, folder: Path, format: str) -> None:  # noqa: A002 - as the pipeline calls it
        self.log = folder / "logs" / "t-0" / f"{0:020}.kafka"
        self.log.parent.mkdir(parents=True)
        source = {"path": str(folder / "logs"), "subscribe": "t"}
        self.pipeline = PipelineSpec("p", str(folder / "lake"), source, format=format)
        self.checkpoint = WritableCheckpoint(self.pipeline.checkpoint("land"))

    def grow(self, to: int) -> None:
        """Let the log have this number of messages."""
        self.log.write_bytes(encode_message_set(MESSAGES[:to]))

    def land(self) -> None:
        land(self.pipeline, workers=1)

    def consume(self, to: int) -> None:
        """Let the daemon append messages up to this number, from where the table ends."""
        asyncio.run(self._consume(to))

    async def _consume(self, to: int) -> None:
        options = {"directory": self.pipeline.bronze, "checkpoint": self.checkpoint.path, "commit_interval": 0}
        handler = load_handler(self.pipeline.format, options)
        await handler.start(HandlerContext("g", "g_1", FakeClock(auto=True)))
        at = await handler.position(HERE) or 0
        data = encode_message_set(MESSAGES[:to])
        await handler.handle(Batch(HERE, decode_batch(data[at:], at)))
        await handler.stop()

    def must_have(self, count: int) -> None:
        """Look at the rows, and at the checkpoint after a step."""
        table = open_lake_table(self.pipeline.bronze, self.pipeline.format)
        rows = table.dataset().to_table().sort_by("offset").to_pylist()
        assert [row["value"] for row in rows] == MESSAGES[:count]
        reached = table.offsets()
        assert reached is not None
        assert reached.ends["t", "0"].offset == count * SIZE
        assert sorted({row["batch"] for row in rows}) == [*range(reached.batch + 1)]


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg")
    return World(tmp_path, request.param)


def test_lake_and_the_daemon_continue_each_other(world: World) -> None:
    world.grow(20)
    world.land()
    world.consume(30)
    world.consume(40)
    world.must_have(40)
    world.grow(60)
    world.land()
    world.must_have(60)
    assert world.checkpoint.last_committed() == 3
    world.consume(70)
    world.grow(70)
    world.land()  # has nothing to do
    world.must_have(70)


def test_lake_continues_a_table_that_the_daemon_began(world: World) -> None:
    world.consume(10)
    world.consume(20)
    world.grow(50)
    world.land()
    world.must_have(50)
    assert began(None, world.pipeline) == {"t": {"0": 0}}
    world.consume(55)
    world.must_have(55)


@pytest.mark.parametrize("killed", ["commit", "complete"])
def test_a_step_that_was_killed_is_continued_by_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """The batch that it planned is in the table, or not."""
    world = World(tmp_path, "delta")
    world.grow(20)
    world.land()
    world.grow(40)

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr({"commit": DeltaLakeTable, "complete": WritableCheckpoint}[killed], killed, die)
        with pytest.raises(Killed):
            world.land()
    assert (world.checkpoint.last_planned(), world.checkpoint.last_committed()) == (1, 0)
    world.consume(30)
    world.grow(50)
    world.land()
    world.must_have(50)


def test_a_kill_while_the_checkpoint_is_brought_up_to_the_table_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, write = 0, WritableCheckpoint._write
    while True:
        world = World(tmp_path / str(step), "delta")
        world.grow(10)
        world.land()
        world.consume(15)
        world.consume(20)
        world.grow(30)
        calls = iter(range(100))
        with monkeypatch.context() as patched:

            def dying(self: WritableCheckpoint, *arguments: Any, **named: Any) -> None:
                if next(calls) == step:  # noqa: B023 - called within this turn
                    raise Killed
                write(self, *arguments, **named)

            patched.setattr(WritableCheckpoint, "_write", dying)
            try:
                world.land()
                break
            except Killed:
                step += 1
        world.land()
        world.must_have(30)
    assert step >= 5


@pytest.mark.parametrize("appended", [False, True])
def test_a_checkpoint_that_is_older_than_its_steps_or_damaged_is_refused(tmp_path: Path, appended: bool) -> None:
    world = World(tmp_path, "delta")
    for count in (10, 20):
        world.grow(count)
        world.land()
    if appended:
        world.consume(30)
    lost = ["offsets/1"] if appended else ["offsets/1", "commits/1"]
    for name in lost:
        Path(world.checkpoint.path, name).unlink()
    with pytest.raises(CheckpointError, match="/offsets/1 is missing" if appended else "it is older than the table"):
        world.land()


def test_a_step_stops_where_the_daemon_appends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, "delta")
    world.grow(20)
    world.land()
    world.grow(50)
    run = InlinePool.run

    def appended(self: InlinePool, *arguments: Any, **named: Any) -> Any:
        found = run(self, *arguments, **named)
        world.consume(35)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(InlinePool, "run", appended)
        with pytest.raises(TableOwnedError, match=r"^the daemon has appended to .*/bronze since this step began"):
            world.land()
    world.must_have(35)
    world.land()
    world.must_have(50)
