"""The states of a member and of its partitions, every transition between them, and the times that it keeps.

Strategy: three small tables, looked up and never bypassed; a pair that is not in a table is a defect and raises. What
is *done* on a transition is in `consumerd.group.membership`, in one place per action.

# Theory of operation

A member is described by three kinds of state which change independently of each other:

- its *link*, one for the process: whether there is a session, and whether it is connected;
- its *phase*, one for the process: whether its id node is in the group, and whether it is leaving;
- the state of claiming, consuming and giving up each of its partitions.

Keeping them apart is what keeps them small: a suspended connection, say, touches neither phase nor partitions; it only
holds back actions that need ZooKeeper until the link is up again.

The machine is level-triggered. An event moves a state, nothing more. Then everything that the states now allow is
begun, from facts alone: the link, the phase, the *target* (which stream of ours is to have which partition, as the last
snapshot and the formula say) and the partitions' states. It does not matter which event it was, so it does not matter
when events are late, doubled or lost: the next snapshot leads to the same actions. These are the rules:

1. A snapshot comes first. It shows whether the group may be joined at all; without our id node in it we register
   before anything else; with it, it gives the target.
2. A partition that is consumed and is not in the target with the same stream is drained, then released. One that is,
   is left alone: no release, no pause. One that returns to the target while it is drained is simply
   started again. A change of stream counts as giving up and claiming, since the owner node names the stream.
3. Nothing is claimed while anything is being drained or released. So each member releases what the others wait for
   before it waits itself, and no cycle of members can wait for each other.
4. A claim that is blocked is made again when the node in the way has gone, and now and then besides, from a fresh
   snapshot, without end. All that was claimed stays claimed.
5. At most one action is under way for a partition. Its answer, recognised by the ticket, decides what comes next.
6. What is due for several partitions at one moment is one action with all of them.
7. A member of another dialect keeps us out of a group. One that registers after us changes nothing of what is
   held.

Why two members never deliver the same partition: StartConsuming only follows Claimed, and ZooKeeper lets one session
create the owner node. Release only follows Drained (or Abandoned), when no handler holds anything. And when the session
ends instead, the lease, counted from the last ping that was *sent*, has run out before: the runner delivers nothing
after that, and LeaseExpired or SessionExpired ends what handlers still hold. The one gap is a peer that deletes
our node by path (notes on mixed groups); it is open until the watch on the node, the commit's fence or the next
snapshot reports it, and then the partition is abandoned.

The state DOUBTFUL covers all uncertain cases (lost replies, abandoned partitions): nothing of ours runs, and the
owner node may or may not be ours. Both next actions are safe in either case: Claim confirms the node or is blocked,
Release deletes it only if it is ours.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from consumerd.base.settings.group import RebalanceSection
from consumerd.base.settings.setting import Tuned


class MembershipSettings(RebalanceSection):
    """How partitions move between members."""

    # M1 to M5 are the rules measured beside JVM members (notes on mixed groups). All drains of one rebalance end
    # `drain_timeout` after its trigger (M2: a JVM peer looks for the last time after 6 s), or, where that is over
    # before the first snapshot shows what to drain, that long after the snapshot. `retry_interval` is also that
    # between attempts to claim what others still hold (M1), to register, and after a failure.
    #: Longest time between attempts, which double from `retry_interval`: a watch on what is in the way tells sooner.
    retry_interval_max: float = Tuned(2.0)
    #: Between two snapshots, half of it more or less, so that a burst of changes costs a few and not one each. The
    #: first change after a quiet time is looked at without delay.
    settle: float = Tuned(0.1)
    #: A release later than this after the trigger is followed by a nudge (M3).
    nudge_after: float = Tuned(5.0)
    #: A peer that has not claimed its own after this long has given up (a JVM member: 8 s after the trigger).
    patience: float = Tuned(10.0)


class Link(Enum):
    """The ZooKeeper session."""

    #: No session.
    NONE = "none"
    #: Connected.
    UP = "up"
    #: Disconnected; the session may be alive.
    SUSPENDED = "suspended"


class LinkCause(Enum):
    """The cause of a link's transition."""

    STARTED = "started"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    EXPIRED = "expired"


LINK: dict[tuple[Link, LinkCause], Link] = {
    (Link.NONE, LinkCause.STARTED): Link.UP,
    (Link.UP, LinkCause.SUSPENDED): Link.SUSPENDED,
    (Link.SUSPENDED, LinkCause.RESUMED): Link.UP,
    (Link.UP, LinkCause.EXPIRED): Link.NONE,
    (Link.SUSPENDED, LinkCause.EXPIRED): Link.NONE,
    # Events that do not change the state.
    (Link.NONE, LinkCause.SUSPENDED): Link.NONE,
    (Link.NONE, LinkCause.EXPIRED): Link.NONE,
    (Link.SUSPENDED, LinkCause.SUSPENDED): Link.SUSPENDED,
    (Link.UP, LinkCause.RESUMED): Link.UP,
}


class Phase(Enum):
    """The phase of a membership."""

    #: Not registered, as far as we know; a snapshot decides what to do.
    OUTSIDE = "outside"
    #: Creating the id node.
    REGISTERING = "registering"
    #: Our id node exists.
    MEMBER = "member"
    #: Releasing everything, then unregistering.
    LEAVING = "leaving"
    #: Over.
    LEFT = "left"


class PhaseCause(Enum):
    """The cause of a phase's transition."""

    #: A snapshot without our id node under our session; registration begins.
    UNLISTED = "unlisted"
    #: A snapshot with our id node under our session.
    LISTED = "listed"
    REGISTERED = "registered"
    #: Registration was blocked, or its outcome is unknown.
    NOT_REGISTERED = "not registered"
    SESSION_LOST = "session lost"
    STOP = "stop"
    #: Nothing is held and nothing registered any more.
    GONE = "gone"


PHASE: dict[tuple[Phase, PhaseCause], Phase] = {
    (Phase.OUTSIDE, PhaseCause.UNLISTED): Phase.REGISTERING,
    (Phase.OUTSIDE, PhaseCause.LISTED): Phase.MEMBER,
    (Phase.REGISTERING, PhaseCause.REGISTERED): Phase.MEMBER,
    (Phase.REGISTERING, PhaseCause.NOT_REGISTERED): Phase.OUTSIDE,
    (Phase.MEMBER, PhaseCause.LISTED): Phase.MEMBER,
    (Phase.MEMBER, PhaseCause.UNLISTED): Phase.REGISTERING,
    (Phase.OUTSIDE, PhaseCause.SESSION_LOST): Phase.OUTSIDE,
    (Phase.REGISTERING, PhaseCause.SESSION_LOST): Phase.OUTSIDE,
    (Phase.MEMBER, PhaseCause.SESSION_LOST): Phase.OUTSIDE,
    (Phase.LEAVING, PhaseCause.SESSION_LOST): Phase.LEAVING,
    (Phase.OUTSIDE, PhaseCause.STOP): Phase.LEAVING,
    (Phase.REGISTERING, PhaseCause.STOP): Phase.LEAVING,
    (Phase.MEMBER, PhaseCause.STOP): Phase.LEAVING,
    (Phase.LEAVING, PhaseCause.STOP): Phase.LEAVING,
    (Phase.LEAVING, PhaseCause.REGISTERED): Phase.LEAVING,
    (Phase.LEAVING, PhaseCause.NOT_REGISTERED): Phase.LEAVING,
    (Phase.LEAVING, PhaseCause.GONE): Phase.LEFT,
}


class Hold(Enum):
    """The state of one partition at a member."""

    #: Nothing (such partitions are not kept anywhere).
    FREE = "free"
    #: Creating the owner node.
    CLAIMING = "claiming"
    #: The node is ours; nothing runs.
    OWNED = "owned"
    #: The node is ours; fetching and delivering.
    CONSUMING = "consuming"
    #: The node is ours; the handler finishes what it holds.
    DRAINING = "draining"
    #: Deleting the owner node; nothing runs.
    RELEASING = "releasing"
    #: Nothing runs; the node may be ours or not.
    DOUBTFUL = "doubtful"
    #: The handler is being cancelled; the node may be ours or not.
    ABANDONING = "abandoning"
    #: The handler is being cancelled; the node went with its session.
    ORPHANED = "orphaned"


class HoldCause(Enum):
    """The cause of a partition's transition."""

    CLAIM = "claim"
    CLAIMED = "claimed"
    BLOCKED = "blocked"
    START = "start"
    DRAIN = "drain"
    DRAINED = "drained"
    RELEASE = "release"
    RELEASED = "released"
    #: The outcome of a claim or a release is unknown.
    FAILED = "failed"
    #: The node is not ours any more, or the lease is over.
    LOST = "lost"
    ABANDONED = "abandoned"
    SESSION_LOST = "session lost"


HOLD: dict[tuple[Hold, HoldCause], Hold] = {
    (Hold.FREE, HoldCause.CLAIM): Hold.CLAIMING,
    (Hold.DOUBTFUL, HoldCause.CLAIM): Hold.CLAIMING,
    (Hold.CLAIMING, HoldCause.CLAIMED): Hold.OWNED,
    (Hold.CLAIMING, HoldCause.BLOCKED): Hold.FREE,
    (Hold.CLAIMING, HoldCause.FAILED): Hold.DOUBTFUL,
    (Hold.OWNED, HoldCause.START): Hold.CONSUMING,
    (Hold.CONSUMING, HoldCause.DRAIN): Hold.DRAINING,
    (Hold.DRAINING, HoldCause.DRAINED): Hold.OWNED,
    (Hold.OWNED, HoldCause.RELEASE): Hold.RELEASING,
    (Hold.DOUBTFUL, HoldCause.RELEASE): Hold.RELEASING,
    (Hold.RELEASING, HoldCause.RELEASED): Hold.FREE,
    (Hold.RELEASING, HoldCause.FAILED): Hold.DOUBTFUL,
    (Hold.CONSUMING, HoldCause.LOST): Hold.ABANDONING,
    (Hold.DRAINING, HoldCause.LOST): Hold.ABANDONING,
    (Hold.OWNED, HoldCause.LOST): Hold.DOUBTFUL,
    (Hold.ABANDONING, HoldCause.ABANDONED): Hold.DOUBTFUL,
    (Hold.ORPHANED, HoldCause.ABANDONED): Hold.FREE,
    (Hold.CLAIMING, HoldCause.SESSION_LOST): Hold.FREE,
    (Hold.OWNED, HoldCause.SESSION_LOST): Hold.FREE,
    (Hold.CONSUMING, HoldCause.SESSION_LOST): Hold.ORPHANED,
    (Hold.DRAINING, HoldCause.SESSION_LOST): Hold.ORPHANED,
    (Hold.RELEASING, HoldCause.SESSION_LOST): Hold.FREE,
    (Hold.DOUBTFUL, HoldCause.SESSION_LOST): Hold.FREE,
    (Hold.ABANDONING, HoldCause.SESSION_LOST): Hold.ORPHANED,
}


State = TypeVar("State", bound=Enum)
Cause = TypeVar("Cause", bound=Enum)


def follow(table: dict[tuple[State, Cause], State], state: State, cause: Cause) -> State:
    """Return the state after `state`. Raises RuntimeError for a transition that does not exist: a defect."""
    after = table.get((state, cause))
    if after is None:
        raise RuntimeError(f"no transition from {state} by {cause}")
    return after
