"""`consumerd group doctor`: examine a group, fix what can be fixed from outside, and examine it again.

Strategy: two snapshots some time apart tell what persists and who works. Steps are made from findings first, so that a
dry run shows what an execution does. Nodes go before the nudge, because members do not watch owner nodes: only the
nudge makes them claim the freed partitions. A node is deleted only if it is still the one that was read, and has no
children. After a fix the group is examined until its members have acted on it, or the time for that is over.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.base.ports import ZooKeeper
from consumerd.net.zk.errors import BadVersion, NoNode, NotEmpty
from consumerd.operate.admin.diagnosis import diagnose_group
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.errors import ChangedMeanwhileError, RefusedError
from consumerd.operate.admin.findings import Fix, GroupFinding, NudgeGroup, OffsetReset, Removal
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08, nudge_operations
from consumerd.wire.registry.values import format_offset, make_consumer_id

#: Seconds that members have to act on a fix, and between the snapshots taken meanwhile.
SETTLING = 10.0
_PAUSE = 0.25
_NUDGES: Final = {Dialect.V07: NUDGE_VALUE, Dialect.V08: NUDGE_VALUE_V08}


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


def steps_for(snapshot: GroupSnapshot, findings: Iterable[GroupFinding], *, force: bool) -> list[Fix]:
    """The steps in order, each once: offsets, then safe removals (all of them with `force`), then one nudge.

    A group without members is not nudged.
    """
    findings = list(findings)
    removals = [finding.fix for finding in findings if isinstance(finding.fix, Removal) and (finding.fix.safe or force)]
    steps: list[Fix] = list(dict.fromkeys(removals))
    steps[:0] = [finding.fix for finding in findings if isinstance(finding.fix, OffsetReset)]
    if snapshot.view.members and (steps or any(isinstance(finding.fix, NudgeGroup) for finding in findings)):
        steps.append(NudgeGroup())
    return steps


def withheld(findings: Iterable[GroupFinding], *, force: bool) -> list[GroupFinding]:
    """The findings whose fix is not safe and was therefore not applied."""
    return [finding for finding in findings if isinstance(finding.fix, Removal) and not finding.fix.safe and not force]


def describe_step(step: Fix) -> str:
    """Return a phrase for a step, in the imperative."""
    if isinstance(step, OffsetReset):
        return f"set {step.path} from {step.before} to {step.after}"
    return "nudge the group" if isinstance(step, NudgeGroup) else f"delete {step.path}"


async def take_step(zk: ZooKeeper, group: str, step: Fix, *, name: str, dialect: Dialect = Dialect.V07) -> None:
    """Do one step. `name` is a consumer id of our own making, for the nudge's dummy; `dialect` that of the
    group.

    Raises ChangedMeanwhileError for a node that is another one by now, NotEmpty, and what ZooKeeper says.
    """
    if isinstance(step, NudgeGroup):
        if not zk.has_multi:
            raise RefusedError(
                f"group {group!r} cannot be nudged: this ZooKeeper is older than 3.4 and has no multi; restart one of "
                "the members instead."
            )
        await zk.multi(nudge_operations(group, name, _NUDGES[dialect]))
        return
    if isinstance(step, OffsetReset):
        try:
            await zk.set(step.path, format_offset(step.after).encode(), version=step.version)
        except (BadVersion, NoNode):
            raise ChangedMeanwhileError(
                f"{step.path} was committed or deleted meanwhile, so it was not set: run the command again"
            ) from None
        return
    stat = await zk.exists(step.path)
    if stat is None:
        return
    if step.created_zxid is not None and stat.created_zxid != step.created_zxid:
        raise ChangedMeanwhileError(
            f"{step.path} was created again meanwhile, so it was not deleted: run the command again"
        )
    if stat.children_count:
        raise NotEmpty(step.path)
    try:
        await zk.delete(step.path, version=stat.version)
    except NoNode:
        return
