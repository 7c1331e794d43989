"""The transaction that created a topic's node tells a topic that was created again."""

from __future__ import annotations

import pytest

from consumerd.base.errors import BrokerError
from consumerd.net.cluster.topic_nodes import TopicNodes
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.paths import topic_path


async def test_tells_a_topic_that_was_created_again(server: MemoryZooKeeper, zk: MemorySession) -> None:
    nodes, told, others = TopicNodes(zk, FakeClock()), list[str](), list[str]()
    nodes.subscribe(told.append)
    nodes.subscribe(others.append)
    server.put("/brokers/topics/t", b"assignment")
    first = await nodes.zxid("t")
    stat = await zk.exists("/brokers/topics/t")
    assert stat is not None
    assert first == stat.created_zxid
    server.remove("/brokers/topics/t")
    await zk.exists("/")
    assert told == others == ["t"]
    with pytest.raises(BrokerError, match="the topic 't' has no node in ZooKeeper: it is being deleted"):
        await nodes.zxid("t")
    server.put("/brokers/topics/t", b"assignment")
    assert await nodes.zxid("t") > first


async def test_reads_a_node_once_until_it_changes_or_is_refreshed(server: MemoryZooKeeper) -> None:
    server.put("/brokers/topics/t", b"a large assignment")
    async with server.session(wait_connected=0.001) as zk:
        nodes = TopicNodes(zk, FakeClock())
        zxid = await nodes.zxid("t")
        known = nodes._nodes.known_node(topic_path("t"))
        assert known is not None
        assert known.data == b""  # what the assignment says is not kept
        server.disconnect(zk)
        assert await nodes.zxid("t") == zxid
        nodes.refresh("t")
        with pytest.raises(BrokerError, match="the node of the topic 't' cannot be read: "):
            await nodes.zxid("t")


async def test_tells_when_a_topic_was_created_until_its_node_is_written_again(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    nodes = TopicNodes(zk, FakeClock())
    server.put("/brokers/topics/t", b"assignment")
    stat = server.tree.stat("/brokers/topics/t")
    assert await nodes.creation("t") == (stat.created_zxid, stat.modified_ms)
    server.put("/brokers/topics/t", b"another assignment")
    await zk.exists("/")  # after which the watch has fired
    assert await nodes.creation("t") == (stat.created_zxid, None)
