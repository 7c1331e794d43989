"""One partition at its broker of 0.7: its connections, the memory that it waits for, its pauses, and look-ups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.wire import compress
from consumerd.wire.v07 import (
    Codec,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    encode_message,
    encode_message_set,
)

T0 = TopicPartition("t", 0, 0)


async def test_counts_fetches_and_polls(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered(range(3))))
        await r.take(r.add(), 3)
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) >= 3)
        r.pool.pause(T0)
        await r.until(lambda: r.pool.counters.polls == len(r.broker.fetches(MultiFetchRequest)))
        assert r.pool.counters.fetches == len(r.broker.fetches(FetchRequest)) == 2


async def test_a_response_may_have_the_requested_size(rig: Any, scripted_log: Any) -> None:
    message = encode_message(b"x" * 90)
    async with rig(size=100, poll_bytes=100, max_size=100) as r:
        r.broker.logs["t", 0] = scripted_log(0, message * 2)
        assert await r.take(r.add(), 2) == [b"x" * 90] * 2
        r.broker.on_fetch = lambda request: FetchResponse(0, message + b"?")  # type: ignore[arg-type]
        r.add(number=1)
        await r.until(lambda: r.pool.counters.disconnects >= 2)
        assert len(r.lanes[TopicPartition("t", 0, 1)]) == 0


async def test_a_fetch_that_is_alone_closes_its_connection_whatever_comes(
    rig: Any, scripted_log: Any, numbered: Any
) -> None:
    async with rig() as r:
        answers: list[Any] = ["close", b"\0\0\0\1\0", None]
        r.broker.on_fetch = lambda request: answers.pop(0) if answers else None
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered(range(3))))
        await r.take(r.add(), 3)
        await r.until(lambda: len(r.broker.open) == 1)
        assert r.broker.connections == 4  # the common one twice, and one for each of two fetches


async def test_a_fetch_that_waits_for_memory_alone_closes_its_connection_when_it_ends(rig: Any) -> None:
    async with rig(budget=1 << 20) as r:
        closing = ["close"]
        r.broker.on_fetch = lambda request: closing.pop() if closing else None
        r.add()
        await r.until(lambda: not closing)
        others = r.budget.charge(2 << 20)
        await r.until(lambda: len(r.broker.open) == 2)  # the common one, and one of its own
        await r.pool.remove(T0)
        others.release()
        await r.until(lambda: not r.broker.open)


async def test_a_fetch_that_waits_for_memory_leaves_the_common_connection_open_when_it_ends(rig: Any) -> None:
    async with rig(budget=1 << 20) as r:
        others = r.budget.charge(2 << 20)
        for number in range(2):
            r.add(number=number)
        await r.until(lambda: len(r.broker.open) == 1)
        await asyncio.sleep(0.01)
        await r.pool.remove(T0)
        others.release()
        await r.until(lambda: len(r.broker.requests) > 3)
        assert r.broker.connections == 1


async def test_large_responses_wait_for_memory_when_it_is_their_turn_to_be_decoded(rig: Any, scripted_log: Any) -> None:
    message = encode_message(compress(Codec.GZIP, encode_message(b"") * 200_000), codec=Codec.GZIP)
    async with rig(budget=8 << 20) as r:
        r.broker.logs["t", 0] = scripted_log(0, message)
        services = r.brokers.services
        async with services.decoding:
            lane = r.add()
            await r.until(lambda: bool(services.decoding._waiters))
            others = r.budget.charge(16 << 20)
        await asyncio.sleep(0.05)
        assert len(lane) == 0
        others.release()
        assert len(await lane.get()) == 200_000


async def test_a_paused_idle_partition_is_not_polled(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig() as r:
        log = r.broker.logs["t", 0] = scripted_log(0)
        lane, _ = r.add(), r.add(number=1)
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) >= 3)
        r.pool.pause(T0)
        await r.until(lambda: r.pool.counters.polls == len(r.broker.fetches(MultiFetchRequest)))
        polls = len(r.broker.fetches(MultiFetchRequest))
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) >= polls + 5)
        for poll in r.broker.fetches(MultiFetchRequest)[polls + 1 :]:
            assert [fetch.partition for fetch in poll.fetches] == [1]
        r.pool.resume(T0)
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)[-1].fetches) == 2)
        r.pool.pause(T0)
        log.segments[0] += encode_message_set(numbered([1]))
        r.pool.resume(T0)
        assert await r.take(lane, 1) == numbered([1])


async def test_looks_the_end_of_the_log_up(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(1000, b"x" * 50, b"y" * 20)
        assert await r.pool.log_end(T0) == 1070

        async def none(*_: Any) -> tuple[int, ...]:
            return ()

        r.brokers.list_offsets = none
        with pytest.raises(BrokerError, match=r"^broker 0 returned no offset of t/0-0$"):
            await r.brokers.log_end(T0)


async def test_connections_for_looking_into_logs_are_closed(rig: Any) -> None:
    async with rig() as r:
        async with r.brokers.connection(0) as connection:
            await r.until(lambda: len(r.broker.open) == 1)
        assert connection.closed
        await r.until(lambda: not r.broker.open)
