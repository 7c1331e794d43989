"""How long messages of 0.7 wait for a poll, and what polling costs: fetchers of a broker in memory, in virtual time.

`docs/performance.md` states the formulas; here they are computed and compared with what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.member.fetch.v07.pace import IDLE_GAP
from consumerd.wire.v07 import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    decode_request,
    encode_message,
)
from tests.support.fetching import Recorder
from tests.support.virtual_time import LoopClock, run_in_virtual_time

TRIP = 0.001
SMALLEST, LONGEST = FetchSettings().poll_backoff_min, FetchSettings().idle_backoff
#: Seconds after which a partition without messages is polled at the longest interval.
IDLE = IDLE_GAP * LONGEST + LONGEST
MESSAGE = encode_message(b"p" * 10)

Times = list[float]


def regular(gap: float, seed: int = 1) -> Iterator[float]:
    """The times of messages that never end."""
    return itertools.count(gap * random.Random(seed).random(), gap)


def poisson(gap: float, seed: int = 1) -> Iterator[float]:
    rng = random.Random(seed)
    return itertools.accumulate(rng.expovariate(1 / gap) for _ in itertools.count())


def bursts(gap: float) -> Iterator[float]:
    """Ten messages at intervals of 10 ms, and a long pause."""
    for begin in poisson(10 * gap):
        yield from (begin + number * 0.01 for number in range(10))


def four(kind: Callable[..., Iterator[float]], gap: float) -> list[Iterator[float]]:
    return [kind(gap, seed) for seed in range(4)]


@dataclass
class Seen:
    """What happened from the time `since` on."""

    since: float
    delays: Times = field(default_factory=list)
    polls: Times = field(default_factory=list)
    fetches: Times = field(default_factory=list)
    #: Entries of all polls.
    entries: int = 0

    def quantile(self, part: float) -> float:
        return sorted(self.delays)[int(part * len(self.delays))]


class MemoryBroker:
    """Connections to logs that get their messages at the given times; a request takes `trip` seconds."""

    closed = False

    def __init__(self, logs: Sequence[Times], trip: float, since: float) -> None:
        self.logs = logs
        self.trip = trip
        self.seen = Seen(since)

    async def connect(self, host: str, port: int) -> Any:
        return self

    def address(self, broker_id: int) -> tuple[str, int]:
        return "memory", 9092

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        return lambda: None

    async def request(self, frame: bytes, **_: Any) -> bytes:
        request = decode_request(frame[4:])
        now = asyncio.get_running_loop().time
        if now() >= self.seen.since:
            if isinstance(request, MultiFetchRequest):
                self.seen.polls.append(now())
                self.seen.entries += len(request.fetches)
            else:
                self.seen.fetches.append(now())
        await asyncio.sleep(self.trip / 2)
        if isinstance(request, MultiFetchRequest):
            answer = MultiFetchResponse(ErrorCode.NONE, tuple(self._read(fetch, now()) for fetch in request.fetches))
            body = answer.encode()
        else:
            assert isinstance(request, FetchRequest)
            body = self._read(request, now()).encode()
        await asyncio.sleep(self.trip / 2)
        return body[4:]

    def _read(self, fetch: FetchRequest, now: float) -> FetchResponse:
        there = bisect_right(self.logs[fetch.partition], now) - fetch.offset // len(MESSAGE)
        return FetchResponse(ErrorCode.NONE, (MESSAGE * there)[: fetch.max_size])

    async def wait_closed(self) -> None:
        await asyncio.get_running_loop().create_future() if not self.closed else None

    def abort(self) -> None:
        self.closed = True


async def _polled(logs: Sequence[Times], since: float, until: float, trip: float) -> Seen:
    broker = MemoryBroker(logs, trip, since)
    seen = broker.seen
    budget = ByteBudget(1 << 27)
    never: Any = broker
    brokers = V07Brokers(never.connect, broker, budget, FetchSettings(), LoopClock(), random.Random(1), Recorder())
    pool = FetchPool(brokers)

    async def handle(number: int) -> None:
        partition = TopicPartition("t", 0, number)
        lane = Lane(partition, budget, max_bytes=1 << 24)
        pool.add(partition, 0, lane)
        while True:
            batch = await lane.get()
            now = asyncio.get_running_loop().time()
            first = batch.start_offset // len(MESSAGE)
            came = logs[number][first : first + len(batch)]
            assert len(came) == len(batch)
            seen.delays += [now - time for time in came if time >= since]
            lane.finished(batch)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(until), asyncio.TaskGroup() as group:
            group.create_task(pool.run())
            for number in range(len(logs)):
                group.create_task(handle(number))
    return seen


def polled(*logs: Iterable[float], seconds: float, since: float = 5.0, trip: float = TRIP) -> Seen:
    """Fetch these partitions, and count what happens within `seconds` after the rates are known."""
    until = since + seconds
    times = [list(itertools.takewhile(lambda time: time < until, log)) for log in logs]
    return run_in_virtual_time(_polled(times, since, until, trip))


def gaps(times: Times) -> Times:
    return [after - before for before, after in itertools.pairwise(times)]


def interval(gap: float, trip: float = TRIP) -> float:
    """The formula of the documentation."""
    return min(LONGEST, max(SMALLEST, trip, math.sqrt(LONGEST * gap / IDLE_GAP)))


def requests(gap: float) -> float:
    """The most requests per second of one partition: polls that bring nothing, and two for each message."""
    return 1 / (interval(gap) + TRIP) + 2 / gap


@pytest.mark.parametrize("gap", [0.03, 0.3, 1.4, 10.0])
def test_regular_messages_wait_for_half_an_interval_and_a_round_trip(gap: float) -> None:
    seconds = 150 * gap
    seen = polled(regular(gap * 1.0123), seconds=seconds, since=10 * gap)
    assert fmean(seen.delays) == pytest.approx(interval(gap) / 2 + TRIP, rel=0.15)
    assert max(seen.delays) < 1.05 * interval(gap) + 2 * TRIP
    assert 0.9 / (interval(gap) + TRIP) < len(seen.polls) / seconds
    assert (len(seen.polls) + len(seen.fetches)) / seconds < 1.05 * requests(gap)


@pytest.mark.parametrize("gap", [0.03, 0.3, 1.4, 10.0])
def test_poisson_messages_wait_for_little_more_as_long_silences_lengthen_the_interval(gap: float) -> None:
    seconds = 300 * gap
    seen = polled(poisson(gap), seconds=seconds, since=10 * gap)
    assert fmean(seen.delays) == pytest.approx(0.57 * interval(gap) + TRIP, rel=0.15)
    assert seen.quantile(0.99) < 2 * interval(gap) + 2 * TRIP
    assert 0.8 / (interval(gap) + TRIP) < len(seen.polls) / seconds
    assert (len(seen.polls) + len(seen.fetches)) / seconds < 1.1 * requests(gap)


def test_frequent_messages_wait_for_half_of_the_smallest_interval_at_most() -> None:
    seen = polled(poisson(0.002), seconds=3, since=0.5)
    assert fmean(seen.delays) < SMALLEST / 2 + TRIP
    assert len(seen.polls) / 3 < 1 / SMALLEST


def test_five_messages_per_second_over_four_partitions() -> None:
    seen = polled(*four(poisson, 0.8), seconds=120)
    assert seen.quantile(0.99) < 0.2
    assert len(seen.polls) + len(seen.fetches) < 19 * 120


def test_two_hundred_messages_per_second_over_four_partitions() -> None:
    seen = polled(*four(poisson, 0.02), seconds=10, since=1.0)
    assert seen.quantile(0.99) < 0.035
    assert len(seen.polls) + len(seen.fetches) < 230 * 10


def test_messages_in_bursts_wait_for_little_more_than_regular_ones() -> None:
    seen = polled(bursts(1.0), seconds=500)
    assert fmean(seen.delays) < 3 * interval(1.0) / 2
    assert (len(seen.polls) + len(seen.fetches)) / 500 < requests(1.0)


@pytest.mark.parametrize("count", [1, 4, 1000])
def test_idle_partitions_of_a_broker_cost_one_request_for_each_longest_interval(count: int) -> None:
    seen = polled(*[()] * count, seconds=20, since=IDLE)
    assert len(seen.polls) == pytest.approx(20 / (LONGEST + TRIP), abs=1)
    assert seen.entries == len(seen.polls) * count
    assert seen.fetches == []


def test_partitions_fall_into_step() -> None:
    """The bound of the documentation: between two polls is half of the shortest interval at least."""
    seen = polled(*[regular(0.8, seed) for seed in range(20)], seconds=20)
    shortest = 0.9 * interval(0.8)  # an estimate may be off
    assert len(seen.polls) < 1.3 * 20 / interval(0.8)
    assert min(gaps(seen.polls)) > shortest / 2


def test_partitions_with_longer_intervals_are_not_polled_with_each_poll_of_others() -> None:
    seen = polled(regular(0.02), *[regular(2.0, seed) for seed in range(10)], seconds=5, since=10.0)
    assert seen.entries < len(seen.polls) + 10 * 5 / (0.8 * interval(2.0))


def test_idle_partitions_cost_nothing_beside_one_that_has_messages() -> None:
    alone = polled(regular(0.1), seconds=20, since=IDLE)
    seen = polled(regular(0.1), *[()] * 100, seconds=20, since=IDLE)
    assert len(seen.polls) < len(alone.polls) + 1.1 * 20 / LONGEST
    assert seen.entries < len(seen.polls) + 1.1 * 100 * 20 / LONGEST
    assert fmean(seen.delays) == pytest.approx(fmean(alone.delays), rel=0.2)


@pytest.mark.parametrize("trip", [0.05, 0.3])
def test_a_slow_broker_has_a_pause_of_half_a_round_trip_between_polls(trip: float) -> None:
    seen = polled(*four(poisson, 5 * trip), seconds=60, trip=trip)
    assert min(gaps(seen.polls)) > 1.49 * trip
    assert len(seen.polls) > 60 / (4 * trip)


def test_a_partition_that_falls_silent_is_polled_at_the_longest_interval_after_a_hundred_of_them() -> None:
    seen = polled(itertools.takewhile(lambda time: time < 5, regular(0.02)), seconds=120)
    assert len(seen.polls) > 20 + 20 / 0.45  # half of the longest interval after a quarter of the time
    assert max(gaps([time for time in seen.polls if time < 10])) < 0.25
    assert min(gaps([time for time in seen.polls if time > IDLE + 5])) == pytest.approx(LONGEST + TRIP)
