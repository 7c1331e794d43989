"""Which partitions are new to a group: those that came after it had begun with their topic."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.member.offsets.metadata import OffsetNotes
from consumerd.member.offsets.store import ZooKeeperOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.paths import offset_path, partition_path, topic_broker_path

OLD, NEW = TopicPartition.numbered("t", 0), TopicPartition.numbered("t", 1)
OLD_07, NEW_07 = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)


async def test_partition_that_is_younger_than_the_groups_offsets_is_new() -> None:
    async with MemoryZooKeeper().session() as zk:
        store = ZooKeeperOffsetStore(zk, "g")
        await zk.ensure(partition_path("t", 0))
        assert not await store.is_new(OLD)  # the group has not begun
        await zk.ensure(offset_path("g", OLD).rpartition("/")[0])
        await zk.ensure(partition_path("t", 1))
        assert not await store.is_new(OLD)  # another member fixes its start a little later
        assert await store.is_new(NEW)
        assert not await store.is_new(TopicPartition.numbered("t", 2))  # there is none


async def test_partitions_of_a_broker_of_07_that_changed_their_number_are_new() -> None:
    async with MemoryZooKeeper().session() as zk:
        store = ZooKeeperOffsetStore(zk, "g")
        await zk.ensure("/brokers/topics/t")
        await zk.create(topic_broker_path("t", 0), b"1")
        await zk.ensure(offset_path("g", OLD_07).rpartition("/")[0])
        assert not await store.is_new(NEW_07)
        await zk.set(topic_broker_path("t", 0), b"2")
        assert await store.is_new(NEW_07)


class Offsets(KafkaOffsetStore):
    """Committed offsets of a topic with three partitions."""

    def __init__(self, committed: dict[TopicPartition, CommittedOffset]) -> None:
        super().__init__(cast("ClusterClient", self), "g")
        self.committed = committed
        self.count = 3

    async def topics(self, names: list[str]) -> ClusterMetadata:
        known = PartitionMetadata(1, 0, (1,), (1,), 0)
        return ClusterMetadata({}, {"t": TopicMetadata(0, dict.fromkeys(range(self.count), known))})

    async def read(self, partitions: Any) -> dict[TopicPartition, CommittedOffset]:
        assert list(partitions) == [TopicPartition.numbered("t", number) for number in range(self.count)]
        return self.committed


@pytest.mark.parametrize(
    ("metadata", "new"),
    [
        ("", True),  # another client's, or an offset up to which messages were handled
        ("why topic-id=AAECAwQFBgcICQoLDA0ODw", True),
        ("start=latest", False),  # members of a group that just begins fix their starts one after the other
        ("partitions=3 start=latest", False),
        ("partitions=2 start=latest", False),
        ("partitions=1 start=latest", True),  # the topic has grown since, and nothing was handled in between
    ],
)
async def test_partition_without_offset_is_new_to_a_group_that_handled_others(metadata: str, new: bool) -> None:
    assert await Offsets({OLD: CommittedOffset(9, metadata)}).is_new(NEW) is new


async def test_the_fewest_partitions_that_a_member_noted_are_those_that_the_group_began_with() -> None:
    last = TopicPartition.numbered("t", 2)
    starts = {
        OLD: CommittedOffset(9, "partitions=2 start=latest"),
        NEW: CommittedOffset(4, "partitions=3 start=latest"),
    }
    assert await Offsets(starts).is_new(last)


async def test_notes_the_partitions_that_a_topic_had_when_it_was_looked_at_first() -> None:
    offsets = Offsets({})
    assert not await offsets.is_new(OLD)
    offsets.count = 12
    assert not await offsets.is_new(OLD)
    entry = offsets._entry(OLD, 9, OffsetNotes(start=True), 8)
    assert entry["committed_metadata"] == "partitions=3 start=latest"
    assert offsets._entry(OLD, 10, OffsetNotes(), 8)["committed_metadata"] == ""
    offsets.count = 2  # the topic was created again
    assert not await offsets.is_new(OLD)
    assert offsets._entry(OLD, 0, OffsetNotes(start=True), 8)["committed_metadata"] == "partitions=2 start=latest"


async def test_no_partition_is_new_to_a_group_without_offsets() -> None:
    assert not await Offsets({}).is_new(NEW)
