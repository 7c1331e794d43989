"""Requests to one broker: how they are combined, the size of one answer, and reports of errors."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from consumerd.client import ClientSettings, ClusterMetadata, FetchedPartition, PartitionFetch
from consumerd.clock import SystemClock
from consumerd.fetch import FetchSettings
from consumerd.fetch.listener import FetchCounters
from consumerd.fetch.v08.broker_source import BUSY_BYTES, BUSY_SENDERS, BrokerSource
from consumerd.fetch.v08.exchange import PartitionRequest
from consumerd.net import BadFrameError, ConnectionClosedError, ConnectionSettings
from consumerd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from consumerd.errors import BrokerError
    from consumerd.ports import Clock

pytestmark = pytest.mark.asyncio
MIB = 1 << 20


class MemoryBroker:
    """Client and channel in one: keeps requests back until `release`."""

    def __init__(self) -> None:
        self.settings = ClientSettings(connection=ConnectionSettings(request_timeout=0.2))
        self.versions = SimpleNamespace(pick=lambda *_, **__: 12)
        self.metadata = ClusterMetadata()
        self.address = "h:9"
        self.closed = False
        self.bodies: list[dict[str, Any]] = []
        self.patience: list[float] = []
        self.released = asyncio.Event()
        self.forgets = False
        self.trouble: BrokerError | None = None
        #: Milliseconds of silence that the next answer demands, which then has no partitions.
        self.over_quota = 0

    async def private_channel(self, node_id: int) -> MemoryBroker:
        if self.trouble is not None:
            raise self.trouble
        self.closed = False
        return self

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    async def call(self, api: Any, body: dict[str, Any], *, version: int, timeout: float, **_: Any) -> dict[str, Any]:
        self.bodies.append(body)
        self.patience.append(timeout)
        await self.released.wait()
        if self.trouble is not None:
            self.closed = True
            raise self.trouble
        if self.over_quota:
            silence, self.over_quota = self.over_quota, 0
            return {"throttle_time_ms": silence, "responses": []}
        parts = [
            {"partition": part["partition"], "error_code": 0, "high_watermark": 9, "record_set": b"x"}
            for part in body["topics"][0]["partitions"][self.forgets :]
        ]
        return {"responses": [{"topic": "t", "partition_responses": parts}]}

    @property
    def asked(self) -> list[list[int]]:
        """The numbers of the partitions of each request."""
        return [[part["partition"] for part in body["topics"][0]["partitions"]] for body in self.bodies]


@pytest_asyncio.fixture
async def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest_asyncio.fixture
async def source(broker: MemoryBroker) -> AsyncIterator[BrokerSource]:
    async with running(broker, FetchSettings(max_answer_bytes=8 * MIB)) as source:
        yield source


@asynccontextmanager
async def running(
    broker: MemoryBroker, settings: FetchSettings, counters: FetchCounters | None = None, clock: Clock | None = None
) -> AsyncIterator[BrokerSource]:
    client: Any = broker
    source = BrokerSource(1, client, settings, counters or FetchCounters(), clock or SystemClock())
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.wait([task])


async def data_of(answer: Awaitable[FetchedPartition | None]) -> bytes | memoryview | None:
    found = await answer
    return None if found is None else found.data


def request(number: int, max_bytes: int) -> PartitionRequest:
    return PartitionRequest(PartitionFetch("t", number, 0, max_bytes), asyncio.get_running_loop().create_future())


async def asking(source: BrokerSource, queue: str, sizes: list[int]) -> list[asyncio.Task[FetchedPartition | None]]:
    tasks = [asyncio.create_task(getattr(source, queue)(request(*each))) for each in enumerate(sizes)]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_fetches_busy_partitions_in_responses_of_a_few_mib(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB] * 5)
    assert broker.asked == [[0, 1], [2, 3]]
    assert len(broker.asked) == BUSY_SENDERS
    assert {body["max_bytes"] for body in broker.bodies} == {BUSY_BYTES}
    assert {body["max_wait_time"] for body in broker.bodies} == {0}
    assert set(broker.patience) == {0.2}
    broker.released.set()
    assert [answer and answer.data for answer in await asyncio.gather(*tasks)] == [b"x"] * 5
    assert broker.asked[2:] == [[4]]


async def test_fetches_large_request_alone(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB, 64 * MIB, MIB])
    broker.released.set()
    await asyncio.gather(*tasks)
    assert broker.asked == [[0], [1], [2]]


async def test_polls_all_idle_partitions_together(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "poll", [MIB] * 10)
    assert broker.asked == [list(range(10))]
    assert broker.bodies[0]["max_bytes"] == 8 * MIB  # as the response limit says
    assert broker.bodies[0]["max_wait_time"] == 500
    assert broker.patience == [0.2 + 0.5]  # a broker that delays an answer by max_wait does not hang
    broker.released.set()
    await asyncio.gather(*tasks)


async def test_sends_configured_max_wait_and_min_bytes(broker: MemoryBroker) -> None:
    settings = FetchSettings(max_wait=2.001, min_bytes=100_000)
    async with running(broker, settings) as source:
        tasks = [*await asking(source, "fetch", [MIB]), *await asking(source, "poll", [MIB])]
        asked = [(body["max_wait_time"], body["min_bytes"]) for body in broker.bodies]
        assert asked == [(0, 0), (2001, 100_000)]
        assert broker.patience == [0.2, 0.2 + 2.001]
        broker.released.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "wrong",
    [{"max_wait": 0.0}, {"max_wait": 0.001}, {"max_wait": 61.0}, {"min_bytes": 0}, {"min_bytes": MIB + 1}],
)
async def test_rejects_invalid_waits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FetchSettings(**wrong)


async def test_skips_cancelled_requests(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB] * 7)
    tasks[4].cancel()
    tasks[5].cancel()
    await asyncio.wait(tasks[4:6])
    broker.released.set()
    await asyncio.gather(tasks[0], tasks[3], tasks[6])
    assert broker.asked == [[0, 1], [2, 3], [6]]


async def test_fails_only_requests_of_broken_fetch(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB] * 2)
    broker.trouble = ConnectionClosedError("gone")
    broker.released.set()
    for told in await asyncio.gather(*tasks, return_exceptions=True):
        assert told is broker.trouble
    broker.trouble = None
    assert await data_of(source.fetch(request(0, MIB))) == b"x"


async def test_closes_connection_when_partition_is_missing(source: BrokerSource, broker: MemoryBroker) -> None:
    broker.forgets = True
    broker.released.set()
    with pytest.raises(BadFrameError, match="left t/0 out"):
        await source.fetch(request(0, MIB))
    assert broker.closed


@pytest.mark.parametrize("queue", ["fetch", "poll"])
async def test_waits_out_a_quota_without_an_error(broker: MemoryBroker, queue: str) -> None:
    clock, counters = FakeClock(), FetchCounters()
    broker.over_quota = 1500
    broker.released.set()
    async with running(broker, FetchSettings(), counters, clock) as source:
        assert await getattr(source, queue)(request(0, MIB)) is None
        assert not broker.closed
        waiting = asyncio.create_task(source.wait_out_quota())
        await clock.advance(1.4)
        assert not waiting.done()
        await clock.advance(0.1)
        await waiting
        assert await data_of(getattr(source, queue)(request(0, MIB))) == b"x"
    assert (counters.throttled, counters.disconnects, counters.connects) == (1.5, 0, 1)


async def test_lost_connection_counts_once_for_all_its_requests(broker: MemoryBroker) -> None:
    counters = FetchCounters()
    async with running(broker, FetchSettings(), counters) as source:
        tasks = await asking(source, "fetch", [MIB] * 4)
        assert len(broker.asked) == BUSY_SENDERS
        broker.trouble = ConnectionClosedError("gone")
        broker.released.set()
        assert await asyncio.gather(*tasks, return_exceptions=True) == [broker.trouble] * 4
        assert (counters.connects, counters.disconnects) == (1, 1)
        with pytest.raises(ConnectionClosedError):  # it cannot be made
            await source.fetch(request(0, MIB))
        assert (counters.connects, counters.disconnects) == (1, 2)
        broker.trouble = None
        await source.fetch(request(0, MIB))
        broker.closed = True  # while no request was on its way
        await source.fetch(request(0, MIB))
        assert (counters.connects, counters.disconnects) == (3, 3)


async def test_nothing_refers_to_an_answer_while_the_next_request_is_awaited(
    source: BrokerSource, broker: MemoryBroker
) -> None:
    broker.released.set()
    asked = request(0, MIB)
    answer = weakref.ref(asked.answer)
    assert await data_of(source.fetch(asked)) == b"x"
    del asked
    await asyncio.sleep(0)  # the sender goes on
    assert answer() is None
