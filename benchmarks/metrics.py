"""What metrics cost on the way of a batch: two looks at the clock and a few additions, as a part of the whole way.

The way is that of the daemon in one process: decode what a fetch brought, put it into the lane, pass it under the
fence to a handler that does nothing (behind the failure policy), move the position. What metrics add is measured by
itself, since a difference of 1 % between two runs would drown in their noise. Rounds of both alternate, because other
programs share the machine, and the median of their ratios counts. Sets are as large as a busy fetch, an idle poll, and
one message. Beside it: what a span takes that OpenTelemetry records for a batch (`[telemetry]`, off by default).

    python -m benchmarks metrics [--messages 1000000] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from benchmarks.race import Measurement, compared, show
from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Batch, RetryPolicy, retrying
from consumerd.handlers.builtin.null import NullHandler
from consumerd.handlers.rate import RateLimiter
from consumerd.member.consumer.fence import FIXED_SESSION, Fence, FixedLease
from consumerd.member.consumer.partition_work import PartitionWork
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import PlainHandler
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.lane import Lane
from consumerd.service.daemon.tracing import TracedHandler
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v07 import decode_batch, encode_message_set

NAME = "metrics"
#: The most of the way of a batch, in per cent. The way of a small one costs little itself.
PROMISES = {"full fetch": 1.0, "idle poll": 3.0}
SIZE = 100
#: Messages of a set.
SETS = {"full fetch": 10_000, "idle poll": 600, "one message": 1}
TP = TopicPartition("t", 0, 0)


@dataclass
class Owner:
    """A member of one partition, without a group."""

    settings: ConsumerSettings
    clock: Clock
    fence: Fence
    stats: ConsumerStats
    rate: RateLimiter

    def check_end(self) -> None:
        """It ends with its lane."""


async def way(messages: int, count: int) -> float:
    """Seconds for one batch of `count` messages, all the way."""
    clock, stats = SystemClock(), ConsumerStats()
    handler = retrying(NullHandler(), RetryPolicy(), clock=clock, rng=random.Random(1))
    owner = Owner(
        ConsumerSettings("bench", "bench_1", StaticSubscription({"t": 1})),
        clock,
        Fence(FixedLease(), clock, 0.5),
        stats,
        RateLimiter(None, clock),
    )
    lane = Lane(TP, ByteBudget(1 << 30), max_bytes=1 << 30)
    sink = PlainHandler(handler).for_partition(TP, 0, lambda: True)
    work = PartitionWork(TP, FIXED_SESSION, 0, lane, sink, owner)
    task = asyncio.create_task(work.run())
    data = encode_message_set([b"x" * SIZE] * count)
    batches, offset = max(10, messages // count), 0
    began = time.perf_counter()
    for _ in range(batches):
        await lane.wait_for_room()
        batch = decode_batch(data, offset)
        lane.put(batch, lane.budget.charge(batch.memory_bytes))
        offset = batch.next_offset
        await asyncio.sleep(0)
    await lane.wait_drained()
    seconds = (time.perf_counter() - began) / batches
    lane.close()
    await task
    assert stats.messages == batches * count
    return seconds


def alone(count: int, rounds: int = 200_000) -> float:
    """Seconds that metrics take for one batch."""
    clock, counts = SystemClock(), ConsumerStats().of(TP)
    began = time.perf_counter()
    for _ in range(rounds):
        start = clock.monotonic()
        counts.handled(count, count * SIZE, start, clock.monotonic())
    return (time.perf_counter() - began) / rounds


async def span(count: int, rounds: int = 5_000) -> float:
    """Seconds that a recorded span takes for one batch, without its export."""

    class Dropping(SpanProcessor):
        """In place of a queue."""

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Dropping())
    batch = Batch(TP, decode_batch(encode_message_set([b"x" * SIZE] * count), 0))
    plain = NullHandler()
    seconds = []
    for handler in (plain, TracedHandler(plain, provider.get_tracer("benchmark"), {"messaging.system": "kafka"})):
        began = time.perf_counter()
        for _ in range(rounds):
            await handler.handle(batch)
        seconds.append((time.perf_counter() - began) / rounds)
    return seconds[1] - seconds[0]


def main(arguments: list[str]) -> int:
    """Measure and print; 1 if metrics cost more than is promised."""
    parser = argparse.ArgumentParser(prog="benchmarks metrics", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results: list[Measurement] = []
    promises: dict[str, bool] = {}
    for name, count in SETS.items():
        pairs = [
            (asyncio.run(way(options.messages // (20 if count == 1 else 1), count)), alone(count, 50_000))
            for _ in range(options.rounds)
        ]
        case = f"{name}, {count} message{'s' if count > 1 else ''}"
        # Of the way and of metrics by themselves: what the way would be without them is the difference.
        figures = {"with metrics": [1e-3 / whole for whole, _ in pairs]}
        figures["without metrics"] = [1e-3 / (whole - part) for whole, part in pairs]
        results += compared(NAME, case, "k batches/s", figures, ours="with metrics")
        percent = 100 * statistics.median(part / whole for whole, part in pairs)
        results.append(Measurement(NAME, case, "part of metrics", percent, "%", rounds=options.rounds))
        results.append(Measurement(NAME, case, "a span", asyncio.run(span(count)) * 1e6, "us"))
        if (most := PROMISES.get(name)) is not None:
            sentence = f"{case}: metrics cost less than {most} % of a batch's way: {percent:.2f} %"
            promises[sentence] = percent < most
    return show(results, promises, as_json=options.json)
