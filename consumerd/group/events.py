"""Events and actions of a membership in ZooKeeper: what happens to a member, and what it does in response.

Strategy: plain values and nothing else. The machine (`consumerd.group.membership.ZooKeeperMember`) maps an event and
the time to a list of actions; its runner (`consumerd.member.consumer`) performs them. Three conventions make that safe:

- *Tickets.* Every action that takes time carries a `ticket`, a number never used before, and is answered with events
  that carry the same ticket. Answers may come in any order, and late or never when the session ended: the machine
  ignores what it no longer waits for.
- *Sets.* Actions on partitions carry all partitions for which the same is to be done at that moment, so that an action
  of one round trip for one partition takes a few for a thousand. `Claim` and `Release` are answered once, for all of
  them; what an answer leaves out has an unknown outcome. `Drain` and `Abandon` are answered in parts, as handlers end.
- *Sessions.* Every action that touches ZooKeeper carries the `session_id` on which it is valid. The runner performs it
  on that very session or answers `Failed`; it never moves an action over to a newer session.
- *Order.* The actions of one list are begun in list order; none waits for another to end, since what must come later
  is only asked for when its predecessor was answered. Actions without a ticket take effect before the next event is
  handled.

Ring 0. Times are seconds on one monotonic clock (the `now` of `ZooKeeperMember.handle`). Sources: spec 001 "Consumer
rebalancing algorithm"; golden notes, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from consumerd.base.partition import TopicPartition
from consumerd.group import shared_events
from consumerd.group.rules import Topics

# Those of a group that a broker coordinates, too.
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


@dataclass(frozen=True, slots=True)
class _TicketedPartitions:
    ticket: int
    partitions: frozenset[TopicPartition]


Event: TypeAlias = shared_events.MembershipEvent | _Event
Action: TypeAlias = shared_events.MembershipAction | _Action


@dataclass(frozen=True, slots=True)
class MembershipSnapshot:
    """The state of a group in ZooKeeper. The reads behind it need not be atomic.

    Watches are armed by the very reads (ids, topics, verified owner nodes, the own id node), so that a change after the
    read leads to `Triggered`.
    """

    #: Every child of `/consumers/G/ids` with its data, our own included. A child that vanished between listing and
    #: reading is left out.
    members: Mapping[str, bytes | str | None]
    #: The session that owns the id node named like us; None when there is no such node.
    own_id_session: int | None
    #: Topic -> broker -> the numbers of its partitions (`consumerd.group.rules.Topics`), for the requested topics. A
    #: topic that does not exist may be missing or empty.
    topics: Topics
    #: For each partition of `TakeSnapshot.verify`: the session that owns its owner node, None when it is gone.
    owner_sessions: Mapping[TopicPartition, int | None]
    #: Every partition of `topics` that has an owner node, of any member; None without `TakeSnapshot.list_owners`.
    claimed: frozenset[TopicPartition] | None = None


# ---- Events: the session ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionStarted(_Event):
    """A ZooKeeper session that did not exist before. The nodes of a former one are gone."""

    session_id: int


class SessionSuspended(_Event, shared_events.Valueless):
    """The connection is gone; the session may live on at the server."""


class SessionResumed(_Event, shared_events.Valueless):
    """Connected again, with the same session."""


class SessionExpired(_Event, shared_events.Valueless):
    """The session is over: its id node and owner nodes are gone or about to go."""


# ---- Events: from outside -----------------------------------------------------------------------------------------


class Triggered(_Event, shared_events.Valueless):
    """Something that the assignment depends on may have changed: a watch fired, or a poll saw a difference."""


@dataclass(frozen=True, slots=True)
class OwnershipLost(_Event):
    """The owner nodes of these are no longer ours, seen outside a snapshot: a commit was refused."""

    partitions: frozenset[TopicPartition]


# ---- Events: answers to actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotTaken(_Event):
    """Answers `TakeSnapshot`."""

    ticket: int
    snapshot: MembershipSnapshot


class Registered(_Event, shared_events.Ticketed):
    """Answers `Register`: our id node exists, and this session owns it."""


class RegistrationBlocked(_Event, shared_events.Ticketed):
    """Answers `Register`: a node of that name belongs to another session, dead or alive. It is waited for."""


class Unregistered(_Event, shared_events.Ticketed):
    """Answers `Unregister`: no id node of this session exists."""


@dataclass(frozen=True, slots=True)
class Claimed(_Event):
    """Answers `Claim`, once. Partitions in neither set may be ours or not: a reply was lost, the session changed."""

    ticket: int
    #: The owner node exists with the requested stream, and this session owns it.
    claimed: frozenset[TopicPartition]
    #: Another member's owner node (or one of our former session) is in the way.
    blocked: frozenset[TopicPartition]


class Drained(_Event, _TicketedPartitions):
    """Answers `Drain`, in parts: no handler holds anything of these, and what was handled is committed if possible."""


class Released(_Event, _TicketedPartitions):
    """Answers `Release`, once: these have no owner node of this session. For the others that is unknown."""


class Abandoned(_Event, _TicketedPartitions):
    """Answers `Abandon`, in parts: the handler has ended, nothing of these partitions is held any more."""


# ---- Actions: in ZooKeeper ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeSnapshot(_Action):
    """Read the group. Answer: `SnapshotTaken` or `Failed`. A newer one makes an older one pointless."""

    ticket: int
    session_id: int
    #: Our topics; None for all (a filter subscription). More are read where the share in one depends on others
    #: (`consumerd.group.rules.topics_to_read`).
    topics: frozenset[str] | None
    #: The partitions whose owner nodes have to be read.
    verify: frozenset[TopicPartition]
    #: Whether to list all owner nodes of the topics too (`MembershipSnapshot.claimed`).
    list_owners: bool


@dataclass(frozen=True, slots=True)
class Register(_Action):
    """Create the id node `/consumers/G/ids/C` as an ephemeral. Answer: `Registered`, `RegistrationBlocked`, `Failed`.

    The runner may wait for a node in the way before it answers `RegistrationBlocked`, and the machine asks again after
    the retry interval. How long a start waits for a configured id that another process holds is the runner's decision;
    a member that is stopping waits for the answer too, so the runner then cuts its own waiting short.
    """

    ticket: int
    session_id: int
    #: A node with our former subscription may exist: delete it in the same transaction.
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Unregister(_Action):
    """Delete our id node if this session owns it. Answer: `Unregistered` or `Failed`."""

    ticket: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Claim(_Action):
    """Create the owner nodes as ephemerals with the value `consumer_id-stream`. Never wait, never adopt.

    A node that this very session owns already (an earlier reply was lost) counts as created. Answer: `Claimed`.
    """

    ticket: int
    session_id: int
    #: Partition -> number of our stream.
    streams: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Release(_Action):
    """Delete the owner nodes that this session owns; nothing to delete is success. Answer: `Released`."""

    ticket: int
    session_id: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Nudge(_Action):
    """Create and delete a dummy id in one atomic multi, to wake members that gave up (no answer).

    Its data is `{ }`: empty data or a topic with zero streams would break every JVM peer's rebalance. A nudge that
    fails is repeated while the session lives and the member is not stopping: leaving wakes all members as well.
    """

    session_id: int


# ---- Actions: the flow of messages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartConsuming(_Action):
    """The partitions are ours: find their positions, fetch, deliver, commit on this session (no answer)."""

    session_id: int
    #: Partition -> number of our stream.
    streams: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Drain(_Action, _TicketedPartitions):
    """Stop fetching, let the handlers finish what they hold, commit, then answer `Drained`, as they end.

    At `deadline` (absolute) handlers are cancelled and their end awaited; what was handled until then is committed.
    """

    deadline: float


class Abandon(_Action, _TicketedPartitions):
    """Stop at once: no more fetching or delivering, cancel the handlers, do not commit, do not release.

    Also ends a `Drain` of these partitions, which is not answered for them. Answer: `Abandoned`, as handlers end.
    """


# ---- Actions: the rest --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RefuseGroup(_Action):
    """We cannot join this group (a foreign dialect). The member leaves by itself; `Finished` follows."""

    reason: str
