"""A ZooKeeper in memory, and brokers in this process, filled with messages whose boundaries are known."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.net.connect import Connection, connect
from consumerd.net.connection import ConnectionSettings
from consumerd.operate.admin.logs import BrokerLogs
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.values import RegisteredBroker as Registered
from consumerd.wire.v07 import (
    LATEST,
    Codec,
    OffsetsRequest,
    ProduceRequest,
    decode_offsets_response,
    encode_message_set,
)


async def quick(host: str, port: int) -> Connection:
    return await connect(host, port, settings=ConnectionSettings(connect_timeout=2, socket_timeout=5))


@dataclass
class Cluster:
    """Brokers by id, and the boundaries of every partition that `fill` wrote."""

    folder: Path
    stack: AsyncExitStack
    brokers: dict[int, Registered] = field(default_factory=dict)
    boundaries: dict[TopicPartition, list[int]] = field(default_factory=dict)

    @property
    def logs(self) -> BrokerLogs:
        return BrokerLogs(self.brokers, quick)

    async def start(self, broker_id: int = 0, **settings: Any) -> Broker:
        from consumerd.storage.broker.config import BrokerConfig  # only tests with brokers need it
        from consumerd.storage.broker.server import Broker  # only tests with brokers need it

        config = BrokerConfig(
            log_dir=self.folder / str(broker_id),
            port=0,
            use_zookeeper=False,
            flush_messages=1,
            partitions=2,
            **settings,
        )
        broker = Broker(config, clock=SystemClock(), rng=random.Random(1))
        await self.stack.enter_async_context(broker)
        self.brokers[broker_id] = Registered(broker_id, "test", "127.0.0.1", broker.port)
        return broker

    async def fill(self, partition: TopicPartition, *sets: tuple[list[bytes], Codec]) -> list[int]:
        """Append sets; returns all boundaries, the end included."""
        ends = self.boundaries.setdefault(partition, [0])
        connection = await quick(*self.brokers[partition.broker].address)
        for payloads, codec in sets:
            for single in [payloads] if codec else [[payload] for payload in payloads]:
                data = encode_message_set(single, codec=codec)
                await connection.send(ProduceRequest(partition.topic, partition.partition, data).encode())
                ends.append(ends[-1] + len(data))
        # PRODUCE has no answer, but the broker answers in order.
        question = OffsetsRequest(partition.topic, partition.partition, LATEST, 1).encode()
        answer = decode_offsets_response(await connection.request(question))
        await connection.close()
        assert answer.offsets == (ends[-1],)
        return ends


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe, to read and to write; a test may close them."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


@pytest.fixture
def server() -> MemoryZooKeeper:
    """A ZooKeeper in memory."""
    return MemoryZooKeeper()


@pytest_asyncio.fixture
async def zk(server: MemoryZooKeeper) -> AsyncIterator[MemorySession]:
    """A session of it."""
    async with server.session() as session:
        yield session
