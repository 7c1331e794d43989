"""The pool of fetchers with brokers in memory: which tasks it starts, ends and waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.partition import LogId, TopicPartition
from consumerd.member.fetch.fetcher import PartitionResponse, Put
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.wire.v07 import LATEST, decode_batch, encode_message
from tests.support.fetching import FetchingInMemory
from tests.support.waiting import cancel, turns

P = TopicPartition("t", 0, 0)
LOG = LogId(b"o" * 16, 4)
MESSAGE = encode_message(b"payload")


class Source:
    """Answers a request with one message, and the next ones never; ends when it may."""

    idle = identifies = False

    def __init__(self, lane: Lane) -> None:
        self.asked: list[tuple[int, LogId]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ended = False
        self._lane = lane

    async def ask(self, offset: int, size: int, log: LogId, put: Put) -> Any:
        self.asked.append((offset, log))
        if len(self.asked) == 1:
            return PartitionResponse(0, 0, MESSAGE, size, self._lane.budget.charge(size))
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            while not self.may_end.is_set():  # however often it is cancelled
                with contextlib.suppress(asyncio.CancelledError):
                    await self.may_end.wait()
            self.ended = True

    def is_doubtful(self) -> bool:
        return False

    async def decode(self, response: PartitionResponse, offset: int) -> Any:
        return decode_batch(response.data, offset)

    def classified(self, *_: Any) -> None:
        pass

    pause = resume = classified


class Brokers(FetchingInMemory):
    """Brokers with a task of their own, which a released partition leaves."""

    def __init__(self) -> None:
        super().__init__(P, FetchSettings())
        self.sources: list[Source] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks.append(tasks.create_task(asyncio.Event().wait()))

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def source(self, partition: TopicPartition, lane: Lane) -> Any:
        self.sources.append(Source(lane))
        return self.sources[-1]

    def release(self, partition: TopicPartition) -> list[asyncio.Task[Any]]:
        return self.tasks

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        raise NotImplementedError

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        return (time,)

    def known_end(self, partition: TopicPartition) -> int:
        return 76

    async def log_end(self, partition: TopicPartition) -> int:
        return 77

    async def fetched(self, number: int) -> Source:
        """The source with this number, when its first message was put in the lane."""
        async with asyncio.timeout(5):
            while len(self.sources) <= number or len(self.sources[number].asked) < 2:
                await asyncio.sleep(0)
        return self.sources[number]


@pytest_asyncio.fixture
async def brokers() -> Brokers:
    return Brokers()


@pytest_asyncio.fixture
async def pool(brokers: Brokers) -> AsyncIterator[FetchPool]:
    pool = FetchPool(brokers)
    running = asyncio.create_task(pool.run())
    yield pool
    running.cancel()
    async with asyncio.timeout(5):
        with contextlib.suppress(asyncio.CancelledError):
            await running
    brokers.lane.close()
    assert brokers.budget.used == 0


async def test_starts_what_was_added_before_and_after_it_runs(brokers: Brokers) -> None:
    pool = FetchPool(brokers)
    pool.add(P, 5, brokers.lane, LOG)
    await turns(10)
    assert (brokers.sources[0].asked, brokers.tasks) == ([], [])
    running = asyncio.create_task(pool.run())
    source = await brokers.fetched(0)
    assert len(brokers.tasks) == 1
    assert source.asked[0] == (5, LOG)
    assert pool.position(P) == 5 + len(MESSAGE)
    assert pool.counters is brokers.counters
    assert (await pool.list_offsets(P, LATEST), await pool.log_end(P), pool.known_end(P)) == ((LATEST,), 77, 76)
    with pytest.raises(ValueError, match="t/0-0 is already being fetched"):
        pool.add(P, 9, brokers.lane)
    await pool.remove(P)
    pool.add(P, 9, brokers.lane)
    assert (await brokers.fetched(1)).asked[0][0] == 9
    await cancel(running)
    assert brokers.sources[1].ended


async def test_partitions_are_a_view(brokers: Brokers, pool: FetchPool) -> None:
    """A member that stops looks each of its partitions up; copies of 10,000 would hold the event loop."""
    partitions = pool.partitions
    assert P not in partitions
    pool.add(P, 0, brokers.lane)
    assert partitions == {P}
    await pool.remove(P)
    assert not partitions


async def test_removes_a_partition_that_was_never_fetched(brokers: Brokers) -> None:
    pool = FetchPool(brokers)
    pool.add(P, 0, brokers.lane)
    await pool.remove(P)
    assert pool.partitions == set()


async def test_seek_drops_what_is_queued_and_continues_in_the_log_at_the_offset(
    brokers: Brokers, pool: FetchPool
) -> None:
    pool.add(P, 0, brokers.lane, LOG)
    former = await brokers.fetched(0)
    pool.seek(P, 500)
    assert (brokers.queued, pool.position(P)) == ([], 500)
    source = await brokers.fetched(1)
    assert source.asked[0] == (500, LOG._replace(leader_epoch=None))  # the epoch of the message before it is not known
    assert [batch[:2] for batch in brokers.queued] == [(500, 500 + len(MESSAGE))]
    assert former.ended


async def test_seek_of_a_paused_partition_waits_for_its_resumption(brokers: Brokers, pool: FetchPool) -> None:
    pool.add(P, 0, brokers.lane)
    await brokers.fetched(0)
    pool.pause(P)
    pool.seek(P, 500)
    await turns(10)
    assert brokers.sources[1].asked == []
    pool.resume(P)
    await brokers.fetched(1)


async def test_removal_waits_for_the_brokers_tasks_and_for_fetchers_that_a_seek_replaced(
    brokers: Brokers, pool: FetchPool
) -> None:
    pool.add(P, 0, brokers.lane)
    former = await brokers.fetched(0)
    former.may_end.clear()
    pool.seek(P, 500)
    pool.seek(P, 600)
    source = await brokers.fetched(2)
    removing = asyncio.create_task(pool.remove(P))
    await turns(10)
    assert (removing.done(), source.ended, former.ended, brokers.tasks[0].cancelled()) == (False, True, False, True)
    former.may_end.set()
    async with asyncio.timeout(5):
        await removing
    assert former.ended


async def test_forgets_the_tasks_of_replaced_fetchers(brokers: Brokers, pool: FetchPool) -> None:
    pool.add(P, 0, brokers.lane)
    for number in range(20):
        await brokers.fetched(number)
        pool.seek(P, number)
    assert len(pool._entries[P].tasks) <= 2
