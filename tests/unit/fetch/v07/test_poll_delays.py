"""How long messages of 0.7 wait for a poll, and what polling costs: fetchers of a broker in memory, in virtual time.

`docs/performance.md` states the formulas; here they are computed and compared with what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.fetch import ByteBudget, FetchPool, FetchSettings, Lane, V07Brokers
from consumerd.fetch.v07.pace import IDLE_GAP
from consumerd.partition import TopicPartition
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TRIP = 0.001
SMALLEST, LONGEST = FetchSettings().poll_backoff_min, FetchSettings().poll_backoff_max
#: Seconds of a run that are not counted: the rate is not known yet.
BEGINNING = 51.0
MESSAGE = encode_message(b"p" * 10)

Times = list[float]


def regular(gap: float, *, until: float, rng: random.Random) -> Iterator[float]:
    time = gap * rng.random()
    while time < until:
        yield time
        time += gap


def poisson(gap: float, *, until: float, rng: random.Random) -> Iterator[float]:
    time = rng.expovariate(1 / gap)
    while time < until:
        yield time
        time += rng.expovariate(1 / gap)


def bursts(gap: float, *, until: float, rng: random.Random) -> Iterator[float]:
    """Ten messages at intervals of 10 ms, and a long pause."""
    for begin in poisson(10 * gap, until=until, rng=rng):
        yield from (begin + number * 0.01 for number in range(10))


@dataclass
class Seen:
    """What happened after the beginning."""

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

    def __init__(self, logs: Sequence[Times], trip: float) -> None:
        self.logs = logs
        self.trip = trip
        self.seen = Seen()

    async def connect(self, host: str, port: int) -> Any:
        return self

    def address(self, broker_id: int) -> tuple[str, int]:
        return "memory", 9092

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        return lambda: None

    async def request(self, frame: bytes, **_: Any) -> bytes:
        request = decode_request(frame[4:])
        now = asyncio.get_running_loop().time
        if now() >= BEGINNING:
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


async def _polled(logs: Sequence[Times], seconds: float, trip: float) -> Seen:
    broker = MemoryBroker(logs, trip)
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
            seen.delays += [now - time for time in came if time >= BEGINNING]
            lane.finished(batch)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BEGINNING + seconds), asyncio.TaskGroup() as group:
            group.create_task(pool.run())
            for number in range(len(logs)):
                group.create_task(handle(number))
    return seen


def polled(*logs: Iterator[float], seconds: float, trip: float = TRIP) -> Seen:
    """Fetch these partitions for `seconds` after the beginning."""
    return run_in_virtual_time(_polled([list(log) for log in logs], seconds, trip))


def stream(kind: Callable[..., Iterator[float]], gap: float, seconds: float, seed: int = 1) -> Iterator[float]:
    return kind(gap, until=BEGINNING + seconds, rng=random.Random(seed))


def streams(kind: Callable[..., Iterator[float]], gap: float, count: int, seconds: float) -> list[Iterator[float]]:
    return [stream(kind, gap, seconds, seed) for seed in range(count)]


def interval(gap: float, trip: float = TRIP) -> float:
    """The formula of the documentation."""
    return min(LONGEST, max(SMALLEST, trip, math.sqrt(LONGEST * gap / IDLE_GAP)))


def requests(gap: float) -> float:
    """The most requests per second of one partition: polls that bring nothing, and two for each message."""
    return 1 / (interval(gap) + TRIP) + 2 / gap


@pytest.mark.parametrize("gap", [0.03, 0.3, 1.4, 10.0])
def test_regular_messages_wait_for_half_an_interval_and_a_round_trip(gap: float) -> None:
    seconds = 200 * gap
    seen = polled(stream(regular, gap * 1.0123, seconds), seconds=seconds)
    assert fmean(seen.delays) == pytest.approx(interval(gap) / 2 + TRIP, rel=0.15)
    assert max(seen.delays) < 1.05 * interval(gap) + 2 * TRIP
    assert 0.9 / (interval(gap) + TRIP) < len(seen.polls) / seconds
    assert (len(seen.polls) + len(seen.fetches)) / seconds < 1.05 * requests(gap)


@pytest.mark.parametrize("gap", [0.02, 0.2, 1.0, 7.0])
def test_poisson_messages_wait_for_little_more_as_long_silences_lengthen_the_interval(gap: float) -> None:
    seconds = 400 * gap
    seen = polled(stream(poisson, gap, seconds), seconds=seconds)
    assert fmean(seen.delays) == pytest.approx(0.57 * interval(gap) + TRIP, rel=0.15)
    assert seen.quantile(0.99) < 2 * interval(gap) + 2 * TRIP
    assert 0.9 / (interval(gap) + TRIP) < len(seen.polls) / seconds
    assert (len(seen.polls) + len(seen.fetches)) / seconds < 1.1 * requests(gap)


def test_frequent_messages_wait_for_half_of_the_smallest_interval_at_most() -> None:
    seen = polled(stream(poisson, 0.002, 5), seconds=5)
    assert fmean(seen.delays) < SMALLEST / 2 + TRIP
    assert len(seen.polls) / 5 < 1 / SMALLEST


def test_five_messages_per_second_over_four_partitions() -> None:
    seen = polled(*streams(poisson, 0.8, 4, 300), seconds=300)
    assert seen.quantile(0.99) < 0.25
    assert len(seen.polls) + len(seen.fetches) < 15 * 300


def test_two_hundred_messages_per_second_over_four_partitions() -> None:
    seen = polled(*streams(poisson, 0.02, 4, 15), seconds=15)
    assert seen.quantile(0.99) < 0.045
    assert len(seen.polls) + len(seen.fetches) < 200 * 15


def test_messages_in_bursts_wait_for_little_more_than_regular_ones() -> None:
    seen = polled(stream(bursts, 1.0, 1000), seconds=1000)
    assert fmean(seen.delays) < 3 * interval(1.0) / 2
    assert (len(seen.polls) + len(seen.fetches)) / 1000 < requests(1.0)


@pytest.mark.parametrize("count", [1, 4, 1000])
def test_idle_partitions_of_a_broker_cost_one_request_for_each_longest_interval(count: int) -> None:
    seen = polled(*[iter(())] * count, seconds=60)
    assert len(seen.polls) == pytest.approx(60 / (LONGEST + TRIP), abs=2)
    assert seen.entries == len(seen.polls) * count
    assert seen.fetches == []


def test_partitions_fall_into_step() -> None:
    """The bound of the documentation: between two polls is half of the shortest interval at least."""
    seen = polled(*streams(regular, 0.8, 20, 30), seconds=30)
    shortest = 0.9 * interval(0.8)  # an estimate may be off
    assert len(seen.polls) < 1.3 * 30 / interval(0.8)
    assert min(second - first for first, second in zip(seen.polls, seen.polls[1:], strict=False)) > shortest / 2


def test_idle_partitions_cost_nothing_beside_one_that_has_messages() -> None:
    alone = polled(stream(regular, 0.1, 20), seconds=20)
    seen = polled(stream(regular, 0.1, 20), *[iter(())] * 100, seconds=20)
    assert len(seen.polls) < len(alone.polls) + 1.1 * 20 / LONGEST
    assert seen.entries < len(seen.polls) + 1.1 * 100 * 20 / LONGEST
    assert fmean(seen.delays) == pytest.approx(fmean(alone.delays), rel=0.2)


@pytest.mark.parametrize("trip", [0.05, 0.3])
def test_a_slow_broker_has_a_pause_of_a_round_trip_between_polls(trip: float) -> None:
    seen = polled(stream(poisson, trip, 60), *streams(poisson, 5 * trip, 3, 60), seconds=60, trip=trip)
    assert min(second - first for first, second in zip(seen.polls, seen.polls[1:], strict=False)) > 1.49 * trip
    assert len(seen.polls) > 60 / (4 * trip)


def test_a_partition_that_falls_silent_is_polled_at_the_longest_interval_after_fifty_of_them() -> None:
    seen = polled(stream(regular, 0.02, 0), seconds=120)
    late = [second - first for first, second in zip(seen.polls, seen.polls[1:], strict=False) if first > BEGINNING + 52]
    early = [time for time in seen.polls if time < BEGINNING + 5]
    assert min(late) == pytest.approx(LONGEST + TRIP)
    assert 20 < len(early) < 40
