"""A group without sockets (`consumerd.testing.group`) whose members record their actions in a journal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from consumerd.consumer import ConsumerSettings
from consumerd.group import MembershipSettings
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.registry import StaticSubscription, offset_path, owner_path
from consumerd.testing.group import FETCH, MemoryGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from consumerd.fetch import FetchSettings
    from consumerd.partition import TopicPartition
    from consumerd.testing import Member
    from consumerd.testing.journal import Journal

GROUP = "g"
SETTINGS = ConsumerSettings(
    group=GROUP,
    consumer_id=f"{GROUP}_",
    subscription=StaticSubscription({"t": 1}),
    membership=MembershipSettings(drain_timeout=5.0, retry_interval=0.02),
    fetch=FETCH,
    commit_interval=60.0,
)


class Recorder(Handler):
    """Remembers payloads in `seen`, and its life in the journal. While `hold` is set, batches wait in its hands."""

    def __init__(self, journal: Journal, name: str = "a") -> None:
        self._journal = journal
        self.name = name
        self.seen: list[bytes] = []
        self.batches: list[Batch] = []
        self.holding = 0
        self.cancelled = 0
        self.starts = 0
        self.stops = 0
        self.positions: dict[TopicPartition, int] = {}
        self.error: Exception | None = None
        self._go = asyncio.Event()
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    async def start(self, context: HandlerContext) -> None:
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1

    async def position(self, partition: TopicPartition) -> int | None:
        self._journal.note("position", f"{self.name} {partition}")
        return self.positions.get(partition)

    async def handle(self, batch: Batch) -> None:
        self._journal.note("begin", f"{self.name} {batch.partition}")
        self.holding += 1
        try:
            await self._go.wait()
            if self.error is not None:
                raise self.error
            self.seen += batch.payloads
            self.batches.append(batch)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.holding -= 1
            self._journal.note("end", f"{self.name} {batch.partition}")


class Group:
    """A group in memory, and members with recorders."""

    def __init__(self, memory: MemoryGroup) -> None:
        self._memory = memory
        self.journal = memory.journal
        self.zookeeper = memory.zookeeper
        self.broker = memory.broker
        self.members = memory.members
        self.register_broker = memory.register_broker
        self.until = memory.until

    def topic(self, topic: str, partitions: int, broker: int = 0) -> None:
        self._memory.topic(topic, partitions, broker=broker)

    @staticmethod
    def fetch_settings(**changes: Any) -> FetchSettings:
        return replace(FETCH, **changes)

    def data(self, path: str) -> bytes | None:
        return self.zookeeper.dump().get(path)

    def offset(self, partition: TopicPartition) -> int | None:
        data = self.data(offset_path(GROUP, partition))
        return None if data is None else int(data)

    def owner(self, partition: TopicPartition) -> str | None:
        data = self.data(owner_path(GROUP, partition))
        return None if data is None else data.decode()

    def recorder(self, name: str = "a") -> Recorder:
        return Recorder(self.journal, name)

    async def member(self, name: str = "a", *, handler: Any = None, **settings: Any) -> Member:
        """Start one more member; its handler is not wrapped in a retry policy."""
        return await self._memory.join(name, self.recorder(name) if handler is None else handler, **settings)


@pytest_asyncio.fixture
async def group() -> AsyncIterator[Group]:
    """Everything ends with the test, and nothing may be left running."""
    async with MemoryGroup(GROUP, settings=SETTINGS) as memory:
        yield Group(memory)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks were left behind"
    assert not memory.broker.connections, "connections were left open"
