"""Fetch throughput over loopback: net + decode + lane with a consumer that does nothing, against our broker.

The broker runs in a process of its own and sends from segment files. Three ways to read the same log: a blocking
socket that only receives (what the wire gives), the same with the decoder (what one thread can do), and the real
`FetchPool` on asyncio and uvloop with one and with several partitions. Ratios are to the blocking reader that decodes;
the promise is that the pool keeps at least half of what that one does with a second of processor time.

    python -m benchmarks.fetch [--messages 1500000] [--size 100] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from benchmarks import surroundings
from benchmarks.race import Measurement, compared, quiet, show
from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import FetchSection
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.log_changes import LogChange
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.net.connect import connect
from consumerd.service.daemon.memory import tune_malloc
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import FetchRequest, decode_batch, encode_message_set

NAME = "fetch"
TOPIC = "bench"
PARTITIONS = 4
FETCH = 1 << 20
BLOCK = 20_000
BUDGET: int = FetchSection.budget
PROMISE = 0.5
#: What all else stands beside, and what the wire gives.
LIMIT, RECEIVED = "blocking recv and decode", "blocking recv"


class StandFast:
    """A directory of one broker and a listener that tolerates nothing."""

    def __init__(self, port: int) -> None:
        self._port = port

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return ("127.0.0.1", self._port)

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        return lambda: None

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        raise SystemExit(f"{partition} failed: {error}")

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        raise SystemExit(f"{partition} was reset from {old} to {new}")

    def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> None:
        raise SystemExit(f"the log of {partition} {change}, and fetching continued at {new}")

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        raise SystemExit(f"{partition} skipped {offset} to {next_offset}: {reason}")

    def parked(self, partition: TopicPartition, reason: str) -> None:
        raise SystemExit(f"{partition} was parked: {reason}")


def write_logs(folder: Path, messages: int, size: int) -> None:
    """Segment files with `messages` messages of `size` bytes in each partition, and the marker of a clean stop."""
    rng = random.Random(1)
    block = encode_message_set([rng.randbytes(size) for _ in range(BLOCK)])
    for number in range(PARTITIONS):
        log = folder / f"{TOPIC}-{number}"
        log.mkdir(parents=True)
        with (log / f"{0:020d}.kafka").open("wb") as segment:
            for _ in range(messages // BLOCK):
                segment.write(block)
    (folder / ".kafka_cleanshutdown").touch()


async def serve(folder: Path) -> None:
    config = BrokerConfig(log_dir=folder, port=0, partitions=PARTITIONS)
    async with Broker(config, clock=SystemClock(), rng=random.Random()) as broker:
        print(broker.port, flush=True)
        await broker.wait()


@contextlib.contextmanager
def broker(messages: int, size: int) -> Iterator[int]:
    """A broker process with full logs; gives its port."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "logs"
        write_logs(folder, messages, size)
        command = [sys.executable, "-m", "benchmarks.fetch", "--serve", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                line = ""
                for line in process.stdout:  # log lines may come first
                    if line.strip().isdigit():
                        break
                yield int(line)
            finally:
                process.kill()


def blocking(port: int, count: int, *, decode: bool) -> int:
    """One thread, one socket, one request at a time; returns the messages (or bytes, without decoding) read."""
    got = offset = 0
    buffer = bytearray(FETCH + 6)
    view = memoryview(buffer)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while got < count:
            sock.sendall(FetchRequest(TOPIC, 0, offset, FETCH).encode())
            filled = 0
            while filled < 6:
                filled += sock.recv_into(view[filled:6])
            end = 4 + int.from_bytes(view[:4], "big")
            while filled < end:
                filled += sock.recv_into(view[filled:end])
            if decode:
                batch = decode_batch(bytes(view[6:end]), offset)
                offset = batch.next_offset
                got += len(batch)
            else:
                offset += end - 6
                got += end - 6
    return got


async def pooled(port: int, count: int, partitions: int) -> int:
    """The real thing: a pool, a lane and a consumer per partition; returns the messages read."""
    ground = StandFast(port)
    budget = ByteBudget(BUDGET)
    settings = FetchSettings(size=FETCH)
    pool = FetchPool(V07Brokers(connect, ground, budget, settings, SystemClock(), random.Random(), ground))

    async def consume(number: int) -> int:
        partition = TopicPartition(TOPIC, 0, number)
        lane = Lane(partition, budget, max_bytes=16 << 20)
        pool.add(partition, 0, lane)
        got = 0
        while got < count // partitions:
            batch = await lane.get()
            got += len(batch)
            lane.finished(batch)
        await pool.remove(partition)
        lane.close()
        return got

    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        consumers = [group.create_task(consume(number)) for number in range(partitions)]
        await asyncio.wait(consumers)
        running.cancel()
    return sum(consumer.result() for consumer in consumers)


def on_loop(factory: Callable[[], asyncio.AbstractEventLoop], port: int, count: int, partitions: int) -> int:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(pooled(port, count, partitions))


def measure(messages: int, size: int, rounds: int) -> list[Measurement]:
    """All ways in turns, by the clock and by processor time."""
    messages = max(1, messages // BLOCK) * BLOCK
    tune_malloc(BUDGET)  # as the daemon does; all ways run in this process
    with broker(messages, size) as port:
        ways: dict[str, Callable[[], int]] = {
            RECEIVED: lambda: blocking(port, messages * (size + 10), decode=False) // (size + 10),
            LIMIT: lambda: blocking(port, messages, decode=True),
        }
        for name, factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
            for partitions in (1, PARTITIONS):
                ways[f"FetchPool, {name}, {partitions} partition{'s' if partitions > 1 else ''}"] = (
                    lambda factory=factory, partitions=partitions: on_loop(factory, port, messages, partitions)  # type: ignore[misc]
                )
        clock: dict[str, list[float]] = {name: [] for name in ways}
        processor: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                got = way() / 1e6
                clock[name].append(got / (time.perf_counter() - wall))
                processor[name].append(got / (time.process_time() - cpu))
    results: list[Measurement] = []
    for name in ways:
        if name == RECEIVED:
            rate = statistics.median(clock[name])
            results.append(Measurement(NAME, f"{name}, {size} B", name, rate, "M msg/s", rounds=rounds))
        elif name != LIMIT:
            case = f"{name}, {size} B, {surroundings.codec()}"
            results += compared(NAME, case, "M msg/s", clock, ours=name, others=[LIMIT])
            results += compared(NAME, case, "M msg/cpu-s", processor, ours=name, others=[LIMIT])
    return results


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise as a sentence, and whether it is kept."""
    return {
        f"{row.case}: at least {PROMISE} of {LIMIT} by processor time: {row.ratio:.2f}": row.ratio >= PROMISE
        for row in results
        if row.ratio is not None and row.unit == "M msg/cpu-s" and row.case.startswith("FetchPool")
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fetch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_500_000, help="per partition")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    quiet()
    results = measure(options.messages, options.size, options.rounds)
    return show(results, verdict(results), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
