"""Groups without sockets, whose members record their actions in a journal.

`group`: ZooKeeper and a broker in memory (`consumerd.testing.group`). `cluster`: for members without ZooKeeper.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest_asyncio

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.settings.group import CommitSection
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.member.consumer.backends_v08 import ClusterBackend
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.fixed import FixedConsumer
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.offsets.store import NO_NOTES, CommitResult
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectionClosedError
from consumerd.testing import MemoryMember
from consumerd.testing.clock import FakeClock
from consumerd.testing.group import FETCH, Journal, MemoryGroup, changed
from consumerd.wire.registry.paths import offset_path, owner_path
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v07 import EARLIEST, LATEST, decode_batch, encode_message_set
from consumerd.wire.v08.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_CONFIGS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from consumerd.wire.v08.schema import Api

if TYPE_CHECKING:
    from consumerd.member.offsets.store import Notes as CommitNotes

GROUP = "g"
SETTINGS = ConsumerSettings(
    group=GROUP,
    consumer_id=f"{GROUP}_",
    subscription=StaticSubscription({"t": 1}),
    membership=MembershipSettings(drain_timeout=5.0, retry_interval=0.02),
    fetch=FETCH,
    commit=CommitSection(interval=60.0),
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

    def topic(self, topic: str, partitions: int, *payloads: bytes, broker: int = 0) -> None:
        """Register it, and append the payloads to its first partition."""
        self._memory.topic(topic, partitions, broker=broker)
        if payloads:
            self.broker.append(topic, 0, *payloads)

    @staticmethod
    def fetch_settings(**changes: Any) -> FetchSettings:
        return FETCH.replace(**changes)

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

    async def member(self, name: str = "a", *, handler: Any = None, **settings: Any) -> MemoryMember:
        """Start one more member; its handler is not wrapped in a retry policy."""
        return await self._memory.join(name, self.recorder(name) if handler is None else handler, **settings)


@pytest_asyncio.fixture
async def group() -> AsyncIterator[Group]:
    """Everything ends with the test, and nothing may be left running."""
    async with MemoryGroup(GROUP, settings=SETTINGS) as memory:
        yield Group(memory)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks were left behind"
    assert not memory.broker.connections, "connections were left open"


class Notes:
    """A pool that fetches nothing: `put` delivers messages. All logs begin at 100 and end at 200."""

    begin, end = 100, 200

    def __init__(self) -> None:
        self.counters = FetchCounters()
        self.lanes: dict[TopicPartition, Lane] = {}
        #: Those that were announced last.
        self.expected: list[TopicPartition] = []

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.lanes)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        self.expected = sorted(partitions)

    def add(self, partition: TopicPartition, offset: int, lane: Lane, log: LogId) -> None:
        self.lanes[partition] = lane
        self.counters.answered.add(partition)

    async def remove(self, partition: TopicPartition) -> None:
        self.lanes.pop(partition, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Nothing was fetched."""

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        raise NotImplementedError

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        return ({EARLIEST: self.begin, LATEST: self.end}[time],)

    def put(self, member: RunningMember[Any], partition: TopicPartition, offset: int, *payloads: bytes) -> int:
        """Deliver messages from `offset` on; return the offset behind them."""
        messages = decode_batch(encode_message_set(payloads), offset)
        self.lanes[partition].put(messages, member.budget.charge(messages.memory_bytes))
        return messages.next_offset


class Offsets:
    """A store in memory. Those in `refused` are not ours, those in `denied` may not be written."""

    keeps_for: float | None = None

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.refused: set[TopicPartition] = set()
        self.denied: set[TopicPartition] = set()

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.offsets[each] for each in partitions if each in self.offsets}

    peek = load

    def trace(self, partition: TopicPartition) -> None:
        """It cannot tell who wrote an offset."""

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset()

    async def is_new(self, partition: TopicPartition) -> bool:
        return False

    def log(self, partition: TopicPartition) -> LogId:
        return UNKNOWN_LOG

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: CommitNotes = NO_NOTES
    ) -> CommitResult:
        lost = frozenset(positions) & self.refused
        denied = {partition: BrokerError("Read is missing") for partition in positions if partition in self.denied}
        committed = frozenset(positions) - lost - denied.keys()
        self.offsets |= {partition: positions[partition] for partition in committed}
        return CommitResult(committed, lost, denied)


class Channel:
    """A connection to the coordinator, with the newest versions of the requests."""

    def __init__(self, cluster: Cluster) -> None:
        self.versions = self
        self._cluster = cluster
        self._closed = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def pick(self, api: Api[Any, Any], *, at_least: int = 0) -> int:
        return api.versions[1]

    async def call(
        self, api: Api[Any, Any], body: dict[str, Any], *, version: int = 0, timeout: float = 0.0
    ) -> dict[str, Any]:
        answer = self._cluster.answer(api, body)
        if answer is None:
            await self._closed.wait()
            raise ConnectionClosedError("the connection was dropped")
        return answer

    def abort(self) -> None:
        self._closed.set()


class Cluster:
    """Brokers of 0.9 and later without sockets: their client, a coordinator with one member, logs and offsets.

    `answers`: the fields of the next answers to requests of an API, before the usual ones; None: it does not answer.
    `topics`: their numbers of partitions.
    """

    def __init__(self) -> None:
        self.settings = ClientSettings()
        self.clock = FakeClock()
        self.journal = Journal()
        self.handler = Recorder(self.journal)
        self.logs = Notes()
        self.store = Offsets()
        self.topics = {"t": 2}
        self.asked: list[str] = []
        self.answers: dict[Api[Any, Any], list[dict[str, Any] | None]] = {}
        self.channels: list[Channel] = []
        self._generation = 0
        self._backend = cast(
            "ClusterBackend",
            SimpleNamespace(
                client=self,
                pool=lambda owner, rng: self.logs,
                store=lambda group, *_: self.store,
                cluster=self._cluster_id,
                brokers=lambda: 1,
            ),
        )
        self._running: list[asyncio.Task[None]] = []

    async def _cluster_id(self) -> str:
        return "cluster"

    # -- members

    def fixed(self, *partitions: TopicPartition, **settings: Any) -> FixedConsumer:
        """A member with these partitions; it does not run yet."""
        return FixedConsumer(changed(SETTINGS, **settings), partitions, **self._parts())

    def coordinated(
        self, *, instance_id: str | None = None, protocol: Literal["classic", "consumer"] = "classic", **settings: Any
    ) -> CoordinatedConsumer:
        """A member of the group; it does not run yet."""
        coordination = CoordinationSettings(instance_id=instance_id, protocol=protocol)
        return CoordinatedConsumer(changed(SETTINGS, **settings), coordination, **self._parts())

    def _parts(self) -> dict[str, Any]:
        rng = random.Random(1)
        return {"backend": self._backend, "handler": self.handler, "clock": self.clock, "rng": rng}

    def run(self, member: RunningMember[Any]) -> asyncio.Task[None]:
        """Run it until the end of the test."""
        self._running.append(asyncio.create_task(member.run()))
        return self._running[-1]

    async def turns(self) -> None:
        """Let the members do all that waits for nothing."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- the client

    async def coordinator(self, group: str) -> int:
        return 1

    def forget_coordinator(self, group: str) -> None:
        """It stays the same."""

    async def private_channel(self, node_id: int) -> Channel:
        self.channels.append(Channel(self))
        return self.channels[-1]

    async def refresh(self, topics: Iterable[str] | None) -> ClusterMetadata:
        one = PartitionMetadata(1, 0, (1,), (1,), 0)
        found = {
            topic: TopicMetadata(0, dict.fromkeys(range(count), one), id=topic.encode().ljust(16))
            for topic, count in self.topics.items()
        }
        return ClusterMetadata({1: Node(1, "h", 1)}, found)

    # -- the coordinator

    def answer(self, api: Api[Any, Any], body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the fields of the answer."""
        self.asked.append(api.name)
        if scripted := self.answers.get(api):
            return scripted.pop(0)
        done: dict[str, Any] = {"error_code": 0}
        if api is JOIN_GROUP:
            self._generation += 1
            [first, *_] = body["protocols"]
            member = {"member_id": "me", "metadata": first["metadata"]}
            return done | {
                "generation_id": self._generation,
                "protocol_name": first["name"],
                "leader": "me",
                "member_id": "me",
                "members": [member],
            }
        if api is SYNC_GROUP:
            [share] = body["assignments"]
            return done | {"assignment": share["assignment"]}
        if api is DESCRIBE_CONFIGS:
            return {"results": []}
        if api is CONSUMER_GROUP_HEARTBEAT:
            return self.assigned(self.topics)
        assert api in (HEARTBEAT, LEAVE_GROUP)
        return done

    @staticmethod
    def assigned(topics: Mapping[str, int]) -> dict[str, Any]:
        """An answer of the consumer protocol that assigns the first partitions of topics, as many of each."""
        shares = [
            {"topic_id": topic.encode().ljust(16), "partitions": list(range(count))} for topic, count in topics.items()
        ]
        return {
            "error_code": 0,
            "member_id": "me",
            "member_epoch": 1,
            "heartbeat_interval_ms": 3000,
            "assignment": {"topic_partitions": shares},
        }


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Members that still run are cancelled, and nothing may be left running."""
    cluster = Cluster()
    yield cluster
    await cluster.end()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks were left behind"
