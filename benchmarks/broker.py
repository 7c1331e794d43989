"""Broker throughput over loopback with a raw client: fetches of 1 MiB, produces of 200 messages, small round trips.

The broker runs in a process of its own, once on asyncio and once on uvloop; the client is a blocking socket that does
no work, or, where it says `and decode`, takes the messages out of what it fetched. `blocking` is the same client
against a loop that does nothing but a blocking `os.sendfile` (fetch), or a blocking receive and a write to a file
(produce), without logs, checks or other connections. All servers run from the start, and take turns. Figures per
`cpu-s` are of the server's processor time, which other programs on the machine change less than the clock. At the end
a thousand partitions are asked for 8 kB each, in one MULTIFETCH and in a thousand FETCHes.

Kafka 0.7.2's figures were measured once, on another day, with its own broker and clients on a machine of the same kind,
one client thread, no compression: its SimpleConsumer stands beside fetch and decode, its sync producer beside produce.
They say which order of magnitude to expect, not who is faster by a tenth.

    python -m benchmarks.broker [--size 100 --size 1000] [--megabytes 128] [--rounds 3] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import surroundings
from benchmarks.race import OURS, Measurement, alternating, compared, show
from consumerd.base.clock import SystemClock
from consumerd.service.daemon.logs import configure_logs
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import (
    FetchRequest,
    MultiFetchRequest,
    OffsetsRequest,
    ProduceRequest,
    decode_batch,
    encode_message_set,
)

NAME = "broker"
FETCH = 1 << 20
PER_SET = 200
PROBE = OffsetsRequest("probe", 0, -1, 1).encode()
PROBE_ANSWER = 18
ROUND_TRIPS = 2000
#: Partitions of one MULTIFETCH, and bytes asked of each.
MANY, MANY_BYTES = 1000, 8 << 10
MODES = ("blocking", "asyncio", "uvloop")
DECODE = "fetch 1 MiB and decode"
NO_FLUSH = 1_000_000_000
PRODUCE = {
    NO_FLUSH: "produce, no flush",
    100_000: "produce, flush every 100000 messages",
    500: "produce, flush every 500 messages",
}
CLOCK, PROCESSOR = "M msg/s", "M msg/cpu-s"
#: Million messages per second of Kafka 0.7.2 by size of the payload, lowest and highest of several runs.
KAFKA_072 = {
    DECODE: {100: (2.8, 4.7), 200: (2.5, 3.9), 1000: (0.7, 1.5)},
    PRODUCE[100_000]: {100: (1.3, 1.3), 200: (0.8, 1.3), 1000: (0.2, 0.5)},
}


async def serve(folder: Path, flush_interval: int) -> None:
    config = BrokerConfig(
        log_dir=folder, port=0, use_zookeeper=False, flush_messages=flush_interval, topic_partitions={"many": MANY}
    )
    broker = Broker(config, clock=SystemClock(), rng=random.Random(1))
    configure_logs("error", "auto")
    async with broker:
        print(broker.port, flush=True)
        await broker.wait()


def serve_blocking(folder: Path) -> None:
    """One connection: answer every 1 MiB fetch by sendfile, write everything larger to a file, answer a probe."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    fetch = FetchRequest("bench", 0, 0, FETCH).encode()
    written = (folder / "blocking").open("wb", buffering=0)
    while True:
        sock, _ = listener.accept()
        with sock, (folder / "bench-0" / f"{0:020d}.kafka").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            buffer = bytearray(1 << 21)
            view = memoryview(buffer)
            tail = b""
            while got := sock.recv_into(buffer):
                tail = (tail + view[max(0, got - len(PROBE)) : got].tobytes())[-len(PROBE) :]
                if got == len(fetch) and view[: got - 12] == fetch[:-12]:  # not a piece of a produce
                    (offset,) = struct.unpack_from(">q", view, got - 12)
                    length = min(FETCH, size - offset)
                    sock.send(struct.pack(">ih", length + 2, 0), socket.MSG_MORE)
                    while length:
                        sent = os.sendfile(sock.fileno(), file.fileno(), offset, length)
                        offset, length = offset + sent, length - sent
                    continue
                written.write(view[:got])
                if tail == PROBE:
                    sock.sendall(bytes(PROBE_ANSWER))


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and the connection of its client."""

    pid: int
    sock: socket.socket

    def processor_seconds(self) -> float:
        """Processor time of all its threads so far."""
        return time.clock_gettime(~self.pid << 3 | 2)  # as clock_getcpuclockid(3) of Linux


@contextmanager
def running(mode: str, folder: Path, flush_interval: int) -> Iterator[Server]:
    argv = [sys.executable, "-m", "benchmarks.broker", "--serve", mode, str(folder), str(flush_interval)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield Server(process.pid, sock)
        finally:
            process.kill()


def receive(sock: socket.socket, buffer: memoryview, count: int) -> None:
    while count:
        received = sock.recv_into(buffer, min(count, len(buffer)))
        if not received:
            raise ConnectionError("the broker has closed the connection; what it says goes to standard error")
        count -= received


def receive_into(sock: socket.socket, buffer: memoryview) -> None:
    while buffer:
        received = sock.recv_into(buffer)
        if not received:
            raise ConnectionError("the broker has closed the connection; what it says goes to standard error")
        buffer = buffer[received:]


def fetch_and_decode(sock: socket.socket, end: int) -> None:
    buffer = memoryview(bytearray(6 + FETCH))
    offset = 0
    while offset < end:
        sock.sendall(FetchRequest("bench", 0, offset, FETCH).encode())
        size = 6 + min(FETCH, end - offset)
        receive(sock, buffer[:6], 6)
        receive_into(sock, buffer[6:size])
        offset = decode_batch(buffer[6:size], offset).next_offset


def fetch_all(sock: socket.socket, end: int) -> None:
    buffer = memoryview(bytearray(FETCH))
    for offset in range(0, end, FETCH):
        sock.sendall(FetchRequest("bench", 0, offset, FETCH).encode())
        receive(sock, buffer, 6 + min(FETCH, end - offset))


def produce_all(sock: socket.socket, frame: bytes, count: int) -> None:
    for _ in range(count):
        sock.sendall(frame)
    sock.sendall(PROBE)
    receive(sock, memoryview(bytearray(PROBE_ANSWER)), PROBE_ANSWER)


def round_trips(sock: socket.socket, count: int) -> None:
    buffer = memoryview(bytearray(PROBE_ANSWER))
    for _ in range(count):
        sock.sendall(PROBE)
        receive(sock, buffer, PROBE_ANSWER)


#: The figures of every kind and mode in each round: bytes per second, or round trips per second.
Figures = dict[str, dict[str, list[float]]]


class Exchange:
    """What one size of messages gave, by the clock and by the servers' processor time."""

    def __init__(self) -> None:
        self.clock: Figures = {}
        self.processor: Figures = {}

    def take(self, kind: str, mode: str, server: Server, amount: int, work: Callable[[], None]) -> None:
        """Measure `work`, in which the server handles `amount`."""
        began, spent = time.perf_counter(), server.processor_seconds()
        work()
        seconds, spent = time.perf_counter() - began, server.processor_seconds() - spent
        self.clock.setdefault(kind, {}).setdefault(mode, []).append(amount / seconds)
        self.processor.setdefault(kind, {}).setdefault(mode, []).append(amount / spent)


def measure(size: int, megabytes: int, rounds: int, *, flushes: bool) -> Exchange:
    """Measure messages of one size. Without `flushes` produce only into a log that is not flushed."""
    rng = random.Random(2)
    batch = encode_message_set([rng.randbytes(size) for _ in range(PER_SET)])
    sets = (megabytes << 20) // len(batch)
    frame = ProduceRequest("made", 0, batch).encode()
    found = Exchange()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers: dict[tuple[str, int], Server] = {}
        for mode in MODES:
            for flush in PRODUCE if flushes and mode != "blocking" else [NO_FLUSH]:
                directory = Path(folder) / f"{mode}-{flush}"
                if flush == NO_FLUSH:
                    write_log(directory / "bench-0", [batch] * sets)
                servers[mode, flush] = stack.enter_context(running(mode, directory, flush))
        for mode, flush in alternating(servers, rounds):
            take_round(found, mode, flush, servers[mode, flush], frame, len(batch), sets)
    return found


def write_log(directory: Path, pieces: Iterable[bytes]) -> None:
    directory.mkdir(parents=True)
    with (directory / f"{0:020d}.kafka").open("wb") as segment:
        for piece in pieces:
            segment.write(piece)
        segment.flush()
        os.fsync(segment.fileno())  # or the first to be measured shares the disk with the writing of this


def take_round(found: Exchange, mode: str, flush: int, server: Server, frame: bytes, size: int, sets: int) -> None:
    """One round of one server: `sets` sets of `size` bytes are fetched and produced."""
    sock, end = server.sock, sets * size
    if flush == NO_FLUSH:
        found.take("fetch 1 MiB", mode, server, end, lambda: fetch_all(sock, end))
        if mode != "blocking":
            found.take(DECODE, mode, server, end, lambda: fetch_and_decode(sock, end))
            found.take("round trips", mode, server, ROUND_TRIPS, lambda: round_trips(sock, ROUND_TRIPS))
    count = sets if flush > 1000 else sets // 8
    found.take(PRODUCE[flush], mode, server, count * size, lambda: produce_all(sock, frame, count))


def fetch_partitions(sock: socket.socket, frames: list[bytes], answers: int) -> float:
    """Send `frames` and read `answers` answers to the end."""
    buffer = memoryview(bytearray(FETCH))
    started = time.perf_counter()
    sock.sendall(b"".join(frames))
    for _ in range(answers):
        receive(sock, buffer[:4], 4)
        (length,) = struct.unpack(">i", buffer[:4])
        receive(sock, buffer, length)
    return time.perf_counter() - started


def measure_partitions(rounds: int) -> list[Measurement]:
    """A thousand partitions asked for 8 kB each: in one MULTIFETCH, and in as many FETCHes sent at once."""
    fetches = [FetchRequest("many", number, 0, MANY_BYTES) for number in range(MANY)]
    subjects = {
        "one MULTIFETCH": ([MultiFetchRequest(tuple(fetches)).encode()], 1),
        f"{MANY} FETCHes": ([fetch.encode() for fetch in fetches], MANY),
    }
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        segment = encode_message_set([bytes(MANY_BYTES)] * 2)
        for number in range(MANY):
            log = Path(folder) / f"many-{number}"
            log.mkdir()
            (log / f"{0:020d}.kafka").write_bytes(segment)
        for mode in MODES[1:]:
            figures: dict[str, list[float]] = {name: [] for name in subjects}
            with running(mode, Path(folder), 500) as server:
                for _ in range(10 * rounds):
                    for name, (frames, answers) in subjects.items():
                        figures[name].append(MANY / 1000 / fetch_partitions(server.sock, frames, answers))
            one, many = subjects
            case = f"{MANY} partitions of {MANY_BYTES >> 10} KiB, {mode}"
            found += compared(NAME, f"{case}, one MULTIFETCH", "k partitions/s", figures, ours=one, others=[many])
    return found


def results(size: int, figures: Figures, unit: str = CLOCK) -> list[Measurement]:
    """The figures as million messages per second, each loop of ours beside the blocking one."""
    found: list[Measurement] = []
    for kind, modes in figures.items():
        for mode in [mode for mode in MODES[1:] if mode in modes]:
            # A produced set is checked by the codec; nothing of it is needed for a fetch.
            checked = f", {surroundings.codec()}" if kind == DECODE or kind in PRODUCE.values() else ""
            case = f"{kind}, {size} B, {mode}{checked}"
            if kind == "round trips":
                value = statistics.median(modes[mode])
                found.append(Measurement(NAME, case, OURS, value, unit.removeprefix("M msg"), rounds=len(modes[mode])))
                continue
            per_second = {name: [value / (size + 10) / 1e6 for value in modes[name]] for name in modes}
            others = [name for name in modes if name == "blocking"]
            found += compared(NAME, case, unit, per_second, ours=mode, others=others)
        if unit == CLOCK and size in KAFKA_072.get(kind, {}):
            for which, value in zip(("lowest", "highest"), KAFKA_072[kind][size], strict=True):
                found.append(Measurement(NAME, f"{kind}, {size} B", f"0.7.2 once, {which}", value, CLOCK))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, action="append", help="bytes of payload (default: 100 and 1000)")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, help="(default: 3, with --quick 5)")
    parser.add_argument("--quick", action="store_true", help="an eighth of the megabytes, and no flushes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.serve:
        mode, folder, flush = arguments.serve
        if mode == "blocking":
            serve_blocking(Path(folder))
        else:
            (uvloop.run if mode == "uvloop" else asyncio.run)(serve(Path(folder), int(flush)))
        return 0
    found: list[Measurement] = []
    megabytes = arguments.megabytes // 8 if arguments.quick else arguments.megabytes
    rounds = arguments.rounds or (5 if arguments.quick else 3)
    for size in arguments.size or [100, 1000]:
        exchange = measure(size, megabytes, rounds, flushes=not arguments.quick)
        found += results(size, exchange.clock) + results(size, exchange.processor, PROCESSOR)
    found += measure_partitions(1 if arguments.quick else rounds)
    return show(found, {}, as_json=arguments.json)


if __name__ == "__main__":
    main()
