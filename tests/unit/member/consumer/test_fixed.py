"""A member of fixed partitions: which it consumes, when it ends, and that they must exist in their topics."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.errors import FixedGroupError
from consumerd.member.consumer.fixed import require_partitions
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata

T0, T1 = TopicPartition.numbered("t", 0), TopicPartition.numbered("t", 1)


async def test_consumes_its_partitions_until_it_is_stopped(cluster: Any) -> None:
    member = cluster.fixed(T1, T0)
    assert (member.assigned, member.settled) == ([T0, T1], False)
    running = cluster.run(member)
    await cluster.turns()
    assert member.ready.is_set()
    assert member.settled
    assert member.controls.assignment() == {T0: 0, T1: 0}
    assert member.stats.rebalances == 1
    cluster.handler.hold()
    end = cluster.logs.put(member, T0, 200, b"one")
    await cluster.turns()
    member.request_stop()
    await cluster.turns()
    assert not running.done()  # the handler has time for what it holds
    cluster.handler.let_go()
    await running
    assert (cluster.handler.seen, cluster.handler.cancelled) == ([b"one"], 0)
    assert cluster.store.offsets[T0] == end


@pytest.mark.parametrize("partitions", [(T0, T1), ()], ids=["two", "none"])
async def test_stops_when_its_partitions_are_handled_to_their_ends(
    cluster: Any, partitions: tuple[TopicPartition, ...]
) -> None:
    cluster.store.offsets = {T0: cluster.logs.end}
    member = cluster.fixed(*partitions, stop_at_end=True)
    running = cluster.run(member)
    if partitions:
        await cluster.turns()
        assert not running.done()
        await member.controls.seek(T1, cluster.logs.end)
        member.check_end()
    await asyncio.wait_for(running, 60)


async def test_continues_at_the_end_unless_it_is_to_stop_there(cluster: Any) -> None:
    cluster.store.offsets = {T0: cluster.logs.end}
    running = cluster.run(cluster.fixed(T0))
    await cluster.turns()
    assert not running.done()


async def test_stops_when_its_group_has_other_members(cluster: Any) -> None:
    member = cluster.fixed(T0, T1)
    running = cluster.run(member)
    await cluster.turns()
    cluster.store.refused = {T0, T1}
    await member.controls.seek(T1, 300)
    await member.controls.commit()
    with pytest.raises(FixedGroupError, match="t/0 to group 'g'"):
        await asyncio.wait_for(running, 60)


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
