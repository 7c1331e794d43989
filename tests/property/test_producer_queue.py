"""For any order of sends, flushes, pauses, broken connections and the end: nothing is lost silently, no message is out
of order in its partition, and the counters agree.

The producer is the real one, down to the bytes of its requests; the broker is in memory, and tests move the time.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from hypothesis import example as example_of
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer import (
    AsyncProducer,
    CallbackHandler,
    Event,
    NotSentError,
    Producer,
    ProducerClosedError,
    ProducerSettings,
    QueueFullError,
    QueueSettings,
    Route,
    Router,
    WhenFull,
)
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.wire.v07 import Codec, FetchRequest, MultiProduceRequest, Request, decode_batch

PARTITIONS = 3
#: The faults of connections and requests, drawn one after the other; none when the list is used up.
FAULTS = ["none", "none", "none", "refuse", "cut before", "cut after"]

actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 9), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("mixed"), st.integers(1, 9), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("pass"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    ),
    max_size=25,
)

policies = st.one_of(
    st.just((WhenFull.BLOCK, 0.0)),
    st.tuples(st.just(WhenFull.TIMEOUT), st.sampled_from([0.0, 0.5, 3.0])),
    st.just((WhenFull.DROP, 0.0)),
)


class Explicit(Router):
    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        assert partition is not None
        return Route(f"broker-{partition % 2}", 1, partition)

    async def close(self) -> None:
        return


@dataclass
class Run:
    """One example: the producer, and what is known of every message."""

    broker: MemoryBroker
    clock: FakeClock
    producer: AsyncProducer
    #: Numbers of messages in the order in which they were given to `send`, by partition.
    given: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    accepted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    next_number: int = 0
    told: int = 0

    def send(self, count: int, partition: int | None) -> None:
        """Send in a task of its own, which begins when the last one has ended: so there is an order."""
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        self.tasks.append(asyncio.create_task(self._send(list(numbers), partition, self.tasks[-1:])))

    async def _send(self, numbers: list[int], partition: int | None, before: list[asyncio.Task[None]]) -> None:
        if before:  # one after the other, as one sender would
            await asyncio.wait(before)
        for number in numbers:
            place = number % PARTITIONS if partition is None else partition
            self.given[place].append(number)
            try:
                await self.producer.send("t", [b"%d" % number], partition=place)
            except (QueueFullError, ProducerClosedError):
                continue

    def stored(self, partition: int) -> list[int]:
        data = bytes(self.broker.logs.get(("t", partition), b""))
        return [int(payload) for payload in decode_batch(data, 0).payloads]

    def check_told_so_far(self, accepted: set[int]) -> None:
        """After a flush: all that was accepted before is stored or given up."""
        stored = {number for partition in range(PARTITIONS) for number in self.stored(partition)}
        assert accepted <= stored | self.lost


class Noting(CallbackHandler):
    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs

    def after_enqueue(self, event: Event, added: bool) -> None:
        (self._runs[0].accepted if added else self._runs[0].refused).add(int(event.message))

    def not_sent(self, events: Sequence[Event], error: Exception) -> None:
        self._runs[0].lost |= {int(event.message) for event in events}


async def turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def flush(run: Run) -> None:
    accepted = set(run.accepted)
    try:
        await run.producer.flush()
    except NotSentError as error:
        run.told += error.count
    run.check_told_so_far(accepted)


async def patiently(run: Run, work: Any) -> None:
    """Await `work`, letting time pass."""
    task = asyncio.ensure_future(work)
    for _ in range(10_000):
        await turn(20)
        if task.done():
            break
        await run.clock.advance(0.5)
    await task


def make_run(queue: QueueSettings, faults: list[str], tries: int) -> Run:
    broker, clock, left = MemoryBroker(), FakeClock(), iter(faults)

    async def connect(host: str, port: int) -> Any:
        if next(left, "none") == "refuse":
            raise ConnectError("refused")
        return await broker.connect(host, port)

    def fault(request: Request) -> Exception | None:
        kind = {MultiProduceRequest: "cut before", FetchRequest: "cut after"}[type(request)]
        return ConnectionClosedError("cut", blamed=True) if next(left, "none") == kind else None

    broker.on_request = fault
    codec = Codec.GZIP if tries == 2 else Codec.NONE
    sync = Producer(
        Explicit(),
        connect=connect,
        clock=clock,
        rng=random.Random(1),
        settings=ProducerSettings(retries=tries, resends=tries, codec=codec),
    )
    runs: list[Run] = []
    runs.append(Run(broker, clock, AsyncProducer(sync, clock=clock, queue=queue, callbacks=Noting(runs))))
    return runs[0]


async def example(
    steps: list[tuple[str, int, int]],
    policy: tuple[WhenFull, float],
    sizes: tuple[int, int],
    faults: list[str],
    tries: int,
) -> None:
    queue = QueueSettings(
        batch_size=sizes[0], queue_size=sizes[1], queue_time=1.0, when_full=policy[0], enqueue_timeout=policy[1]
    )
    run = make_run(queue, faults, tries)
    producer, clock = run.producer, run.clock
    await producer.start()
    for kind, number, partition in steps:
        if kind in ("send", "mixed"):
            run.send(number, partition if kind == "send" else None)
        elif kind == "flush":
            await patiently(run, flush(run))
        elif kind == "pass":
            await clock.advance(number / 10)
        elif kind == "turn":
            await turn(number)
        elif run.tasks:
            run.tasks[-1 - number % len(run.tasks)].cancel()
    try:
        await patiently(run, producer.close())
    except NotSentError as error:
        run.told += error.count
    await asyncio.gather(*run.tasks, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1
    assert not run.broker.connections
    check(run)


def check(run: Run) -> None:
    stats = run.producer.stats
    everything: set[int] = set()
    for partition in range(PARTITIONS):
        stored = run.stored(partition)
        firsts = list(dict.fromkeys(stored))
        order = {number: at for at, number in enumerate(run.given[partition])}
        assert set(firsts) <= set(run.given[partition]), "nothing is invented, or in a foreign partition"
        assert firsts == sorted(firsts, key=order.__getitem__), "in order, but for what was sent again"
        everything |= set(firsts)
    assert run.accepted - everything <= run.lost, "nothing is lost without a word"
    assert everything <= run.accepted
    assert not run.accepted & run.refused
    assert stats.enqueued == len(run.accepted)
    assert stats.sent + stats.failed == len(run.accepted)
    assert stats.failed == len(run.lost) == run.told
    assert run.producer.queued == 0


@settings(max_examples=150, deadline=None)
@given(
    actions,
    policies,
    st.sampled_from([(1, 1), (2, 3), (3, 10), (10, 4), (5, 100)]),
    st.lists(st.sampled_from(FAULTS), max_size=30),
    st.integers(0, 2),
)
@example_of(  # a sender that is cancelled just when it gets its room
    [("mixed", 1, 0), ("send", 5, 0), ("flush", 0, 0), ("cancel", 0, 0)], (WhenFull.TIMEOUT, 0.5), (1, 1), [], 0
)
def test_queue_holds_its_invariants_in_any_interleaving(
    steps: list[tuple[str, int, int]],
    policy: tuple[WhenFull, float],
    sizes: tuple[int, int],
    faults: list[str],
    tries: int,
) -> None:
    with structlog.testing.capture_logs():
        asyncio.run(example(steps, policy, sizes, faults, tries))
