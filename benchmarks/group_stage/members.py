"""Members of the group, each a process of its own behind its own line to ZooKeeper."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.group_stage.host import ForkedDaemon, Host
from consumerd.base.java import find_java
from consumerd.demo.processes import DaemonProcess
from tests.support.jafka import jafka_jars
from tests.support.jafka_clients import JafkaMember, compile_java

if TYPE_CHECKING:
    from benchmarks.group_stage.line import Line

TOPIC = "events"
GROUP = "bench"
#: How a Jafka member is driven; interop tests use the same program.
PROGRAM = Path(__file__).parents[2] / "tests" / "interop" / "java" / "JafkaMember.java"
#: Longest wait for a start or an end, in seconds.
PATIENCE = 180.0


class Member(ABC):
    """One member. `paths` are the files with its hand-overs."""

    #: Whether it reads offsets before it claims, and so delivers again what is committed in between.
    reads_early = False

    def __init__(self, name: str, directory: Path, line: Line) -> None:
        self.name = name
        self.directory = directory / name
        self.line = line
        #: `time.time()` of the start of its process.
        self.started = 0.0

    @property
    def owner(self) -> str:
        """What its owner nodes begin with."""
        return f"{GROUP}_{self.name}-"

    @abstractmethod
    async def start(self) -> None:
        """Start it; returns when it says that it is a member."""

    @abstractmethod
    async def leave(self) -> float:
        """Have it leave in order; seconds until its process has ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, whether or not it runs."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Files with its hand-overs."""

    def late_commits(self) -> int:
        """Partitions whose last commit did not end in time, as its log says."""
        return 0

    def not_committed(self) -> int:
        """Partitions that it gave back without their last position being committed, as its log says."""
        return 0

    def begun(self) -> int | None:
        """Partitions that it has begun to read, as its log says; None where it says nothing."""
        return None


class Ours(Member):
    """`consumerd run` with all defaults, by itself or by a `host`."""

    def __init__(self, name: str, directory: Path, line: Line, initial: str, host: Host | None = None) -> None:
        super().__init__(name, directory, line)
        config: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "topics": {TOPIC: 1}, "consumer_id": name},
            "zookeeper": {"connect": f"{line.connect}/kafka"},
            "fetch": {"initial": initial},
            "handler": {
                "name": "consumerd.demo.recorder:RecordHandler",
                "options": {"directory": str(self.directory / "records")},
            },
        }
        self.process: DaemonProcess | ForkedDaemon
        if host is None:
            self.process = DaemonProcess(self.directory, config, name=name)
        else:
            self.process = ForkedDaemon(host, self.directory, config, name=name)

    async def start(self) -> None:
        self.started = time.time()
        await self.process.start(PATIENCE)

    async def leave(self) -> float:
        before = time.monotonic()
        self.process.terminate()
        await self.process.wait(PATIENCE)
        return time.monotonic() - before

    def kill(self) -> None:
        if self.process.started:
            self.process.kill()

    def paths(self) -> list[Path]:
        return sorted((self.directory / "records").glob("*.ndjson"))

    def late_commits(self) -> int:
        return self._partitions_of("last_commit_timed_out")

    def not_committed(self) -> int:
        return self._partitions_of("positions_not_committed")

    def _partitions_of(self, name: str) -> int:
        return sum(int(event["partitions"]) for event in self.process.events() if event["event"] == name)

    def begun(self) -> int | None:
        events = self.process.events()
        return sum(int(event.get("partitions", 1)) for event in events if event["event"] == "partition_started")


class Jafka(Member):
    """A member of Jafka 1.2.3, which took the consumer over from Kafka 0.7, with the times of 0.7.2."""

    reads_early = True

    def __init__(self, name: str, directory: Path, line: Line, initial: str, _host: Host | None = None) -> None:
        super().__init__(name, directory, line)
        java, jars, classes = find_java(), jafka_jars(), directory / "classes"
        if not classes.is_dir():
            compile_java(java, [PROGRAM], jars, classes)
        settings: dict[str, str | int] = {
            "autooffset.reset": {"earliest": "smallest", "latest": "largest"}[initial],
            "autocommit.interval.ms": 10_000,
            "fetcher.backoff.ms": 1000,
            "zk.sessiontimeout.ms": 6000,
            "zk.synctime.ms": 2000,
            "rebalance.backoff.ms": 2000,
        }
        self.process = JafkaMember(
            self.directory, f"{line.connect}/kafka", GROUP, {TOPIC: 1},
            java=java, class_path=[*jars, classes], main=PROGRAM.stem, consumer_id=name, settings=settings,
        )  # fmt: skip

    async def start(self) -> None:
        self.started = time.time()
        await self.process.start(PATIENCE)

    async def leave(self) -> float:
        before = time.monotonic()
        await self.process.leave(PATIENCE)
        return time.monotonic() - before

    def kill(self) -> None:
        self.process.kill()

    def paths(self) -> list[Path]:
        return [self.process.child.log]


MEMBERS: dict[str, type[Ours | Jafka]] = {"ours": Ours, "jafka": Jafka}
