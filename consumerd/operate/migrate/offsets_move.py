"""A move of a group's committed offsets between two open clusters: are they translated, and what would be written?

Strategy: two sides that have a broker in common are one cluster, whose offsets keep their numbers. Offsets of Kafka 0.7
are byte positions and are always translated. Everything else the user has to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from consumerd.base.errors import BrokerError, ConsumerdError, ExitCode
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.offset_plans import OffsetPlan
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.migrate.offsets_plan import MovePlanner
from consumerd.wire.registry.dialect import Dialect


class TranslationChoiceError(ConsumerdError):
    """Whether offsets are to be translated is unknown, or the choice contradicts the clusters."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The offsets to move, and the options."""

    group: str
    #: The group's name on the target.
    to_group: str
    #: Only these topics; empty for all.
    topics: tuple[str, ...] = ()
    #: Topic -> its name on the target.
    renames: Mapping[str, str] = field(default_factory=dict)
    #: None: decided by the clusters.
    translate: bool | None = None
    #: The source's name in the headers of forwarded messages.
    source: str | None = None


async def plan_move(old: GroupSource, new: V08GroupSource, request: MoveRequest) -> OffsetPlan:
    """Plan the move from `old` to `new`. Raises TranslationChoiceError, NotFoundError, BrokerError, ZooKeeperError."""
    snapshot = await old.snapshot(request.group)
    planner = MovePlanner(
        snapshot,
        new,
        request.to_group,
        rename=lambda topic: request.renames.get(topic, topic),
        topics=request.topics or None,
    )
    if not await _translates(old, new, request.translate):
        return await planner.keep_numbers()
    if new.logs.client is None:
        raise BrokerError(
            "offsets are translated by the target's messages, but none of its brokers can be reached: check that they "
            "run, and their addresses"
        )
    ranges = await old.logs.ranges(planner.committed)
    empty = {each for each, known in ranges.items() if isinstance(known, LogRange) and not known.size}
    return await planner.translate(TargetLog(new.logs.client), cluster=request.source, empty=empty)


async def _translates(old: GroupSource, new: V08GroupSource, choice: bool | None) -> bool:
    """Whether offsets have to be translated. Raises TranslationChoiceError where the clusters do not tell."""
    if old.dialect is Dialect.V07:
        if choice is False:
            raise TranslationChoiceError("--same-numbers cannot be used with Kafka 0.7: its offsets are byte positions")
        return True
    if choice is not None:
        return choice
    ours, theirs = await old.addresses(), await new.addresses()
    if set(ours.values()) & set(theirs.values()):
        return False
    raise TranslationChoiceError(
        "the two sides have no broker in common: give --translate if messages were forwarded from one to the other, or "
        "--same-numbers if the target is a copy with the same offsets (or the same cluster by other addresses)"
    )
