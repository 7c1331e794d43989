"""Everything that a run of torture consists of, and what its parts ask of it.

Strategy: a `Stage` is a kind of brokers with a kind of group coordination; each kind is one subclass, in a module of
its own: `stage_v07` (consumerd's own broker), `stage_v08` (real brokers of 0.8 and later). `make_stage` in `run`
chooses one. What is the same for all is here: members with proxies of their own, the messages that were sent and those
that were confirmed.

What is asked of a stage, and by whom:

- The player injects faults into `brokers`, `broker_links`, `zookeepers`, `members` and their `links`, and the `disk`;
  `join` starts a member, `coordinator_links` are those without which it loses its session, `leader` names
  ZooKeeper's, `leading_broker` one that has something to lose.
  `group.suffers_from` tells whether a fault may end sessions.
- The watch polls `group` (`tests.torture.groups`): members, owners, committed offsets.
- The account reads `read_log`, the truth about what there was to deliver, and compares it with `sent`, `acknowledged`
  and `records`. `stores_once`: whether a message that was sent once may be in the log once only.
- The schedule gets `zookeeper_faults`, how many servers of ZooKeeper may suffer; `member_links`, whether a member
  has links of its own; the number of `brokers`; and whether there is a `lock`, the password and certificate that the
  brokers have for members at `gates`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self

from consumerd.base.clock import SystemClock
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.children import Child
from consumerd.demo.processes import DaemonProcess
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.net.zk.session import Session
from consumerd.testing.fault_proxy import Direction, FaultProxy
from tests.support.awakenings import PausableDaemon
from tests.support.server_network import ServerNetwork
from tests.support.slow_disk import SlowDisk
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble
from tests.support.zookeeper_partition import PartitionedEnsemble

if TYPE_CHECKING:
    from tests.support.secure_gate import Lock, SecureGate
    from tests.torture.groups import Group
    from tests.torture.sinks import Sinks

GROUP: Final = "group"
ROOT: Final = Path(__file__).parents[2]
#: Where the chroot of brokers and members is in ZooKeeper.
CHROOT: Final = "/kafka"
#: Of the members' sessions, in seconds. The servers' ticks are 250 ms.
SESSION_TIMEOUT: Final = 4.0
_TICK_MS: Final = 250
_ZOOKEEPER_CONFIG: Final[dict[str, str | int]] = {"maxSessionTimeout": 60_000, "syncLimit": 8}
#: Of commits, in seconds.
COMMIT_INTERVAL: Final = 1.0
#: Seconds after which a handler counts as hung: longer than a batch takes that suffers nothing.
HUNG_AFTER: Final = 1.5
#: Longest wait for a process to be ready, in seconds.
PATIENCE: Final = 90.0
#: Where brokers listen. They register 127.0.0.1, where their proxies listen on the same ports.
BROKER_HOST: Final = "127.0.0.2"
#: Messages of a batch of the producer.
LINES: Final = 10
#: Seconds between two batches, and after one that was not confirmed.
PRODUCER_PAUSE: Final = 0.02
PRODUCER_BACKOFF: Final = 0.2


#: The messages of each partition in the order of the log: the offset of each outermost message, and its payloads.
Log = dict["TopicPartition", list[tuple[int, list[bytes]]]]


class BrokerServer(Protocol):
    """A broker as the player sees it: a process that can be started again on its files and port."""

    @property
    def running(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def child(self) -> Child: ...

    async def start(self, timeout: float) -> None:
        """Return when it serves. Raises ConsumerdError."""

    async def stop(self, grace: float | None = None) -> int | None:
        """SIGTERM, then SIGKILL after `grace` seconds. Return 0 after an orderly end."""

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Link(Protocol):
    """A `FaultProxy`, or several that suffer as one."""

    def cut(self, *, rst: bool = False) -> None: ...

    def stall(self, *directions: Direction) -> None: ...

    def delay(self, seconds: float) -> None: ...

    def heal(self) -> None: ...


class LinkBundle:
    """Proxies that suffer as one."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = list(links)

    def cut(self, *, rst: bool = False) -> None:
        """Close all connections."""
        for link in self._links:
            link.cut(rst=rst)

    def stall(self, *directions: Direction) -> None:
        """Hold back all bytes, of these directions or of both."""
        for link in self._links:
            link.stall(*directions)

    def delay(self, seconds: float) -> None:
        """Add latency."""
        for link in self._links:
            link.delay(seconds)

    def heal(self) -> None:
        """End all faults."""
        for link in self._links:
            link.heal()


class Member(PausableDaemon):
    """A daemon with its own proxies to what coordinates its group: `links`."""

    def __init__(self, directory: Path, config: dict[str, Any], name: str, links: Sequence[Link]) -> None:
        super().__init__(directory, config, name=name)
        self.links = list(links)
        #: When it was asked to end; None while it shall run. On the monotonic clock, as all times here.
        self.ended_at: float | None = None
        #: Whether it has joined its group: only then may it suffer.
        self.joined = False
        #: Whether it is never killed or stopped, whatever else it suffers.
        self.stays = False
        #: Daemons with exactly-once sinks that live and suffer with it.
        self.companions: list[Companion] = []
        #: Of the exactly-once files.
        self.slow_disk: SlowDisk | None = None

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        # Its handler is a module of the tests.
        await super()._launch([*_environment(self.slow_disk), *command], event, timeout, stdout)

    @property
    def processes(self) -> list[DaemonProcess]:
        """Itself and its companions."""
        return [self, *self.companions]

    async def start(self, timeout: float = PATIENCE) -> None:
        """Start all. Raises ChildError."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(super().start(timeout))
                for each in self.companions:
                    group.create_task(each.start(timeout))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def stop(self, grace: float | None = None) -> int | None:
        """SIGTERM to all, SIGKILL after `grace` seconds. Return the first exit status that is not 0, else 0."""
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(super().stop(grace))]
            ends += [group.create_task(each.stop(grace)) for each in self.companions]
        return next((code for end in ends if (code := end.result()) != 0), 0)

    def kill(self) -> None:
        """SIGKILL to all."""
        super().kill()
        for each in self.companions:
            each.kill()

    def pause(self) -> None:
        """Freeze all."""
        super().pause()
        for each in self.companions:
            each.pause()

    def resume(self) -> None:
        """Resume all."""
        super().resume()
        for each in self.companions:
            each.resume()


class Companion(DaemonProcess):
    """A daemon beside a member, in a group of its own."""

    slow_disk: SlowDisk | None = None

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        # The handler may be a module of the tests.
        await super()._launch([*_environment(self.slow_disk), *command], event, timeout, stdout)


def _environment(disk: SlowDisk | None) -> list[str]:
    """The beginning of a command that runs in the environment of a member."""
    variables = {"PYTHONPATH": str(ROOT), **({} if disk is None else disk.environment)}
    return ["env", *(f"{name}={value}" for name, value in variables.items())]


class Stage(ABC):
    """Everything that runs. Start it with `async with`. Subclasses start brokers and say how members are configured."""

    #: The kind in words, for the report.
    title: str
    #: Whether no message may be in the log twice.
    stores_once: bool = True
    #: Whether a broker may end by itself while it has no descriptors left.
    brokers_may_end: ClassVar[bool] = False
    #: Set by `_start`.
    group: Group

    def __init__(self, directory: Path, partitions: Sequence[TopicPartition], disk: Path, *, servers: int) -> None:
        self.directory = directory
        self.partitions = list(partitions)
        self.ensemble: ZooKeeperEnsemble | None = None
        #: Between the servers of ZooKeeper, where they have one of their own.
        self.network: ServerNetwork | None = None
        if servers:
            self.ensemble = ZooKeeperEnsemble(
                directory / "zookeeper", servers, tick_ms=_TICK_MS, config=_ZOOKEEPER_CONFIG
            )
        self.brokers: list[BrokerServer] = []
        #: The proxies before the brokers, in their order.
        self.broker_links: list[Link] = []
        #: What the brokers ask of members that come to them by TLS with a password, and the gates where they do.
        self.lock: Lock | None = None
        self.gates: list[SecureGate] = []
        self.disk = disk
        #: Exactly-once sinks beside the members, in groups of their own; set before the start.
        self.sinks: Sinks | None = None
        #: The library of slow disks, where there is one; set before the start.
        self.slow_library: Path | None = None
        #: The disks of brokers that can be slow, and those of ZooKeeper.
        self.slow_brokers: list[SlowDisk] = []
        self.slow_zookeepers: list[SlowDisk] = []
        self.records = directory / "records"
        self.members: list[Member] = []
        #: Payloads that were sent, and those that the broker confirmed.
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.producer_errors = 0
        self._stack = AsyncExitStack()

    def equip_zookeeper(self, java: JavaRuntime, network: ServerNetwork | None) -> None:
        """Have the servers of ZooKeeper in this network, which outlives the stage, and on disks that can be slow.

        Before the start, and after `slow_library` was set.
        """
        directory, count = self.directory / "zookeeper", len(self.zookeepers)
        if self.slow_library is not None:
            self.slow_zookeepers = [
                self.make_slow_disk(f"zookeeper-{number}", directory / str(number)) for number in range(1, count + 1)
            ]
        disks = self.slow_zookeepers
        self.network = network
        if network is None:
            self.ensemble = ZooKeeperEnsemble(
                directory, count, tick_ms=_TICK_MS, config=_ZOOKEEPER_CONFIG, java=java, disks=disks
            )
        else:
            self.ensemble = PartitionedEnsemble(
                directory, network, java=java, tick_ms=_TICK_MS, config=_ZOOKEEPER_CONFIG, disks=disks
            )

    @property
    def zookeepers(self) -> list[ZooKeeperServer]:
        """The servers of ZooKeeper; none where there is no ZooKeeper."""
        return [] if self.ensemble is None else [*self.ensemble.servers]

    @property
    def zookeeper_faults(self) -> int:
        """How many servers of ZooKeeper members depend on."""
        return len(self.zookeepers)

    @property
    def member_links(self) -> bool:
        """Whether each member reaches what coordinates its group through links of its own."""
        return True

    async def coordinator_links(self, member: Member) -> list[Link]:
        """The links of a member to what coordinates its group now."""
        return member.links

    async def leading_broker(self, number: int) -> BrokerServer | None:
        """The broker that leads the partition of this number, or coordinates the group; None while there is none."""
        return self.brokers[number % len(self.brokers)]

    async def leader(self) -> ZooKeeperServer:
        """The leader of ZooKeeper. Raises ZooKeeperStartError while there is none."""
        assert self.ensemble is not None
        return self.zookeepers[await self.ensemble.leader()]

    @property
    def running(self) -> list[Member]:
        """The members that shall run."""
        return [member for member in self.members if member.ended_at is None]

    # -- life

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self.ensemble is not None:
                await stack.enter_async_context(self.ensemble)
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @abstractmethod
    async def _start(self, stack: AsyncExitStack) -> None:
        """Start brokers and their proxies, and set `group`; `stack` ends all of it."""

    async def _open_session(self, stack: AsyncExitStack) -> Session:
        """A session of our own at the chroot, directly."""
        assert self.ensemble is not None
        connect = f"{self.ensemble.connect}{CHROOT}"
        return await stack.enter_async_context(
            Session(connect, clock=SystemClock(), rng=random.Random(), session_timeout=30.0, wait_connected=2.0)
        )

    # -- members

    async def join(self, pause: float) -> Member:
        """Start one more member, which spends `pause` seconds on each batch."""
        name = f"member-{len(self.members)}"
        member = await self._new_member(name, pause)
        if self.slow_library is not None and self.sinks is not None:
            member.slow_disk = self.make_slow_disk(name, self.sinks.directory)
            for each in member.companions:
                each.slow_disk = member.slow_disk
        self.members.append(member)
        self._stack.push_async_callback(self._end, member)
        await member.start(PATIENCE)
        member.joined = True
        return member

    def make_slow_disk(self, name: str, folder: Path) -> SlowDisk:
        """The switch of a process, for files below `folder`, which is made."""
        assert self.slow_library is not None
        folder.mkdir(parents=True, exist_ok=True)
        return SlowDisk(self.slow_library, self.directory / f"{name}.slow", folder)

    @abstractmethod
    async def _new_member(self, name: str, pause: float) -> Member:
        """A member with its links, which is not started."""

    async def _zookeeper_member(self, name: str, pause: float) -> Member:
        """A member that reaches each server of ZooKeeper through a proxy of its own."""
        hosts = [parse_connect_string(server.connect).hosts[0] for server in self.zookeepers]
        links = [await self._stack.enter_async_context(FaultProxy(host.name, host.port)) for host in hosts]
        connect = ",".join(link.connect for link in links)
        config = self.member_config(name, f"{connect}{CHROOT}", pause)
        if self.sinks is not None:
            config["subscriptions"] = self.sinks.subscriptions()
        return Member(self.directory, config, name, links)

    @abstractmethod
    def member_config(self, name: str, connect: str, pause: float) -> dict[str, Any]:
        """The tables of a member's configuration file; `connect` leads through its links."""

    def hang(self, name: str) -> Path:
        """The file with which the handler of a member hangs while it exists."""
        return self.directory / f"{name}.hang"

    def _common_config(self, name: str, pause: float) -> dict[str, Any]:
        """The tables that do not depend on brokers and coordination."""
        return {
            "fetch": {"size": 20_000, "idle_backoff": 0.2, "socket_timeout": 3.0},
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "tests.torture.handler:StoringRecordHandler",
                "options": {
                    "directory": str(self.records),
                    "disk": str(self.disk),
                    "hang": str(self.hang(name)),
                    "pause": pause,
                },
                "max_backoff": 1.0,
            },
            "health": {"hung_after": HUNG_AFTER},
        }

    @staticmethod
    async def _end(member: Member) -> None:
        member.kill()

    # -- messages

    @abstractmethod
    async def produce(self, stop: asyncio.Event) -> None:
        """Send numbered messages of every codec round the partitions until `stop` is set.

        A batch that was not confirmed is not sent again: whether the log has it is seen at the end.
        """

    async def warm_up(self) -> None:
        """Return when something was sent to each partition: only then are they registered."""
        async with asyncio.timeout(PATIENCE):
            while len(self.acknowledged) < LINES * len(self.partitions):
                await asyncio.sleep(0.05)

    @abstractmethod
    async def read_log(self) -> Log:
        """All that the brokers hold now. Raises ConsumerdError."""

    # -- for the report

    def load(self) -> str:
        """The load of the machine, for the report."""
        return " ".join(f"{load:.1f}" for load in os.getloadavg())

    @staticmethod
    def wall_to_monotonic(wall: float) -> float:
        """A time of a log on the clock of the records."""
        return wall - time.time() + time.monotonic()


def lines_of(number: int) -> list[bytes]:
    """The messages of a batch."""
    return [b"%d-%d " % (number, line) * (1 + line % 5) for line in range(LINES)]
