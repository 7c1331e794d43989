"""What a hundred honest clients of our broker have to wait for beside one that attacks it.

The broker runs as `consumerd broker --no-zookeeper` with its defaults, started for each attack; the attacker is a
process of its own that repeats one request as often as it is taken. The honest clients, in this process, each do small
things in turns: a PRODUCE of twenty messages (what follows it waits for it), a FETCH of 64 KiB, an OFFSETS. Printed are
the longest and the median wait of any of their requests, the broker's largest resident size, and how often the attack
was carried out. The promise is a longest wait below a second on two idle cores.

    python -m benchmarks broker_attack [--attack NAME ...] [--seconds 8] [--clients 100] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.race import Measurement, table
from consumerd.wire import compress
from consumerd.wire.v07 import (
    Codec,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    encode_message,
    encode_message_set,
)

NAME = "broker-attack"
#: Longest wait of any honest client, in seconds.
PROMISE = 1.0
TOPIC = "honest"
FRAME = 100 << 20
PROBE = OffsetsRequest(TOPIC, 0, -1, 1).encode()
_PAUSE = (0.05, 0.3)
#: After so many seconds a client waits no longer.
PATIENCE = 30.0


# -- attacks: each does its worst once, and is repeated


def ask(sock: socket.socket, frame: bytes) -> None:
    """Send a request and read its answer to the end."""
    sock.sendall(frame)
    (left,) = struct.unpack(">i", receive(sock, 4))
    buffer = bytearray(1 << 18)
    while left > 0:
        received = sock.recv_into(buffer, min(left, len(buffer)))
        if not received:
            raise ConnectionError("the broker has hung up")
        left -= received


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker has hung up")
        data += more
    return data


def tell(sock: socket.socket, *requests: bytes) -> None:
    """Send what is not answered, and wait until it has been done."""
    for request in requests:
        sock.sendall(request)
    ask(sock, PROBE)


def nested(levels: int, copies: int) -> bytes:
    """A gzip message of gzip messages of gzip messages and so on, each set of so many copies."""
    data = encode_message(b"") * copies
    for _ in range(levels):
        data = _wrapped(data) * copies
    return _wrapped(data)


def _wrapped(data: bytes) -> bytes:
    return encode_message(compress(Codec.GZIP, data), codec=Codec.GZIP)


def empties(count: int) -> bytes:
    """One gzip message of `count` empty ones."""
    return _wrapped(encode_message(b"") * count)


def multifetch(entries: int, size: int) -> bytes:
    return MultiFetchRequest((FetchRequest(TOPIC, 0, 0, size),) * entries).encode()


ATTACKS: dict[str, Callable[[int], Callable[[socket.socket], None]]] = {}


def attack(function: Callable[[int], Callable[[socket.socket], None]]) -> None:
    ATTACKS[function.__name__.replace("_", "-")] = function


@attack
def nothing(port: int) -> Callable[[socket.socket], None]:
    del port
    return lambda _: time.sleep(0.1)


@attack
def multifetch_1000(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = multifetch(1000, 8 << 10)
    return lambda sock: ask(sock, frame)


@attack
def multifetch_32767(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = multifetch(32767, 8 << 10)
    return lambda sock: ask(sock, frame)


@attack
def multifetch_of_bad_topics(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = MultiFetchRequest((FetchRequest("a/" * 120, 0, 0, 1 << 20),) * 32767).encode()
    return lambda sock: ask(sock, frame)


@attack
def fetches_at_once(port: int) -> Callable[[socket.socket], None]:
    del port
    frames = FetchRequest(TOPIC, 0, 0, 1 << 20).encode() * 64

    def run(sock: socket.socket) -> None:
        sock.sendall(frames)
        for _ in range(64):
            ask(sock, b"")

    return run


@attack
def nested_gzip(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = ProduceRequest("bomb", 0, nested(12, 4)).encode()
    return lambda sock: tell(sock, frame)


@attack
def seven_levels_of_gzip(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = ProduceRequest("bomb", 0, nested(6, 6)).encode()
    return lambda sock: tell(sock, frame)


@attack
def empty_messages_in_gzip(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = ProduceRequest("bomb", 0, empties(6_600_000)).encode()
    return lambda sock: tell(sock, frame)


@attack
def many_wrappers(port: int) -> Callable[[socket.socket], None]:
    """What no limit refuses: wrappers of 130,000 messages each, side by side in one set."""
    del port
    frame = ProduceRequest("bomb", 0, empties(130_000) * 100).encode()
    return lambda sock: tell(sock, frame)


@attack
def large_old_sets(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = ProduceRequest("bomb", 0, encode_message(b"", magic=0) * 110_000).encode()
    return lambda sock: tell(sock, frame)


@attack
def multiproduce_of_nothing(port: int) -> Callable[[socket.socket], None]:
    del port
    frame = MultiProduceRequest((ProduceRequest("bomb", 0, b""),) * 32767).encode()
    return lambda sock: tell(sock, frame)


@attack
def junk_frames(port: int) -> Callable[[socket.socket], None]:
    """The largest frame that is taken, of topic names that are none."""
    del port
    entry = struct.pack(">h", 32767) + b"\xff" * 32767 + bytes(16)
    count = (FRAME - 100) // len(entry)
    body = struct.pack(">hh", 2, count) + entry * count
    frame = struct.pack(">i", len(body)) + body
    return lambda sock: ask(sock, frame)


@attack
def half_frames(port: int) -> Callable[[socket.socket], None]:
    """A dozen frames of 100 MiB that never end, held for as long as the broker lets us."""
    held: list[socket.socket] = []
    chunk = bytes(1 << 20)

    def run(_sock: socket.socket) -> None:
        while len(held) < 12:
            sock = socket.create_connection(("127.0.0.1", port))
            held.append(sock)
            sock.settimeout(2.0)
            try:
                sock.sendall(struct.pack(">i", FRAME))
                for _ in range(99):
                    sock.sendall(chunk)
            except OSError:
                pass
        time.sleep(0.1)

    return run


@attack
def new_topics(port: int) -> Callable[[socket.socket], None]:
    del port
    numbers = iter(range(1 << 40))

    def run(sock: socket.socket) -> None:
        tell(sock, ProduceRequest(f"topic{next(numbers)}", 0, encode_message(b"x")).encode())

    return run


@attack
def idle_connections(port: int) -> Callable[[socket.socket], None]:
    held: list[socket.socket] = []

    def run(_sock: socket.socket) -> None:
        if len(held) >= 15_000:
            time.sleep(0.1)
            return
        held.extend(socket.create_connection(("127.0.0.1", port)) for _ in range(100))

    return run


def carry_out(name: str, port: int, seconds: float) -> int:
    """Repeat an attack; prints how often it was carried out, and how often the broker closed the connection for it."""
    once = ATTACKS[name](port)
    until = time.monotonic() + seconds
    done = refused = 0
    print("ready", flush=True)
    sys.stdin.readline()
    sock = None
    while time.monotonic() < until:
        try:
            if sock is None:
                sock = socket.create_connection(("127.0.0.1", port))
                sock.settimeout(seconds)
            once(sock)
            done += 1
        except TimeoutError:
            break
        except OSError:
            refused += 1
            if sock is not None:
                sock.close()
            sock = None
    print(json.dumps({"done": done, "refused": refused}), flush=True)
    return 0


# -- honest clients


async def honest(port: int, number: int, until: float, waits: list[float]) -> None:
    """One honest client until `until` (monotonic seconds); notes what each of its requests waited for."""
    rng = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    produce = ProduceRequest(TOPIC, 0, encode_message_set([rng.randbytes(100) for _ in range(20)])).encode()
    fetch = FetchRequest(TOPIC, 0, 0, 64 << 10).encode()
    try:
        while time.monotonic() < until:
            for frame in (PROBE, produce + PROBE, fetch):
                await asyncio.sleep(rng.uniform(*_PAUSE))
                began = time.monotonic()
                try:
                    async with asyncio.timeout(PATIENCE):
                        writer.write(frame)
                        (length,) = struct.unpack(">i", await reader.readexactly(4))
                        await reader.readexactly(length)
                finally:
                    waits.append(time.monotonic() - began)
    except TimeoutError:
        return  # what it has waited is noted: others may go on
    finally:
        writer.close()


async def canaries(port: int, clients: int, seconds: float) -> list[float]:
    waits: list[float] = []
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(honest(port, number, until, waits))
    return waits


# -- one case


@contextmanager
def broker(folder: Path) -> Iterator[tuple[int, int]]:
    """A broker with its defaults; its port and process id."""
    argv = [sys.executable, "-m", "consumerd", "broker", "--port", "0", "--no-zookeeper", "--log-level", "error"]
    with subprocess.Popen([*argv, "--log-dir", str(folder)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["port"], process.pid
        finally:
            process.kill()


def peak(pid: int) -> float:
    """The largest resident size of a process so far, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def measure(name: str, seconds: float, clients: int) -> list[Measurement]:
    """One attack beside honest clients."""
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (port, pid):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            filling = ProduceRequest(TOPIC, 0, encode_message_set([os.urandom(1000)] * 500)).encode()
            tell(sock, *[filling] * 8)
        argv = [sys.executable, "-m", "benchmarks.broker_attack", "--carry-out", name, str(port), str(seconds)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attacker:
            assert attacker.stdin is not None
            assert attacker.stdout is not None
            try:
                attacker.stdout.readline()
                attacker.stdin.write(b"\n")
                attacker.stdin.flush()
                waits = asyncio.run(canaries(port, clients, seconds))
                try:
                    outcome = json.loads(attacker.communicate(timeout=seconds * 3)[0] or b"{}")
                except subprocess.TimeoutExpired:
                    outcome = {}
            finally:
                attacker.kill()
        size = peak(pid)
    case = f"{name}: carried out {outcome.get('done', '?')} times, hung up on {outcome.get('refused', '?')} times"
    return [
        Measurement(NAME, case, "longest wait", max(waits) * 1000, "ms"),
        Measurement(NAME, case, "median wait", statistics.median(waits) * 1000, "ms"),
        Measurement(NAME, case, "broker's size", size, "MB"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where an honest client waited for longer than promised."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks broker_attack", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), help="may be repeated (default: all)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack (default: 8)")
    parser.add_argument("--clients", type=int, default=100, help="honest ones (default: 100)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--carry-out", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.carry_out:
        name, port, seconds = options.carry_out
        return carry_out(name, int(port), float(seconds))
    found: list[Measurement] = []
    for name in options.attack or ATTACKS:
        results = measure(name, options.seconds, options.clients)
        if not options.json:
            print("\n".join(table(results)), flush=True)
        found += results
    if options.json:
        print(json.dumps([result.as_json() for result in found], indent=1))
    worst = max(result.value for result in found if result.subject == "longest wait")
    kept = worst < PROMISE * 1000
    print(f"{'kept' if kept else 'BROKEN'}: nobody waits for {PROMISE:g} s: {worst:.0f} ms", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
