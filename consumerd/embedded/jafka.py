"""Jafka 1.2.3, an independent broker and consumer of the 0.7 protocol, as children: for the interop tests.

Strategy: its jars come by Maven coordinates, it registers in a ZooKeeper that is given. The broker is ready when it
answers an OFFSETS request; a member of a group is a small Java program of the caller's, which says READY, then a line
per message, and leaves in order at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from consumerd.embedded.children import Child
from consumerd.embedded.errors import ChildError, JafkaStartError, MissingRuntimeError
from consumerd.embedded.maven import fetch_jars
from consumerd.embedded.ports import LOOPBACK, free_port
from consumerd.embedded.properties import format_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from consumerd.embedded.java import JavaRuntime

JAFKA: Final = "com.sohu.jafka:jafka:1.2.3"
_JVM: Final = (
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
_MAIN: Final = "com.sohu.jafka.Jafka"
_LOG4J: Final = {
    "log4j.rootLogger": "WARN, out",
    "log4j.appender.out": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.out.target": "System.err",
    "log4j.appender.out.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.out.layout.ConversionPattern": "%d %p %c{1} %m%n",
}
_ATTEMPTS: Final = 3
_POLL_SECONDS: Final = 0.02
#: OFFSETS (type 4) of a topic that nobody has, partition 0, latest, at most one.
_PROBE: Final = struct.pack(">hh5siqi", 4, 5, b"ready", 0, -1, 1)


def jafka_jars() -> list[Path]:
    """Jafka's class path. Raises MissingRuntimeError where it cannot be fetched. Blocks."""
    return fetch_jars([JAFKA])


def _java_command(
    java: JavaRuntime, class_path: Sequence[Path], directory: Path, main: str, *arguments: str
) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    log4j = directory / "log4j.properties"
    log4j.write_text(format_properties(_LOG4J), "ascii")
    return [
        str(java.executable), *_JVM, f"-Dlog4j.configuration={log4j.absolute().as_uri()}",
        "-cp", ":".join(map(str, class_path)), main, *arguments,
    ]  # fmt: skip


class JafkaBroker:
    """A Jafka broker on loopback in `directory`, registered in the ZooKeeper of the connect string `zookeeper`.

    `config` adds or overrides keys of its server.properties. Data and port stay over `restart`.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        java: JavaRuntime,
        jars: Sequence[Path],
        broker_id: int = 0,
        partitions: int = 2,
        port: int | None = None,
        config: Mapping[str, str | int] | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self.partitions = partitions
        self.port = port or free_port()
        self._port_is_ours = port is None
        self._java = java
        self._jars = list(jars)
        self._config = dict(config or {})
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log_directory(self) -> Path:
        """Where its segment files are."""
        return self.directory / "data"

    @property
    def running(self) -> bool:
        """The process is there."""
        return self._child is not None and self._child.running

    def _launch(self) -> Child:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings: dict[str, str | int] = {
            "brokerid": self.broker_id,
            "hostname": LOOPBACK,
            "port": self.port,
            "log.dir": str(self.log_directory),
            "num.partitions": self.partitions,
            "num.threads": 2,
            # Every message is visible at once.
            "log.flush.interval": 1,
            "log.default.flush.interval.ms": 100,
            "log.default.flush.scheduler.interval.ms": 100,
            "log.retention.hours": 168,
            "log.cleanup.interval.mins": 60,
            "enable.zookeeper": "true",
            "zk.connect": self.zookeeper,
            "zk.connectiontimeout.ms": 10_000,
        }
        properties = self.directory / "server.properties"
        properties.write_text(format_properties(settings | self._config), "ascii")
        child = Child(
            _java_command(self._java, self._jars, self.directory, _MAIN, str(properties)),
            log=self.directory / "jafka.log",
            name=f"jafka-{self.broker_id}",
            cwd=self.directory,
        )
        child.start()
        return child

    async def start(self, timeout: float = 30.0) -> None:
        """Start and wait until it answers. The chroot of `zookeeper` must exist. Raises JafkaStartError."""
        for attempt in range(_ATTEMPTS):
            self._child = child = self._launch()
            try:
                await self._wait_ready(child, timeout)
            except JafkaStartError:
                await self.stop()
                if not self._port_is_ours or attempt == _ATTEMPTS - 1 or "BindException" not in child.output():
                    raise
                self.port = free_port()
            except BaseException:
                child.end_now()
                raise
            else:
                self._port_is_ours = False
                return

    async def _wait_ready(self, child: Child, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not await self._answers():
                    if not child.running:
                        raise JafkaStartError(f"{child.name} ended with status {child.returncode}: {child.tail()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise JafkaStartError(f"{child.name} did not answer within {timeout:g} s: {child.tail()}") from None

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
                try:
                    writer.write(struct.pack(">i", len(_PROBE)) + _PROBE)
                    return len(await reader.readexactly(4)) == 4
                finally:
                    writer.transport.abort()
        except (OSError, EOFError, TimeoutError):
            return False

    async def stop(self, grace: float = 10.0) -> None:
        """SIGTERM (an orderly shutdown), then SIGKILL after `grace` seconds; returns when it has ended."""
        if self._child is not None:
            await self._child.stop(grace)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self._child is not None:
            self._child.end_now()

    async def restart(self) -> None:
        """Stop, if it runs, and start again with the same port and data."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class JafkaMessage(NamedTuple):
    """What a member says of one message: its stream's number, its topic, its payload. Jafka tells no offsets."""

    stream: int
    topic: str
    payload: bytes


class JafkaMember:
    """A consumer of a group in a JVM: the program `main` on `class_path` (Jafka's jars and the caller's classes).

    It is called with connect string, group, consumer id (`-` for a made-up one), `topic=streams,...` and `key=value`
    settings; prints `READY n`, then `MSG stream topic hex-payload` per message; at the end of its standard input it
    commits, leaves the group and prints `DONE`.
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
        command = _java_command(
            java, class_path, directory, main, zookeeper, group, consumer_id or "-",
            ",".join(f"{topic}={streams}" for topic, streams in topics.items()),
            *(f"{key}={value}" for key, value in (settings or {}).items()),
        )  # fmt: skip
        self.child = Child(command, log=directory / "member.log", name="jafka-member", pipe=True)

    async def start(self, timeout: float = 40.0) -> None:
        """Start, and return when it has joined its group. Raises ChildError."""
        self.child.start()
        try:
            await self.child.wait_for_line(lambda line: line.startswith("READY "), timeout)
        except BaseException:
            self.child.end_now()
            raise

    def messages(self) -> list[JafkaMessage]:
        """What it has been handed so far, in the order of its output."""
        found = []
        for line in self.child.output().rpartition("\n")[0].splitlines():
            if line.startswith("MSG "):
                _, stream, topic, *payload = line.split(" ")
                found.append(JafkaMessage(int(stream), topic, bytes.fromhex("".join(payload))))
        return found

    async def leave(self, timeout: float = 20.0) -> None:
        """Let it commit, leave and end. Raises ChildError when it does not do so in order."""
        self.child.close_stdin()
        await self.child.wait_for_line("DONE".__eq__, timeout)
        if status := await self.child.wait(timeout):
            raise ChildError(f"{self.child.name} ended with status {status}: {self.child.tail()}")

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.child.end_now()


def compile_java(java: JavaRuntime, source: Path, class_path: Sequence[Path], target: Path) -> None:
    """Compile one Java source file into the folder `target`. Blocks. Raises MissingRuntimeError without a compiler."""
    if java.compiler is None:
        raise MissingRuntimeError(f"{java.executable} ({java.source}) has no javac beside it: install a JDK")
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [java.compiler, "-nowarn", "-encoding", "UTF-8", "-cp", ":".join(map(str, class_path)), "-d", target, source],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ChildError(f"{source.name} does not compile: {' | '.join(done.stdout.splitlines()[:5])}")
