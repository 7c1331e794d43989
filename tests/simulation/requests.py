"""The largest number of requests to ZooKeeper for each event, all members together: defined in this place only.

Derivation, for a group of M members (before a join, after a leave), t nodes of T topics on b brokers. What has been
read is not read again until its watch fires; so an event costs what changed, at each member that watches it:

- A member that starts reads members and brokers to find the dialect, brokers to find their addresses, and members,
  topics and their nodes to find its share: 2 M + 2 b + T + t, and 15 for session, registration and the look behind it,
  the first three of them to see that a cluster is there.
- Each other member reads the list of ids, and the node of a new member: 2 for a join, 1 for a leave.
- A topic's node that changes is read by each member: 1.
- A partition that moves costs its new owner 4 reads at most: when another owner's node exists, when it was deleted but
  another one of the same multi exists, when it is its own (which sets the watch), and the offset. While another owner's
  node exists it is also read once a second, without an event of the watch.
- Writes go in multis of 50 partitions each. Each member that takes part claims, begins, commits and releases; it claims
  once more for each former owner of what it takes, as their releases come one after the other. In a topic that is
  shared in runs those are 2 for each member. For each 50 partitions there is one more of each of the five.
- A member looks once in its life whether the parents of a topic's offset nodes stand: 1. Where they do not, each that
  looks reads the three nodes above and makes two: 5. Where those of owner nodes do not, a claim is refused, and the
  same follows: 7.
- A node that is written again and again is read by each member once per settling time, 0.05 s at its shortest.

Heartbeats, commits on the interval and reconciliations come besides.

The lower bound, which no member can go below that has a node of its own for each owner and each offset, and a watch on
each owner node: 2 reads of each partition that moves, one multi of each member that gives and one of each that takes,
and the reads of those who have to learn of the event, without what is read twice at a start.
"""

from __future__ import annotations

from math import ceil, floor

from consumerd.member.consumer.coordination import LOOK_AGAIN, NODES_PER_MULTI

#: Kinds of requests that come without an event.
HEARTBEATS = frozenset({"ping", "sync"})
#: Of one partition that changes hands at once.
PER_MOVED = 4
#: The smallest number of these: owner node and offset.
_LEAST_PER_MOVED = 2
#: Of a new session, its member's registration and the look behind it: all, and session, registration and two lists.
PER_START = 15
_LEAST_PER_START = 4
#: Of a member that leaves: it deletes its node and closes the session; it looks at the node if that changed.
_PER_END = 3
#: Claim, begin, commit, release; and again for each former owner.
_MULTIS = 4
#: The largest number of former owners of the partitions of a topic that one member takes.
_FORMER_OWNERS = 2
_PARENTS = 1
_PARENTS_MADE = 12
#: Seconds between two looks of a member at what changes without end.
_SETTLE = 0.05


def of_join(
    members: int, moved: int, topics: int, nodes: int, brokers: int, *, waited: float = 0.0, new_topics: int = 0
) -> int:
    """One member more, beside `members`; `nodes` are those below topics. For the rest see `of_moves`."""
    start = PER_START + 2 * members + 2 * brokers + topics + nodes
    return start + 2 * members + of_moves(moved, members + 1, topics, waited=waited, new_topics=new_topics)


def of_leave(members: int, moved: int, topics: int, *, waited: float = 0.0, new_topics: int = 0) -> int:
    """One member less, in order; `members` stay."""
    return _PER_END + members + of_moves(moved, members + 1, topics, waited=waited, new_topics=new_topics)


def of_partitions(members: int, moved: int, topics: int, *, waited: float = 0.0, new_topics: int = 0) -> int:
    """The node of one topic says another number of partitions; those that are new count as moved."""
    return members + of_moves(moved, members, topics, waited=waited, new_topics=new_topics)


def of_burst(members: int, seconds: float) -> int:
    """One node that is written without end for so long: each member looks once per settling time, at its shortest."""
    return members * (3 + ceil(seconds / _SETTLE))


def of_moves(moved: int, members: int, topics: int, *, waited: float = 0.0, new_topics: int = 0) -> int:
    """Partitions that change hands among `members`.

    `waited`: seconds for which their former owners' nodes existed, at most. `new_topics`: those without a committed
    offset.
    """
    if not moved:
        return 0
    taking_part = min(members, 2 * moved)
    again = min(moved, _FORMER_OWNERS * topics * taking_part)
    multis = _MULTIS * taking_part + again + (_MULTIS + 1) * ceil(moved / NODES_PER_MULTI)
    parents = (_PARENTS * topics + _PARENTS_MADE * new_topics) * taking_part
    return (PER_MOVED + floor(waited / LOOK_AGAIN)) * moved + multis + parents


def least_of_join(members: int, moved: int, topics: int, nodes: int, brokers: int) -> int:
    """The lower bound of `of_join`: it reads everything once, and the others what is new."""
    start = _LEAST_PER_START + members + brokers + topics + nodes
    return start + 2 * members + least_of_moves(moved)


def least_of_leave(members: int, moved: int) -> int:
    """The lower bound of `of_leave`: nothing but a delete or the end of the session, and the others' reads."""
    return 1 + members + least_of_moves(moved)


def least_of_partitions(members: int, moved: int) -> int:
    """The lower bound of `of_partitions`, where all partitions that move are new: there is no former owner."""
    return members + _LEAST_PER_MOVED * moved + ceil(moved / NODES_PER_MULTI)


def least_of_burst(members: int) -> int:
    """The lower bound of `of_burst`: each member looks what it says in the end."""
    return members


def least_of_moves(moved: int) -> int:
    """The lower bound of `of_moves`, where all partitions move from one member to another."""
    return _LEAST_PER_MOVED * moved + 2 * ceil(moved / NODES_PER_MULTI)
