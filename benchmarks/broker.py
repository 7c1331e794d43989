"""Broker throughput over loopback with a raw client: fetches of 1 MiB, produces of 200 messages, small round trips.

The broker runs in a process of its own, once on asyncio and once on uvloop; the client is a blocking socket that does
no work. `blocking` is the same client against a loop that does nothing but a blocking `os.sendfile` (fetch) or a
blocking receive (produce), without logs, checks or other connections. Best of the rounds.

    python -m benchmarks.broker [--size 100] [--megabytes 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from consumerd.broker import Broker, BrokerConfig
from consumerd.clock import SystemClock
from consumerd.daemon.logs import configure_logs
from consumerd.wire.v07 import FetchRequest, OffsetsRequest, ProduceRequest, encode_message_set

if TYPE_CHECKING:
    from collections.abc import Iterator

FETCH = 1 << 20
PER_SET = 200
PROBE = OffsetsRequest("probe", 0, -1, 1).encode()
PROBE_ANSWER = 18
MODES = ("blocking", "asyncio", "uvloop")


async def serve(folder: Path, flush_interval: int) -> None:
    config = BrokerConfig(log_dir=folder, port=0, use_zookeeper=False, flush_messages=flush_interval)
    broker = Broker(config, clock=SystemClock(), rng=random.Random(1))
    configure_logs("error", "auto")
    async with broker:
        print(broker.port, flush=True)
        await broker.wait()


def serve_blocking(folder: Path) -> None:
    """One connection: answer every 1 MiB fetch by sendfile, swallow everything larger, answer a probe."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    fetch = len(FetchRequest("bench", 0, 0, FETCH).encode())
    while True:
        sock, _ = listener.accept()
        with sock, (folder / "bench-0" / f"{0:020d}.kafka").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            buffer = bytearray(1 << 21)
            view = memoryview(buffer)
            tail = b""
            while got := sock.recv_into(buffer):
                tail = (tail + view[max(0, got - len(PROBE)) : got].tobytes())[-len(PROBE) :]
                if got == fetch:
                    (offset,) = struct.unpack_from(">q", view, fetch - 12)
                    length = min(FETCH, size - offset)
                    sock.send(struct.pack(">ih", length + 2, 0), socket.MSG_MORE)
                    while length:
                        sent = os.sendfile(sock.fileno(), file.fileno(), offset, length)
                        offset, length = offset + sent, length - sent
                elif tail == PROBE:
                    sock.sendall(bytes(PROBE_ANSWER))


@contextmanager
def running(mode: str, folder: Path, flush_interval: int) -> Iterator[socket.socket]:
    argv = [sys.executable, "-m", "benchmarks.broker", "--serve", mode, str(folder), str(flush_interval)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield sock
        finally:
            process.kill()


def receive(sock: socket.socket, buffer: memoryview, count: int) -> None:
    while count:
        count -= sock.recv_into(buffer, min(count, len(buffer)))


def fetch_all(sock: socket.socket, end: int) -> float:
    buffer = memoryview(bytearray(FETCH))
    started = time.perf_counter()
    for offset in range(0, end, FETCH):
        sock.sendall(FetchRequest("bench", 0, offset, FETCH).encode())
        receive(sock, buffer, 6 + min(FETCH, end - offset))
    return time.perf_counter() - started


def produce_all(sock: socket.socket, frame: bytes, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        sock.sendall(frame)
    sock.sendall(PROBE)
    receive(sock, memoryview(bytearray(PROBE_ANSWER)), PROBE_ANSWER)
    return time.perf_counter() - started


def round_trips(sock: socket.socket, count: int) -> float:
    buffer = memoryview(bytearray(PROBE_ANSWER))
    started = time.perf_counter()
    for _ in range(count):
        sock.sendall(PROBE)
        receive(sock, buffer, PROBE_ANSWER)
    return time.perf_counter() - started


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Best figure of every mode and kind: bytes per second, or round trips per second."""
    rng = random.Random(2)
    batch = encode_message_set([rng.randbytes(arguments.size) for _ in range(PER_SET)])
    sets = (arguments.megabytes << 20) // len(batch)
    frame = ProduceRequest("bench", 0, batch).encode()
    best: dict[str, dict[str, float]] = {}

    def note(kind: str, mode: str, figure: float) -> None:
        best.setdefault(kind, {})[mode] = max(figure, best.get(kind, {}).get(mode, 0.0))

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "fetch" / "bench-0"
        log.mkdir(parents=True)
        with (log / f"{0:020d}.kafka").open("wb") as segment:
            for _ in range(sets):
                segment.write(batch)
            segment.flush()
            os.fsync(segment.fileno())  # or the first to be measured shares the disk with the writing of this
        end = sets * len(batch)
        for number in range(arguments.rounds):
            for mode in MODES if number % 2 else reversed(MODES):
                with running(mode, log.parent, 500) as sock:
                    note("fetch 1 MiB", mode, end / fetch_all(sock, end))
                    if mode != "blocking":
                        note("round trips", mode, 5000 / round_trips(sock, 5000))
                for flush in (1_000_000_000, 100_000, 500):
                    if mode == "blocking" and flush != 1_000_000_000:
                        continue
                    kind = f"produce, flush every {flush} messages" if flush < 1_000_000 else "produce, no flush"
                    target = log.parent if mode == "blocking" else Path(folder) / f"produce-{number}-{mode}-{flush}"
                    count = sets if flush > 1000 else sets // 8
                    with running(mode, target, flush) as sock:
                        note(kind, mode, count * len(batch) / produce_all(sock, frame, count))
    return best


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.serve:
        mode, folder, flush = arguments.serve
        if mode == "blocking":
            serve_blocking(Path(folder))
        else:
            (uvloop.run if mode == "uvloop" else asyncio.run)(serve(Path(folder), int(flush)))
        return 0
    entry = arguments.size + 10
    print(f"broker, {arguments.size} B messages in sets of {PER_SET}, best of {arguments.rounds}")
    for kind, figures in measure(arguments).items():
        for mode, figure in figures.items():
            if kind == "round trips":
                text = f"{figure:10.0f} /s"
            else:
                text = f"{figure / 1e6:8.0f} MB/s {figure / entry / 1e6:7.2f} Mmsg/s"
            ratio = f"  {figure / figures['blocking']:.2f} of blocking" if "blocking" in figures else ""
            print(f"  {kind:38s} {mode:8s}{text}{ratio}")
    return 0


if __name__ == "__main__":
    main()
