"""The cost of ten thousand idle clients, which do not delay other clients."""

import asyncio
import json
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from consumerd.demo.children import Child
from consumerd.wire.v07 import OffsetsRequest, ProduceRequest, encode_message

pytestmark = [pytest.mark.kill]

PROBE = OffsetsRequest("probe", 0, -1, 1).encode()
ANSWER = struct.pack(">ihiq", 14, 0, 1, 0)
#: Descriptors for everything else in this process and the broker's.
SPARE = 300
#: The memory of the broker that an idle connection may take; measured 7 kB.
BYTES_EACH = 12_000


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Sockets to be closed in the end. Until the broker runs, few may be open: it must raise its limit itself."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def enough(missing: Callable[[str], NoReturn]) -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - SPARE)
    if count < 3000:
        missing(f"only {hard} descriptors are allowed here")
    return count


def ask(sock: socket.socket) -> bytes:
    sock.sendall(PROBE)
    return sock.recv(100)


async def test_serves_ten_thousand_idle_connections(
    tmp_path: Path, crowd: list[socket.socket], missing: Callable[[str], NoReturn]
) -> None:
    count = enough(missing)
    argv: list[str | Path] = [sys.executable, "-m", "consumerd", "broker", "--port", "0", "--no-zookeeper"]
    argv += ["--log-dir", tmp_path / "log", "--set", "log.flush.interval=1"]
    async with Child(argv, log=tmp_path / "out.txt", name="broker") as broker:
        line = await broker.wait_for_line(lambda text: '"event": "ready"' in text, 60)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        address = ("127.0.0.1", int(json.loads(line)["port"]))
        process = psutil.Process(broker.pid)
        before = process.memory_full_info().uss
        for _ in range(count):
            crowd.append(socket.create_connection(address, timeout=20))
            if len(crowd) % 500 == 0:
                assert ask(crowd[-1]) == ANSWER  # or the backlog overflows, and the kernel makes us wait
        for sock in crowd:
            sock.sendall(PROBE)
        for sock in crowd:
            assert sock.recv(100) == ANSWER
        each = (process.memory_full_info().uss - before) / count
        assert each < BYTES_EACH
        # other clients work meanwhile
        worker = crowd[count // 2]
        began = process.cpu_times()
        for _ in range(200):
            worker.sendall(ProduceRequest("t", 0, encode_message(b"a")).encode())
            assert ask(worker) == ANSWER
        await asyncio.sleep(2)
        ended = process.cpu_times()
        assert ended.user + ended.system - began.user - began.system < 2
        # half of them leave, in any order, and the broker closes the rest
        for sock in crowd[::2]:
            sock.close()
        assert ask(crowd[1]) == ANSWER
        broker.signal(signal.SIGTERM)
        assert await broker.wait() == 0
        for sock in crowd[1::2]:
            assert sock.recv(1) == b""
    assert (tmp_path / "log" / ".kafka_cleanshutdown").exists()
