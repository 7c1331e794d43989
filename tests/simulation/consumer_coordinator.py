"""A model of a broker that coordinates a group of the consumer protocol (KIP-848): it assigns by itself.

Strategy: written from KIP-848, not from the machine: epochs, a target for each member, revocation before assignment,
session and rebalance timeouts, fencing. Time is looked at when a request comes, which no member can tell from timers.
All of it is in the brokers' log: another coordinator goes on with it, and gives every member its full time again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumerd.wire.v08.error_codes import ErrorCode

#: A partition, by the id of its topic.
Place = tuple[bytes, int]


@dataclass
class ConsumerGroupMember:
    """A member as the coordinator knows it."""

    #: Seconds for which it may keep what is revoked.
    rebalance_timeout: float
    instance: str | None = None
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous: int = 0
    #: Whether it is static, and left for a while.
    away: bool = False
    assigned: set[Place] = field(default_factory=set)
    #: What it has to release.
    pending: set[Place] = field(default_factory=set)
    heard: float = 0.0
    #: When it has to have released what is pending.
    patience: float | None = None


class ConsumerCoordinator:
    """One group. `topics`: each topic's id and number of partitions, at the moment. Times in seconds."""

    def __init__(
        self, now: Callable[[], float], topics: Callable[[], Mapping[str, tuple[bytes, int]]], *, session: float = 6.5
    ) -> None:
        self._now = now
        self._topics = topics
        self.session = session
        self.interval = 1.0
        self.members: dict[str, ConsumerGroupMember] = {}
        #: The group's epoch.
        self.generation = 0
        self.up = True
        self.offsets: dict[Any, int] = {}
        self._seen: Mapping[str, tuple[bytes, int]] = {}

    # -- requests

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        topics: tuple[str, ...],
        owned: set[Place],
        *,
        rebalance_timeout: float,
        instance: str | None = None,
    ) -> tuple[int, int, dict[bytes, list[int]]]:
        """ConsumerGroupHeartbeat: the error, the member's epoch, and what it is to own."""
        self._look()
        member = self.members.get(member_id)
        if epoch == 0:
            if (code := self._join(member_id, instance, rebalance_timeout)) != 0:
                return code, -1, {}
            member = self.members[member_id]
        elif member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, -1, {}
        elif epoch != member.epoch and not (epoch == member.previous and owned <= member.assigned):
            return ErrorCode.FENCED_MEMBER_EPOCH, -1, {}
        member.heard = self._now()
        if member.topics != topics:
            member.topics = topics
            self.generation += 1
        self._reconcile(member_id, member, owned)
        assignment: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(member.assigned):
            assignment.setdefault(topic_id, []).append(number)
        return 0, member.epoch, assignment

    def _join(self, member_id: str, instance: str | None, rebalance_timeout: float) -> int:
        former = next((name for name, each in self.members.items() if instance and each.instance == instance), None)
        if former is not None and former != member_id:
            if not self.members[former].away:
                return ErrorCode.UNRELEASED_INSTANCE_ID
            member = self.members[member_id] = self.members.pop(former)
            member.away = False
            self.generation += 1
        elif member_id not in self.members:
            self.members[member_id] = ConsumerGroupMember(rebalance_timeout, instance)
            self.generation += 1
        return 0

    def leave(self, member_id: str, epoch: int) -> int:
        """The same with an epoch below 0; the error."""
        self._look()
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == -2:
            self.members[member_id].away = True
        else:
            del self.members[member_id]
            self.generation += 1
        return 0

    def commit(self, member_id: str, epoch: int, offsets: dict[Any, int], reply: Any) -> None:
        """OffsetCommit: of a member with its present epoch, or of a client that is not a member of an empty group."""
        self._look()
        member = self.members.get(member_id)
        if member is None and (member_id or self.members):
            reply(ErrorCode.UNKNOWN_MEMBER_ID, {})
        elif member is not None and epoch != member.epoch:
            reply(ErrorCode.STALE_MEMBER_EPOCH, {})
        else:
            self.offsets.update(offsets)
            reply(0, {})

    # -- the group

    @property
    def stable(self) -> bool:
        """Whether every member has come to its target."""
        self._look()
        return all(
            member.epoch == self.generation and not member.pending and member.assigned == self._target(name)
            for name, member in self.members.items()
        )

    def owners(self) -> dict[Place, str]:
        """The member that may have each partition, also where it has to release it."""
        return {place: name for name, each in self.members.items() for place in each.assigned | each.pending}

    def _look(self) -> None:
        """See what time it is, and whether topics have changed."""
        now, topics = self._now(), dict(self._topics())
        for name, member in list(self.members.items()):
            late = member.patience is not None and now >= member.patience
            if self.up and (late or now - member.heard >= self.session):
                del self.members[name]
                self.generation += 1
        if topics != self._seen:
            self._seen = topics
            self.generation += 1

    def _target(self, name: str) -> set[Place]:
        target: set[Place] = set()
        for topic, (topic_id, count) in self._seen.items():
            wanting = sorted(each for each, member in self.members.items() if topic in member.topics)
            target |= {
                (topic_id, number) for number in range(count) if wanting and wanting[number % len(wanting)] == name
            }
        return target

    def _reconcile(self, name: str, member: ConsumerGroupMember, owned: set[Place]) -> None:
        target = self._target(name)
        if not member.pending & owned:
            member.pending, member.patience = set(), None
        revoked = member.assigned - target
        member.assigned -= revoked
        member.pending |= revoked & owned
        if member.pending:
            if member.patience is None:
                member.patience = self._now() + member.rebalance_timeout
            return
        if member.epoch != self.generation:
            member.previous, member.epoch = member.epoch, self.generation
        others = self.owners()
        member.assigned |= {place for place in target if others.get(place, name) == name}

    # -- another coordinator

    def go_down(self) -> None:
        """Nobody coordinates."""
        self.up = False

    def come_up(self) -> None:
        """Another broker coordinates: it gives every member its full time again."""
        self.up = True
        for member in self.members.values():
            member.heard = self._now()
            if member.patience is not None:
                member.patience = self._now() + member.rebalance_timeout
