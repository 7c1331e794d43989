"""Events and actions of a membership that a broker coordinates.

Strategy: as `consumerd.group.events`: plain values, and a *ticket* for everything that takes time, answered once with
an event that carries it, or late, or never. Answers to tickets that are no longer waited for are ignored. The actions
of one list are begun in list order; those without a ticket take effect before the next event is handled. Eight
events and actions are shared with it (`consumerd.group.shared_events`).

Ring 0. Times are seconds on one monotonic clock. Source: spec 002, group membership; error codes by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from consumerd.base.partition import TopicPartition
from consumerd.group import shared_events

# Those of a group that ZooKeeper coordinates.
Failed = shared_events.Failed
Finished = shared_events.Finished
LeaseExpired = shared_events.LeaseExpired
SetTimer = shared_events.SetTimer
StopRequested = shared_events.StopRequested
SubscriptionChanged = shared_events.SubscriptionChanged
TimerFired = shared_events.TimerFired
Warn = shared_events.Warn


class _Event:
    __slots__ = ()


class _Action:
    __slots__ = ()


Event: TypeAlias = shared_events.MembershipEvent | _Event
Action: TypeAlias = shared_events.MembershipAction | _Action

# ---- Events -------------------------------------------------------------------------------------------------------


class Started(_Event, shared_events.Valueless):
    """The member starts."""


@dataclass(frozen=True, slots=True)
class OwnershipLost(_Event):
    """A commit was refused, or a sink reports another owner of the partition."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class TopicsRead(_Event):
    """Answers `ReadTopics`: the number of partitions of each topic, without topics that do not exist.

    `ids`: topic id -> name, of brokers that have ids. `denied`: topics that we may not see.
    """

    ticket: int
    partitions: Mapping[str, int]
    ids: Mapping[bytes, str] = field(default_factory=dict)
    denied: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as JoinGroup lists it for the leader. `metadata`: its subscription, in the consumer protocol."""

    member_id: str
    metadata: bytes
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Joined(_Event):
    """Answers `Join`: the group has a new generation (or still the one that it had).

    `members` is empty but for the leader. `rebalance_timeout` is the one that the broker uses for us: brokers of 0.9
    use the session timeout. `keep_assignment`: a leader that came back shall not assign again.
    """

    ticket: int
    generation: int
    member_id: str
    protocol: str
    leads: bool
    members: tuple[GroupMember, ...]
    rebalance_timeout: float
    keep_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced(_Event):
    """Answers `Sync`: our assignment, in the consumer protocol."""

    ticket: int
    assignment: bytes


class Confirmed(_Event, shared_events.Ticketed):
    """Answers `Heartbeat`: we are a member, and no rebalance has begun."""


@dataclass(frozen=True, slots=True)
class Assigned(_Event):
    """Answers `ConsumerHeartbeat`: we are a member, with this epoch.

    `assignment`: what is to be ours, numbers of partitions by topic id; None: as before. `interval`: seconds between
    heartbeats. `session_timeout`: the coordinator's, in seconds, where that is known and was asked for.
    """

    ticket: int
    member_id: str
    epoch: int
    interval: float
    assignment: Mapping[bytes, tuple[int, ...]] | None
    session_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Refused(_Event):
    """Answers `Join`, `Sync`, `Heartbeat`, `ConsumerHeartbeat` or `Leave` with a permanent error code.

    `retriable` codes (another coordinator, one that is loading) come as `Failed`. `member_id`: the one to join by,
    where the code says so.
    """

    ticket: int
    code: int
    member_id: str = ""


class Drained(_Event, shared_events.Ticketed):
    """Answers `Drain`: no handler holds anything of it, and what was handled is committed as far as possible."""


class Abandoned(_Event, shared_events.Ticketed):
    """Answers `Abandon`: no handler holds anything."""


class Left(_Event, shared_events.Ticketed):
    """Answers `Leave`."""


# ---- Actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadTopics(_Action):
    """Read the partitions of these topics, or of all with None. Answers: TopicsRead, Failed."""

    ticket: int
    topics: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Join(_Action):
    """JoinGroup. `protocols`: names of assignors with our metadata for each. Answers: Joined, Refused, Failed."""

    ticket: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Sync(_Action):
    """SyncGroup. `assignments`: the share of each member, from the leader. Answers: Synced, Refused, Failed."""

    ticket: int
    generation: int
    member_id: str
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Heartbeat(_Action):
    """Heartbeat. Answers: Confirmed, Refused, Failed."""

    ticket: int
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(_Action):
    """ConsumerGroupHeartbeat with all that a member says. `epoch` 0 joins. Answers: Assigned, Refused, Failed.

    `pattern`: of RE2, for the coordinator to match; None: none, and there was none. `owned`: by topic id.
    """

    ticket: int
    member_id: str
    epoch: int
    topics: tuple[str, ...]
    pattern: str | None
    owned: Mapping[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Leave(_Action):
    """LeaveGroup, or a heartbeat with an epoch below 0. Answers: Left, Refused, Failed."""

    ticket: int
    member_id: str
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class StartConsuming(_Action):
    """Begin the flow of these partitions, which are ours in the generation that `session_id` stands for."""

    partitions: tuple[TopicPartition, ...]
    session_id: int


@dataclass(frozen=True, slots=True)
class Drain(_Action):
    """Stop fetching these partitions (None: all), let handlers end until `deadline`, commit. Answer: Drained."""

    ticket: int
    deadline: float
    partitions: frozenset[TopicPartition] | None = None


class Settled(_Action, shared_events.Valueless):
    """The partitions that flow are those assigned, which differ from those at the last time; there may be none."""


class Abandon(_Action, shared_events.Ticketed):
    """Cancel all handlers, commit nothing. Takes over from a `Drain` that is under way. Answer: Abandoned."""


class Forget(_Action, shared_events.Ticketed):
    """The request of this ticket is obsolete: cancel it."""


@dataclass(frozen=True, slots=True)
class Refuse(_Action):
    """The group rejects us with this error code; the machine leaves."""

    code: int
