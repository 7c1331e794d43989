"""`consumerd group doctor`: examine a group, fix what can be fixed from outside, and examine it again.

Strategy: two snapshots some time apart tell what persists and who works. After a fix the group is examined until its
members have acted on it, or the time for that is over.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.member.fetch.v07.boundaries import SearchReach, begins_message, boundary_before
from consumerd.net.cluster.reading import read_all
from consumerd.net.connect import Connector
from consumerd.operate.admin.diagnosis import diagnose_group
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.findings import Fix, GroupFinding
from consumerd.operate.admin.logs import BrokerLogs, LogRange
from consumerd.operate.admin.mending import steps_for, take_step, withheld
from consumerd.operate.admin.snapshot import read_v07_snapshot
from consumerd.operate.admin.v08.group_source import GroupSource, ZooKeeperGroups, read_diagnosis_input
from consumerd.wire.errors import WireError
from consumerd.wire.registry.values import make_consumer_id

#: Seconds that members have to act on a fix, and between the snapshots taken meanwhile.
SETTLING = 10.0
_PAUSE = 0.25


class DoctorReport(NamedTuple):
    """The findings, the planned or applied fixes, and the findings that remained."""

    findings: list[GroupFinding]
    steps: list[Fix]
    withheld: list[GroupFinding]
    #: None where nothing was done.
    remaining: list[GroupFinding] | None


class GroupDoctor:
    """Examines one group by `take_snapshot`. `zk`: where the group can be fixed; None where a broker coordinates it."""

    def __init__(
        self, group: str, take_snapshot: Callable[[], Awaitable[DiagnosisInput]], zk: ZooKeeper | None
    ) -> None:
        self._group = group
        self._take_snapshot = take_snapshot
        self._zk = zk

    @classmethod
    def of_v07(cls, zk: ZooKeeper, group: str, connect: Connector) -> GroupDoctor:
        """Return a doctor for a group of Kafka 0.7."""
        return cls(group, partial(_look_at_v07, zk, group, connect, {}), zk)

    @classmethod
    def of_v08(cls, source: GroupSource, group: str) -> GroupDoctor:
        """Return a doctor for a group of Kafka 0.8 or later."""

        async def take_snapshot() -> DiagnosisInput:
            return await read_diagnosis_input(source, group, asyncio.get_running_loop().time())

        return cls(group, take_snapshot, source.zk if isinstance(source, ZooKeeperGroups) else None)

    async def run(self, interval: float, *, fix: bool, execute: bool, force: bool) -> DoctorReport:
        """Examine the group; `fix` plans the steps, `execute` takes them, `force` includes those that are not safe.

        `interval`: seconds between the two snapshots; 0 takes one only. Raises NotFoundError, ZooKeeperError,
        BrokerError, RefusedError for a step that this ZooKeeper cannot do.
        """
        snapshot, findings = await self._examine(interval)
        steps = steps_for(snapshot.snapshot, findings, force=force) if fix else []
        kept = withheld(findings, force=force) if fix else []
        if self._zk is None or not (execute and steps):
            return DoctorReport(findings, steps, kept, None)
        now = int(SystemClock().wall() * 1000)
        name = make_consumer_id(self._group, socket.gethostname(), now, random.SystemRandom().getrandbits(64))
        for step in steps:
            await take_step(self._zk, self._group, step, name=name, dialect=snapshot.snapshot.dialect)
        return DoctorReport(findings, steps, kept, await self._remaining(kept))

    async def _examine(self, interval: float) -> tuple[DiagnosisInput, list[GroupFinding]]:
        """The last snapshot taken, and the findings."""
        first = await self._take_snapshot()
        if not interval or not first.snapshot.view.members:
            return first, diagnose_group(first)  # without members nothing moves
        await asyncio.sleep(interval)
        second = await self._take_snapshot()
        return second, diagnose_group(first, second)

    async def _remaining(self, kept: Sequence[GroupFinding]) -> list[GroupFinding]:
        """Return the findings that remain once the members have had time to act, without waiting for `kept`."""
        not_fixed = {(finding.kind, finding.subject) for finding in kept}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLING
        while True:
            _, findings = await self._examine(0)
            pending = (each for each in findings if each.fix is not None and (each.kind, each.subject) not in not_fixed)
            if loop.time() >= deadline or not any(pending):
                return findings
            await asyncio.sleep(_PAUSE)


#: Bytes before an offset that are searched for the message that contains it: four times the largest by default.
_REACH: Final = SearchReach(walk=4 << 20, back=4 << 20)
#: Offsets that are checked at once.
_AT_ONCE: Final = 8


async def _look_at_v07(
    zk: ZooKeeper, group: str, connect: Connector, checked: dict[tuple[TopicPartition, int], int | None]
) -> DiagnosisInput:
    """Take a snapshot. `checked`: the offsets that were looked at before, and where the messages around them begin."""
    snapshot = await read_v07_snapshot(zk, group)
    wanted = [partition for partition in snapshot.partitions() if snapshot.exists(partition)]
    logs = BrokerLogs(snapshot.brokers, connect)
    ranges = await logs.ranges(wanted)
    within = {
        (partition, offset)
        for partition, offset in snapshot.view.offsets.items()
        if isinstance(known := ranges.get(partition), LogRange) and known.earliest < offset < known.end
    }
    checked |= await read_all(within - checked.keys(), lambda place: _message_around(logs, *place), at_once=_AT_ONCE)
    inside = {place[0]: start for place in within if (start := checked[place]) is not None}
    now, registered = asyncio.get_running_loop().time(), snapshot.brokers.keys()
    return DiagnosisInput(snapshot, ranges, now, inside=dict(sorted(inside.items())), registered=registered)


async def _message_around(logs: BrokerLogs, partition: TopicPartition, offset: int) -> int | None:
    """Where the message begins that contains `offset`; None if one begins there, or where that cannot be found out."""
    try:
        if await begins_message(logs, partition, offset, reach=_REACH):
            return None
        start = await boundary_before(logs, partition, offset, reach=_REACH)
    except (BrokerError, WireError):
        return None  # a broker that does not answer has a finding of its own; damage is for `log verify`
    return start if start < offset else None
