"""`consumerd group doctor`: examine a group, fix what can be fixed from outside, and examine it again.

Strategy: two snapshots some time apart tell what persists and who works. After a fix the group is examined until its
members have acted on it, or the time for that is over.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from typing import NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.operate.admin.diagnosis import diagnose_group
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.findings import Fix, GroupFinding
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.mending import steps_for, take_step, withheld
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
    """Examines one group of `source`, and fixes it if it is in ZooKeeper."""

    def __init__(self, source: GroupSource, group: str) -> None:
        self._source = source
        self._group = group

    async def run(self, interval: float, *, fix: bool, execute: bool, force: bool) -> DoctorReport:
        """Examine the group; `fix` plans the steps, `execute` takes them, `force` includes those that are not safe.

        `interval`: seconds between the two snapshots; 0 takes one only. Raises NotFoundError, ZooKeeperError,
        BrokerError, RefusedError for a step that this ZooKeeper cannot do.
        """
        snapshot, findings = await self._examine(interval)
        steps = steps_for(snapshot.snapshot, findings, force=force) if fix else []
        kept = withheld(findings, force=force) if fix else []
        if (zk := self._source.zk) is None or not (execute and steps):
            return DoctorReport(findings, steps, kept, None)
        now = int(SystemClock().wall() * 1000)
        name = make_consumer_id(self._group, socket.gethostname(), now, random.SystemRandom().getrandbits(64))
        for step in steps:
            await take_step(zk, self._group, step, name=name, dialect=snapshot.snapshot.dialect)
        return DoctorReport(findings, steps, kept, await self._remaining(kept))

    async def _examine(self, interval: float) -> tuple[DiagnosisInput, list[GroupFinding]]:
        """The last snapshot taken, and the findings."""
        first = await self._source.diagnosis_input(self._group)
        if not interval or not first.snapshot.view.members:
            return first, diagnose_group(first)  # without members nothing moves
        await asyncio.sleep(interval)
        second = await self._source.diagnosis_input(self._group)
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
