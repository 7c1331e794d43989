"""Connectors on a real ZooKeeper and a broker process: sharing, changes, crashes, positions, filters.

Payloads are unique, so every message is accounted for: what was delivered, to whom, and how often.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd import (
    EARLIEST,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeoutError,
    Message,
    MessageStream,
    RebalanceListener,
    SimpleConsumer,
    TopicPartition,
)
from consumerd.base.clock import SystemClock
from consumerd.demo.processes import BrokerProcess
from consumerd.net.connect import connect
from consumerd.net.zk import NoNode, Session
from consumerd.wire.v07 import LATEST, Codec, OffsetsRequest, ProduceRequest, encode_message_set
from tests.support.waiting import until

pytestmark = [pytest.mark.zookeeper]

PARTITIONS = 4
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]


class Ground:
    """A broker process, and what was produced into it."""

    def __init__(self, broker: BrokerProcess, zookeeper: str) -> None:
        self.broker = broker
        self.zookeeper = zookeeper
        self.produced: dict[tuple[str, int], list[bytes]] = {}

    async def produce(self, topic: str = "t", sets: int = 1) -> None:
        """`sets` message sets of one to seven messages into each partition, of all codecs."""
        connection = await connect("127.0.0.1", self.broker.port)
        for number in range(PARTITIONS):
            payloads = self.produced.setdefault((topic, number), [])
            for _ in range(sets):
                turn = len(payloads)
                some = [b"%s/%d/%d" % (topic.encode(), number, turn + index) for index in range(1 + turn % 7)]
                payloads += some
                data = encode_message_set(some, codec=CODECS[turn % 3])
                await connection.send(ProduceRequest(topic, number, data).encode())
        await connection.request(OffsetsRequest(topic, 0, LATEST, 1).encode())  # answered: all before it is stored
        await connection.close()

    @property
    def total(self) -> int:
        return sum(map(len, self.produced.values()))

    def config(self, **settings: Any) -> ConsumerConfig:
        return ConsumerConfig(
            group="g",
            zookeeper=self.zookeeper,
            **{
                "fetch_size": 4096,
                "idle_backoff": 0.05,
                "commit_interval": 0.1,
                "session_timeout": 2.0,
                "consumer_timeout": 15,
                **settings,
            },
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with Session(self.zookeeper, clock=SystemClock(), rng=random.Random()) as zk:
            yield zk


@pytest_asyncio.fixture
async def ground(zk_root: str, tmp_path: Path) -> AsyncIterator[Ground]:
    broker = BrokerProcess(
        tmp_path, zk_root, partitions=PARTITIONS, settings={"log.flush.interval": 1, "log.file.size": 20_000}
    )
    async with broker:
        yield Ground(broker, zk_root)


class Worker(RebalanceListener):
    """A member with a task for each of its streams, and a record of what came."""

    def __init__(self, config: ConsumerConfig, streams: int = 2, *, by_batch: bool = False) -> None:
        self.connector = ConsumerConnector(config, listener=self)
        self.seen: list[Message] = []
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self._by_batch = by_batch
        self._streams = streams
        self._task: asyncio.Task[None] | None = None
        self._rng = random.Random(2)

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))

    async def start(self, topic: str = "t") -> None:
        await self.connector.start()
        streams = (await self.connector.create_message_streams({topic: self._streams}))[topic]
        self._task = asyncio.create_task(self._run(streams))

    async def _run(self, streams: list[MessageStream]) -> None:
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._consume_batches(stream) if self._by_batch else self._consume(stream))

    async def _consume(self, stream: MessageStream) -> None:
        async for message in stream:
            await asyncio.sleep(self._rng.choice((0, 0, 0, 0.001)))
            self.seen.append(message)

    async def _consume_batches(self, stream: MessageStream) -> None:
        async for batch in stream.batches():
            await asyncio.sleep(self._rng.choice((0, 0.002)))
            self.seen += batch.messages()

    async def stop(self) -> None:
        await self.connector.shutdown()
        assert self._task is not None
        await self._task

    def held(self) -> set[TopicPartition]:
        """The partitions that were assigned and neither revoked nor lost."""
        held: set[TopicPartition] = set()
        for what, partitions in self.calls:
            if what == "assigned":
                assert not held & partitions
                held |= partitions
            else:
                assert partitions <= held
                held -= partitions
        return held


async def test_delivers_each_message_once_while_members_join_and_leave(ground: Ground) -> None:
    await ground.produce(sets=20)
    workers = [Worker(ground.config(), streams=1, by_batch=number == 1) for number in range(4)]

    present: list[Worker] = []

    async def settled() -> None:
        """Everyone present has a share; then more comes, which is under way at the next change."""
        await until(lambda: all(worker.held() for worker in present))
        await until(lambda: sum(len(worker.held()) for worker in present) == PARTITIONS)
        await ground.produce(sets=15)

    for worker in workers:
        present.append(worker)
        await worker.start()
        await settled()
    for leaver in (0, 2, 1):
        present.remove(workers[leaver])
        await workers[leaver].stop()
        assert workers[leaver].held() == set()
        await settled()
    await until(lambda: sum(len(worker.seen) for worker in workers) >= ground.total)
    await workers[3].stop()

    payloads = Counter(message.payload for worker in workers for message in worker.seen)
    assert set(payloads) == {payload for some in ground.produced.values() for payload in some}
    assert set(payloads.values()) == {1}
    for worker in workers:
        for (_, number), some in ground.produced.items():
            mine = [some.index(message.payload) for message in worker.seen if message.partition[2] == number]
            assert mine == sorted(mine)
        assert all(what != "lost" for what, _ in worker.calls)
    async with ground.session() as zk:
        assert await zk.children("/consumers/g/ids") == []
        assert await zk.children("/consumers/g/owners/t") == []
        async with SimpleConsumer("127.0.0.1", ground.broker.port) as simple:
            for number in range(PARTITIONS):
                committed, _ = await zk.get(f"/consumers/g/offsets/t/0-{number}")
                assert await simple.get_offsets_before("t", number, LATEST, 1) == (int(committed or b"-1"),)


async def following(stream: MessageStream) -> Message:
    """The next message, however often the stream's own patience ends before it comes."""
    while True:
        with contextlib.suppress(ConsumerTimeoutError):
            return await anext(stream)


async def test_supports_positions_seek_pause_and_timeouts(ground: Ground) -> None:
    await ground.produce(sets=10)
    async with ConsumerConnector(ground.config(consumer_timeout=0.3)) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        got = [await following(stream) for _ in range(ground.total)]
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)
        assert await connector.lag() == dict.fromkeys(connector.assignment(), 0)
        ends = await connector.end_offsets()
        assert await connector.commit_offsets() == ends == await connector.committed()

        zero, one = (TopicPartition("t", 0, number) for number in range(2))
        await connector.seek(zero, EARLIEST)
        assert (await connector.lag(zero))[zero] == ends[zero]
        again = [await following(stream) for _ in ground.produced["t", 0]]
        assert [message.identity for message in again] == [m.identity for m in got if m.partition == zero]
        middle = again[len(again) // 2]
        await connector.seek(zero, middle.offset)
        assert (await following(stream)).offset == middle.offset

        await connector.seek(zero, LATEST)
        connector.pause(one)
        await ground.produce()
        news = [await following(stream) for _ in range(3)]
        assert one not in {message.partition for message in news}
        connector.resume(one)
        seen = {message.partition for message in news}
        while one not in seen:
            seen.add((await following(stream)).partition)


async def test_reports_deleted_owner_nodes_as_lost_and_claims_them_again(ground: Ground) -> None:
    """JVM members delete by path. What this process handled is not repeated, though none of it was committed."""
    await ground.produce(sets=5)
    worker = Worker(ground.config(commit_interval=60.0))
    await worker.start()
    await until(lambda: len(worker.seen) == ground.total)
    async with ground.session() as zk:
        for number in range(PARTITIONS):
            await zk.delete(f"/consumers/g/owners/t/0-{number}")
        await until(lambda: any(what == "lost" for what, _ in worker.calls))
        await until(lambda: len(worker.held()) == PARTITIONS)
        with pytest.raises(NoNode):
            await zk.get("/consumers/g/offsets/t/0-0")
    await ground.produce(sets=5)
    await until(lambda: len(worker.seen) >= ground.total)
    await worker.stop()
    assert len({message.payload for message in worker.seen}) == len(worker.seen) == ground.total
