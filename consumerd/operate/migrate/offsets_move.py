"""A move of a group's committed offsets between two open clusters: are they translated, and what would be written?

Strategy: two sides that have a broker in common are one cluster, whose offsets keep their numbers. Offsets of Kafka 0.7
are byte positions and are always translated. Everything else the user has to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from consumerd.base.errors import BrokerError, ConsumerdError, ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.connect import Connector
from consumerd.operate.admin.logs import BrokerLogs, LogRange
from consumerd.operate.admin.snapshot import GroupSnapshot, V07GroupSnapshot, read_v07_snapshot
from consumerd.operate.admin.v08.group_source import GroupSource
from consumerd.operate.migrate.offsets_plan import MovePlan, MovePlanner


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


@dataclass(frozen=True, slots=True)
class OffsetsSide:
    """One side of a move. Exactly one of `groups` (0.8 and later) and `zk` (0.7) is there."""

    #: Connects to brokers of 0.7.
    connect: Connector
    groups: GroupSource | None = None
    zk: ZooKeeper | None = None
    #: Of the brokers of 0.8 and later; None where none can be reached.
    client: ClusterClient | None = None

    async def snapshot(self, group: str) -> GroupSnapshot:
        """A snapshot of the group. Raises NotFoundError, BrokerError, ZooKeeperError."""
        if self.groups is not None:
            return await self.groups.snapshot(group)
        assert self.zk is not None
        return await read_v07_snapshot(self.zk, group)

    async def empty(self, snapshot: GroupSnapshot, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those of `partitions` whose logs are known to be empty."""
        if self.groups is not None:
            ranges = await self.groups.logs.ranges(partitions)
        else:
            assert isinstance(snapshot, V07GroupSnapshot)
            ranges = await BrokerLogs(snapshot.brokers, self.connect).ranges(partitions)
        return {each for each, known in ranges.items() if isinstance(known, LogRange) and not known.size}


async def plan_move(old: OffsetsSide, new: OffsetsSide, target: GroupSource, request: MoveRequest) -> MovePlan:
    """Plan the move from `old` to `new`, whose groups are `target`.

    Raises TranslationChoiceError, NotFoundError, BrokerError, ZooKeeperError.
    """
    snapshot = await old.snapshot(request.group)
    planner = MovePlanner(
        snapshot,
        target,
        request.to_group,
        rename=lambda topic: request.renames.get(topic, topic),
        topics=request.topics or None,
    )
    if not await _translates(old, target, request.translate):
        return await planner.keep_numbers()
    if new.client is None:
        raise BrokerError(
            "offsets are translated by the target's messages, but none of its brokers can be reached: check that they "
            "run, and their addresses"
        )
    empty = await old.empty(snapshot, planner.committed)
    return await planner.translate(TargetLog(new.client), cluster=request.source, empty=empty)


async def _translates(old: OffsetsSide, target: GroupSource, choice: bool | None) -> bool:
    """Whether offsets have to be translated. Raises TranslationChoiceError where the clusters do not tell."""
    if old.groups is None:
        if choice is False:
            raise TranslationChoiceError("--same-numbers cannot be used with Kafka 0.7: its offsets are byte positions")
        return True
    if choice is not None:
        return choice
    ours, theirs = await old.groups.addresses(), await target.addresses()
    if set(ours.values()) & set(theirs.values()):
        return False
    raise TranslationChoiceError(
        "the two sides have no broker in common: give --translate if messages were forwarded from one to the other, or "
        "--same-numbers if the target is a copy with the same offsets (or the same cluster by other addresses)"
    )
