"""A consumer as Kafka's own of 0.7.2: it releases all and claims all by path, and reads offsets before it claims.

Strategy: the algorithm as observed (golden notes, 5; notes on mixed groups) as one task in a simulated process, on the
same ZooKeeper client as ours; only the group's rules are shared with our members. Offsets are written blindly, by path,
every ten seconds and before each rebalance. It tries four times, two seconds apart, then gives up until the next
trigger. Messages come straight from the brokers' logs, a little later.
"""

from __future__ import annotations

import asyncio
import random
import signal
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.group.rules import V07Rules
from consumerd.net.cluster.reading import data
from consumerd.net.zk.errors import ConnectionLost, NodeExists, NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import (
    id_path,
    ids_path,
    offset_path,
    owner_path,
    topic_broker_path,
    topic_path,
    topics_path,
)
from consumerd.wire.registry.subscription import FilterSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.values import format_owner, parse_offset
from tests.simulation.daemon import ProcessClock
from tests.simulation.process import ProcessLoop, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.world import World

TRIES = 4
BACKOFF = 2.0
COMMIT_EVERY = 10.0
#: Between two looks for messages.
POLL = 0.05


class JvmConsumer(SimulatedProcess):
    """One process. `initial`: where it begins without a committed offset."""

    world: World

    def __init__(self, world: World, name: str, *, initial: str = "earliest") -> None:
        self.world = world
        self.name = name
        self.loop = ProcessLoop(world.kernel, world.network, name)
        self.failure: BaseException | None = None
        #: Rebalances that were given up: it holds nothing until the next trigger.
        self.gave_up = 0
        self._id = f"{world.group}_{name}"
        self._rules = V07Rules()
        self._subscription = FilterSubscription(TopicFilter(FilterKind.WHITELIST, ".*"), 1)
        self._initial = initial
        #: Of each partition that is consumed, the position.
        self._positions: dict[TopicPartition, int] = {}
        #: The same of partitions that a rebalance stopped consuming, until they are written.
        self._unwritten: dict[TopicPartition, int] = {}
        self._owned: list[TopicPartition] = []
        self._triggered = asyncio.Event()
        self._leaving = asyncio.Event()
        world.kernel.note(name, "starts (JVM)")
        self.loop.add_signal_handler(signal.SIGTERM, self._leaving.set)
        self.loop.submit(lambda: self.loop.create_task(self._main(), name="main"))

    # -- its life

    async def _main(self) -> None:
        zookeeper = self.world.zookeeper
        session = Session(
            f"{zookeeper.host}:{zookeeper.port}",
            clock=ProcessClock(self.loop),
            rng=random.Random(f"{self.world.seed}/{self.name}"),
        )
        await session.start(30.0)
        self._zk = session
        tasks = [
            self.loop.create_task(work(), name=work.__name__)
            for work in (self._rebalance_always, self._consume, self._commit_always)
        ]
        await self._leaving.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        try:
            await self._commit()
        except ZooKeeperError as error:
            self.world.kernel.note(self.name, f"did not commit: {error}")
        self._positions.clear()
        await session.close()
        self.ended = True
        self.world.kernel.note(self.name, "has ended")
        self.world.network.close_all_of(self.name)

    async def _rebalance_always(self) -> None:
        self._zk.watch(ids_path(self.world.group), self._triggered.set)
        self._zk.watch(topics_path(), self._triggered.set)
        session_id = 0
        while True:
            self._triggered.clear()
            try:
                if self._zk.session_id != session_id:
                    session_id = self._zk.session_id
                    self._owned.clear()
                    text = self._rules.format(self._subscription, 0).encode()
                    await self._zk.create_ephemeral(id_path(self.world.group, self._id), text, wait=30.0)
                await self._rebalance()
            except ZooKeeperError as error:
                self.world.kernel.note(self.name, f"rebalance failed: {error}")
                await asyncio.sleep(1.0)
                continue
            await self._triggered.wait()

    async def _rebalance(self) -> None:
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(BACKOFF)
            targets = await self._targets()
            self._unwritten, self._positions = self._positions, {}
            await self._write(self._unwritten)
            self._unwritten = {}
            await self._release()
            starts = {partition: await self._start(partition) for partition in targets}
            if await self._claim(targets):
                self._positions = starts
                self.world.kernel.note(self.name, f"consumes {len(starts)} partitions")
                return
            await self._release()
        self.gave_up += 1
        self.world.kernel.note(self.name, "gives up")

    async def _targets(self) -> dict[TopicPartition, int]:
        """The partitions that are to be its own, with the number of the stream."""
        zk, group = self._zk, self.world.group
        names = await zk.children(ids_path(group), watch=True)
        texts = await read_all(names, lambda name: data(zk, id_path(group, name)))
        members = {name: self._rules.parse(text) for name, text in texts.items() if text is not None}
        topics = {}
        for topic in await zk.children(topics_path(), watch=True):
            counts = {}
            for broker in await zk.children(topic_path(topic), watch=True):
                text, _ = await zk.get(topic_broker_path(topic, int(broker)))
                counts[int(broker)] = range(int(text or b"0"))
            topics[topic] = counts
        owners = self._rules.owners(topics, members)
        return {partition: stream for partition, (owner, stream) in owners.items() if owner == self._id}

    async def _start(self, partition: TopicPartition) -> int:
        try:
            text, _ = await self._zk.get(offset_path(self.world.group, partition))
        except NoNode:
            return 0 if self._initial == "earliest" else self.world.end(partition)
        return parse_offset(text)

    async def _claim(self, targets: dict[TopicPartition, int]) -> bool:
        taken = True
        for partition, stream in targets.items():
            path, owner = owner_path(self.world.group, partition), format_owner(self._id, stream).encode()
            try:
                await self._zk.ensure(path.rpartition("/")[0])
                await self._create(path, owner)
            except NodeExists:
                # ZkUtils.createEphemeralPathExpectConflict: with its own data it is a node whose reply was lost.
                if await data(self._zk, path) != owner:
                    taken = False
                    continue
            self._owned.append(partition)
        return taken

    async def _create(self, path: str, owner: bytes) -> None:
        """As ZkClient (retryUntilConnected): sent again, on the next connection, when the reply is lost."""
        while True:
            try:
                await self._zk.create(path, owner, ephemeral=True)
            except ConnectionLost:
                continue
            return

    async def _release(self) -> None:
        """By path, also if another member owns it by now."""
        while self._owned:
            with suppress(NoNode):
                await self._zk.delete(owner_path(self.world.group, self._owned[-1]))
            self._owned.pop()

    # -- messages and offsets

    async def _consume(self) -> None:
        account = self.world.account
        while True:
            await asyncio.sleep(POLL)
            for partition, position in list(self._positions.items()):
                offsets = account.offsets(partition)
                fresh = offsets[bisect_left(offsets, position) :]
                if fresh and self._positions.get(partition) == position:
                    account.begin(self.name, partition, fresh)
                    account.end(self.name, partition, fresh, handled=True)
                    self._positions[partition] = self.world.end(partition)

    async def _commit_always(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY)
            try:
                await self._commit()
            except ZooKeeperError as error:
                self.world.kernel.note(self.name, f"did not commit: {error}")

    async def _commit(self) -> None:
        await self._write({**self._unwritten, **self._positions})

    async def _write(self, positions: dict[TopicPartition, int]) -> None:
        for partition, position in positions.items():
            path, text = offset_path(self.world.group, partition), b"%d" % position
            try:
                await self._zk.set(path, text)
            except NoNode:
                await self._zk.ensure(path.rpartition("/")[0])
                await self._zk.create(path, text)
