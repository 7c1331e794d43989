"""A topic of Kafka 0.8 or later to create, and its replica assignment.

Strategy: where no assignment is given, partitions are assigned to the brokers in turn from a random one on, and so are
their first replicas; each further round of the brokers puts the other replicas one broker further away, so that those
who lead together do not also follow together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumerd.operate.admin.errors import ArgumentError

if TYPE_CHECKING:
    from random import Random

#: Replicas of each partition, by its number; the first is the preferred leader.
Assignment = dict[int, tuple[int, ...]]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create. `partitions` and `replication` None: the brokers' defaults. Raises ArgumentError."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    assignment: Assignment | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        if self.assignment is not None:
            check_assignment(self.assignment)


def check_topic_name(name: str) -> str:
    """Return `name` if it is a valid topic of 0.8 and later. Raises ArgumentError."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ArgumentError(
            f"{name[:300]!r} cannot be a topic: its name needs 1 to 249 letters, digits, dots, underscores and dashes"
        )
    return name


def check_assignment(assignment: Assignment) -> None:
    """Raise ArgumentError unless partitions are numbered from 0 on and have equally many, different replicas."""
    if not assignment or sorted(assignment) != list(range(len(assignment))):
        raise ArgumentError("the replica assignment must number its partitions from 0")
    for number, replicas in assignment.items():
        if not replicas or len(set(replicas)) < len(replicas) or len(replicas) != len(assignment[0]):
            raise ArgumentError(
                f"the replicas {list(replicas)} of partition {number} are not as many different brokers as those of "
                f"partition 0, {list(assignment[0])}"
            )


def require_alive(assignment: Assignment, alive: Collection[int]) -> None:
    """Raise ArgumentError where a broker of the assignment is not alive, which some brokers would accept."""
    unknown = {broker for replicas in assignment.values() for broker in replicas}.difference(alive)
    if unknown:
        raise ArgumentError(
            f"brokers {sorted(unknown)} of the assignment are not alive; live brokers are {sorted(alive)}"
        )


def assign_replicas(brokers: Sequence[int], partitions: int, replication: int, rng: Random) -> Assignment:
    """Assign `partitions` with `replication` replicas each to `brokers` (ids). Raises ArgumentError."""
    if partitions < 1 or replication < 1:
        raise ArgumentError(f"a topic must have at least 1 partition and 1 replica, not {partitions} and {replication}")
    if replication > len(brokers):
        raise ArgumentError(f"{replication} replicas need {replication} live brokers, but {len(brokers)} are alive")
    order = sorted(brokers)
    count = len(order)
    start, shift = rng.randrange(count), rng.randrange(count)
    assignment: Assignment = {}
    for number in range(partitions):
        first = (start + number) % count
        away = (shift + number // count) % max(count - 1, 1)
        others = [(first + 1 + (away + place) % (count - 1)) % count for place in range(replication - 1)]
        assignment[number] = tuple(order[place] for place in (first, *others))
    return assignment
