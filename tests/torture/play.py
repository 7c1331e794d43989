"""Performs episodes on a stage, and notes when what was done to whom: the only causes that explain a repetition.

Strategy: the faults of an episode are tasks of one group. A target that already suffers is left alone, so that the end
of one fault never ends another. After each episode the group has to be whole again: every partition owned, by members
that shall run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumerd.base.errors import ExitCode
from consumerd.demo.errors import ChildError, ZooKeeperStartError
from consumerd.demo.processes import DaemonProcess, Process
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.testing.fault_proxy import Direction
from tests.support.server_network import ServerNetwork
from tests.support.slow_disk import SlowDisk
from tests.support.small_disk import fill
from tests.torture.schedule import Episode, Fault
from tests.torture.stage import PATIENCE, BrokerServer, Link, Member, Stage
from tests.torture.watch import Watch

#: Members spend that many seconds on a batch, by the fault's target.
_PAUSES: Final = (0.0, 0.02, 0.2)
#: Seconds that a sync takes on a slow disk, and a write to it.
_SLOW_SYNCS: Final = (0.5, 1.0, 2.0)
_SLOW_WRITE: Final = 0.01
#: Descriptors that a process may open beyond those that it has.
_SPARE_DESCRIPTORS: Final = 1
#: Seconds after which a handler that hangs must have been logged, those between two looks, and those that a refused
#: password takes to arrive.
_HUNG_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.2
_REFUSAL_SECONDS: Final = 2.0


class Cause(NamedTuple):
    """A fault that may make messages come again. `member` is a consumer id; None: all members."""

    member: str | None
    begin: float
    end: float
    kind: str


@dataclass(slots=True)
class Timed:
    """One clean stop or kill without any other fault."""

    kind: str
    #: The longest time for which a partition had no owner: after a stop without a node, after a kill without a member.
    seconds: float


class Player:
    """Performs faults. `kinds` counts them; `skipped` those whose target already suffered."""

    def __init__(self, stage: Stage, watch: Watch, members: int, report: Callable[[str], None]) -> None:
        self._most = members
        self._stage = stage
        self._watch = watch
        self._report = report
        self._suffering: set[int] = set()
        self.kinds: Counter[str] = Counter()
        self.skipped = 0
        self.causes: list[Cause] = []
        self.timed: list[Timed] = []
        self.findings: list[str] = []

    async def episode(self, episode: Episode) -> None:
        """Perform one, and wait until the group is whole."""
        self._report(" + ".join(map(str, episode.faults)))
        self._watch.reset()
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in episode.faults:
                group.create_task(self._perform(fault))
        await self._replace_dead()
        if not await self._watch.wait_settled(PATIENCE):
            self.findings.append(
                f"not every partition was owned by the {len(self._stage.running)} members {PATIENCE:g} s after "
                f"{[fault.kind for fault in episode.faults]}: owned are {len(self._watch.owned)}, "
                f"members are {sorted(self._watch.ids)}"
            )
        if episode.timed:
            [fault] = episode.faults
            seconds = self._watch.longest_gap if fault.kind == "member_stop" else self._watch.seen_at - started
            self.timed.append(Timed(fault.kind, seconds))
        await asyncio.sleep(episode.rest)

    async def _perform(self, fault: Fault) -> None:
        await asyncio.sleep(fault.after)
        await getattr(self, f"_{fault.kind}")(fault)

    @contextmanager
    def _one(self, fault: Fault, choices: list[Any]) -> Iterator[Any]:
        """One of `choices` that does not suffer yet, or None."""
        free = [each for each in choices if id(each) not in self._suffering]
        if not free:
            self.skipped += 1
            yield None
            return
        target = free[fault.target % len(free)]
        self._suffering.add(id(target))
        self.kinds[fault.kind] += 1
        try:
            yield target
        finally:
            self._suffering.discard(id(target))

    @contextmanager
    def _cause(self, kind: str, member: Member | None) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            if self._stage.group.suffers_from(kind):
                name = None if member is None else member.consumer_id
                self.causes.append(Cause(name, begin, time.monotonic(), kind))

    async def _replace_dead(self) -> None:
        """No fault makes a member or a broker end: one that did is a finding, and another takes its place."""
        for broker in self._stage.brokers:
            if not broker.running:
                self.findings.append(f"the broker ended with {broker.returncode}: {broker.child.tail(2)}")
                await broker.start(PATIENCE)
        for member in self._stage.running:
            if not member.running:
                now = member.ended_at = time.monotonic()
                self.causes.append(Cause(member.consumer_id, now - PATIENCE, now, "ended"))
                self.findings.append(f"{member.name} ended with {member.returncode}: {member.child.tail(2)}")
                member.kill()  # its companions
                await self._join(_PAUSES[1])
            for each in member.companions:
                if not each.running and member.ended_at is None:
                    self.findings.append(f"{each.name} ended with {each.returncode}: {each.child.tail(2)}")
                    await each.start(PATIENCE)

    # -- members

    async def _member_join(self, fault: Fault) -> None:
        if len(self._stage.running) >= self._most:  # a kill or stop was skipped
            self.skipped += 1
            return
        self.kinds[fault.kind] += 1
        await self._join(_PAUSES[fault.target % len(_PAUSES)])

    async def _join(self, pause: float) -> None:
        try:
            await self._stage.join(pause)
        except ChildError as error:
            member = self._stage.members[-1]
            member.ended_at = time.monotonic()
            self.findings.append(f"a member did not join: {error}")

    async def _member_kill(self, fault: Fault) -> None:
        with self._one(fault, self._leavers()) as member:
            if member is not None:
                member.ended_at = time.monotonic()
                with self._cause(fault.kind, member):
                    member.kill()

    async def _member_stop(self, fault: Fault) -> None:
        with self._one(fault, self._leavers()) as member:
            if member is not None:
                member.ended_at = time.monotonic()
                if (code := await member.stop(PATIENCE)) != 0:
                    self.findings.append(f"{member.name} ended with {code} after SIGTERM: {member.child.tail(2)}")

    def _leavers(self) -> list[Member]:
        members = self._members()
        return [member for member in members if not member.stays] if len(members) > 1 else []

    def _members(self) -> list[Member]:
        return [member for member in self._stage.running if member.joined and member.running]

    async def _member_freeze(self, fault: Fault) -> None:
        with self._one(fault, self._members()) as member:
            if member is not None:
                with self._cause(fault.kind, member):
                    member.pause()
                    await asyncio.sleep(fault.seconds)
                    member.resume()

    async def _members_freeze(self, fault: Fault) -> None:
        """Two at once."""
        async with asyncio.TaskGroup() as group:
            for target in (fault.target, fault.target + 1):
                group.create_task(self._member_freeze(Fault(fault.kind, 0, fault.seconds, target)))

    async def _member_cut(self, fault: Fault) -> None:
        with self._one(fault, self._members()) as member:
            if member is not None:
                with self._cause(fault.kind, member):
                    for link in await self._stage.coordinator_links(member):
                        link.cut(rst=fault.amount > 0.1)

    async def _member_stall(self, fault: Fault) -> None:
        with self._one(fault, self._members()) as member:
            if member is not None:
                with self._cause(fault.kind, member):
                    links = await self._stage.coordinator_links(member)
                    await self._disturb(fault, links, lambda link: link.stall())

    async def _member_delay(self, fault: Fault) -> None:
        with self._one(fault, self._members()) as member:
            if member is not None:
                with self._cause(fault.kind, member):
                    links = await self._stage.coordinator_links(member)
                    await self._disturb(fault, links, lambda link: link.delay(fault.amount))

    @staticmethod
    async def _disturb(fault: Fault, links: Sequence[Link], disturb: Callable[[Link], None]) -> None:
        """Do it to links for as long as the fault lasts."""
        for link in links:
            disturb(link)
        await asyncio.sleep(fault.seconds)
        for link in links:
            link.heal()

    async def _member_descriptors(self, fault: Fault) -> None:
        """It can open one file or connection more than it has."""
        with self._one(fault, self._members()) as member:
            if member is not None:
                with self._cause(fault.kind, member):
                    async with asyncio.TaskGroup() as group:
                        for each in member.processes:
                            group.create_task(self._starve(fault, each))

    @staticmethod
    async def _starve(fault: Fault, process: Process | BrokerServer) -> None:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{process.pid}/fd"))) + 1
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + _SPARE_DESCRIPTORS, hard))
        await asyncio.sleep(fault.seconds)
        if process.running:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    async def _member_memory(self, fault: Fault) -> None:
        """It can take no more memory from the system than it has. It may end of that, as if it was killed."""
        with self._one(fault, self._leavers()) as member:
            if member is None:
                return
            with self._cause(fault.kind, member):
                async with asyncio.TaskGroup() as group:
                    for each in member.processes:
                        group.create_task(self._limit_memory(fault, each))
                if all(each.running for each in member.processes):
                    return
                self.kinds["member_memory_ended"] += 1
                member.ended_at = time.monotonic()
                member.kill()
        await self._join(_PAUSES[1])

    @staticmethod
    async def _limit_memory(fault: Fault, process: Process) -> None:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize()
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, hard))
        await asyncio.sleep(fault.seconds)
        if process.running:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (soft, hard))

    async def _handler_hang(self, fault: Fault) -> None:
        """A batch hangs until its member has logged it and for some seconds more; or until somebody kills the member.

        That is an error of the handler alone: as long as it is not killed, it explains no repetition.
        """
        with self._one(fault, self._members()) as member:
            if member is None:
                return
            switch = self._stage.hang(member.name)
            switch.touch()
            try:
                if not await self._hung(member, switch.with_suffix(".hung")):
                    return
                await asyncio.sleep(fault.seconds)
                if fault.target % 2 or member not in self._leavers():
                    return
                member.ended_at = time.monotonic()
                with self._cause(fault.kind, member):
                    member.kill()
            finally:
                switch.unlink()
        await self._join(_PAUSES[1])

    async def _hung(self, member: Member, hangs: Path) -> bool:
        """Whether its handler hangs and the log says so. One that hangs and is not logged is a finding."""
        end = time.monotonic() + _HUNG_SECONDS
        before = self._hangs(member)
        while time.monotonic() < end and member.running:
            if self._hangs(member) > before:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        if hangs.exists() and time.time() - hangs.stat().st_mtime < _LOOK_SECONDS:
            self.findings.append(f"{member.name} did not log handler_hung within {_HUNG_SECONDS:g} s")
        return False

    @staticmethod
    def _hangs(member: Member) -> int:
        return sum(event["event"] == "handler_hung" for event in member.events())

    # -- ZooKeeper

    async def _zookeeper_kill(self, fault: Fault) -> None:
        with self._one(fault, self._stage.zookeepers) as server:
            if server is not None:
                await self._zookeeper_down(fault, server)

    async def _zookeeper_down(self, fault: Fault, server: ZooKeeperServer) -> None:
        with self._cause(fault.kind, None):
            server.kill()
            await asyncio.sleep(fault.seconds)
            await server.start(PATIENCE)

    async def _zookeeper_freeze(self, fault: Fault) -> None:
        with self._one(fault, self._stage.zookeepers) as server:
            if server is not None:
                await self._zookeeper_still(fault, server)

    async def _zookeeper_still(self, fault: Fault, server: ZooKeeperServer) -> None:
        with self._cause(fault.kind, None):
            server.pause()
            await asyncio.sleep(fault.seconds)
            server.resume()

    async def _leader(self) -> list[ZooKeeperServer]:
        try:
            return [await self._stage.leader()]
        except ZooKeeperStartError:  # no leader is elected while other faults last
            return []

    async def _zookeeper_leader_kill(self, fault: Fault) -> None:
        with self._one(fault, await self._leader()) as server:
            if server is not None:
                await self._zookeeper_down(fault, server)

    async def _zookeeper_leader_freeze(self, fault: Fault) -> None:
        """Its followers are a majority without a leader; when it wakes it is a minority that believes to lead."""
        with self._one(fault, await self._leader()) as server:
            if server is not None:
                await self._zookeeper_still(fault, server)

    async def _zookeeper_isolated(self, fault: Fault) -> None:
        """All members that suffer nothing else lose one server: their links to it hold everything back."""
        with self._one(fault, self._stage.zookeepers) as server:
            if server is not None:
                number = self._stage.zookeepers.index(server)
                members = [member for member in self._members() if id(member) not in self._suffering]
                self._suffering.update(map(id, members))
                with self._cause(fault.kind, None):
                    await self._disturb(fault, [member.links[number] for member in members], lambda link: link.stall())
                self._suffering.difference_update(map(id, members))

    async def _zookeeper_cut_off(self, fault: Fault) -> None:
        """One server and all others lose each other; the clients of each stay connected."""
        with self._one(fault, self._stage.zookeepers) as server:
            if server is not None:
                await self._zookeeper_links(fault, server, ServerNetwork.isolate)

    async def _zookeeper_leader_cut_off(self, fault: Fault) -> None:
        """The leader is in the minority, with its clients."""
        with self._one(fault, await self._leader()) as server:
            if server is not None:
                await self._zookeeper_links(fault, server, ServerNetwork.isolate)

    async def _zookeeper_mute(self, fault: Fault) -> None:
        """What one server sends does not arrive at the others; what they send arrives."""
        with self._one(fault, self._stage.zookeepers) as server:
            if server is not None:
                await self._zookeeper_links(fault, server, ServerNetwork.mute)

    async def _zookeeper_links(
        self, fault: Fault, server: ZooKeeperServer, cut: Callable[[ServerNetwork, int], None]
    ) -> None:
        network = self._stage.network
        assert network is not None  # the schedule has such faults only where there is one
        number = self._stage.zookeepers.index(server)
        with self._cause(fault.kind, None):
            await asyncio.to_thread(cut, network, number)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(network.heal, number)

    async def _zookeeper_rolling_restart(self, fault: Fault) -> None:
        """One after the other, each when the one before serves again."""
        self.kinds[fault.kind] += 1
        with self._cause(fault.kind, None):
            for server in self._stage.zookeepers:
                if id(server) not in self._suffering:
                    self._suffering.add(id(server))
                    try:
                        await server.stop()
                        await server.start(PATIENCE)
                    finally:
                        self._suffering.discard(id(server))

    # -- brokers

    async def _broker_kill(self, fault: Fault) -> None:
        with self._one(fault, self._stage.brokers) as broker:
            if broker is not None:
                with self._cause(fault.kind, None):
                    broker.kill()
                    await asyncio.sleep(fault.seconds)
                    await broker.start(PATIENCE)

    async def _broker_restart(self, fault: Fault) -> None:
        with self._one(fault, self._stage.brokers) as broker:
            if broker is not None:
                with self._cause(fault.kind, None):
                    if (code := await broker.stop(PATIENCE)) != 0:
                        self.findings.append(f"the broker ended with {code} after SIGTERM: {broker.child.tail(2)}")
                    await broker.start(PATIENCE)

    async def _broker_leader_kill(self, fault: Fault) -> None:
        """It is down until another broker leads what it led."""
        leader = await self._stage.leading_broker(fault.target)
        with self._one(fault, [] if leader is None else [leader]) as broker:
            if broker is not None:
                with self._cause(fault.kind, None):
                    broker.kill()
                    await asyncio.sleep(fault.seconds)
                    await broker.start(PATIENCE)

    async def _broker_rolling_restart(self, fault: Fault) -> None:
        """One after the other, each when the one before serves again."""
        self.kinds[fault.kind] += 1
        with self._cause(fault.kind, None):
            for broker in self._stage.brokers:
                if id(broker) not in self._suffering:
                    self._suffering.add(id(broker))
                    try:
                        if (code := await broker.stop(PATIENCE)) != 0:
                            self.findings.append(f"a broker ended with {code} after SIGTERM: {broker.child.tail(2)}")
                        await broker.start(PATIENCE)
                    finally:
                        self._suffering.discard(id(broker))

    async def _broker_freeze(self, fault: Fault) -> None:
        with self._one(fault, self._stage.brokers) as broker:
            if broker is not None:
                with self._cause(fault.kind, None):
                    broker.pause()
                    await asyncio.sleep(fault.seconds)
                    broker.resume()

    async def _broker_descriptors(self, fault: Fault) -> None:
        with self._one(fault, self._stage.brokers) as broker:
            if broker is not None:
                with self._cause(fault.kind, None):
                    await self._starve(fault, broker)
                    if not broker.running and self._stage.brokers_may_end:
                        await broker.start(PATIENCE)

    async def _broker_cut(self, fault: Fault) -> None:
        with self._one(fault, self._stage.broker_links) as link:
            if link is not None:
                with self._cause(fault.kind, None):
                    link.cut(rst=fault.amount > 0.1)

    async def _broker_mute(self, fault: Fault) -> None:
        """Requests arrive and answers are lost: a client cannot know what the broker has done."""
        with self._one(fault, self._stage.broker_links) as link:
            if link is not None:
                with self._cause(fault.kind, None):
                    link.stall(Direction.TO_CLIENT)
                    await asyncio.sleep(fault.seconds)
                    link.cut(rst=fault.amount > 0.1)
                    link.heal()

    async def _broker_stall(self, fault: Fault) -> None:
        with self._one(fault, self._stage.broker_links) as link:
            if link is not None:
                with self._cause(fault.kind, None):
                    await self._disturb(fault, [link], lambda link: link.stall())

    async def _broker_delay(self, fault: Fault) -> None:
        with self._one(fault, self._stage.broker_links) as link:
            if link is not None:
                with self._cause(fault.kind, None):
                    await self._disturb(fault, [link], lambda link: link.delay(fault.amount))

    async def _broker_certificate(self, fault: Fault) -> None:
        """The brokers show members a certificate that has expired, until it is renewed."""
        lock = self._stage.lock
        with self._one(fault, [lock]) as free:
            if free is not None:
                with self._cause(fault.kind, None):
                    free.expire()
                    self._cut_gates()
                    await asyncio.sleep(fault.seconds)
                    free.renew()

    async def _broker_password(self, fault: Fault) -> None:
        """The brokers have another password. Later members get it, or the former one comes back.

        A member that is refused before it was one ends with exit code 6, and is started again, as a service manager
        does it.
        """
        lock = self._stage.lock
        assert lock is not None  # the schedule has such faults only where there is one
        self.kinds[fault.kind] += 1
        processes = [each for member in self._members() for each in member.processes]
        with self._cause(fault.kind, None):
            former, lock.password = lock.password, f"password {time.monotonic_ns()}"
            self._cut_gates()
            await asyncio.sleep(fault.seconds)
            if fault.target % 2:
                lock.password = former
            else:
                lock.tell_clients()
            async with asyncio.TaskGroup() as group:
                for process in processes:
                    group.create_task(self._start_refused(process))

    def _cut_gates(self) -> None:
        for gate in self._stage.gates:
            gate.cut()

    @staticmethod
    async def _start_refused(process: DaemonProcess) -> None:
        """Start a process again that has ended, or is about to, because it was refused."""
        await asyncio.sleep(_REFUSAL_SECONDS)  # in which a refusal from before arrives
        if not process.running or any(event["event"] == "member_stopping" for event in process.events()):
            if await process.wait(PATIENCE) != ExitCode.BROKER:
                return  # the player finds what ended otherwise
            await DaemonProcess.start(process, PATIENCE)

    # -- the disk

    async def _disk_full(self, fault: Fault) -> None:
        with self._one(fault, [self._stage.disk]) as disk:
            if disk is not None:
                ballast = fill(disk)
                await asyncio.sleep(fault.seconds)
                ballast.unlink()

    async def _member_disk_slow(self, fault: Fault) -> None:
        """Each sync and rename of its exactly-once files takes longer. That explains no repetition."""
        members = [member for member in self._members() if member.slow_disk is not None]
        with self._one(fault, members) as member:
            if member is not None:
                await self._slow(fault, member.slow_disk)

    async def _broker_disk_slow(self, fault: Fault) -> None:
        with self._one(fault, self._stage.slow_brokers) as disk:
            if disk is not None:
                disk.write_seconds = _SLOW_WRITE
                await self._slow(fault, disk)
                disk.write_seconds = 0.0

    async def _zookeeper_disks_slow(self, fault: Fault) -> None:
        """Each sync of each server takes longer, and so does each write to ZooKeeper. That explains no repetition."""
        disks = self._stage.slow_zookeepers
        with self._one(fault, [disks]) as free:
            if free is not None:
                for disk in disks:
                    disk.seconds = fault.amount
                await asyncio.sleep(fault.seconds)
                for disk in disks:
                    disk.seconds = 0.0

    @staticmethod
    async def _slow(fault: Fault, disk: SlowDisk) -> None:
        disk.seconds = _SLOW_SYNCS[fault.target % len(_SLOW_SYNCS)]
        await asyncio.sleep(fault.seconds)
        disk.seconds = 0.0
