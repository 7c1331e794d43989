"""How many requests an event may cost ZooKeeper, all members together: the one place where that is written down.

Derivation, for a group of M members (before a join, after a leave), t nodes of T topics on b brokers. What has been
read is not read again until its watch fires; so an event costs what changed, at each member that watches it:

- A member that starts reads members and brokers to find the dialect, brokers to find their addresses, and members,
  topics and their nodes to find its share: 2 M + 2 b + T + t, and some twenty for session, registration and the look
  behind it.
- Each other member reads the list of ids, and the node of whoever is new: 2 for a join, 1 for a leave.
- A topic's node that changes is read by each member: 1.
- A partition that moves is read by its new owner when somebody's node is in the way, once a second while that drains,
  and when it is its own; then its offset is read. With drains that end within their deadline of 4 s that is 8 at most.
- Writes go in multis of about 50 partitions each: claiming (twice: before and after the other's release), releasing,
  committing (again after a refusal, parents missing), beginning; 6 for each member that takes part, and one more
  of each kind for each 50 partitions.
- A node that is written again and again is read by each member once per settling time, 0.05 s at its shortest.
- The first offset and owner node of a topic cost the parents: 4 by each member that tries.

Heartbeats, commits on the interval and reconciliations come besides.
"""

from __future__ import annotations

from math import ceil

#: Kinds of requests that come without an event.
HEARTBEATS = frozenset({"ping", "sync"})
#: Of one partition that changes hands.
PER_MOVED = 8
#: Of a new session, its member's registration and the look behind it.
PER_START = 20
_PER_MULTI = 50
_KINDS_OF_MULTIS = 6
_PARENTS = 4
_SETTLE = 0.05


def of_join(members: int, moved: int, *, topics: int, nodes: int, brokers: int) -> int:
    """One member more, beside `members`; `nodes` are those below topics."""
    start = PER_START + 2 * members + 2 * brokers + topics + nodes
    return start + 2 * members + of_moves(moved, members + 1, topics=topics)


def of_leave(members: int, moved: int, *, topics: int) -> int:
    """One member less, in order; `members` stay. It looks at its nodes, deletes them and closes the session."""
    return 4 + members + of_moves(moved, members + 1, topics=topics)


def of_partitions(members: int, moved: int, *, topics: int) -> int:
    """The node of one topic says another number of partitions; those that are new count as moved."""
    return members + of_moves(moved, members, topics=topics)


def of_burst(members: int, seconds: float) -> int:
    """One node that is written without end for so long: each member looks once per settling time, at its shortest."""
    return members * (3 + ceil(seconds / _SETTLE))


def of_moves(moved: int, members: int, *, topics: int) -> int:
    """Partitions that change hands among `members`."""
    if not moved:
        return 0
    taking_part = min(members, 2 * moved)
    multis = _KINDS_OF_MULTIS * (taking_part + ceil(moved / _PER_MULTI))
    return PER_MOVED * moved + multis + _PARENTS * topics * taking_part
