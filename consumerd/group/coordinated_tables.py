"""The states of a member of a group that a broker coordinates, every transition between them, and its settings.

Strategy: one table, looked up and never bypassed; a pair that is not in it is a defect and raises. What is *done* in a
state is in `consumerd.group.coordinated`.

# Theory of operation

The coordinator counts generations. A generation begins when all members have joined, or the time for it is up; one of
them, the leader, assigns the partitions (ASSIGNING), all receive their share (SYNCING), and then the group is stable
(STABLE) until a member joins, leaves, stops its heartbeats or subscribes differently. The response to a heartbeat
reports that. Then every member releases everything (DRAINING), and only then joins again: that is the eager protocol.

These are the rules:

1. Join is only sent while nothing is held, not even by a handler that is being cancelled. So is Leave.
2. A drain ends before the coordinator stops waiting for us. It cannot have begun a rebalance before it answered the
   last heartbeat that reported none, hence not before that one was sent: our rebalance timeout counts from there.
3. The lease counts from the *sending* of a request that was answered well (SyncGroup first, then heartbeats), because
   the coordinator counts from its arrival, which is later. It ends after the session timeout, or with the rebalance
   timeout of rule 2, whichever is first: a rebalance may have begun and ended while no answer reached us. With the
   lease, everything is abandoned (ABANDONING), and the member joins again.
4. A member that the coordinator rejects (unknown id, another generation) abandons everything: others own it now.
5. Partitions begin to flow when the lease is fresh: a follower may have waited for its share almost as long as the
   lease lasts, and then first finds out whether it is still a member.
6. The leader refreshes the topics of all members from time to time, every other member those that its pattern
   matches. A difference from the assigned topics, or from those that matched, is a reason to join again.
7. Heartbeats are sent each second for a while after a generation has begun: changes come in a row, as members start or
   are restarted one after the other, and each waits until the last member's heartbeat is answered.

Why two members never deliver the same partition: a later generation begins when the former owner has joined again or
left (it holds nothing: rule 1), or was dropped for its silence or slowness (its lease is over: rule 3). The remaining
gap is the broker's: one that was cut off from its cluster may answer heartbeats for a group that another coordinates by
now. Commits then are refused, since they need a quorum.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from consumerd.base.settings.group import CoordinatedSection, RebalanceSection
from consumerd.base.settings.setting import Tuned
from consumerd.group.membership_tables import MembershipSettings


class Phase(Enum):
    """The phase of a member, of either protocol."""

    #: Nothing is held and nothing under way, except perhaps a topic refresh; joining is next.
    OUTSIDE = "outside"
    JOINING = "joining"
    #: We lead, and read the topics to assign.
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    #: We have our share, or what is assigned flows as soon as its topic is known; we send heartbeats.
    STABLE = "stable"
    #: Handlers finish what they hold of partitions that the coordinator has revoked.
    RECONCILING = "reconciling"
    #: Those are released; the coordinator does not know it yet.
    ACKNOWLEDGING = "acknowledging"
    #: Handlers finish what they hold, to join again or to leave. We are still a member, and send heartbeats.
    DRAINING = "draining"
    #: Handlers are being cancelled; we are not a member.
    ABANDONING = "abandoning"
    LEAVING = "leaving"
    LEFT = "left"


class Cause(Enum):
    """The cause of a member's transition."""

    JOIN = "join"
    #: The generation has begun, and we follow or lead.
    FOLLOW = "follow"
    LEAD = "lead"
    ASSIGNED = "assigned"
    SYNCED = "synced"
    #: By the consumer protocol: we are a member.
    JOINED = "joined"
    #: An answer does not name a partition that is held.
    REVOKED = "revoked"
    RELEASED = "released"
    ACKNOWLEDGED = "acknowledged"
    #: Join again: a rebalance, or topics that changed.
    REJOIN = "rejoin"
    #: We are not a member (any more), or that is unknown; nothing flows.
    OUT = "out"
    #: The same, while something flows.
    LOST = "lost"
    EMPTY = "empty"
    STOP = "stop"
    GONE = "gone"


PHASES: dict[tuple[Phase, Cause], Phase] = {
    (Phase.OUTSIDE, Cause.JOIN): Phase.JOINING,
    (Phase.JOINING, Cause.FOLLOW): Phase.SYNCING,
    (Phase.JOINING, Cause.LEAD): Phase.ASSIGNING,
    (Phase.JOINING, Cause.OUT): Phase.OUTSIDE,
    (Phase.ASSIGNING, Cause.ASSIGNED): Phase.SYNCING,
    (Phase.SYNCING, Cause.SYNCED): Phase.STABLE,
    (Phase.SYNCING, Cause.OUT): Phase.OUTSIDE,
    (Phase.STABLE, Cause.REJOIN): Phase.DRAINING,
    (Phase.STABLE, Cause.LOST): Phase.ABANDONING,
    (Phase.DRAINING, Cause.LOST): Phase.ABANDONING,
    (Phase.DRAINING, Cause.EMPTY): Phase.OUTSIDE,
    (Phase.ABANDONING, Cause.EMPTY): Phase.OUTSIDE,
    # A stop passes through DRAINING; a member with nothing to drain leaves at once.
    (Phase.STABLE, Cause.STOP): Phase.DRAINING,
    (Phase.OUTSIDE, Cause.STOP): Phase.LEAVING,
    (Phase.JOINING, Cause.STOP): Phase.LEAVING,
    (Phase.ASSIGNING, Cause.STOP): Phase.LEAVING,
    (Phase.SYNCING, Cause.STOP): Phase.LEAVING,
    (Phase.LEAVING, Cause.GONE): Phase.LEFT,
}

#: The phases of a member that sends heartbeats.
MEMBER = frozenset({Phase.STABLE, Phase.RECONCILING, Phase.ACKNOWLEDGING, Phase.DRAINING})
#: Those in which it follows what the coordinator assigns.
FOLLOWING = MEMBER - {Phase.DRAINING}


#: The assignors of `consumerd.group.assignors` that a leader can use.
ASSIGNORS = frozenset({"range", "roundrobin"})


def all_assignors(dearest: str) -> tuple[str, ...]:
    """Return all of `ASSIGNORS`, `dearest` first: a member that offers all has one in common with any other."""
    return (dearest, *sorted(ASSIGNORS - {dearest}))


class CoordinationSettings(CoordinatedSection, RebalanceSection):
    """The keys of the group and of rebalances that such a membership has."""

    #: Longest time between attempts after a failure, which double from `retry_interval`.
    retry_interval_max: float = Tuned(MembershipSettings.retry_interval_max)
    #: Attempts to leave.
    leave_attempts: int = Tuned(3)
    #: The assignors that we support, preferred ones first.
    assignors: tuple[str, ...] = Tuned(factory=lambda settings: all_assignors(settings.assignor))

    def rules(self) -> Iterator[str]:
        """The rules about several values that are broken."""
        yield from super().rules()
        unknown = set(self.assignors) - ASSIGNORS
        if unknown or not self.assignors:
            yield f"assignors must be some of {sorted(ASSIGNORS)}, not {list(self.assignors)}"
