"""Jafka's consumers and producers as children, driven through small Java programs of the caller's.

Strategy: a program says READY when it works, then a line for everything that it does, and ends in order at the end of
its standard input. Its output need not be read, and it ends with the test process.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError
from tests.support.jafka import java_command


class _Client:
    """A program `main` on `class_path` (Jafka's jars and the caller's classes); `directory` takes its files."""

    def __init__(
        self,
        name: str,
        directory: Path,
        arguments: Sequence[str],
        *,
        java: JavaRuntime,
        class_path: Sequence[Path],
        main: str,
        settings: Mapping[str, str | int] | None,
    ) -> None:
        pairs = [f"{key}={value}" for key, value in (settings or {}).items()]
        command = java_command(java, class_path, directory, main, *arguments, *pairs)
        self.child = Child(command, log=directory / f"{name}.log", name=f"jafka-{name}", pipe=True)

    async def start(self, timeout: float = 40.0) -> None:
        """Start, and return when it is ready. Raises ChildError."""
        self.child.start()
        try:
            await self.child.wait_for_line(lambda line: line.split(" ")[0] == "READY", timeout)
        except BaseException:
            self.child.end_now()
            raise

    async def leave(self, timeout: float = 20.0) -> None:
        """Let it close its connections and end. Raises ChildError when it does not do so in order."""
        self.child.close_stdin()
        await self.child.wait_for_line("DONE".__eq__, timeout)
        if status := await self.child.wait(timeout):
            raise ChildError(f"{self.child.name} ended with status {status}: {self.child.tail()}")

    def kill(self) -> None:
        """SIGKILL; returns when the process has ended."""
        self.child.end_now()


class JafkaMessage(NamedTuple):
    """A message that a member reports: the time of its delivery, in seconds of the system's monotonic clock (on
    Linux that of `time.monotonic`), its stream's number, its topic, its payload. Jafka tells no offsets.
    """

    at: float
    stream: int
    topic: str
    payload: bytes


class JafkaMember(_Client):
    """A consumer of a group. `leave` lets it commit and leave its group before it ends.

    The program is called with connect string, group, consumer id (`-` for a made-up one), `topic=streams,...` and
    `key=value` settings; prints `READY n` when it has joined, then `MSG nanoseconds stream topic hex-payload` per
    message; at the end of its standard input it commits, leaves the group and prints `DONE`.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        group: str,
        topics: Mapping[str, int],
        *,
        java: JavaRuntime,
        class_path: Sequence[Path],
        main: str,
        consumer_id: str | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        subscription = ",".join(f"{topic}={streams}" for topic, streams in topics.items())
        arguments = [zookeeper, group, consumer_id or "-", subscription]
        super().__init__("member", directory, arguments, java=java, class_path=class_path, main=main, settings=settings)

    def messages(self) -> list[JafkaMessage]:
        """The messages that it has got so far, in the order of its output."""
        found = []
        for line in self.child.output().rpartition("\n")[0].splitlines():
            if line.startswith("MSG "):
                _, at, stream, topic, payload = line.split(" ")
                found.append(JafkaMessage(int(at) / 1e9, int(stream), topic, bytes.fromhex(payload)))
        return found


class JafkaProducer(_Client):
    """A synchronous producer, sending to `topic`. `leave` ends it.

    The program is called with connect string, topic and `key=value` settings; prints `READY` when it knows the
    brokers, then `SENT n` per line of its standard input (`partition hex-payload ...`) when the request is written; at
    the end of its input it prints `DONE`.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        topic: str,
        *,
        java: JavaRuntime,
        class_path: Sequence[Path],
        main: str,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(
            "producer", directory, [zookeeper, topic], java=java, class_path=class_path, main=main, settings=settings
        )
        self._requests = 0

    async def send(self, partition: int, payloads: Sequence[bytes], timeout: float = 20.0) -> None:
        """Send one request; returns when it is written, which no broker of 0.7 confirms. Raises ChildError."""
        self._requests += 1
        self.child.stdin.write(" ".join([str(partition), *(payload.hex() for payload in payloads)]).encode() + b"\n")
        self.child.stdin.flush()
        await self.child.wait_for_line(f"SENT {self._requests}".__eq__, timeout)


def compile_java(java: JavaRuntime, sources: Sequence[Path], class_path: Sequence[Path], target: Path) -> None:
    """Compile Java source files into the folder `target`. Blocks. Raises MissingRuntimeError without a compiler."""
    if java.compiler is None:
        raise MissingRuntimeError(f"{java.executable} ({java.source}) has no javac beside it: install a JDK")
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [java.compiler, "-nowarn", "-encoding", "UTF-8", "-cp", ":".join(map(str, class_path)), "-d", target, *sources],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        names = ", ".join(source.name for source in sources)
        raise ChildError(f"{names} does not compile: {' | '.join(done.stdout.splitlines()[:5])}")
