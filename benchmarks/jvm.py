"""Clients of Jafka as processes, for the protocol of 0.7 on the JVM: high-level consumers, a synchronous producer.

Strategy: the programs are in the folder `java`, compiled when they are needed. The JVM
uses all its compilers, as in service, and not only the first one as in tests, which start many JVMs for a few messages.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks.latency_clients import QUANTILES
from consumerd.base.java import MissingRuntimeError, find_java
from consumerd.demo.children import Child
from tests.support.jafka import jafka_jars, java_command
from tests.support.jafka_clients import compile_java

PROGRAM = Path(__file__).parent / "java" / "JafkaCounter.java"
SENDER = PROGRAM.with_name("JafkaSender.java")
LATENCY = PROGRAM.with_name("JafkaLatency.java")
SETTINGS = {
    "autooffset.reset": "smallest",
    "zk.sessiontimeout.ms": 6000,
    "zk.synctime.ms": 2000,
    "fetch.size": 1 << 20,
    "socket.buffersize": 1 << 20,
}
#: Seconds for a start or an end.
PATIENCE = 120.0


@functools.cache
def jafka_is_there() -> bool:
    """Whether Jafka's jars and a compiler can be found; says once what is missing."""
    try:
        jafka_jars()
        if find_java().compiler is None:
            raise MissingRuntimeError("there is no javac")
    except MissingRuntimeError as error:
        print(f"the JVM clients are left out: {error}", file=sys.stderr)
        return False
    return True


def processor_seconds(pid: int) -> float:
    """Processor time of the living threads of a process, more exactly than in ticks of 10 ms."""
    schedules = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text("ascii").split()[0]) for path in schedules) / 1e9


def latency_consumer(folder: Path, classes: Path, zookeeper: str, group: str, topic: str, report: Path) -> Child:
    """A member of `group` that appends to the file `report` how old messages are. It has Jafka's own settings, but
    reads what comes.
    """
    arguments = [zookeeper, group, topic, str(report), ",".join(map(str, QUANTILES))]
    return _child(folder, group, LATENCY, arguments, {"autooffset.reset": "largest"}, classes)


def _child(
    folder: Path,
    name: str,
    program: Path,
    arguments: Sequence[str],
    settings: Mapping[str, object],
    classes: Path | None = None,
) -> Child:
    """A JVM that runs `program`; its log is in `folder`, and so are its classes unless they have a folder."""
    java, jars, classes = find_java(), jafka_jars(), classes or folder / "classes"
    if not (classes / f"{program.stem}.class").exists():
        compile_java(java, [program], jars, classes)
    pairs = [f"{key}={value}" for key, value in settings.items()]
    command = java_command(java, [*jars, classes], folder / name, program.stem, *arguments, *pairs)
    # Of two settings for the same, the JVM takes the later one.
    place = command.index("-cp")
    command[place:place] = ["-Xmx512m", "-XX:TieredStopAtLevel=4"]
    return Child(command, log=folder / name / "jafka.log", name=f"jafka-{name}", pipe=True)


class JafkaCounter:
    """A member of `group` that reads `topic` with `streams` threads and commits every `commit` seconds."""

    def __init__(self, folder: Path, zookeeper: str, group: str, topic: str, streams: int, commit: float) -> None:
        settings = SETTINGS | {"autocommit.interval.ms": round(commit * 1000)}
        self.child = _child(folder, group, PROGRAM, [zookeeper, group, topic, str(streams)], settings)

    async def __aenter__(self) -> Self:
        self.child.start()
        try:
            await self.child.wait_for_line("READY".__eq__, PATIENCE)
        except BaseException:
            self.child.end_now()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.child.end_now()

    async def first(self) -> float:
        """`time.time()` of its first message."""
        line = await self.child.wait_for_line(lambda line: line.startswith("FIRST "), PATIENCE)
        return int(line.split()[1]) / 1000

    async def leave(self) -> int:
        """Let it leave the group; returns how many messages it counted."""
        self.child.close_stdin()
        line = await self.child.wait_for_line(lambda line: line.startswith("DONE "), PATIENCE)
        await self.child.wait(PATIENCE)
        return int(line.split()[1])


class JafkaSender:
    """A synchronous producer of requests with `payloads`, all of one size, for partition 0 of `topic`.

    `log` is the folder of that partition at the broker: a request counts when the broker has appended it.
    """

    def __init__(self, folder: Path, port: int, topic: str, payloads: Sequence[bytes], log: Path) -> None:
        name, size = f"sender-{len(payloads[0])}", len(payloads[0])
        folder.mkdir(parents=True, exist_ok=True)
        content = folder / f"{name}.payloads"
        content.write_bytes(b"".join(payloads))
        self.child = _child(folder, name, SENDER, ["127.0.0.1", str(port), topic, str(content), str(size)], {})
        self._log = log
        #: Of a request in the log: each message has 10 bytes before its payload.
        self._request = sum(10 + len(payload) for payload in payloads)

    async def __aenter__(self) -> Self:
        before = self._stored()
        self.child.start()
        try:
            await self.child.wait_for_line("READY".__eq__, PATIENCE)
            await self._wait_stored(before + self._request)
        except BaseException:
            self.child.end_now()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.child.end_now()

    def _stored(self) -> int:
        return sum(path.stat().st_size for path in self._log.glob("*.kafka"))

    async def _wait_stored(self, size: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._stored() < size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker has {self._stored()} bytes of {size}")
            await asyncio.sleep(0.001)

    async def send(self, requests: int) -> tuple[float, float]:
        """Send so many requests; the seconds until the broker had appended all of them, and of processor time."""
        end = self._stored() + requests * self._request
        before, started = processor_seconds(self.child.pid), time.perf_counter()
        self.child.stdin.write(b"%d\n" % requests)
        self.child.stdin.flush()
        await self._wait_stored(end)
        return time.perf_counter() - started, processor_seconds(self.child.pid) - before
