"""The groups of a cluster of Kafka 0.8 or later, whether ZooKeeper or a broker coordinates them.

Strategy: one protocol, `GroupSource`, with two implementations: `ZooKeeperGroups` here and `BrokerGroups`. Both query
brokers for the bounds of their logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from consumerd.base.errors import BrokerError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.member.fetch.log_changes import LogChange, find_change
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.net.cluster.reading import children, read_all
from consumerd.net.cluster.view_v08 import V08ClusterView, V08Topics
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.editing import write_changes
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.snapshot import (
    CoordinatorKind,
    V08GroupSnapshot,
    epochs_of,
    numbers_of,
    read_v08_snapshot,
    texts_of,
)
from consumerd.operate.admin.v08.transactions import find_open_transactions
from consumerd.wire.errors import WireError
from consumerd.wire.registry.paths import owners_root, topic_path
from consumerd.wire.v08.schema import NO_UUID

#: The topic in which brokers keep the offsets of groups.
OFFSETS_TOPIC: Final = "__consumer_offsets"


class GroupSource(Protocol):
    """A cluster, and the groups that are coordinated in one place."""

    @property
    def coordinator(self) -> CoordinatorKind:
        """The kind of coordinator of these groups."""
        ...

    @property
    def logs(self) -> V08BrokerLogs:
        """Queries the brokers for the bounds of their logs."""
        ...

    async def names(self) -> list[str]:
        """The groups, sorted. Raises ZooKeeperError or BrokerError, as all of these."""
        ...

    async def prepare(self, groups: Sequence[str]) -> None:
        """Look up at once which brokers have these groups, before a snapshot of each."""
        ...

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        """A snapshot of a group. Raises NotFoundError for one that never was."""
        ...

    async def addresses(self) -> dict[int, str]:
        """`host:port` of the live brokers, by id."""
        ...

    async def topics(self, names: Iterable[str] | None = None) -> V08Topics:
        """All topics, or those of `names` that exist."""
        ...

    async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
        """Write the changes that move anything; returns how many. Raises ChangedMeanwhileError, RefusedError."""
        ...


class ZooKeeperGroups:
    """Groups that old consumers (0.8 to 1.1) coordinate among themselves in ZooKeeper."""

    coordinator = CoordinatorKind.ZOOKEEPER

    def __init__(self, zk: ZooKeeper, logs: V08BrokerLogs) -> None:
        self.zk = zk
        self.logs = logs
        self._view = V08ClusterView(zk)

    async def names(self) -> list[str]:
        """The names of all groups, also of dead ones."""
        return await self._view.read_groups()

    async def prepare(self, groups: Sequence[str]) -> None:
        """Look up the brokers that may keep offsets of the groups. `snapshot` says if they cannot be reached."""
        if self.logs.client is not None:
            with suppress(BrokerError):
                await self.logs.client.find_coordinators(groups)

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        """A snapshot of a group. Raises NotFoundError, ZooKeeperError, DialectError.

        Where offsets are missing, brokers are asked whether they keep them; where those do not answer, that is a
        problem of the view.
        """
        snapshot = await read_v08_snapshot(self.zk, group)
        if self.logs.client is not None and await self._view.read_assignments([OFFSETS_TOPIC]):
            once_owned = await children(self.zk, owners_root(group))
            snapshot.topics |= numbers_of(await self._view.read_assignments({*snapshot.topics, *once_owned}))
            every = {TopicPartition.numbered(topic, n) for topic, numbers in snapshot.topics.items() for n in numbers}
            missing = every - snapshot.view.offsets.keys()
            try:
                kept = await self._read_kept_by_brokers(group, missing)
                snapshot.at_broker = {partition: each.offset for partition, each in kept.items()}
                snapshot.metadata, snapshot.epochs = texts_of(kept), epochs_of(kept)
            except (BrokerError, WireError) as error:
                snapshot.kept_unknown = f"whether brokers keep offsets of the group is not known: {error}"
                snapshot.view.problems.append(snapshot.kept_unknown)
        return snapshot

    async def kept_by_brokers(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that a group of old consumers committed to a broker; `partitions` have to exist.

        Empty where there is no broker to query. Raises BrokerError, WireError, ZooKeeperError.
        """
        kept = await self._read_kept_by_brokers(group, partitions)
        return {partition: each.offset for partition, each in kept.items()}

    async def _read_kept_by_brokers(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        client, wanted = self.logs.client, sorted(partitions)
        # Without the topic no broker keeps any, and asking for a coordinator would make it.
        if client is None or not wanted or not await self._view.read_assignments([OFFSETS_TOPIC]):
            return {}
        return await KafkaOffsetStore(client, group).read(wanted)

    async def addresses(self) -> dict[int, str]:
        """The brokers that are registered, at their first listener."""
        brokers = await self._view.read_brokers()
        return {
            number: f"{node.endpoints[0].host}:{node.endpoints[0].port}" if node.endpoints else ""
            for number, node in brokers.items()
        }

    async def topics(self, names: Iterable[str] | None = None) -> V08Topics:
        """As the brokers' controller registered them."""
        return await self._view.read_topics(names)

    async def created(self, topics: Iterable[str]) -> dict[str, int]:
        """The transactions that created the nodes of these topics, as far as they exist."""
        stats = await read_all(topics, lambda topic: self.zk.exists(topic_path(topic)))
        return {topic: stat.created_zxid for topic, stat in stats.items() if stat is not None}

    async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
        """As `write_changes`: fenced by owner nodes and versions, unless forced."""
        return await write_changes(self.zk, changes, force=force)


async def read_diagnosis_input(source: GroupSource, group: str, now: float) -> DiagnosisInput:
    """Everything that the diagnosis of `group` needs. `now`: seconds of any clock.

    Data that a broker does not return are missing, with the reason; the rest is still diagnosed. Raises NotFoundError,
    ZooKeeperError, BrokerError as `source`.
    """
    snapshot = await source.snapshot(group)
    topics = await source.topics(snapshot.topics)
    ranges = await source.logs.ranges(partition for partition in snapshot.partitions() if snapshot.exists(partition))
    kept: dict[TopicPartition, int] = {}
    created: dict[str, int] = {}
    unknown: tuple[str, ...] = ()
    registered: Collection[int] | None = None
    client = source.logs.client
    topic_ids = {} if client is None else {topic: client.metadata.topic_id(topic) for topic in topics}
    if isinstance(source, ZooKeeperGroups):
        try:
            kept = await _kept(source, snapshot)
        except (BrokerError, WireError) as error:
            unknown = (f"whether brokers keep offsets, too, is not known: {error}",)
        created = await source.created(snapshot.topics)
        registered = (await source.addresses()).keys()
    transactions = await find_open_transactions(source.logs, ranges)
    topic_ids = {topic: found for topic, found in topic_ids.items() if found != NO_UUID}
    return DiagnosisInput(
        snapshot,
        ranges,
        now,
        topics,
        kept,
        created,
        unknown=unknown,
        transactions=transactions,
        topic_ids=topic_ids,
        cut_off=await _cut_off(source.logs, snapshot, topic_ids),
        registered=registered,
    )


async def _cut_off(
    logs: V08BrokerLogs, snapshot: V08GroupSnapshot, topic_ids: Mapping[str, bytes]
) -> dict[TopicPartition, LogChange]:
    """The partitions whose log has not the message before the committed offset any more, by its leader epoch."""
    former = {each: snapshot.log(each) for each in snapshot.committed_offsets() if snapshot.exists(each)}
    epochs = {each: log.leader_epoch for each, log in former.items() if log.leader_epoch is not None}
    ends = await logs.epoch_ends(epochs)
    offsets = snapshot.committed_offsets()
    behind = {each: epochs[each] + 1 for each, end in ends.items() if end.end_offset < offsets[each]}
    later = await logs.epoch_ends(behind)
    found: dict[TopicPartition, LogChange] = {}
    for each in behind:
        assert logs.client is not None  # it has answered
        leader_epoch = logs.client.metadata.topics[each.topic].partitions[each.partition].leader_epoch
        if leader_epoch < 0:  # metadata before 2.1 name none
            leader_epoch = epochs[each] + (each in later and later[each].end_offset >= 0)
        now = LogId(topic_ids.get(each.topic))
        _, change = find_change(offsets[each], former[each], now, leader_epoch, ends[each])
        if change is not None and not former[each].replaced_by(now):  # which is a finding of its own
            found[each] = change
    return found


async def _kept(source: ZooKeeperGroups, snapshot: V08GroupSnapshot) -> dict[TopicPartition, int]:
    return await source.kept_by_brokers(snapshot.group, filter(snapshot.exists, snapshot.view.offsets))
