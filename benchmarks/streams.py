"""What the library's iterators cost beside the handler API: one group member, four partitions, everything but the JVM.

The broker runs in a process of its own and sends from segment files; ZooKeeper is in memory, since it has no part in
the flow of messages. The same member hands the same messages over in four ways: batches to a handler coroutine (what
the daemon does), batches from `stream.batches()`, messages to a `@message_handler`, messages from `async for`. Ratios
are per processor time, to the handler of the same unit; the promises are BATCHES and MESSAGES.

    python -m benchmarks.streams [--messages 500000] [--size 100] [--rounds 3] [--loop uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from benchmarks.fetch import BLOCK, PARTITIONS, TOPIC, broker
from consumerd import ConsumerConfig, ConsumerConnector
from consumerd.clock import SystemClock
from consumerd.consumer import GroupConsumer, V07Backend
from consumerd.handlers import Batch, Handler, Message, message_handler
from consumerd.net import connect
from consumerd.registry import StaticSubscription
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consumerd.ports import ZooKeeper

#: What the iterators must reach of what the handlers of the same unit do with a second of processor time.
BATCHES = 0.75
MESSAGES = 0.75

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


async def handler_of_messages(zk: ZooKeeper, count: int) -> None:
    enough = Enough(count)

    @message_handler
    async def each(_: Message) -> None:
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


async def with_zookeeper(way: Callable[[ZooKeeper, int], Awaitable[None]], port: int, count: int) -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"creator:127.0.0.1:%d" % port)
    zookeeper.put(f"/brokers/topics/{TOPIC}/0", b"%d" % PARTITIONS)
    async with zookeeper.session() as zk:
        await way(zk, count)


def run(messages: int, size: int, rounds: int, loop: str) -> bool:
    """Print the best of `rounds` for each way; True if a promise is broken."""
    messages = max(1, messages // BLOCK) * BLOCK
    total = messages * PARTITIONS
    ways = {
        "handler of batches": handler_of_batches,
        "stream.batches()": iterator_of_batches,
        "handler of messages": handler_of_messages,
        "async for message": iterator_of_messages,
    }
    best: dict[str, tuple[float, float]] = dict.fromkeys(ways, (0.0, 0.0))
    with broker(messages, size) as port:
        for _ in range(rounds):
            for name, way in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                    runner.run(with_zookeeper(way, port, total))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                best[name] = max(best[name][0], total / wall / 1e6), max(best[name][1], total / cpu / 1e6)
    print(f"{total} messages of {size} B in {PARTITIONS} partitions, {loop}, best of {rounds}")
    print(f"{'':24}{'M msg/s':>10}{'M msg/cpu-s':>14}{'ratio':>8}")
    broken = False
    for kind, promise in (("batches", BATCHES), ("message", MESSAGES)):
        pair = [name for name in ways if kind in name]
        for name in pair:
            ratio = best[name][1] / best[pair[0]][1]
            broken |= ratio < promise
            print(f"{name:24}{best[name][0]:10.2f}{best[name][1]:14.2f}{ratio:8.2f}")
    return broken


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="benchmarks.streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000, help="per partition")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=LOOPS, default="uvloop")
    options = parser.parse_args(arguments)
    return run(options.messages, options.size, options.rounds, options.loop)


if __name__ == "__main__":
    sys.exit(main())
