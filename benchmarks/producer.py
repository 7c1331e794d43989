"""Producing to consumerd's own broker, in another process: synchronous and asynchronous, by size and codec.

`sync` awaits `Producer.send` of a batch of 200, `async` awaits `AsyncProducer.send` of one message, with a batch size
of 200. A batch counts when the broker answered behind it; `no ack` is what Kafka 0.7.2 does: `send` returns when the
bytes are in the socket, and the time ends with one confirmation of all. `requests made before` is a blocking socket
that sends the same requests, encoded before, to the same broker, and waits for one confirmation of all.

The peer is Jafka's synchronous producer on the JVM, a port of 0.7.2's: it makes the messages of each request and sends
them without acknowledgement, to the same broker; its time ends when the broker has appended all. `per cpu-s` is by
the processor time of the producer's process alone: where the broker is the slower side, the clock measures the broker.
With requests of more than a segment of the loopback interface, 64 KiB, the peer waits for a delayed acknowledgement of
each, some 100 ms: then only processor time is compared.

Kafka 0.7.2's figures were measured once, on another day, with its own broker and clients on a machine of the same kind,
one thread, without acknowledgement. They are printed for the proportions; only ratios within one run hold.

    python -m benchmarks.producer [--rounds 3] [--messages 40000] [--codec none] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import surroundings
from benchmarks.broker import produce_all
from benchmarks.jvm import JafkaSender, jafka_is_there
from benchmarks.race import Measurement, compared, quiet, show
from consumerd.base.clock import SystemClock
from consumerd.demo.processes import BrokerProcess
from consumerd.net.connect import connect
from consumerd.producer import AsyncProducer, Producer, ProducerSettings, QueueSettings, StaticRouter
from consumerd.wire.compression import Codec
from consumerd.wire.v07 import ProduceRequest, encode_message_set

NAME = "producer"
LIMIT = "requests made before"
JAFKA = "Jafka's sync"
#: Ours beside it.
UNCONFIRMED = "sync, no ack"
BATCH = 200
SIZES = (100, 200, 1000)
#: Bytes of a segment of the loopback interface.
SEGMENT = 65_483
#: Requests that the peer sends before the rounds; it has made many more before, so that the JVM compiles that.
#: Of large ones fewer, as each waits.
WARM_UP, WARM_UP_LARGE = 1000, 100
#: Million messages per second of Kafka 0.7.2, uncompressed: (sync, async) by size. Of a range (0.8 to 1.3 for sync at
#: 200 B, 0.2 to 0.5 at 1000 B) the middle.
KAFKA_072 = {100: (1.3, 0.34), 200: (1.05, 0.3), 1000: (0.35, 0.15)}


def payloads(size: int) -> list[bytes]:
    """Words of a small vocabulary, so that compressors have something to find, as in logs and events."""
    rng = random.Random(size)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(500)]
    return [b" ".join(rng.choices(words, k=size))[:size] for _ in range(BATCH)]


def producer(port: int, codec: Codec, confirm: bool) -> Producer:
    rng = random.Random(1)
    settings = ProducerSettings(codec=codec, confirm=confirm)
    router = StaticRouter([("127.0.0.1", port)], rng=rng)
    return Producer(router, connect=connect, clock=SystemClock(), rng=rng, settings=settings)


async def sync(port: int, batch: list[bytes], count: int, codec: Codec, confirm: bool) -> tuple[float, float]:
    async with producer(port, codec, confirm) as ours:
        await ours.send("bench", batch, partition=0)
        await ours.flush()
        started, used = time.perf_counter(), time.process_time()
        for _ in range(count // BATCH):
            await ours.send("bench", batch, partition=0)
        await ours.flush()
        return time.perf_counter() - started, time.process_time() - used


async def in_background(port: int, batch: list[bytes], count: int, codec: Codec, confirm: bool) -> tuple[float, float]:
    queue = QueueSettings(batch_size=BATCH)
    async with AsyncProducer(producer(port, codec, confirm), clock=SystemClock(), queue=queue) as ours:
        await ours.send("bench", batch, partition=0)
        await ours.flush()
        started, used = time.perf_counter(), time.process_time()
        for _ in range(count // BATCH):
            for message in batch:
                await ours.send("bench", [message], partition=0)
        await ours.flush()
        return time.perf_counter() - started, time.process_time() - used


#: Each gives the seconds by the clock and of processor time.
SUBJECTS: dict[str, tuple[Callable[..., Awaitable[tuple[float, float]]], bool]] = {
    "sync": (sync, True),
    UNCONFIRMED: (sync, False),
    "async": (in_background, True),
    "async, no ack": (in_background, False),
}


async def measure(rounds: int, smallest: int, codecs: list[Codec]) -> list[Measurement]:
    results: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        # As benchmarks/broker.py: the disk of a shared machine is not what is measured.
        settings = {"log.flush.interval": 1_000_000, "log.default.flush.interval.ms": 3_600_000}
        async with BrokerProcess(Path(folder), None, settings=settings) as broker:
            for codec in codecs:
                for size in SIZES:
                    batch = payloads(size)
                    count = smallest * SIZES[0] // size // BATCH * BATCH  # a disk takes as many bytes of each size
                    figures: dict[str, list[float]] = {name: [] for name in (*SUBJECTS, LIMIT)}
                    used: dict[str, list[float]] = {UNCONFIRMED: []}
                    frame = ProduceRequest("bench", 0, encode_message_set(batch, codec=codec)).encode()
                    async with contextlib.AsyncExitStack() as stack:
                        jafka: JafkaSender | None = None
                        if codec is Codec.NONE and jafka_is_there():
                            log = broker.log_directory / "bench-0"
                            sender = JafkaSender(Path(folder) / "jafka", broker.port, "bench", batch, log)
                            jafka = await stack.enter_async_context(sender)
                            await jafka.send(WARM_UP if len(frame) < SEGMENT else WARM_UP_LARGE)
                            figures[JAFKA], used[JAFKA] = [], []
                        for _ in range(rounds):
                            for name, (work, confirm) in SUBJECTS.items():
                                gc.collect()
                                seconds, processor = await work(broker.port, batch, count, codec, confirm)
                                figures[name].append(count / seconds / 1e6)
                                if name in used:
                                    used[name].append(count / processor / 1e6)
                            if jafka is not None:
                                seconds, processor = await jafka.send(count // BATCH)
                                figures[JAFKA].append(count / seconds / 1e6)
                                used[JAFKA].append(count / processor / 1e6)
                            with socket.create_connection(("127.0.0.1", broker.port)) as sock:
                                began = time.perf_counter()
                                produce_all(sock, frame, count // BATCH)
                                figures[LIMIT].append(count / (time.perf_counter() - began) / 1e6)
                    results += report(codec, size, figures, used)
    return results


def report(codec: Codec, size: int, figures: dict[str, list[float]], used: dict[str, list[float]]) -> list[Measurement]:
    case = f"{size} B, {codec.name.lower()}, batches of {BATCH}"
    found: list[Measurement] = []
    for name in SUBJECTS:
        named = f"{case}, {name}, {surroundings.codec()}"
        beside_jafka = name == UNCONFIRMED and JAFKA in figures and (size + 10) * BATCH < SEGMENT
        others = [JAFKA, LIMIT] if beside_jafka else [LIMIT]
        found += compared(NAME, named, "M msg/s", figures, ours=name, others=others)
    if JAFKA in used:
        named = f"{case}, {UNCONFIRMED}, {surroundings.codec()}, per cpu-s"
        found += compared(NAME, named, "M msg/cpu-s", used, ours=UNCONFIRMED)
    if codec is Codec.NONE:
        for name, figure in zip(("0.7.2 sync, once", "0.7.2 async, once"), KAFKA_072[size], strict=True):
            found.append(Measurement(NAME, case, name, figure, "M msg/s"))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--messages",
        type=int,
        default=100_000,
        help="messages of 100 B of one measurement; of others as many bytes",
    )
    parser.add_argument("--codec", choices=[codec.name.lower() for codec in Codec], action="append")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    quiet()
    codecs = [Codec[name.upper()] for name in arguments.codec or [codec.name for codec in Codec]]
    results = asyncio.run(measure(arguments.rounds, arguments.messages // BATCH * BATCH, codecs))
    return show(results, {}, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
