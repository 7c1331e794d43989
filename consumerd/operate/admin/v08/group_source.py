"""The groups of a cluster of Kafka 0.8 or later, whether ZooKeeper or a broker coordinates them.

Strategy: `ZooKeeperGroups` here and `BrokerGroups` have in common what brokers tell, of logs and topics.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.member.fetch.log_changes import LogChange, find_change
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.net.cluster.groups import GroupView
from consumerd.net.cluster.reading import children
from consumerd.net.cluster.view_v08 import V08ClusterView, V08Topics
from consumerd.operate.admin.changes import ChangePlanner
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.group_source import GroupNodes, GroupSource
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.snapshot import (
    CoordinatorKind,
    V08GroupSnapshot,
    epochs_of,
    numbers_of,
    read_v08_snapshot,
    texts_of,
)
from consumerd.operate.admin.v08.topic_nodes import TopicsByNodes
from consumerd.operate.admin.v08.transactions import find_open_transactions
from consumerd.wire.errors import WireError
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.paths import owners_root, topic_path
from consumerd.wire.v08.schema import NO_UUID

#: The topic in which brokers keep the offsets of groups.
OFFSETS_TOPIC: Final = "__consumer_offsets"


class V08GroupSource(GroupSource):
    """The groups of a cluster of Kafka 0.8 or later that ZooKeeper or its brokers coordinate."""

    dialect = Dialect.V08
    coordinator: ClassVar[CoordinatorKind]

    def __init__(self, logs: V08BrokerLogs) -> None:
        self._logs = logs

    @property
    def logs(self) -> V08BrokerLogs:
        """Queries the brokers for the bounds of their logs."""
        return self._logs

    @abstractmethod
    async def snapshot(self, group: str, *, brokers: bool = True) -> V08GroupSnapshot:
        """As of `GroupSource`."""

    @abstractmethod
    async def topics(self, names: Iterable[str] | None = None) -> V08Topics:
        """All topics, or those of `names` that exist."""

    async def unknown(self, group: str) -> V08GroupSnapshot:
        return V08GroupSnapshot(GroupView(group), {}, self.coordinator)

    async def planner(self, snapshot: GroupSnapshot, topics: Collection[str] = ()) -> ChangePlanner:
        return ChangePlanner(snapshot, self.logs)

    async def partitions(self, snapshot: GroupSnapshot, topics: Sequence[str]) -> list[TopicPartition]:
        if not topics:
            return snapshot.partitions()
        found = {partition for partition in snapshot.view.offsets if partition.topic in topics}
        for topic, numbers in (await self.topics(topics)).items():
            found |= {TopicPartition.numbered(topic, number) for number in numbers}
        return sorted(found)

    async def diagnosis_input(self, group: str) -> DiagnosisInput:
        snapshot, client = await self.snapshot(group), self.logs.client
        topics = await self.topics(snapshot.topics)
        ranges = await self.logs.ranges(filter(snapshot.exists, snapshot.partitions()))
        topic_ids = {} if client is None else {topic: client.metadata.topic_id(topic) for topic in topics}
        topic_ids = {topic: found for topic, found in topic_ids.items() if found != NO_UUID}
        return DiagnosisInput(
            snapshot,
            ranges,
            asyncio.get_running_loop().time(),
            topics,
            transactions=await find_open_transactions(self.logs, ranges),
            topic_ids=topic_ids,
            cut_off=await _cut_off(self.logs, snapshot, topic_ids),
        )


class ZooKeeperGroups(GroupNodes, V08GroupSource):
    """Groups that old consumers (0.8 to 1.1) coordinate among themselves in ZooKeeper."""

    coordinator = CoordinatorKind.ZOOKEEPER

    def __init__(self, zk: ZooKeeper, logs: V08BrokerLogs) -> None:
        super().__init__(logs)
        self.zk = zk
        self._view = V08ClusterView(zk)

    async def names(self) -> list[str]:
        return await self._view.read_groups()

    async def prepare(self, groups: Sequence[str]) -> None:
        """Look up the brokers that may keep offsets of the groups. `snapshot` says if they cannot be reached."""
        if self.logs.client is not None:
            with suppress(BrokerError):
                await self.logs.client.find_coordinators(groups)

    async def snapshot(self, group: str, *, brokers: bool = True) -> V08GroupSnapshot:
        """As of `GroupSource`.

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

    async def diagnosis_input(self, group: str) -> DiagnosisInput:
        """As of `GroupSource`, with what brokers keep beside ZooKeeper."""
        found = await super().diagnosis_input(group)
        snapshot = found.snapshot
        kept: Mapping[TopicPartition, CommittedOffset] = {}
        unknown: tuple[str, ...] = ()
        try:
            kept = await self._read_kept_by_brokers(group, filter(snapshot.exists, snapshot.view.offsets))
        except (BrokerError, WireError) as error:
            unknown = (f"whether brokers keep offsets, too, is not known: {error}",)
        return replace(
            found,
            kept={partition: each.offset for partition, each in kept.items()},
            created=await self._created(found.topics),
            unknown=unknown,
            registered=(await self.addresses()).keys(),
        )

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

    async def topic_changes(self) -> TopicsByNodes:
        """As of `GroupSource`; brokers since 0.10.2 change topics on request."""
        return TopicsByNodes(self.zk, await self._view.read_brokers())

    async def _created(self, topics: Iterable[str]) -> dict[str, int]:
        """The transactions that created the nodes of these topics, as far as they exist."""
        stats = await read_all(topics, lambda topic: self.zk.exists(topic_path(topic)))
        return {topic: stat.created_zxid for topic, stat in stats.items() if stat is not None}


async def _cut_off(
    logs: V08BrokerLogs, snapshot: V08GroupSnapshot, topic_ids: Mapping[str, bytes]
) -> dict[TopicPartition, LogChange]:
    """The partitions whose log has not the message before the committed offset any more, by its leader epoch."""
    former = {each: snapshot.log(each) for each in snapshot.committed_offsets() if snapshot.exists(each)}
    epochs = {each: log.leader_epoch for each, log in former.items() if log.leader_epoch is not None}
    ends = await logs.epoch_ends(epochs)
    offsets = snapshot.committed_offsets()
    behind = {
        each: epochs[each] + 1
        for each, end in ends.items()
        if end.end_offset < offsets[each] or 0 <= end.leader_epoch < epochs[each]
    }
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
