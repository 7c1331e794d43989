"""A broker that speaks real frames and does what a test tells it, and a pool that fetches from it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import accumulate
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
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
    decode_request,
)
from tests.support.fetching import Recorder

FAST = FetchSettings(poll_backoff_min=0.002, idle_backoff=0.02, retry_backoff_min=0.002, retry_backoff_max=0.02)


class ScriptedLog:
    """One partition: segments of bytes, the first of which starts at `base`."""

    def __init__(self, base: int = 0, *segments: bytes) -> None:
        self.base = base
        self.segments = [bytearray(segment) for segment in segments] or [bytearray()]

    @property
    def end(self) -> int:
        return self.base + sum(map(len, self.segments))

    @property
    def starts(self) -> list[int]:
        """Where the segments begin, the last one first."""
        sizes = map(len, self.segments[:-1])
        return list(accumulate(sizes, initial=self.base))[::-1]

    def read(self, offset: int, size: int) -> FetchResponse:
        if not self.base <= offset <= self.end:
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        start = self.base
        for segment in self.segments:
            if offset < start + len(segment):
                return FetchResponse(ErrorCode.NONE, bytes(segment[offset - start :][:size]))
            start += len(segment)
        return FetchResponse(ErrorCode.NONE, b"")


class ScriptedBroker:
    """Serves `logs` by the rules of the golden notes, unless `on_fetch` answers instead.

    `on_fetch(request)` returns a FetchResponse, raw bytes to send as they are (for a FETCH), "close" to close the
    connection, "silence" to never answer, or None for the ordinary answer. It may be a coroutine function.
    """

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], ScriptedLog] = {}
        self.on_fetch: Callable[[FetchRequest], Any] = lambda request: None
        self.requests: list[Any] = []
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, reuse_port=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    @property
    def open(self) -> set[asyncio.StreamWriter]:
        """The connections that have not ended."""
        return self._writers

    def fetches(self, kind: type = FetchRequest) -> list[Any]:
        return [request for request in self.requests if type(request) is kind]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = decode_request(await reader.readexactly(size))
                self.requests.append(request)
                answer = await self._answer(request)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side closed the connection, or the broker stops
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, request: Any) -> bytes | None:
        if isinstance(request, OffsetsRequest):
            log = self.logs.get((request.topic, request.partition), ScriptedLog())
            offsets = (log.base,) if request.time == EARLIEST else (log.end, *log.starts)[: request.max_number]
            assert request.time in (EARLIEST, LATEST)
            return OffsetsResponse(ErrorCode.NONE, offsets).encode()
        if isinstance(request, MultiFetchRequest):
            entries = []
            for fetch in request.fetches:
                entry = await self._fetch(fetch)
                if not isinstance(entry, FetchResponse):
                    return entry if isinstance(entry, bytes) else None
                entries.append(entry)
            return MultiFetchResponse(ErrorCode.NONE, tuple(entries)).encode()
        assert isinstance(request, FetchRequest)
        answer = await self._fetch(request)
        return answer.encode() if isinstance(answer, FetchResponse) else answer

    async def _fetch(self, request: FetchRequest) -> FetchResponse | bytes | None:
        answer = self.on_fetch(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer == "close":
            return None
        if answer == "silence":
            await asyncio.Event().wait()
        if answer is not None:
            assert isinstance(answer, FetchResponse | bytes)
            return answer
        log = self.logs.get((request.topic, request.partition))
        if log is None:
            return FetchResponse(ErrorCode.NONE, b"")
        return log.read(request.offset, request.max_size)


class RecordingClock(SystemClock):
    """Real time, and a list of the sleeps that were asked for."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await super().sleep(seconds)


class Rig:
    """A scripted broker with id 0 and a running pool."""

    def __init__(self, broker: ScriptedBroker, settings: FetchSettings, budget: int, timeout: float) -> None:
        self.broker = broker
        self.connection = ConnectionSettings(socket_timeout=timeout)
        self.addresses: dict[int, tuple[str, int]] = {0: ("127.0.0.1", broker.port)}
        self._changed: list[Callable[..., None]] = []
        self.settings = settings
        self.listener = Recorder()
        self.budget = ByteBudget(budget)
        self.clock = RecordingClock()
        self.brokers = self.fresh_brokers()
        self.pool = FetchPool(self.brokers)
        self.lanes: dict[TopicPartition, Lane] = {}

    def fresh_brokers(self) -> V07Brokers:
        return V07Brokers(self.connect, self, self.budget, self.settings, self.clock, random.Random(7), self.listener)

    async def connect(self, host: str, port: int) -> Any:
        return await connect(host, port, settings=self.connection)

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return self.addresses.get(broker_id)

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        self._changed.append(changed)
        return lambda: self._changed.remove(changed)

    def move(self, broker_id: int, port: int) -> None:
        """The broker registered elsewhere."""
        self.addresses[broker_id] = ("127.0.0.1", port)
        for changed in list(self._changed):
            changed(self.addresses)

    def add(self, topic: str = "t", number: int = 0, offset: int = 0, *, max_bytes: int = 1 << 30, **lane: Any) -> Lane:
        partition = TopicPartition(topic, 0, number)
        self.lanes[partition] = Lane(partition, self.budget, max_bytes=max_bytes, **lane)
        self.pool.add(partition, offset, self.lanes[partition])
        return self.lanes[partition]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look again and again, for a minute at most."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    async def take(self, lane: Lane, count: int) -> list[bytes]:
        """At least `count` messages, in whole batches that follow each other without a gap."""
        payloads: list[bytes] = []
        async with asyncio.timeout(60):
            while len(payloads) < count:
                batch = await lane.get()
                payloads += [payload for payload in batch.payloads if payload is not None]
                lane.finished(batch)
        return payloads


@pytest.fixture
def rig() -> Callable[..., contextlib.AbstractAsyncContextManager[Rig]]:
    """`async with rig(budget=..., **settings) as r`: a broker, and a pool running against it."""

    @contextlib.asynccontextmanager
    async def make(*, budget: int = 1 << 30, request_timeout: float = 10.0, **settings: Any) -> AsyncIterator[Rig]:
        broker = ScriptedBroker()
        await broker.start()
        made = Rig(broker, FAST.replace(**settings), budget, request_timeout)
        running = asyncio.create_task(made.pool.run())
        try:
            yield made
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            for lane in made.lanes.values():
                lane.close()
            await broker.stop()
            assert made.budget.used == 0, "bytes leaked"

    return make


@pytest.fixture
def scripted_log() -> type[ScriptedLog]:
    return ScriptedLog


@pytest.fixture
def numbered() -> Callable[[Iterable[int]], list[bytes]]:
    """Payloads that tell themselves apart."""
    return lambda numbers: [b"message %06d" % number for number in numbers]
