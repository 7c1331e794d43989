"""Jafka 1.2.3, an independent broker of the 0.7 protocol, as a child: for the interop tests.

Strategy: its jars come by Maven coordinates, it registers in a ZooKeeper that is given. It is ready when it has
answered an OFFSETS and then a FETCH request. The FETCH is needed: Jafka's classes MessageSet and ByteBufferMessageSet
initialize each other, so a first FETCH on one thread beside a first PRODUCE on another deadlocks both for good.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from consumerd.base.java import JavaRuntime
from consumerd.demo.children import Child
from consumerd.demo.ports import LOOPBACK
from consumerd.service.config.properties import format_properties
from tests.support.errors import JafkaStartError
from tests.support.loopback_server import LoopbackServer, ask
from tests.support.maven import fetch_jars

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
#: OFFSETS (type 4) of a topic that does not exist, partition 0, latest, at most one.
_OFFSETS_PROBE: Final = struct.pack(">hh5siqi", 4, 5, b"ready", 0, -1, 1)
#: FETCH (type 1) of the same partition, from offset 0, at most 64 bytes.
_FETCH_PROBE: Final = struct.pack(">hh5siqi", 1, 5, b"ready", 0, 0, 64)


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


class JafkaBroker(LoopbackServer):
    """A Jafka broker on loopback in `directory`, registered in the ZooKeeper of the connect string `zookeeper`.

    The chroot of `zookeeper` must exist. `config` adds or overrides keys of its server.properties.
    """

    start_error: ClassVar = JafkaStartError

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
        super().__init__(directory, port)
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self.partitions = partitions
        self._java = java
        self._jars = list(jars)
        self._config = dict(config or {})

    @property
    def log_directory(self) -> Path:
        """The directory of its segment files."""
        return self.directory / "data"

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

    async def _answers(self) -> bool:
        for probe in (_OFFSETS_PROBE, _FETCH_PROBE):
            await ask(self.port, struct.pack(">i", len(probe)) + probe, 4)
        return True
