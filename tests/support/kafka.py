"""Real Kafka brokers, 0.8.2 to 4.3, as children: for tests against what people run.

Strategy: jars come by Maven coordinates; what differs between generations is a table and a few lines of configuration.
Up to 3.x a broker registers in a ZooKeeper that is given; with `zookeeper=None` it is a KRaft server, broker and
controller in one, alone or with the other `voters`. It is ready when it answers METADATA version 0 (API_VERSIONS where
that is gone) and is registered.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from consumerd.base.clock import SystemClock
from consumerd.base.java import JavaRuntime
from consumerd.demo.children import Child
from consumerd.demo.ports import LOOPBACK, free_port
from consumerd.net.zk.session import Session
from consumerd.service.config.properties import format_properties
from consumerd.wire.registry.paths import broker_path
from tests.support.errors import KafkaStartError
from tests.support.kafka_storage import NAMES, PreparedFolders, new_kraft_id
from tests.support.loopback_server import LoopbackServer, ask
from tests.support.maven import fetch_jars
from tests.support.waiting import until


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """A release: its coordinates, whether it can do without ZooKeeper (or must)."""

    version: str
    scala: str
    #: The binding of slf4j of its distribution, where its artifact has none: it would log nothing.
    binding: str | None = None
    needs_jaxb: bool = False
    kraft: bool = False
    zookeeper: bool = True

    @property
    def number(self) -> tuple[int, ...]:
        """The version as numbers, to compare."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def coordinates(self) -> list[str]:
        """The artifacts that are requested from Maven."""
        jaxb = ["javax.xml.bind:jaxb-api:2.3.1"] if self.needs_jaxb else []  # removed in Java 11
        binding = [self.binding] if self.binding is not None else []
        return [f"org.apache.kafka:kafka_{self.scala}:{self.version}", *jaxb, *binding]


#: The releases that the tests know, oldest first.
RELEASES: Final[Mapping[str, KafkaRelease]] = {
    release.version: release
    for release in (
        KafkaRelease("0.8.2.2", "2.10"),
        KafkaRelease("0.9.0.1", "2.11"),
        KafkaRelease("0.10.0.1", "2.11"),
        KafkaRelease("0.10.1.1", "2.11", needs_jaxb=True),
        KafkaRelease("0.10.2.2", "2.11", needs_jaxb=True),
        KafkaRelease("0.11.0.3", "2.11", needs_jaxb=True),
        KafkaRelease("1.1.1", "2.12", "org.slf4j:slf4j-log4j12:1.7.25"),
        KafkaRelease("2.8.2", "2.12", "org.slf4j:slf4j-log4j12:1.7.30"),
        KafkaRelease("3.9.1", "2.13", "org.slf4j:slf4j-reload4j:1.7.36", kraft=True),
        KafkaRelease("4.1.0", "2.13", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3", kraft=True, zookeeper=False),
        KafkaRelease("4.3.1", "2.13", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4", kraft=True, zookeeper=False),
    )
}
_JVM: Final = (
    "-Xms32m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # Verifying the classes of a release takes a tenth of its start; a jar's sum was looked at when Maven fetched it.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
)
#: To standard error: the standard output of a tool is its result.
_LOG4J: Final = {
    "log4j.rootLogger": "WARN, out",
    "log4j.appender.out": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.out.target": "System.err",
    "log4j.appender.out.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.out.layout.ConversionPattern": "%d %p %c{1} %m%n",
}
#: Of releases since 4.0.
_LOG4J2: Final = {
    "status": "WARN",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.target": "SYSTEM_ERR",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %c{1} %m%n",
    "rootLogger.level": "WARN",
    "rootLogger.appenderRef.out.ref": "out",
}


def _request(api_key: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih5s", api_key, 0, 1, 5, b"ready") + body
    return struct.pack(">i", len(frame)) + frame


#: The release that most tests start, and its classes as `tests.support.kafka_classes` stores them: a JVM that maps them
#: uses two thirds of the processor time until it answers.
SHARED_RELEASE: Final = "3.9.1"
CLASSES: Final = Path(sys.prefix) / "kafka-classes.jsa"
#: Say nothing about an archive of classes: it is only for speed.
SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def shared_classes() -> tuple[str, ...]:
    """Options of a JVM that uses the stored classes, if there are any; one that cannot ignores them."""
    return (f"-XX:SharedArchiveFile={CLASSES}", *SILENT) if CLASSES.is_file() else ()


#: METADATA of all topics; API_VERSIONS.
_METADATA: Final = _request(3, struct.pack(">i", 0))
_API_VERSIONS: Final = _request(18, b"")


def kafka_jars(release: KafkaRelease) -> list[Path]:
    """The class path of a release. Raises MissingRuntimeError where it cannot be fetched. Blocks."""
    return fetch_jars(release.coordinates)


#: For a KRaft server that is killed and started again: it is accepted once its session from before is over, after 9 s
#: by default.
SHORT_SESSION: Final[Mapping[str, int]] = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
#: Settings that may tell in what the storage tool writes.
_FEATURE_SETTINGS: Final = ("inter.broker.protocol.", "unstable.")
_PREPARED: Final = PreparedFolders()


class KafkaBroker(LoopbackServer):
    """A broker on loopback in `directory`. `config` adds or overrides keys of its server.properties.

    `zookeeper`: connect string of a running ZooKeeper (a chroot must exist); None for KRaft. `jvm`: more options for
    Java. `environ`: variables for the process (KRB5_CONFIG and the like). `format_options`: more arguments of KRaft's
    storage tool (`--add-scram` makes users). `voters`: the controllers' ports by node id, of a KRaft cluster of several
    servers, which all have the same `cluster_id` (22 characters of URL-safe base64). `host`: where it listens; it
    advertises 127.0.0.1 with the same port, where a proxy may be.
    """

    start_error: ClassVar = KafkaStartError

    def __init__(
        self,
        directory: Path,
        release: KafkaRelease,
        zookeeper: str | None,
        *,
        java: JavaRuntime,
        jars: Sequence[Path] | None = None,
        broker_id: int = 0,
        partitions: int = 2,
        port: int | None = None,
        config: Mapping[str, str | int] | None = None,
        jvm: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
        voters: Mapping[int, int] | None = None,
        cluster_id: str | None = None,
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(directory, port)
        self._host = host
        if zookeeper is None and not release.kraft:
            raise ValueError(f"Kafka {release.version} needs a ZooKeeper")
        if zookeeper is not None and not release.zookeeper:
            raise ValueError(f"Kafka {release.version} knows no ZooKeeper")
        self.release = release
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self.partitions = partitions
        self._voters = {broker_id: free_port()} if voters is None else dict(voters)
        self._cluster_id = cluster_id or new_kraft_id()
        self._java = java
        self._jars = list(jars) if jars is not None else kafka_jars(release)
        self._config = dict(config or {})
        self._jvm = tuple(jvm)
        self._format_options = tuple(format_options)
        self._environ = {**os.environ, **environ} if environ else None

    @property
    def log_directory(self) -> Path:
        """The directory of its segment files."""
        return self.directory / "data"

    def compacted_to(self, partition: str) -> int:
        """The offset up to which it has compacted a partition (`topic-0`), by its checkpoint; 0 before."""
        try:
            lines = (self.log_directory / "cleaner-offset-checkpoint").read_text().splitlines()
        except FileNotFoundError:
            return 0
        topic, _, number = partition.rpartition("-")
        offsets = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{topic} {number} ")]
        return int(offsets[0]) if offsets else 0

    async def wait_compacted(self, partition: str) -> int:
        """Until it has compacted all segments of a partition but the active one; the offset that this one begins at.

        Nothing is written to the topic meanwhile. `log.cleaner.backoff.ms` is how long the cleaner may take to begin.
        Raises TimeoutError.
        """
        active = max(int(path.stem) for path in (self.log_directory / partition).glob("*.log"))
        await until(lambda: self.compacted_to(partition) >= active)
        return active

    def _new_ports(self) -> None:
        super()._new_ports()
        if len(self._voters) == 1:  # else the others know it
            self._voters = {self.broker_id: free_port()}

    def _settings(self) -> dict[str, str | int]:
        number = self.release.number
        settings: dict[str, str | int] = {
            "broker.id": self.broker_id,
            "log.dirs": str(self.log_directory),
            "num.partitions": self.partitions,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.index.size.max.bytes": 1 << 20,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "default.replication.factor": 1,
            "auto.create.topics.enable": "true",
        }
        if number < (0, 9):
            settings |= {
                "host.name": self._host, "port": self.port,
                "advertised.host.name": LOOPBACK, "advertised.port": self.port,
            }  # fmt: skip
        else:
            settings |= {"listeners": self._listener, "group.min.session.timeout.ms": 1000}
            if self._host != LOOPBACK:
                settings["advertised.listeners"] = f"PLAINTEXT://{self.address}"
        if number >= (0, 10):
            # Retention goes by messages' own timestamps; old ones would be gone half a minute after the start.
            settings["log.retention.ms"] = -1
        if number >= (0, 11):
            settings |= {
                "group.initial.rebalance.delay.ms": 0,
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
                "transaction.state.log.num.partitions": 1,
            }
        if self.zookeeper is not None:
            return settings | {"zookeeper.connect": self.zookeeper, "zookeeper.connection.timeout.ms": 15_000}
        del settings["broker.id"]
        return settings | {
            "process.roles": "broker,controller",
            "node.id": self.broker_id,
            "controller.quorum.voters": ",".join(f"{id_}@{LOOPBACK}:{port}" for id_, port in self._voters.items()),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{self._listener},CONTROLLER://{LOOPBACK}:{self._voters[self.broker_id]}",
        }

    def prepare(self) -> None:
        """Write its configuration; a KRaft server's folder is formatted once, which may block for a second.

        Starting does this by itself. Raises KafkaStartError.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(format_properties(self._settings() | self._config), "ascii")
        if self.zookeeper is None and not (self.log_directory / NAMES).exists():
            self._format_storage(self._properties)

    @property
    def _listener(self) -> str:
        return f"PLAINTEXT://{self._host}:{self.port}"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _launch(self) -> Child:
        self.prepare()
        child = Child(
            self._command("kafka.Kafka", str(self._properties)),
            log=self.directory / "kafka.log",
            name=f"kafka-{self.release.version}-{self.broker_id}",
            cwd=self.directory,
            env=self._environ,
        )
        child.start()
        return child

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging = self.directory / "log4j.properties"
        if self.release.number < (4,):
            logging.write_text(format_properties(_LOG4J), "ascii")
            option = f"-Dlog4j.configuration={logging.as_uri()}"
        else:
            logging.write_text(format_properties(_LOG4J2), "ascii")
            option = f"-Dlog4j2.configurationFile={logging}"
        shared = shared_classes() if self.release.version == SHARED_RELEASE and not self._jvm else ()
        return [
            str(self._java.executable), *_JVM, *shared, *self._jvm, option, f"-Djava.io.tmpdir={self.directory}",
            "-cp", ":".join(map(str, self._jars)), main, *arguments,
        ]  # fmt: skip

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of the release's own tools against it, and return what it printed. Blocks for some seconds."""
        command = self._command(main, "--bootstrap-server", self.address, *arguments)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done
        return done.stdout.decode()

    def _format_storage(self, properties: Path) -> None:
        """A KRaft server wants its folder prepared once; the first of a kind, by Kafka's own tool."""
        features = sorted(item for item in self._config.items() if item[0].startswith(_FEATURE_SETTINGS))
        kind = (self.release.version, self._format_options, *features)
        if _PREPARED.write(kind, self.log_directory, node_id=self.broker_id, cluster_id=self._cluster_id):
            return
        command = self._command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "-c", str(properties),
            *self._format_options,
        )  # fmt: skip
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=60, check=False, env=self._environ, cwd=self.directory,
        )  # fmt: skip
        if done.returncode:
            said = (done.stdout.strip().splitlines() or ["it says nothing"])[-1]
            raise KafkaStartError(f"the storage of Kafka {self.release.version} cannot be prepared: {said}")
        _PREPARED.keep(kind, self.log_directory)

    async def _answers(self) -> bool:
        if self.release.number >= (4,):
            return bool(await ask(self.port, _API_VERSIONS, 8, self._host))
        # It serves before it is registered, and makes topics when it names itself; 0.8 does so when there is a topic.
        _size, _correlation_id, brokers = struct.unpack(">iii", await ask(self.port, _METADATA, 12, self._host))
        if self.release.number < (0, 9) and self.zookeeper is not None:
            return bool(brokers) or await self._is_registered(self.zookeeper)
        return bool(brokers)

    async def _is_registered(self, zookeeper: str) -> bool:
        async with Session(zookeeper, clock=SystemClock(), rng=random.Random()) as session:
            return await session.exists(broker_path(self.broker_id)) is not None
