"""Events and actions of a membership, whether ZooKeeper or a broker coordinates the group.

Strategy: in a module of their own, because a member of one kind does not import the events of the other: each class
takes half a millisecond of a start. The conventions are those of `consumerd.group.events`.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.wire.registry.subscription import Subscription


class MembershipEvent:
    """What happens to a member, or answers its actions."""

    __slots__ = ()


class MembershipAction:
    """What a member does."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Valueless:
    """An event or action that its class says all of."""


@dataclass(frozen=True, slots=True)
class Ticketed:
    """An event or action with a ticket and no more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class LeaseExpired(MembershipEvent):
    """The lease is over: ZooKeeper may have ended the session, or the coordinator the membership.

    Others may own our partitions from now on, so handlers have to stop. `SessionResumed` may still follow: the server
    may be slower than our cautious estimate. `session_id`: the session of the lease. The event may have waited in a
    queue behind the one that gave the member its next session.
    """

    session_id: int


class TimerFired(MembershipEvent, Valueless):
    """The time of the last `SetTimer` has come. A timer too early or too often does no harm."""


@dataclass(frozen=True, slots=True)
class SubscriptionChanged(MembershipEvent):
    """The member subscribes to other topics from now on: it registers again, and keeps partitions that stay its own."""

    subscription: Subscription


class StopRequested(MembershipEvent, Valueless):
    """Leave the group in order: drain, release, unregister. Repeated requests do no harm."""


class Failed(MembershipEvent, Ticketed):
    """The action was not performed, or it is unknown whether it was: no connection, no response, another session.

    Answers `TakeSnapshot`, `Register`, `Unregister` and coordinator requests. `Drain` and `Abandon` always succeed.
    """


@dataclass(frozen=True, slots=True)
class SetTimer(MembershipAction):
    """Send `TimerFired` at `at` (absolute). There is one timer: this replaces an earlier setting."""

    at: float


@dataclass(frozen=True, slots=True)
class Warn(MembershipAction):
    """Log a warning, once."""

    reason: str


class Finished(MembershipAction, Valueless):
    """The member has left: nothing is held, no node of ours is registered, no more actions follow."""
