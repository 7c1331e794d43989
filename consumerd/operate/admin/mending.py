"""The doctor's fixes: the steps that findings name, planned and taken.

Strategy: steps are made from findings first, so that a dry run shows what an execution does. Nodes go before the nudge,
because members do not watch owner nodes: only the nudge makes them claim the freed partitions. A node is deleted only
if it is still the one that was read, and has no children.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from consumerd.base.ports import ZooKeeper
from consumerd.net.zk.errors import BadVersion, NoNode, NotEmpty
from consumerd.operate.admin.errors import ChangedMeanwhileError, RefusedError
from consumerd.operate.admin.findings import Fix, GroupFinding, NudgeGroup, OffsetReset, Removal
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08, nudge_operations
from consumerd.wire.registry.values import format_offset

_NUDGES: Final = {Dialect.V07: NUDGE_VALUE, Dialect.V08: NUDGE_VALUE_V08}


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
