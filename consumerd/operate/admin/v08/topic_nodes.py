"""Topics created and deleted by nodes in ZooKeeper, as kafka-topics of 0.8 to 0.10 does; the controller watches them.

Strategy: settings and assignment are created in one transaction, so a topic is never half created. The controller then
reads the nodes and elects leaders, or deletes the topic; its result is polled until a timeout.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from consumerd.base.errors import NotFoundError
from consumerd.base.ports import Create, SetData, ZooKeeper
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.net.zk.errors import ConnectionLost, MultiFailed, NodeExists
from consumerd.operate.admin.editing import write_together
from consumerd.operate.admin.errors import ArgumentError, RefusedError
from consumerd.wire.registry.paths import delete_topic_path, topic_config_path, topic_path
from consumerd.wire.registry.v08.broker import BrokerNode
from consumerd.wire.registry.v08.topic import format_topic_assignment, format_topic_config

# A topic of Kafka 0.8 or later to create, and its replica assignment.
#
# Strategy: where no assignment is given, partitions are assigned to the brokers in turn from a random one on, and so
# are their first replicas; each further round of the brokers puts the other replicas one broker further away, so that
# those who lead together do not also follow together.

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


#: Version of the broker node from which on every broker takes requests for it (0.10.2).
_REQUESTS_SINCE: Final = 4
_LOOK_AGAIN: Final = 0.2


class TopicChanges(ABC):
    """Creates and deletes the topics of a cluster."""

    @abstractmethod
    async def create(self, plan: TopicPlan, *, timeout: float, check_only: bool = False) -> list[int]:
        """Create a topic; returns its partitions that have no leader yet after `timeout` seconds.

        `check_only`: only find out whether it could be created. Raises ArgumentError, and RefusedError or
        BrokerRefusedError, also for a topic that exists; BrokerError, ZooKeeperError.
        """

    @abstractmethod
    async def delete(self, topic: str, *, timeout: float) -> bool:
        """Delete a topic; returns whether the brokers have done so within `timeout` seconds.

        Raises NotFoundError, BrokerRefusedError, BrokerError, ZooKeeperError.
        """


class TopicsByNodes(TopicChanges):
    """Writes the nodes of topics in ZooKeeper. `brokers`: those that are registered.

    Raises NotFoundError without brokers, ArgumentError for brokers that create topics on request.
    """

    def __init__(self, zk: ZooKeeper, brokers: Mapping[int, BrokerNode]) -> None:
        if not brokers:
            raise NotFoundError("no broker is registered in ZooKeeper; check the chroot, and that brokers run")
        newest = max(brokers.values(), key=lambda broker: broker.version)
        if newest.version >= _REQUESTS_SINCE:
            raise ArgumentError(
                f"broker {newest.id} is of Kafka 0.10.2 or later, which creates and deletes topics on request: "
                "give --bootstrap-server instead of --zookeeper"
            )
        self._zk = zk
        self._brokers = brokers

    async def create(self, plan: TopicPlan, *, timeout: float, check_only: bool = False) -> list[int]:
        """As of `TopicChanges`. Raises RefusedError also for a topic that is about to be deleted."""
        assignment = self._assignment(plan)
        if check_only:
            return []
        await self._write(plan, assignment)
        view = V08ClusterView(self._zk)

        async def look() -> list[int]:
            found = await view.read_topics([plan.name])
            return [number for number, state in found.get(plan.name, {}).items() if state.leader is None]

        return await _settled(look, timeout)

    def _assignment(self, plan: TopicPlan) -> Assignment:
        if plan.assignment is not None:
            require_alive(plan.assignment, self._brokers.keys())
            return dict(plan.assignment)
        if plan.partitions is None or plan.replication is None:
            raise ArgumentError("a topic created through ZooKeeper needs --partitions and --replication-factor")
        return assign_replicas(list(self._brokers), plan.partitions, plan.replication, Random())

    async def _write(self, plan: TopicPlan, assignment: Assignment) -> None:
        zk, name = self._zk, plan.name
        if await zk.exists(delete_topic_path(name)) is not None:
            raise RefusedError(f"the topic {name!r} is marked for deletion: wait until the brokers have deleted it")
        config = format_topic_config(plan.config).encode()
        config_path, path = topic_config_path(name), topic_path(name)
        for parent in (config_path, path):
            await zk.ensure(parent.rpartition("/")[0])
        left_over = await zk.exists(config_path)
        settings = Create(config_path, config) if left_over is None else SetData(config_path, config)
        topic = Create(path, format_topic_assignment(assignment).encode())
        try:
            # Servers without multi get the settings first: the controller reads them when it sees the topic.
            await write_together(zk, [settings, topic])
        except MultiFailed as failure:
            if isinstance(failure.cause, NodeExists) and failure.index == 1:
                raise RefusedError(f"the topic {name!r} already exists") from failure
            raise

    async def delete(self, topic: str, *, timeout: float) -> bool:
        """As of `TopicChanges`: the topic is marked, also where the brokers do not delete it in time."""
        await self._mark(topic)

        async def look() -> list[int]:
            return [0] if await self._zk.exists(topic_path(topic)) is not None else []

        return not await _settled(look, timeout)

    async def _mark(self, topic: str) -> None:
        """Ask the controller to delete the topic, unless that was asked already."""
        zk = self._zk
        if await zk.exists(topic_path(check_topic_name(topic))) is None:
            raise NotFoundError(f"there is no topic {topic!r}; see `consumerd topics list`")
        path = delete_topic_path(topic)
        await zk.ensure(path.rpartition("/")[0])
        try:
            await zk.create(path, b"")
        except NodeExists:
            pass
        except ConnectionLost:  # where it was carried out, the controller may have deleted the mark with the topic
            if await zk.exists(topic_path(topic)) is not None and await zk.exists(path) is None:
                raise


async def _settled(look: Callable[[], Awaitable[list[int]]], timeout: float) -> list[int]:
    """The result of `look` once it is empty, or when the time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        left = await look()
        if not left or loop.time() >= deadline:
            return left
        await asyncio.sleep(_LOOK_AGAIN)
