"""Fetching from the real broker, through connections that fail in every way a proxy can make them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.log_changes import LogChange
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.fault_proxy import Direction, FaultProxy
from consumerd.wire.v07 import EARLIEST, LATEST, Codec, OffsetsRequest, ProduceRequest, encode_message_set

pytestmark = pytest.mark.asyncio

SETTINGS = FetchSettings(
    size=4096,
    poll_bytes=1024,
    poll_backoff_min=0.002,
    idle_backoff=0.02,
    retry_backoff_min=0.005,
    retry_backoff_max=0.05,
)
CONNECTION = ConnectionSettings(socket_timeout=0.3, connect_timeout=1.0)
PARTITIONS = 3


class Ground:
    """A directory with one broker behind a proxy, and a listener that expects no errors."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.events: list[tuple[Any, ...]] = []

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return ("127.0.0.1", self._proxy.port)

    def subscribe(self, changed: Any) -> Any:
        return lambda: None

    async def connect(self, host: str, port: int) -> Any:
        return await connect(host, port, settings=CONNECTION)

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        self.events.append(("failed", partition, error))

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        self.events.append(("reset", partition, old, new))

    def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> None:
        self.events.append(("log_changed", partition, change, new))

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        self.events.append(("skipped", partition, offset, next_offset))

    def parked(self, partition: TopicPartition, reason: str) -> None:
        self.events.append(("parked", partition, reason))


class Scene:
    def __init__(self, folder: Path) -> None:
        self.config = BrokerConfig(
            log_dir=folder, port=0, partitions=PARTITIONS, flush_messages=1, segment_bytes=20_000
        )
        self.broker = Broker(self.config, clock=SystemClock(), rng=random.Random(1))
        self.produced: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}

    async def start(self) -> None:
        await self.broker.start()
        self.proxy = FaultProxy("127.0.0.1", self.broker.port)
        await self.proxy.start()
        self.ground = Ground(self.proxy)
        self.budget = ByteBudget(200_000)
        self.pool = FetchPool(
            V07Brokers(
                self.ground.connect, self.ground, self.budget, SETTINGS, SystemClock(), random.Random(1), self.ground
            )
        )
        self.running = asyncio.create_task(self.pool.run())
        self.lanes = {number: self.add(number) for number in range(PARTITIONS)}

    def add(self, number: int) -> Lane:
        partition = TopicPartition("t", 0, number)
        lane = Lane(partition, self.budget, max_bytes=50_000)
        self.pool.add(partition, 0, lane)
        return lane

    async def stop(self) -> None:
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        for lane in self.lanes.values():
            lane.close()
        await self.proxy.close()
        await self.broker.stop()
        assert self.budget.used == 0

    async def produce(self, count: int) -> None:
        """`count` sets per partition, plain and compressed by turns."""
        connection = await connect("127.0.0.1", self.broker.port)
        codecs = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]
        for number, payloads in self.produced.items():
            for _ in range(count):
                turn = len(payloads)
                some = [b"%d/%d " % (number, turn + index) + b"." * (turn % 50) for index in range(10)]
                payloads += some
                data = encode_message_set(some, codec=codecs[turn // 10 % 3])
                await connection.send(ProduceRequest("t", number, data).encode())
        await connection.request(OffsetsRequest("t", 0, LATEST, 1).encode())  # answered: all before it is stored
        await connection.close()

    async def consume(self, number: int, got: list[bytes]) -> None:
        """Take everything that was produced into partition `number`, in order."""
        async with asyncio.timeout(60):
            while len(got) < len(self.produced[number]):
                batch = await self.lanes[number].get()
                got += [payload for payload in batch.payloads if payload is not None]
                self.lanes[number].finished(batch)
        assert got == self.produced[number]


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Scene]:
        made = Scene(tmp_path / "logs")
        await made.start()
        try:
            yield made
        finally:
            await made.stop()

    return make


async def test_fetches_everything_once_and_in_order_across_segments(scene: Any) -> None:
    async with scene() as s:
        await s.produce(100)
        got: dict[int, list[bytes]] = {number: [] for number in s.lanes}
        await asyncio.gather(*(s.consume(number, got[number]) for number in s.lanes))
        await s.produce(5)  # from idle
        await asyncio.gather(*(s.consume(number, got[number]) for number in s.lanes))
        assert s.ground.events == []
        partition = TopicPartition("t", 0, 1)
        assert await s.pool.list_offsets(partition, EARLIEST) == (0,)
        assert await s.pool.list_offsets(partition, LATEST) == (s.pool.position(partition),)


@pytest.mark.parametrize("fault", ["fin", "rst", "half-close", "refuse", "stall", "blackhole", "delay"])
async def test_network_faults_lose_and_repeat_nothing(scene: Any, fault: str) -> None:
    async with scene() as s:
        got: dict[int, list[bytes]] = {number: [] for number in s.lanes}
        for _ in range(2):
            await s.produce(25)
            consumers = [asyncio.create_task(s.consume(number, got[number])) for number in s.lanes]
            await asyncio.sleep(0.01)
            if fault == "half-close":
                s.proxy.half_close(Direction.TO_CLIENT)
            elif fault == "refuse":
                s.proxy.refuse()
                s.proxy.cut()
            elif fault in ("stall", "blackhole"):
                getattr(s.proxy, fault)(Direction.TO_CLIENT)
            elif fault == "delay":
                s.proxy.delay(0.01)
            else:
                s.proxy.cut(rst=fault == "rst")
            if fault in ("stall", "blackhole"):
                await asyncio.sleep(0.4)  # beyond the request timeout
            s.proxy.heal()
            await asyncio.gather(*consumers)
        assert s.ground.events == []
        assert (s.pool.counters.disconnects > 0) == (fault != "delay")
