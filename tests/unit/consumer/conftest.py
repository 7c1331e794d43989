"""A group without sockets: ZooKeeper in memory that keeps a journal, brokers in memory, members in this loop."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from consumerd.clock import SystemClock
from consumerd.consumer import ConsumerSettings, GroupConsumer
from consumerd.embedded.memory_tree import Kind
from consumerd.embedded.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.fetch import FetchSettings
from consumerd.group import MembershipSettings
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.net import ConnectError, ConnectionClosedError
from consumerd.registry import StaticSubscription, offset_path, owner_path
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    OffsetsRequest,
    OffsetsResponse,
    Request,
    decode_request,
    encode_message_set,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from consumerd.partition import TopicPartition

GROUP = "g"
FETCH = FetchSettings(poll_backoff_min=0.002, poll_backoff_max=0.01, retry_backoff_min=0.002, retry_backoff_max=0.01)
MEMBERSHIP = MembershipSettings(drain_timeout=5.0, retry_interval=0.02)


class Journal:
    """What happened, in order: `created`, `set` and `deleted` nodes, and whatever handlers note."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def note(self, what: str, about: str) -> None:
        self.entries.append((what, about))
        self.tell()

    def tell(self) -> None:
        """Something changed that somebody may wait for."""
        self._news.set()

    def of(self, *about: str) -> list[tuple[str, str]]:
        return [entry for entry in self.entries if entry[1] in about]

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return when `condition()` holds. Every entry leads to a look; so does a tick, for what is not noted here."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                try:
                    async with asyncio.timeout(0.01):
                        await self._news.wait()
                except TimeoutError:
                    continue


class JournalingZooKeeper(MemoryZooKeeper):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._there: set[str] = set()
        super().__init__()

    def _changed(self, kind: Kind, path: str) -> None:
        if kind is Kind.DATA:
            there = self.tree.has(path)
            self._journal.note("deleted" if not there else "set" if path in self._there else "created", path)
            (self._there.add if there else self._there.discard)(path)
        super()._changed(kind, path)


class MemoryBroker:
    """Answers as a 0.7 broker does; `on_request` may answer in its place, with a body, or an error to raise."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], bytearray] = {}
        self.on_request: Callable[[Request], bytes | Exception | None] = lambda _: None
        self.requests: list[Request] = []
        self.away = False
        self.connections: set[MemoryConnection] = set()

    def append(self, topic: str, partition: int, *payloads: bytes, **encoding: Any) -> int:
        """Append a set; where the log ends now."""
        log = self.logs.setdefault((topic, partition), bytearray())
        log += encode_message_set(payloads, **encoding)
        return len(log)

    async def connect(self, host: str, port: int) -> MemoryConnection:
        await asyncio.sleep(0)
        if self.away:
            raise ConnectError(f"cannot connect to broker {host}:{port}; is it running?")
        return MemoryConnection(self)

    def answer(self, request: Request) -> bytes | Exception:
        self.requests.append(request)
        special = self.on_request(request)
        if special is not None:
            return special
        match request:
            case OffsetsRequest():
                log = self.logs.get((request.topic, request.partition), b"")
                offset = {EARLIEST: 0, LATEST: len(log)}[request.time]
                return OffsetsResponse(ErrorCode.NONE, (offset,)).encode()[4:]
            case MultiFetchRequest():
                entries = tuple(map(self._fetched, request.fetches))
                return MultiFetchResponse(ErrorCode.NONE, entries).encode()[4:]
            case FetchRequest():
                return self._fetched(request).encode()[4:]
        raise AssertionError(f"no consumer sends {request}")

    def _fetched(self, request: FetchRequest) -> FetchResponse:
        log = self.logs.get((request.topic, request.partition), bytearray())
        if not 0 <= request.offset <= len(log):
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        return FetchResponse(ErrorCode.NONE, bytes(log[request.offset : request.offset + request.max_size]))


class MemoryConnection:
    """A connection without a socket; see `consumerd.net.Connection`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._ended = asyncio.Event()
        broker.connections.add(self)

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        self.raise_if_closed()
        answer = self._broker.answer(decode_request(frame[4:]))
        await asyncio.sleep(0)
        self.raise_if_closed()
        if isinstance(answer, Exception):
            self.abort()
            raise answer
        return answer

    async def send(self, frame: bytes) -> None:
        raise AssertionError("a consumer does not produce")

    async def wait_closed(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._broker.connections.discard(self)
        self._ended.set()

    def raise_if_closed(self) -> None:
        if self.closed:
            raise ConnectionClosedError("the connection in memory was closed", blamed=True)


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


class Running:
    """A member at work."""

    def __init__(self, consumer: GroupConsumer, zk: MemorySession, handler: Any) -> None:
        self.consumer = consumer
        self.zk = zk
        self.handler = handler
        self.task = asyncio.create_task(consumer.run())

    async def stop(self, seconds: float = 5.0) -> None:
        """Leave in order; raises what `run` raised."""
        self.consumer.request_stop()
        await self.ended(seconds)

    async def ended(self, seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            await asyncio.shield(self.task)

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class Group:
    """One ZooKeeper, one broker with id 0, and as many members as a test starts."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.journal = Journal()
        self.zookeeper = JournalingZooKeeper(self.journal)
        self.broker = MemoryBroker()
        self.members: list[Running] = []
        self.register_broker(0)

    # -- the cluster

    def register_broker(self, broker: int) -> None:
        self.zookeeper.put(f"/brokers/ids/{broker}", b"creator:memory:%d" % (9000 + broker))

    def topic(self, topic: str, partitions: int, broker: int = 0) -> None:
        self.zookeeper.put(f"/brokers/topics/{topic}/{broker}", b"%d" % partitions)

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

    # -- members

    def recorder(self, name: str = "a") -> Recorder:
        return Recorder(self.journal, name)

    async def member(self, name: str = "a", *, handler: Any = None, **settings: Any) -> Running:
        """Start one more member."""
        zk = await self._stack.enter_async_context(self.zookeeper.session(session_timeout=6.0))
        defaults = ConsumerSettings(
            group=GROUP,
            consumer_id=f"{GROUP}_{name}",
            subscription=StaticSubscription({"t": 1}),
            membership=MEMBERSHIP,
            fetch=FETCH,
            commit_interval=60.0,
        )
        consumer = GroupConsumer(
            replace(defaults, **settings),
            zk=zk,
            connect=self.broker.connect,
            handler=self.recorder(name) if handler is None else handler,
            clock=SystemClock(),
            rng=random.Random(1),
        )
        running = Running(consumer, zk, consumer._handler)
        self.members.append(running)
        return running

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        await self.journal.until(condition, seconds)


@pytest_asyncio.fixture
async def group() -> AsyncIterator[Group]:
    """Everything ends with the test, and nothing may be left running."""
    async with AsyncExitStack() as stack:
        made = Group(stack)
        yield made
        for member in made.members:
            await member.cancel()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks were left behind"
    assert not made.broker.connections, "connections were left open"
