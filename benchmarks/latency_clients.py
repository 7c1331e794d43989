"""The clients whose waiting `benchmarks.latency` and `benchmarks.idle` measure, each in a process of its own.

A message begins with the byte of its run, the number of messages of that run, and when it was sent, in nanoseconds of
the clock that all processes of the machine share (CLOCK_MONOTONIC). The receiver of a message notes how old it is;
with the last one of a run it appends a line of JSON to the file that LATENCY_REPORT names: the run, the quantiles
(milliseconds), and how many messages there were.

For `benchmarks.startup` (`note`) each message is a line of that file instead: the partition, and the time.

Consumers read one topic as a member of a group, one message at a time, with default settings but for the beginning:
they read what comes (`idle`: aiokafka without uvloop, which takes memory). The daemon takes `latency_clients:each` as
its handler. Producers send one message after the other and wait for each.

This file needs nothing else of this project, since it also runs beside the `consumerd` of another checkout:

    python -P latency_clients.py consume aiokafka 127.0.0.1:9092 GROUP TOPIC
    python -P latency_clients.py send consumerd 127.0.0.1:9092 TOPIC MESSAGES [ACKS]
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

REPORT = "LATENCY_REPORT"
#: A run's number, the number of its messages, the time at which this one was sent.
HEAD = struct.Struct(">BIq")
#: Bytes of a message.
SIZE = 100
#: Parts of a run's messages that are at most so old, as reported and plotted.
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def message(run: int, total: int, now: int) -> bytes:
    """One of `total` messages of a run (0 to 255), sent at `now`."""
    return HEAD.pack(run, total, now).ljust(SIZE, b".")


def quantiles(ages: Sequence[int]) -> list[float]:
    """Milliseconds of each of QUANTILES (the nearest rank), of ages in nanoseconds."""
    ordered = sorted(ages)
    return [round(ordered[max(0, math.ceil(part * len(ordered)) - 1)] / 1e6, 4) for part in QUANTILES]


class Taker:
    """Takes messages, and reports each run that is complete."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._ages: dict[int, list[int]] = {}

    def take(self, payload: bytes | memoryview) -> None:
        """One message, now."""
        now = time.monotonic_ns()
        run, total, sent = HEAD.unpack_from(payload)
        if not total:
            return
        ages = self._ages.setdefault(run, [])
        ages.append(now - sent)
        if len(ages) == total:
            del self._ages[run]
            self._report(json.dumps({"run": run, "quantiles": quantiles(ages), "messages": total}))


def append(line: str) -> None:
    """To the file of reports."""
    with open(os.environ[REPORT], "a", encoding="ascii") as file:
        file.write(line + "\n")


def noting() -> Callable[[int], object]:
    """What appends a line for a message of a partition."""
    file = open(os.environ[REPORT], "a", buffering=1, encoding="ascii")  # noqa: SIM115 - as long as the process
    return lambda partition: file.write(f"{partition} {time.monotonic_ns()}\n")


def __getattr__(name: str) -> Any:
    """The daemon's handlers `each` and `note`: only this process imports consumerd."""
    handler: Callable[[Any], Awaitable[None]]
    if name == "each":
        take = Taker(append).take

        async def each(message: Any) -> None:
            take(message.payload)

        handler = each
    elif name == "note":
        saw = noting()

        async def note(message: Any) -> None:
            saw(message.partition.partition)

        handler = note
    else:
        raise AttributeError(name)
    return importlib.import_module("consumerd.handlers").message_handler(handler)


async def consume_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    """By its iterator."""
    aiokafka: Any = importlib.import_module("aiokafka")
    take = Taker(append).take
    async with aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group) as consumer:
        async for record in consumer:
            take(record.value)


def consume_confluent(bootstrap: str, group: str, topic: str) -> None:
    """By `poll`."""
    confluent: Any = importlib.import_module("confluent_kafka")
    take = Taker(append).take
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    while True:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            take(record.value())


def note_confluent(bootstrap: str, group: str, topic: str, *settings: str) -> None:
    """By `poll`, until SIGTERM; then it leaves the group. `settings`: more of them, as `key=value`."""
    confluent: Any = importlib.import_module("confluent_kafka")
    saw, stopping = noting(), []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    own = dict(setting.split("=", 1) for setting in settings)
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **own})
    consumer.subscribe([topic])
    while not stopping:
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            saw(record.partition())
    consumer.close()


async def send_ours(bootstrap: str, topic: str, messages: int, **acks: int) -> list[int]:
    """By `send` of the producer that programs open. `acks`: as for all of them, if it is not the default."""
    consumerd: Any = importlib.import_module("consumerd")
    own = {"v08": importlib.import_module("consumerd.producer").V08ProducerSettings(**acks)} if acks else {}
    ages = []
    async with consumerd.open_producer(consumerd.ProducerConfig(bootstrap=[bootstrap], **own)) as producer:
        for value in [message(0, messages, 0)] * messages:
            began = time.monotonic_ns()
            await producer.send(topic, [value])
            ages.append(time.monotonic_ns() - began)
    return ages


async def send_aiokafka(bootstrap: str, topic: str, messages: int, **acks: int) -> list[int]:
    """By `send_and_wait`."""
    aiokafka: Any = importlib.import_module("aiokafka")
    ages = []
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **acks) as producer:
        for value in [message(0, messages, 0)] * messages:
            began = time.monotonic_ns()
            await producer.send_and_wait(topic, value)
            ages.append(time.monotonic_ns() - began)
    return ages


def send_confluent(bootstrap: str, topic: str, messages: int, **acks: int) -> list[int]:
    """By `produce` and `flush`, which waits for no more messages."""
    confluent: Any = importlib.import_module("confluent_kafka")
    producer = confluent.Producer({"bootstrap.servers": bootstrap, **acks})
    ages = []
    for value in [message(0, messages, 0)] * messages:
        began = time.monotonic_ns()
        producer.produce(topic, value)
        if producer.flush(30):
            sys.exit("a message was not sent within 30 s")
        ages.append(time.monotonic_ns() - began)
    return ages


CONSUME: dict[str, Callable[[str, str, str], Awaitable[None] | None]] = {
    "aiokafka": consume_aiokafka,
    "confluent-kafka": consume_confluent,
}
SEND: dict[str, Callable[..., Awaitable[list[int]] | list[int]]] = {
    "consumerd": send_ours,
    "aiokafka": send_aiokafka,
    "confluent-kafka": send_confluent,
}
#: The first messages of a producer, which open connections and do not count in the figures.
WARM_UP = 50


def done(doing: Any, loop: str = "uvloop") -> Any:
    """The result of a coroutine, on a loop of the module `loop`, or of a function."""
    if not asyncio.iscoroutine(doing):
        return doing
    with asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop) as runner:
        return runner.run(doing)


def main(arguments: list[str]) -> None:
    """One client."""
    does, client, *rest = arguments
    if does == "consume":
        done(CONSUME[client](*rest))
    elif does == "note":
        note_confluent(*rest)
    elif does == "idle":
        done(CONSUME[client](*rest), "asyncio")
    else:
        bootstrap, topic, messages, *acks = rest
        own = {"acks": int(acks[0])} if acks else {}
        ages = done(SEND[client](bootstrap, topic, int(messages) + WARM_UP, **own))[WARM_UP:]
        append(json.dumps({"run": 0, "quantiles": quantiles(ages), "messages": len(ages)}))


if __name__ == "__main__":
    main(sys.argv[1:])
