"""The limit on messages per second: the bucket by itself, and batches that wait for it."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.dead_letters import FAILED_AT
from consumerd.handlers.rate import RateLimiter, TokenBucket, due_times
from consumerd.testing import FakeClock
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.unit.handlers.conftest import MakeBatch


def play(bucket: TokenBucket, asked: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Take tokens in order, each after a pause since the one before; return the times and numbers."""
    now, taken = 0.0, []
    for pause, most in asked:
        now += pause
        left = most
        while left:
            if count := bucket.take(1, left, now):
                taken.append((now, count))
                left -= count
            else:
                assert bucket.next_return() > now
                now = bucket.next_return()
    return taken


@given(
    st.sampled_from([0.25, 1.0, 2.5, 10.0, 500.0]),
    st.lists(st.tuples(st.sampled_from([0.0, 0.0001, 0.3, 0.9, 5.0]), st.integers(1, 2000)), min_size=1, max_size=30),
)
def test_no_second_has_more_messages_than_the_rate(rate: float, asked: list[tuple[float, int]]) -> None:
    asked = [(pause, min(most, 4 * math.ceil(rate))) for pause, most in asked]
    taken = play(TokenBucket(rate), asked)
    assert sum(count for _, count in taken) == sum(most for _, most in asked)
    second = math.ceil(rate) / rate
    for start, _ in taken:
        assert sum(count for at, count in taken if start <= at < start + second - 1e-6) <= math.ceil(rate)


@pytest.mark.parametrize("rate", [0.25, 1.0, 2.5, 10.0, 500.0])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_a_busy_handler_gets_the_whole_rate(rate: float, size: int) -> None:
    taken = play(TokenBucket(rate), [(0.0, size)] * (1 + math.ceil(20 * rate / size)))
    end, _ = taken[-1]
    messages = sum(count for _, count in taken)
    assert end <= messages / rate


def test_a_message_set_larger_than_the_bucket_takes_a_full_one_and_comes_back_later() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.take(1, 4, 0.0) == 4
    assert bucket.take(25, 25, 0.5) == 0
    assert bucket.next_return() == 1.0
    assert bucket.take(25, 25, 1.0) == 25
    assert bucket.take(1, 1, 3.4) == 0
    assert bucket.next_return() == 3.5
    assert bucket.take(1, 100, 3.5) == 10


def test_tokens_given_back_are_there_at_once() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.take(1, 4, 0.0) == 4
    assert bucket.take(1, 99, 0.5) == 6
    bucket.give_back(8)
    assert bucket.take(1, 99, 0.5) == 8
    assert (bucket.take(1, 1, 0.9), bucket.take(1, 99, 1.0)) == (0, 2)


def test_another_rate_holds_for_tokens_that_are_out() -> None:
    bucket = TokenBucket(10.0)
    bucket.take(1, 10, 0.0)
    bucket.change(40.0, 0.0)
    assert bucket.take(1, 99, 0.0) == 30
    bucket.change(5.0, 0.5)
    assert bucket.take(1, 99, 0.5) == 0
    bucket.change(0.1, 2.0)  # all of them were back before
    assert bucket.take(1, 99, 2.0) == 1


async def test_cuts_batches_between_outermost_messages(make_batch: MakeBatch, clock: FakeClock) -> None:
    limiter, start, seen = RateLimiter(10.0, clock), clock.now, []
    rest = make_batch(*[b"x"] * 8, [b"y"] * 4, [b"z"] * 15, b"x")
    while len(rest):
        count = await limiter.take(rest)
        seen.append((round(clock.now - start, 6), count))
        rest = rest.rest(count)
    # The rest of the first second is too small for 4 messages; 15 are more than a second's.
    assert seen == [(0.0, 8), (1.0, 4), (2.0, 15), (3.5, 1)]


async def test_batches_wait_in_their_order(make_batch: MakeBatch, clock: FakeClock) -> None:
    limiter, start = RateLimiter(10.0, clock), clock.now
    seen: list[tuple[int, float, int]] = []

    async def deliver(partition: int) -> None:
        rest = make_batch(*[b"x"] * 15, partition=partition)
        while len(rest):
            count = await limiter.take(rest)
            seen.append((partition, round(clock.now - start, 6), count))
            rest = rest.rest(count)
            await asyncio.sleep(0)  # the handler

    async with asyncio.TaskGroup() as group:
        for partition in range(3):
            group.create_task(deliver(partition))
    assert seen == [(0, 0.0, 10), (1, 1.0, 10), (2, 2.0, 10), (0, 3.0, 5), (1, 3.0, 5), (2, 4.0, 5)]


@pytest.mark.parametrize("rate", [None, 1000.0])
async def test_another_rate_holds_at_once_for_a_batch_that_waits(make_batch: MakeBatch, rate: float | None) -> None:
    clock = FakeClock()
    limiter = RateLimiter(0.001, clock)
    assert await limiter.take(make_batch(b"a")) == 1
    waiting = asyncio.create_task(limiter.take(make_batch(b"b", b"c")))
    while not clock.sleepers:
        await asyncio.sleep(0)
    limiter.change(rate)
    assert await waiting == 2
    assert clock.now == 1000.0


async def test_a_limit_begins_when_it_is_set(make_batch: MakeBatch, clock: FakeClock) -> None:
    limiter = RateLimiter(None, clock)
    batch = make_batch(*[b"x"] * 30)
    assert await limiter.take(batch) == 30
    limiter.change(10.0)
    assert await limiter.take(batch) == 10
    limiter.change(None)
    assert await limiter.take(batch) == 30


async def test_a_batch_that_no_longer_waits_lets_the_next_one_continue(make_batch: MakeBatch) -> None:
    clock = FakeClock()
    limiter = RateLimiter(1.0, clock)
    assert await limiter.take(make_batch(b"a")) == 1
    first, second = (asyncio.create_task(limiter.take(make_batch(b"b"))) for _ in range(2))
    while not clock.sleepers:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await clock.advance(1.0)
    assert await second == 1


def failed(message: int, at: str) -> tuple[tuple[str, bytes | None], ...]:
    return ((FAILED_AT, at.encode()), ("number", b"%d" % message))


def keyed(timestamps: list[int], headers: dict[int, tuple[tuple[str, bytes | None], ...]] | None = None) -> Batch:
    data = encode_record_batch([b"x"] * len(timestamps), timestamps=timestamps, headers=headers or {})
    return Batch(TopicPartition.numbered("t", 0), decode_records(data, 0))


async def test_messages_are_delivered_when_they_are_due_and_not_before() -> None:
    clock = FakeClock(wall=1000.0)
    limiter = RateLimiter(None, clock, delay=30.0)
    batch = keyed([970_000, 990_000, 990_000, 999_000])
    assert limiter.take_now(batch) == 0
    assert await limiter.take(batch) == 1
    waiting = asyncio.create_task(limiter.take(batch.rest(1)))
    await asyncio.sleep(0)
    await clock.advance(19.9)
    assert not waiting.done()
    await clock.advance(0.2)
    assert await waiting == 2
    assert clock.sleeps == [20.0]


async def test_delay_counts_from_the_failure_where_a_header_tells_it() -> None:
    clock = FakeClock(wall=1000.0)
    batch = keyed([0, 0], {0: failed(0, "900.500"), 1: failed(1, "998.000")})
    assert await RateLimiter(None, clock, delay=90.0).take(batch) == 1
    assert list(due_times(batch, 90.0)) == [990.5, 1088.0]


@pytest.mark.parametrize("nonsense", ["", "soon", "nan", "inf", "1e999"])
def test_header_without_a_valid_time_leaves_the_timestamp(nonsense: str) -> None:
    assert list(due_times(keyed([5000], {0: failed(0, nonsense)}), 30.0)) == [35.0]


async def test_message_without_a_timestamp_does_not_wait(make_batch: MakeBatch) -> None:
    batch = make_batch(b"a", b"b")
    assert await RateLimiter(None, FakeClock(), delay=30.0).take(batch) == 2


async def test_clock_that_is_set_is_looked_at_every_minute() -> None:
    clock = FakeClock(wall=1000.0)
    waiting = asyncio.create_task(RateLimiter(None, clock, delay=3600.0).take(keyed([1_000_000])))
    await asyncio.sleep(0)
    clock._wall += 3600.0
    await clock.advance(60.0)
    assert await waiting == 1


async def test_rate_holds_for_what_is_due() -> None:
    limiter = RateLimiter(1.0, FakeClock(wall=1000.0, auto=True), delay=1.0)
    assert await limiter.take(keyed([0, 0, 0])) == 1
