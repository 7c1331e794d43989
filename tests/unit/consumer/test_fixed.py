"""Fixed partitions must exist in their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from consumerd.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from consumerd.consumer.fixed import require_partitions
from consumerd.errors import NotFoundError
from consumerd.partition import TopicPartition

if TYPE_CHECKING:
    from consumerd.client import ClusterClient

pytestmark = pytest.mark.asyncio


class Cluster:
    """Two partitions of `t`, and a topic without any: it does not exist yet."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def topics(self, names: list[str]) -> ClusterMetadata:
        self.asked.append(names)
        partition = PartitionMetadata(0, -1, (0,), (0,), 0)
        return ClusterMetadata(
            topics={"t": TopicMetadata(0, {0: partition, 1: partition}), "new": TopicMetadata(3, {})}
        )


async def required(*partitions: tuple[str, int]) -> list[list[str]]:
    cluster = Cluster()
    await require_partitions(
        cast("ClusterClient", cluster), (TopicPartition.numbered(topic, number) for topic, number in partitions)
    )
    return cluster.asked


async def test_accepts_partitions_that_exist_and_topics_that_do_not() -> None:
    assert await required(("t", 1), ("new", 5), ("none", 0), ("t", 0)) == [["new", "none", "t"]]


async def test_names_a_partition_that_its_topic_does_not_have() -> None:
    with pytest.raises(NotFoundError, match="the topic 't' has no partition 2: it has 2, numbered from 0"):
        await required(("t", 0), ("t", 2))
