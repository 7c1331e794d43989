"""ZooKeeper, a broker, members and a producer as processes, with a fault proxy before each server for each client.

Strategy: members reach each ZooKeeper server through proxies of their own, so that a fault may concern one of them. The
broker listens on 127.0.0.2 and registers 127.0.0.1, where its proxy listens on the same port: members and the
producer come through that. The watch and the broker itself reach ZooKeeper directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from consumerd.clock import SystemClock
from consumerd.embedded.ports import free_port
from consumerd.embedded.processes import BrokerProcess, DaemonProcess
from consumerd.errors import ConsumerdError
from consumerd.partition import TopicPartition
from consumerd.testing.fault_proxy import FaultProxy
from consumerd.zk import Session
from tests.kill.mirrors import BROKER_SETTINGS, TOPIC, producers
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.embedded import ZooKeeperServer

GROUP: Final = "group"
ROOT: Final = Path(__file__).parents[2]
#: Of the members' sessions, in seconds. The servers' ticks are 250 ms.
SESSION_TIMEOUT: Final = 4.0
#: Of commits, in seconds.
COMMIT_INTERVAL: Final = 1.0
#: Longest wait for a process to be ready, in seconds.
PATIENCE: Final = 90.0
_BROKER_HOST: Final = "127.0.0.2"
_LINES = 10
_PRODUCER_PAUSE: Final = 0.02
_PRODUCER_BACKOFF: Final = 0.2


class ProxiedBroker(BrokerProcess):
    """A broker on 127.0.0.2 that registers 127.0.0.1 with the same port."""

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        host = ["--host", _BROKER_HOST, "--set=hostname=127.0.0.1"]
        await super()._launch([*command, *host], event, timeout, stdout)


class Member(DaemonProcess):
    """A daemon with its own proxies to the servers of ZooKeeper."""

    def __init__(self, directory: Path, config: dict[str, Any], name: str, links: list[FaultProxy]) -> None:
        super().__init__(directory, config, name=name)
        self.links = links
        #: When it was told to end; None while it shall run. On the monotonic clock, as all times here.
        self.ended_at: float | None = None
        #: Whether it has joined its group: only then may it suffer.
        self.joined = False
        #: Whether it is never killed or stopped, whatever else it suffers.
        self.stays = False

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        # Its handler is a module of the tests.
        await super()._launch(["env", f"PYTHONPATH={ROOT}", *command], event, timeout, stdout)


class Stage:
    """Everything that runs. Start it with `async with`."""

    def __init__(self, directory: Path, *, partitions: int, servers: int, disk: Path) -> None:
        self.directory = directory
        self.partitions = [TopicPartition(TOPIC, 0, number) for number in range(partitions)]
        self.ensemble = ZooKeeperEnsemble(
            directory / "zookeeper", servers, tick_ms=250, config={"maxSessionTimeout": 60_000, "syncLimit": 8}
        )
        #: Properties of the broker by their 0.7 names.
        self.broker_settings: dict[str, str | int] = {**BROKER_SETTINGS, "zk.sessiontimeout.ms": 6000}
        self.disk = disk
        self.records = directory / "records"
        self.members: list[Member] = []
        #: Payloads that were sent, and those that the broker confirmed.
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.producer_errors = 0
        self._stack = AsyncExitStack()

    @property
    def zookeepers(self) -> list[ZooKeeperServer]:
        """The servers of ZooKeeper."""
        return self.ensemble.servers

    @property
    def running(self) -> list[Member]:
        """The members that shall run."""
        return [member for member in self.members if member.ended_at is None]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.ensemble)
            chroot = f"{self.ensemble.connect}/kafka"
            port = free_port()
            self.broker = ProxiedBroker(
                self.directory / "broker",
                chroot,
                partitions=len(self.partitions),
                port=port,
                settings=self.broker_settings,
            )
            self.broker_link = await stack.enter_async_context(FaultProxy(_BROKER_HOST, port, port=port))
            await stack.enter_async_context(self.broker)
            self.session = await stack.enter_async_context(
                Session(chroot, clock=SystemClock(), rng=random.Random(), session_timeout=30.0, wait_connected=2.0)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def join(self, pause: float) -> Member:
        """Start one more member, which spends `pause` seconds on each batch."""
        links = [
            await self._stack.enter_async_context(FaultProxy("127.0.0.1", server.port)) for server in self.zookeepers
        ]
        connect = ",".join(link.connect for link in links)
        name = f"member-{len(self.members)}"
        member = Member(self.directory, self.member_config(f"{connect}/kafka", pause), name, links)
        self.members.append(member)
        self._stack.push_async_callback(self._end, member)
        await member.start(PATIENCE)
        member.joined = True
        return member

    def member_config(self, connect: str, pause: float) -> dict[str, Any]:
        """The tables of a member's configuration file; `connect` leads through its proxies."""
        return {
            "group": {"id": GROUP, "topics": {TOPIC: 1}},
            "zookeeper": {"connect": connect, "session_timeout": SESSION_TIMEOUT},
            "fetch": {"size": 20_000, "idle_backoff": 0.2, "socket_timeout": 3.0},
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "tests.torture.handler:StoringRecordHandler",
                "options": {"directory": str(self.records), "disk": str(self.disk), "pause": pause},
                "max_backoff": 1.0,
            },
        }

    @staticmethod
    async def _end(member: Member) -> None:
        member.kill()

    async def produce(self, stop: asyncio.Event) -> None:
        """Send numbered messages of every codec round the partitions until `stop` is set.

        A batch that was not confirmed is not sent again: whether the log has it is seen at the end.
        """
        number = 0
        while not stop.is_set():
            with contextlib.suppress(ConsumerdError):
                async with producers(self.broker.port, resends=0, retries=0) as each:
                    while not stop.is_set():
                        partition = self.partitions[number % len(self.partitions)].partition
                        lines = [b"%d-%d " % (number, line) * (1 + line % 5) for line in range(_LINES)]
                        number += 1
                        self.sent.update(lines)
                        await each[number % 3].send(TOPIC, lines, partition=partition)
                        self.acknowledged.update(lines)
                        await asyncio.sleep(_PRODUCER_PAUSE)
            if not stop.is_set():
                self.producer_errors += 1
                await asyncio.sleep(_PRODUCER_BACKOFF)

    async def warm_up(self) -> None:
        """Return when something was sent to each partition: only then are they registered."""
        async with asyncio.timeout(PATIENCE):
            while len(self.acknowledged) < _LINES * len(self.partitions):
                await asyncio.sleep(0.05)

    def load(self) -> str:
        """The load of the machine, for the report."""
        return " ".join(f"{load:.1f}" for load in os.getloadavg())

    @staticmethod
    def wall_to_monotonic(wall: float) -> float:
        """A time of a log on the clock of the records."""
        return wall - time.time() + time.monotonic()
