"""The current state of a group in ZooKeeper, in either dialect: members, owners, offsets.

Strategy: the paths of the nodes are the same since 0.7; the format of a member's node and the name of a partition are
not, and come from the reader (`ClusterView`, `V08ClusterView`). A value that no peer writes is left out, with a line in
`GroupView.problems`, so that one damaged node does not hide the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import NotFoundError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import NodeStat, ZooKeeper
from consumerd.group.assignment import Assignment, assign
from consumerd.net.cluster.reading import children, data, node, read_broker_ids
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.other_clients import OwnerClaim, claimant, other_client
from consumerd.wire.registry.paths import (
    broker_ids_path,
    broker_path,
    check_name,
    consumers_path,
    group_path,
    id_path,
    ids_path,
    offset_path,
    offsets_path,
    offsets_root,
    owner_path,
    owners_path,
    owners_root,
)
from consumerd.wire.registry.subscription import Subscription
from consumerd.wire.registry.values import parse_offset, parse_owner

_T = TypeVar("_T")
#: A live broker, as the dialect has it.
_Broker = TypeVar("_Broker")

log = structlog.get_logger(__name__)


class LiveMember(NamedTuple):
    """A live member: the text of its node, and its meaning (None if no peer would understand it)."""

    text: str
    subscription: Subscription | None


@dataclass(slots=True)
class GroupView:
    """The state of a group. The reads behind it are not atomic."""

    group: str
    members: dict[str, LiveMember] = field(default_factory=dict)
    #: Partition -> (consumer id, stream number), from the owner nodes.
    owners: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    #: Partition -> the live member of another client that owns it; in `owners` there are none of these.
    claims: dict[TopicPartition, OwnerClaim] = field(default_factory=dict)
    #: Partition -> committed offset, also of partitions that exist no more.
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: Sentences about nodes that could not be understood.
    problems: list[str] = field(default_factory=list)
    #: The same by path: the problem of each node.
    faults: dict[str, str] = field(default_factory=dict)
    #: The stat of every node that was read, by path.
    stats: dict[str, NodeStat] = field(default_factory=dict)

    def subscribed(self, topics: Iterable[str]) -> list[str]:
        """Return those of `topics` to which at least one member subscribes."""
        wanted = [member.subscription for member in self.members.values() if member.subscription is not None]
        return [topic for topic in topics if any(subscription.streams_for(topic) for subscription in wanted)]

    def owned_by_member(self) -> Counter[str]:
        """Return how many partitions each owner has."""
        names = [name for name, _ in self.owners.values()]
        return Counter([*names, *(claim.consumer_id for claim in self.claims.values())])

    def other_clients(self) -> dict[str, str]:
        """Return the members that follow another assignment rule, each with the name of its client, or with ""."""
        found = {claim.consumer_id: "" for claim in self.claims.values()}
        for name, member in self.members.items():
            client = other_client(self.group, name, member.text)
            if client is not None:
                found[name] = client
        return dict(sorted(found.items()))

    def plan(self, topics: Mapping[str, Mapping[int, int]]) -> Assignment:
        """Return the partitions that the present members should own, without members that cannot be understood."""
        return assign(
            topics,
            {name: member.subscription for name, member in self.members.items() if member.subscription is not None},
        )


class GroupReader(Generic[_Broker]):
    """Reads through `zk`. Every method raises the errors of its calls (ZooKeeperError) and DialectError."""

    #: The Kafka whose dialect this is, for sentences.
    kafka: str
    #: Reads a member's node. Raises RegistryError.
    _subscription: Callable[[bytes], Subscription]
    #: Reads the partition from a topic and the name of an owner or offset node. Raises ValueError.
    _partition: Callable[[str, str], TopicPartition]
    #: Reads a broker's node. Raises RegistryError.
    _broker: Callable[[int, bytes], _Broker]

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    def _partition_of_other(self, topic: str, name: str) -> TopicPartition | None:
        """Read the partition from a name that only another client gives to an owner node; None: no client does."""
        return None

    async def read_brokers(self) -> dict[int, _Broker]:
        """Read the live brokers by id."""
        ids = await read_broker_ids(self._zk, broker_ids_path())
        texts = await read_all(ids, lambda broker: data(self._zk, broker_path(broker)))
        brokers = {}
        for broker, text in texts.items():
            if text is not None:
                try:
                    brokers[broker] = self._broker(broker, text)
                except DialectError:
                    raise
                except RegistryError as error:
                    log.warning("broker_unreadable", broker=broker, reason=reason_of(error))
        return brokers

    async def read_groups(self) -> list[str]:
        """Read the names of all groups that ever existed, sorted."""
        return await children(self._zk, consumers_path())

    async def read_group(self, group: str) -> GroupView:
        """Read members, owners and offsets. Raises NotFoundError for a group that never existed."""
        view = await self._existing(group)
        names = _named(view, ids_path(group), "consumer id", await children(self._zk, ids_path(group)))
        for name, text in (await self._texts(view, names, lambda name: id_path(group, name))).items():
            view.members[name] = self._member(view, name, text)
        sessions = {name: view.stats[id_path(group, name)].ephemeral_owner for name in view.members}
        owners = await self._partitions(view, owners_root(group), lambda topic: owners_path(group, topic))
        for partition, text in (await self._texts(view, owners, lambda tp: owner_path(group, tp))).items():
            if not _claimed(view, sessions, partition, owner_path(group, partition), text):
                _keep(view, view.owners, partition, owner_path(group, partition), text, parse_owner)
        await self._read_others(view, sessions)
        await self._read_offsets(view, ())
        return view

    async def read_committed(self, group: str, topics: Collection[str]) -> GroupView:
        """Read the offsets of `topics`, of all without any, and nothing else of the group. Raises NotFoundError."""
        view = await self._existing(group)
        await self._read_offsets(view, topics)
        return view

    async def _existing(self, group: str) -> GroupView:
        """Return a view that is still empty. Raises NotFoundError."""
        if await self._zk.exists(group_path(group)) is None:
            raise NotFoundError(f"there is no group {group!r} in ZooKeeper; `group list` shows those that are")
        return GroupView(group)

    async def _read_offsets(self, view: GroupView, only: Collection[str]) -> None:
        group = view.group
        found = await self._partitions(view, offsets_root(group), lambda topic: offsets_path(group, topic), only)
        for partition, text in (await self._texts(view, found, lambda tp: offset_path(group, tp))).items():
            _keep(view, view.offsets, partition, offset_path(group, partition), text, parse_offset)

    async def _partitions(
        self, view: GroupView, root: str, below: Callable[[str], str], only: Collection[str] = ()
    ) -> list[TopicPartition]:
        """Read the partitions named by the grandchildren of `root`, in the order of topics and 0.7's order of names.

        `only`: those of these topics, if there are any.
        """
        named = await children(self._zk, root)
        topics = _named(view, root, "topic", [name for name in named if not only or name in only])
        names = await read_all(topics, lambda topic: children(self._zk, below(topic)))
        partitions = []
        for topic in topics:
            for name in names[topic]:
                try:
                    partitions.append(self._partition(topic, name))
                except ValueError as error:
                    path = f"{below(topic)}/{name}"
                    view.faults[path] = str(error)
                    view.problems.append(f"{path} is not a node of Kafka {self.kafka}: {error}")
        return partitions

    async def _read_others(self, view: GroupView, sessions: Mapping[str, int]) -> None:
        """Find the owners among the nodes whose names are not of the dialect; those are then not faults."""
        root = f"{owners_root(view.group)}/"
        named: dict[str, TopicPartition] = {}
        for path in view.faults:
            topic, _, name = path.removeprefix(root).partition("/")
            if (partition := self._partition_of_other(topic, name)) is not None:
                named[path] = partition
        for path, found in (await read_all(named, lambda path: node(self._zk, path))).items():
            if found is not None:
                view.stats[path] = found[1]
                if _claimed(view, sessions, named[path], path, found[0]):
                    place = list(view.faults).index(path)
                    del view.faults[path], view.problems[place]
                else:
                    del view.stats[path]

    async def _texts(self, view: GroupView, items: Iterable[_T], path: Callable[[_T], str]) -> dict[_T, bytes]:
        """Read the data of all nodes that still exist; their stats go to `view`."""
        texts = {}
        for item, found in (await read_all(items, lambda item: node(self._zk, path(item)))).items():
            if found is not None:
                texts[item], view.stats[path(item)] = found
        return texts

    def _member(self, view: GroupView, name: str, text: bytes) -> LiveMember:
        shown = text.decode("utf-8", "replace")
        try:
            return LiveMember(shown, self._subscription(text))
        except RegistryError as error:
            view.faults[id_path(view.group, name)] = str(error)
            view.problems.append(f"member {name}: {error}")
            return LiveMember(shown, None)


def _named(view: GroupView, parent: str, kind: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` below `parent` that form a valid path: servers before 3.5 accept others."""
    named = []
    for name in names:
        try:
            named.append(check_name(kind, name))
        except RegistryError as error:
            view.faults[f"{parent}/{name}"] = str(error)
            view.problems.append(str(error))
    return named


def _claimed(view: GroupView, sessions: Mapping[str, int], partition: TopicPartition, path: str, text: bytes) -> bool:
    """Whether the owner node names a live member of another client, which is noted then."""
    name = claimant(text, view.stats[path].ephemeral_owner, sessions)
    if name is not None:
        view.claims[partition] = OwnerClaim(name, text.decode(), path)
    return name is not None


def _keep(
    view: GroupView,
    into: dict[TopicPartition, _T],
    partition: TopicPartition,
    path: str,
    text: bytes,
    parse: Callable[[bytes], _T],
) -> None:
    try:
        into[partition] = parse(text)
    except RegistryError as error:
        view.faults[path] = str(error)
        view.problems.append(f"{partition}: {error}")
