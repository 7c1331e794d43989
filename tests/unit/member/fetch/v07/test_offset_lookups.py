"""OFFSETS of many partitions with connections in memory: which requests share one, and which go alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import BrokerUnknownError
from consumerd.member.fetch.v07.offset_lookups import ALONE_AT_ONCE, IN_FLIGHT, OffsetLookups
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import LATEST, ErrorCode, OffsetsRequest, OffsetsResponse, decode_request


def partition(number: int, broker: int = 3) -> TopicPartition:
    return TopicPartition("t", broker, number)


class Connection:
    """A connection whose requests wait until a test answers them."""

    def __init__(self) -> None:
        self.closed = False
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.limits: list[int] = []
        self.requests: list[OffsetsRequest] = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def request(self, frame: bytes, *, max_response: int) -> Any:
        assert not self.closed
        request = decode_request(frame[4:])
        assert isinstance(request, OffsetsRequest)
        self.requests.append(request)
        self.limits.append(max_response)
        answer = self.waiting[request.partition] = asyncio.get_running_loop().create_future()
        return await answer

    def answer(self, *offsets: int) -> None:
        for number, future in self.waiting.items():
            if not future.done():
                body = OffsetsResponse(ErrorCode.NONE, offsets or (100 + number,)).encode()
                future.set_result(body[4:])

    def fail(self, kind: type[ConnectionClosedError] = ConnectionClosedError) -> None:
        """End: the oldest request that waits is to blame."""
        self.closed = True
        blamed = True
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(kind("ended", blamed=blamed))
                blamed = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.closed = True


class Brokers:
    """A directory in which brokers 3 and 4 are registered, and connections to them in the order in which they came."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.trouble: Exception | None = None
        self.opened = asyncio.Event()
        self.opened.set()
        self.attempts = 0
        port: Any = self._connect
        self.lookups = OffsetLookups(port, self)

    async def _connect(self, host: str, port: int) -> Any:
        self.attempts += 1
        await self.opened.wait()
        if self.trouble is not None:
            raise self.trouble
        self.made.append(Connection())
        return self.made[-1]

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return ("h", 9092) if broker_id in {3, 4} else None

    def subscribe(self, changed: Callable[..., None]) -> Any:
        raise AssertionError("lookups look the address up each time")

    def ask(self, *partitions: TopicPartition) -> list[asyncio.Task[tuple[int, ...]]]:
        return [asyncio.create_task(self.lookups.list_offsets(each, LATEST)) for each in partitions]

    async def open(self, number: int, requests: int = 1) -> Connection:
        """The connection with this number, when requests wait on it."""
        async with asyncio.timeout(5):
            while len(self.made) <= number or len(self.made[number].waiting) < requests:
                await asyncio.sleep(0)
        return self.made[number]


async def test_requests_to_a_broker_share_a_connection_until_the_last_is_answered() -> None:
    brokers = Brokers()
    tasks = brokers.ask(*(partition(number) for number in range(5)), partition(0, 4))
    shared, other = await brokers.open(0, 5), await brokers.open(1)
    other.answer()
    await asyncio.wait(tasks[5:])
    assert (other.closed, shared.closed) == (True, False)
    shared.answer()
    assert await asyncio.gather(*tasks) == [(100 + number,) for number in (0, 1, 2, 3, 4, 0)]
    assert (len(brokers.made), shared.closed) == (2, True)
    assert {request.max_number for request in shared.requests} == {1}
    (later,) = brokers.ask(partition(0))
    (await brokers.open(2)).answer()
    assert await later == (100,)


async def test_sends_what_was_asked_for_and_limits_the_response() -> None:
    brokers = Brokers()
    asking = asyncio.create_task(brokers.lookups.list_offsets(partition(2), 1234, 5))
    first = await brokers.open(0)
    first.answer(9, 8, 7)
    assert await asking == (9, 8, 7)
    none = asyncio.create_task(brokers.lookups.list_offsets(partition(2), LATEST, 0))
    second = await brokers.open(1)
    second.answer()
    await none
    assert first.requests == [OffsetsRequest("t", 2, 1234, 5)]
    assert (first.limits, second.limits) == ([6 + 5 * 8], [6 + 8])


async def test_rejects_negative_offsets() -> None:
    brokers = Brokers()
    (asking,) = brokers.ask(partition(2))
    (await brokers.open(0)).answer(5, -7, -1)
    with pytest.raises(FrameError, match="broker 3 answered with offset -7 of t/3-2"):
        await asking
    (asking,) = brokers.ask(partition(2))
    (await brokers.open(1)).answer(0)
    assert await asking == (0,)


async def test_limits_the_requests_in_flight() -> None:
    brokers = Brokers()
    tasks = brokers.ask(*(partition(number) for number in range(IN_FLIGHT + 5)))
    shared = await brokers.open(0, IN_FLIGHT)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(shared.waiting) == IN_FLIGHT == 100
    shared.answer()
    await brokers.open(0, IN_FLIGHT + 5)
    shared.answer()
    await asyncio.gather(*tasks)
    assert len(brokers.made) == 1


async def test_repeats_the_blamed_request_alone_and_the_others_together() -> None:
    brokers = Brokers()
    tasks = brokers.ask(*(partition(number) for number in range(4)))
    (await brokers.open(0, 4)).fail()
    one, two = await brokers.open(1), await brokers.open(2)
    alone, shared = sorted((one, two), key=lambda connection: len(connection.waiting))
    shared = await brokers.open(brokers.made.index(shared), 3)
    assert (list(alone.waiting), list(shared.waiting)) == ([0], [1, 2, 3])
    alone.answer()
    assert await tasks[0] == (100,)
    assert alone.closed
    shared.answer()
    assert await asyncio.gather(*tasks) == [(100 + number,) for number in range(4)]


async def test_request_that_was_lost_twice_without_blame_goes_alone() -> None:
    brokers = Brokers()
    tasks = brokers.ask(*(partition(number) for number in range(4)))
    (await brokers.open(0, 4)).fail()
    for connection in (await brokers.open(1), await brokers.open(2)):
        if 0 in connection.waiting:
            connection.answer()
    shared = next(each for each in brokers.made[1:] if 0 not in each.waiting)
    await brokers.open(brokers.made.index(shared), 3)
    shared.fail()
    for number in (3, 4, 5):
        connection = await brokers.open(number)
        connection.answer()
    assert await asyncio.gather(*tasks) == [(100,), (101,), (102,), (103,)]
    assert [len(each.waiting) for each in brokers.made[3:]] == [1, 1, 1]


async def test_request_that_the_broker_refused_alone_stays_alone_until_it_is_answered() -> None:
    brokers = Brokers()
    (asking,) = brokers.ask(partition(0))
    (await brokers.open(0)).fail()
    (await brokers.open(1)).fail()
    with pytest.raises(ConnectionClosedError):
        await asking
    tasks = brokers.ask(partition(0), partition(1))
    both = [await brokers.open(2), await brokers.open(3)]
    assert sorted(list(connection.waiting) for connection in both) == [[0], [1]]
    for connection in both:
        connection.answer()
    assert await asyncio.gather(*tasks) == [(100,), (101,)]
    tasks = brokers.ask(partition(0), partition(1))
    (await brokers.open(4, 2)).answer()
    await asyncio.gather(*tasks)
    assert len(brokers.made) == 5


async def test_limits_the_connections_for_single_requests() -> None:
    brokers = Brokers()
    numbers = range(ALONE_AT_ONCE + 2)
    brokers.lookups._refused.update(map(partition, numbers))
    tasks = brokers.ask(*map(partition, numbers))
    for number in range(ALONE_AT_ONCE):
        await brokers.open(number)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(brokers.made) == ALONE_AT_ONCE == 8
    for number in numbers:
        (await brokers.open(number)).answer()
    await asyncio.gather(*tasks)
    assert all(connection.closed for connection in brokers.made)


async def test_request_that_got_no_answer_in_time_is_not_repeated() -> None:
    brokers = Brokers()
    (asking,) = brokers.ask(partition(0))
    (await brokers.open(0)).fail(RequestTimeoutError)
    with pytest.raises(RequestTimeoutError):
        await asking
    assert len(brokers.made) == 1


async def test_error_of_opening_is_that_of_all_who_waited_and_of_nobody_later() -> None:
    brokers = Brokers()
    brokers.opened.clear()
    brokers.trouble = ConnectError("refused")
    tasks = brokers.ask(*(partition(number) for number in range(3)))
    for _ in range(10):
        await asyncio.sleep(0)
    brokers.opened.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [brokers.trouble] * 3
    assert brokers.attempts == 1
    brokers.trouble = None
    (asking,) = brokers.ask(partition(0))
    (await brokers.open(0)).answer()
    assert await asking == (100,)
    with pytest.raises(BrokerUnknownError, match="broker 9"):
        await brokers.lookups.list_offsets(partition(0, 9), LATEST)


async def test_requests_that_waited_for_their_turn_use_the_next_connection() -> None:
    """They were not sent, so nothing tells that they are bad: none of their tries is used up."""
    brokers = Brokers()
    numbers = range(IN_FLIGHT + 3)
    tasks = brokers.ask(*map(partition, numbers))
    (await brokers.open(0, IN_FLIGHT)).fail()
    shared = brokers.made[0]
    async with asyncio.timeout(5):
        while not all(task.done() for task in tasks):
            for connection in brokers.made[1:]:
                connection.answer()
            await asyncio.sleep(0)
    assert [task.result() for task in tasks] == [(100 + number,) for number in numbers]
    assert len(shared.waiting) == IN_FLIGHT
    assert len(brokers.made) == 3  # the blamed request's own, and one for all others


async def test_cancelled_request_leaves_the_connection_to_the_others() -> None:
    brokers = Brokers()
    tasks = brokers.ask(partition(0), partition(1))
    shared = await brokers.open(0, 2)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert not shared.closed
    tasks[1].cancel()
    await asyncio.wait(tasks[1:])
    assert shared.closed


async def test_request_that_comes_while_the_connection_is_closed_opens_another_one() -> None:
    brokers = Brokers()
    (first,) = brokers.ask(partition(0))
    closing = await brokers.open(0)
    closing.may_close.clear()
    closing.answer()
    for _ in range(10):
        await asyncio.sleep(0)
    (second,) = brokers.ask(partition(1))
    (await brokers.open(1)).answer()
    closing.may_close.set()
    assert [await first, await second] == [(100,), (101,)]


async def test_request_that_finds_the_connection_ended_is_sent_over_the_next_one() -> None:
    """It comes before those that were lost with the connection have noticed."""
    brokers = Brokers()
    (lost,) = brokers.ask(partition(0))
    shared = await brokers.open(0)
    (later,) = brokers.ask(partition(1))
    shared.fail()
    (await brokers.open(1)).answer()
    (await brokers.open(2)).answer()
    assert [await lost, await later] == [(100,), (101,)]
    assert list(shared.waiting) == [0]


async def test_request_that_comes_after_the_error_of_opening_tries_again() -> None:
    brokers = Brokers()
    brokers.opened.clear()
    brokers.trouble = ConnectError("refused")
    tasks = brokers.ask(*(partition(number) for number in range(20)))
    for _ in range(30):
        await asyncio.sleep(0)
    brokers.opened.set()
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert not all(task.done() for task in tasks)
    brokers.trouble = None
    (later,) = brokers.ask(partition(0))
    (await brokers.open(0)).answer()
    assert await later == (100,)
    assert await asyncio.gather(*tasks, return_exceptions=True) != []
    assert brokers.attempts == 2
