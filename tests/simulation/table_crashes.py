"""Faults of the database at one statement of a member with the sink `postgres`, stopped members, and two writers.

Strategy: as in `tests.simulation.sink_crashes`, which has the crashes of members. Here the member lives, and a
statement fails, its connection breaks or the server crashes, before the statement or before its answer: the batch is
tried again, and is stored once all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext, PartitionTakenError
from consumerd.handlers.builtin.postgres import PostgresHandler
from consumerd.wire.v07 import decode_batch
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import SimulationError
from tests.simulation.postgres_server import Session
from tests.simulation.process import ProcessLoop
from tests.simulation.sink_crashes import Story
from tests.simulation.table_world import TIMEOUT, TableWorld

if TYPE_CHECKING:
    import asyncio

#: What happens at a statement: the server refuses it, the connection is reset, the server crashes.
DatabaseFault = Literal["fails", "cut", "crash"]
#: Serialization failure, which may happen to any statement.
_SERIALIZATION = "40001"
#: Seconds until the session of a member that is stopped has timed out, and the next owner has committed.
_TAKEOVER = 20.0


def disturb(number: int, fault: DatabaseFault, seed: int = 0) -> str | None:
    """Let `fault` happen at step `number` of a member's statements, and tell its name; None if there are fewer.

    Raises SimulationError where a row is lost or repeated, or the member does not go on.
    """
    with TableWorld(seed) as world:
        story, count = Story(world), itertools.count()
        disturbed: list[str] = []

        def watch(daemon: Daemon, step: str) -> None:
            if disturbed or step == "turn" or next(count) != number:
                return
            disturbed.append(step)
            assert world.session is not None
            if fault == "fails":
                world.session.fail(_SERIALIZATION)
            elif fault == "cut":
                world.session.link.cut()
            else:
                world.crash_server(0.1)

        world.watcher = watch
        story.join("a")
        story.until(lambda: story.committed, "the member has committed")
        if not disturbed:
            return None
        world.produce_all()
        story.until(lambda: story.committed, "the member has committed again")
        world.daemons["a"].terminate()
        world.until_ended(world.daemons["a"])
        story.end("c")
        return disturbed[0]


def stop_for_good(number: int, seed: int = 0) -> bool:
    """Stop a member before turn `number` from its first message on, for good; another one has to take over.

    False if the member commits before. Raises SimulationError where a row is lost or repeated, or the takeover fails.
    """
    with TableWorld(seed) as world:
        story, count = Story(world), itertools.count()
        stopped: list[Daemon] = []

        def watch(daemon: Daemon, step: str) -> None:
            turn = step == "turn" and daemon.name == "a" and bool(world.account.hand_overs)
            if turn and not stopped and next(count) == number:
                stopped.append(daemon)
                daemon.freeze()

        world.watcher = watch
        story.join("a")
        story.until(lambda: stopped or story.committed, "the member is stopped, or has committed")
        if not stopped:
            return False
        story.join("b")
        within = TIMEOUT + _TAKEOVER
        world.kernel.until(lambda: story.committed, within, what="another member has taken over and committed")
        stopped[0].kill()
        story.end("c")
        return True


def race(number: int, seed: int = 0) -> str | None:
    """Hold the answer to statement `number` of a batch back until another owner has stored its own; tell its name.

    No member is around both writers, so nothing but the sink keeps the former owner from storing. None if a batch takes
    fewer statements. Raises SimulationError where a row is lost or repeated, or the former owner gets another error.
    """
    with TableWorld(seed) as world:
        Story(world)
        world.produce_all()
        (partition,) = world.partitions
        world.database.watcher = lambda session, step: None
        former, owner = _Writer(world, "a"), _Writer(world, "b")
        former.play(former.sink.position(partition))
        held: list[Session] = []
        names: list[str] = []
        count = itertools.count()

        def watch(session: Session, step: str) -> None:
            if session.link.client == "a" and step.endswith("done") and not held and next(count) == number:
                held.append(session)
                names.append(step)
                session.link.stall(up=False)

        world.database.watcher = watch
        storing = former.begin(former.sink.handle(former.batch(partition, 1)))
        world.kernel.until(lambda: storing.done() or bool(held), 60.0, what="the former owner has stored or is held up")
        if not held:
            return None
        taking = owner.begin(owner.take_and_store(partition))
        world.run(2.0)  # it has stored, or waits for the transaction of the former one
        world.check()
        if held:
            held[0].link.stall(False)
        world.kernel.until(lambda: storing.done() and taking.done(), 60.0, what="both have ended")
        if taking.exception() or not isinstance(storing.exception(), PartitionTakenError | None):
            raise SimulationError(f"the former owner: {storing.exception()!r}, the owner: {taking.exception()!r}")
        world.check(complete=True)
        return names[0]


class _Writer:
    """A process with a sink alone."""

    def __init__(self, world: TableWorld, name: str) -> None:
        self._world = world
        self._loop = ProcessLoop(world.kernel, world.network, name)
        self.sink = PostgresHandler(world.database.dsn, timeout=TIMEOUT)
        self.play(self.sink.start(HandlerContext("g", name, SystemClock())))

    def play(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Let it end, and return its result."""
        return self._loop.play(call)

    def begin(self, call: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Let it run as long as time passes."""
        task = self._loop.create_task(call)
        self._loop.submit(lambda: None)
        return task

    def batch(self, partition: TopicPartition, messages: int, start: int = 0) -> Batch:
        """Some messages of the log, from `start` on."""
        ends = sorted({row.offset for row in self._world.produced[partition]} | {self._world.end(partition)})
        log = self._world.brokers[partition.broker].store.logs[partition.topic, partition.partition]
        end = ends[min(ends.index(start) + messages, len(ends) - 1)]
        return Batch(partition, decode_batch(bytes(log)[start:end], start))

    async def take_and_store(self, partition: TopicPartition) -> None:
        """Take over, and store all that is not stored."""
        start = await self.sink.position(partition) or 0
        if start < self._world.end(partition):
            await self.sink.handle(self.batch(partition, 1_000, start))
