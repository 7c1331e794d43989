"""Jafka 1.2.3, an independent broker of the 0.7 protocol, as a child: for the interop tests.

Strategy: its jars come by Maven coordinates, it registers in a ZooKeeper that is given. It is ready when it answers an
OFFSETS request.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final, Self

from consumerd.embedded.children import Child
from consumerd.embedded.errors import JafkaStartError
from consumerd.embedded.maven import fetch_jars
from consumerd.embedded.ports import LOOPBACK, free_port
from consumerd.embedded.properties import format_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from consumerd.java import JavaRuntime

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


def java_command(
    java: JavaRuntime, class_path: Sequence[Path], directory: Path, main: str, *arguments: str
) -> list[str]:
    """The argument list that runs a program on Jafka's jars. Its log settings are written to `directory`."""
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
            java_command(self._java, self._jars, self.directory, _MAIN, str(properties)),
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
