"""The world of a group whose members store messages exactly once, and the comparison of what is stored with the logs.

Strategy: `check` compares the place of a sink, as other programs read it, row by row with what the producers sent: at
every moment each partition's rows are the beginning of its log, and in the end all of it. Subclasses say what the place
is, and what a loss of power does to it: `sink_world` (files) and `table_world` (PostgreSQL).

The account holds members to their ownership as everywhere. A message counts as handled when the sink has confirmed it,
or has told a position behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.wire.v07 import Codec
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import SimulationError
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World


class Row(NamedTuple):
    """One stored message."""

    offset: int
    #: The number of the message in the one that holds it.
    inner: int
    payload: bytes


class RowsWorld(World):
    """One run. `watcher` is called before each turn of a member's loop, and each step of its work outside."""

    def __init__(self, seed: int = 0, *, round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        self.watcher: Callable[[Daemon, str], None] = lambda daemon, step: None
        #: The messages of each partition, as they were produced.
        self.produced: dict[TopicPartition, list[Row]] = {}

    # -- what subclasses say

    def sink(self) -> Handler:
        """The product's sink, for a new member."""
        raise NotImplementedError

    def read(self) -> dict[TopicPartition, list[Row]]:
        """The rows of all partitions. Raises SimulationError for what cannot be read as rows."""
        raise NotImplementedError

    @property
    def writes(self) -> int:
        """Batches that were stored."""
        raise NotImplementedError

    def slow_down(self, factor: float) -> None:
        """Let the place take longer than usual by this factor; 1 for the usual."""
        raise NotImplementedError

    def lose_power(self) -> None:
        """All members die, and what is stored but not durable is lost."""
        raise NotImplementedError

    # -- producers

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        """Append messages, some of which are compressed and hold several."""
        store, rng = self.brokers[partition.broker].store, self.rng
        for _ in range(count):
            inner = rng.choice((0, 0, 2, 5))
            payloads = [self._payload() for _ in range(inner or 1)]
            offset = store.end(partition.topic, partition.partition)
            codec = Codec.GZIP if inner else Codec.NONE
            store.append(partition.topic, partition.partition, *payloads, codec=codec)
            self.produced.setdefault(partition, []).extend(
                Row(offset, index, payload) for index, payload in enumerate(payloads)
            )
            self.account.produced(partition, offset)

    def _payload(self) -> bytes:
        self._produced += 1
        return b"%d %s" % (self._produced, self.rng.choice((b"", b"a\nb", b"\xff\x00", b"x" * 40)))

    # -- members

    def daemon(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        handling: float = 0.0,
        stubborn: bool = False,
        lingering: bool = False,
    ) -> Daemon:
        peculiar = handling or stubborn or lingering
        assert not peculiar, "the sink and its place say how long a batch takes"
        made = self.daemons[name] = SinkDaemon(self, name, settings or {})
        return made

    def kill_all(self) -> None:
        """SIGKILL to all members."""
        for daemon in self.daemons.values():
            if daemon.alive:
                daemon.kill()

    # -- the rows

    def check(self, *, complete: bool = False) -> None:
        """Raise SimulationError unless the rows are the beginnings of the logs, or with `complete` all of them."""
        stored = self.read()
        for partition in self.partitions:
            rows, expected = stored.pop(partition, []), self.produced.get(partition, [])
            wrong = next((n for n, row in enumerate(rows) if n >= len(expected) or row != expected[n]), None)
            if wrong is not None:
                after = rows[wrong - 1] if wrong else None
                expect = expected[wrong] if wrong < len(expected) else None
                raise SimulationError(f"{partition} has row {rows[wrong]} after {after}; expected {expect}")
            if complete and len(rows) < len(expected):
                raise SimulationError(f"{partition} has {len(rows)} rows; {expected[len(rows)]} is not stored")
        if stored:
            raise SimulationError(f"there are rows of unknown partitions: {list(stored)}")


class SinkDaemon(Daemon):
    """A member with the sink."""

    world: RowsWorld

    def __init__(self, world: RowsWorld, name: str, settings: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(
            self.world.kernel, self.world.network, self.name, lambda step: self.world.watcher(self, step)
        )

    def plugin(self) -> Handler:
        return ObservedSink(self, self.world.sink())


class ObservedSink(Handler):
    """Tells the account what a sink gets and what it has stored."""

    def __init__(self, daemon: Daemon, sink: Handler) -> None:
        self._daemon = daemon
        self._sink = sink

    async def start(self, context: HandlerContext) -> None:
        await self._sink.start(context)

    async def stop(self) -> None:
        await self._sink.stop()

    async def position(self, partition: TopicPartition) -> int | None:
        position = await self._sink.position(partition)
        if not self._daemon.loop.dead:
            account = self._daemon.world.account
            account.handled(partition, [each for each in account.offsets(partition) if each < (position or 0)])
        return position

    async def handle(self, batch: Batch) -> None:
        daemon, account = self._daemon, self._daemon.world.account
        if daemon.loop.dead:
            return
        offsets = sorted({message.offset for message in batch.messages()})
        account.begin(daemon.name, batch.partition, offsets)
        call = asyncio.ensure_future(self._sink.handle(batch))
        cancelled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as error:
                # The member has done what it can; a sink may store a batch all the same, and then says so.
                if cancelled is None and not daemon.loop.dead:
                    account.end(daemon.name, batch.partition, offsets, handled=False)
                cancelled = error
                call.cancel()
        failed = call.cancelled() or call.exception() is not None
        if not daemon.loop.dead:
            if cancelled is None:
                account.end(daemon.name, batch.partition, offsets, handled=not failed)
            elif batch.counted and batch.handled == len(batch):
                account.handled(batch.partition, offsets)
        if cancelled is not None:
            raise cancelled
        call.result()
