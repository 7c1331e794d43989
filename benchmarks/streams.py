"""What the library's iterators cost beside the handler API: one group member, four partitions, everything but the JVM.

The broker runs in a process of its own and sends from segment files; ZooKeeper is in memory, since it has no part in
the flow of messages. The same member delivers the same messages in six ways: batches to a handler coroutine (what the
daemon does) that counts them, or that takes every payload, batches from `stream.batches()`, messages to a
`@message_handler` that is an `async def` or a `def`, messages from `async for`. Ratios are per processor time and by
the clock, to the handler of the same unit and, of messages, to both handlers of batches, and to the limit: a coroutine
that is awaited with each of as many payloads, which are one object, with no network, decoder or message. The promises
are BATCHES, MESSAGES, EACH and PLAIN_EACH.

    python -m benchmarks streams [--messages 500000] [--size 100] [--rounds 3] [--loop uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat

import uvloop

from benchmarks import surroundings
from benchmarks.fetch import BLOCK, BUDGET, PARTITIONS, TOPIC, broker
from benchmarks.race import Measurement, compared, quiet, show
from consumerd import ConsumerConfig, ConsumerConnector
from consumerd.base.clock import SystemClock
from consumerd.base.ports import ZooKeeper
from consumerd.handlers import Batch, Handler, Message, message_handler
from consumerd.member.consumer.backends import V07Backend
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.net.connect import connect
from consumerd.service.daemon.memory import tune_malloc
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.subscription import StaticSubscription

#: What the iterators must reach of what the handlers of the same unit do with a second of processor time. A
#: loop reads the clock and looks at the fence between messages, a handler once for all of a batch.
BATCHES = 0.75
MESSAGES = 0.65
#: What a handler of messages must reach of the limit, by codec: one that is an `async def`, and one that is a `def`.
EACH = {surroundings.NATIVE: 0.4, surroundings.PURE: 0.12}
PLAIN_EACH = {surroundings.NATIVE: 0.5, surroundings.PURE: 0.15}
NAME = "streams"
HANDLER_OF_BATCHES, ITERATOR_OF_BATCHES = "handler of batches", "stream.batches()"
HANDLER_OF_VALUES = "handler of batches, every value"
HANDLER_OF_MESSAGES, ITERATOR_OF_MESSAGES = "handler of messages", "async for message"
PLAIN_HANDLER_OF_MESSAGES = "def handler of messages"
LIMIT = "await for each payload, nothing else"
#: What stands beside what.
PAIRS = (
    (ITERATOR_OF_BATCHES, HANDLER_OF_BATCHES),
    (ITERATOR_OF_MESSAGES, HANDLER_OF_MESSAGES),
    (HANDLER_OF_MESSAGES, HANDLER_OF_BATCHES),
    (ITERATOR_OF_MESSAGES, HANDLER_OF_BATCHES),
    (HANDLER_OF_MESSAGES, HANDLER_OF_VALUES),
    (ITERATOR_OF_MESSAGES, HANDLER_OF_VALUES),
    (HANDLER_OF_MESSAGES, LIMIT),
    (PLAIN_HANDLER_OF_MESSAGES, LIMIT),
    (PLAIN_HANDLER_OF_MESSAGES, HANDLER_OF_MESSAGES),
    (LIMIT, HANDLER_OF_BATCHES),
)

CONFIG = ConsumerConfig(group="bench", zookeeper="memory:2181", consumer_timeout=20)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Enough:
    """Counts to a number."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.reached = asyncio.Event()

    def count(self, messages: int) -> None:
        self.left -= messages
        if self.left <= 0:
            self.reached.set()


async def handled(zk: ZooKeeper, handler: Handler, enough: Enough) -> None:
    clock, rng = SystemClock(), random.Random()
    settings = CONFIG.settings(StaticSubscription({TOPIC: 1}), clock=clock, rng=rng)
    consumer = GroupConsumer(settings, zk=zk, backend=V07Backend(connect), handler=handler, clock=clock, rng=rng)
    running = asyncio.create_task(consumer.run())
    await enough.reached.wait()
    consumer.request_stop()
    await running


async def handler_of_batches(zk: ZooKeeper, count: int) -> None:
    enough = Enough(count)

    class Counting(Handler):
        async def handle(self, batch: Batch) -> None:
            enough.count(len(batch))

    await handled(zk, Counting(), enough)


async def handler_of_values(zk: ZooKeeper, count: int) -> None:
    enough = Enough(count)

    class Reading(Handler):
        async def handle(self, batch: Batch) -> None:
            for _ in batch.payloads:
                pass
            enough.count(len(batch))

    await handled(zk, Reading(), enough)


async def handler_of_messages(zk: ZooKeeper, count: int) -> None:
    enough = Enough(count)

    @message_handler
    async def each(_: Message) -> None:
        enough.left -= 1
        if enough.left <= 0:
            enough.reached.set()

    await handled(zk, each, enough)


async def plain_handler_of_messages(zk: ZooKeeper, count: int) -> None:
    enough = Enough(count)

    @message_handler
    def each(_: Message) -> None:
        enough.left -= 1
        if enough.left <= 0:
            enough.reached.set()

    await handled(zk, each, enough)


async def iterator_of_batches(zk: ZooKeeper, count: int) -> None:
    async with ConsumerConnector(CONFIG, zk=zk) as connector:
        (stream,) = (await connector.create_message_streams({TOPIC: 1}))[TOPIC]
        async for batch in stream.batches():
            count -= len(batch)
            if count <= 0:
                break


async def iterator_of_messages(zk: ZooKeeper, count: int) -> None:
    async with ConsumerConnector(CONFIG, zk=zk) as connector:
        (stream,) = (await connector.create_message_streams({TOPIC: 1}))[TOPIC]
        async for _ in stream:
            count -= 1
            if count <= 0:
                break


async def await_for_each(_: ZooKeeper, count: int, size: int) -> None:
    enough = Enough(count)

    async def each(_: bytes) -> None:
        enough.left -= 1
        if enough.left <= 0:
            enough.reached.set()

    for payload in repeat(bytes(size), count):
        await each(payload)


async def with_zookeeper(way: Callable[[ZooKeeper, int], Awaitable[None]], port: int, count: int) -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"creator:127.0.0.1:%d" % port)
    zookeeper.put(f"/brokers/topics/{TOPIC}/0", b"%d" % PARTITIONS)
    async with zookeeper.session() as zk:
        await way(zk, count)


def measure(messages: int, size: int, rounds: int, loop: str) -> list[Measurement]:
    """All ways in turns, by the clock and by processor time."""
    messages = max(1, messages // BLOCK) * BLOCK
    total = messages * PARTITIONS
    tune_malloc(BUDGET)  # as the daemon does; all ways run in this process
    ways: dict[str, Callable[[ZooKeeper, int], Awaitable[None]]] = {
        HANDLER_OF_BATCHES: handler_of_batches,
        HANDLER_OF_VALUES: handler_of_values,
        ITERATOR_OF_BATCHES: iterator_of_batches,
        HANDLER_OF_MESSAGES: handler_of_messages,
        PLAIN_HANDLER_OF_MESSAGES: plain_handler_of_messages,
        ITERATOR_OF_MESSAGES: iterator_of_messages,
        LIMIT: partial(await_for_each, size=size),
    }
    clock: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    with broker(messages, size) as port:
        for _ in range(rounds):
            for name, way in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                    runner.run(with_zookeeper(way, port, total))
                clock[name].append(total / (time.perf_counter() - wall) / 1e6)
                processor[name].append(total / (time.process_time() - cpu) / 1e6)
    results: list[Measurement] = []
    for one, other in PAIRS:
        case = f"{one}, {size} B, {loop}, {surroundings.codec()}"
        results += compared(NAME, case, "M msg/s", clock, ours=one, others=[other])
        results += compared(NAME, case, "M msg/cpu-s", processor, ours=one, others=[other])
    return results


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise as a sentence, and whether it is kept."""
    promised = {
        (ITERATOR_OF_BATCHES, HANDLER_OF_BATCHES): BATCHES,
        (ITERATOR_OF_MESSAGES, HANDLER_OF_MESSAGES): MESSAGES,
        (HANDLER_OF_MESSAGES, LIMIT): EACH[surroundings.codec()],
        (PLAIN_HANDLER_OF_MESSAGES, LIMIT): PLAIN_EACH[surroundings.codec()],
    }
    found = {}
    for row in results:
        least = promised.get((row.case.partition(",")[0], row.subject))
        if least is not None and row.ratio is not None and row.unit == "M msg/cpu-s":
            sentence = f"{row.case}: at least {least} of the {row.subject} by processor time: {row.ratio:.2f}"
            found[sentence] = row.ratio >= least
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000, help="per partition")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=LOOPS, default="uvloop")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    quiet()
    results = measure(options.messages, options.size, options.rounds, options.loop)
    return show(results, verdict(results), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
