from __future__ import annotations

from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.view import ClusterView
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.registry.values import RegisteredBroker

NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}'


@pytest.fixture
def view(zk: MemorySession) -> ClusterView:
    return ClusterView(zk)


@pytest.mark.parametrize("kind", [ClusterView, V08ClusterView])
async def test_reads_empty_zookeeper(zk: MemorySession, kind: type[ClusterView] | type[V08ClusterView]) -> None:
    view = kind(zk)
    assert await view.read_brokers() == {}
    assert await view.read_topics() == {}
    assert await view.read_topics(["t"]) == {}
    assert await view.read_groups() == []
    with pytest.raises(NotFoundError, match="no group 'g'"):
        await view.read_group("g")


async def test_reads_brokers_and_topics(server: MemoryZooKeeper, view: ClusterView) -> None:
    for broker in (10, 2):
        server.put(f"/brokers/ids/{broker}", f"h{broker}-1:h{broker}:9092".encode())
        server.put(f"/brokers/topics/t/{broker}", b"4")
    server.put("/brokers/topics/old", None)
    assert await view.read_brokers() == {
        2: RegisteredBroker(2, "h2-1", "h2", 9092),
        10: RegisteredBroker(10, "h10-1", "h10", 9092),
    }
    assert await view.read_topics() == {"old": {}, "t": {2: 4, 10: 4}}
    assert await view.read_topics(["t", "none"]) == {"t": {2: 4, 10: 4}}


async def test_skips_damaged_node(server: MemoryZooKeeper, view: ClusterView) -> None:
    server.put("/brokers/ids/0", b"h:9092")
    server.put("/brokers/ids/1", b"\xff")
    server.put("/brokers/ids/2", None)
    server.put("/brokers/ids/x", b"h:1")
    server.put("/brokers/topics/t/0", b"2")
    server.put("/brokers/topics/t/1", b"many")
    server.put("/brokers/topics/t/x", b"1")
    assert list(await view.read_brokers()) == [0]
    assert await view.read_topics() == {"t": {0: 2}}


async def test_skips_nodes_deleted_between_list_and_read(
    server: MemoryZooKeeper, zk: MemorySession, view: ClusterView
) -> None:
    for broker in (0, 1):
        server.put(f"/brokers/ids/{broker}", b"h:9092")
        server.put(f"/brokers/topics/t/{broker}", b"2")
    server.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    server.put("/consumers/g/ids/g_b", b'{ "t": 1 }')
    listed = zk.children

    async def vanishing(path: str, *, watch: bool = False) -> list[str]:
        names = await listed(path, watch=watch)
        for name in {"0", "g_b"} & set(names):
            server.remove(f"{path}/{name}")
        return names

    with patch.object(zk, "children", vanishing), capture_logs() as logs:
        assert list(await view.read_brokers()) == [1]
        assert await view.read_topics() == {"t": {1: 2}}
        assert list((await view.read_group("g")).members) == ["g_a"]
    assert logs == []


async def test_reads_group(server: MemoryZooKeeper, view: ClusterView) -> None:
    server.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    server.put("/consumers/g/ids/g_b", b"*2*t")
    server.put("/consumers/g/owners/t/0-0", b"g_a-0")
    server.put("/consumers/g/owners/t/0-10", b"g_b-1")
    server.put("/consumers/g/offsets/t/0-0", b"71")
    server.put("/consumers/g/offsets/gone/3-1", b"5")
    group = await view.read_group("g")
    assert group.members["g_a"].subscription == StaticSubscription({"t": 1})
    assert group.members["g_b"].text == "*2*t"
    assert group.owners == {TopicPartition("t", 0, 0): ("g_a", 0), TopicPartition("t", 0, 10): ("g_b", 1)}
    assert group.offsets == {TopicPartition("gone", 3, 1): 5, TopicPartition("t", 0, 0): 71}
    assert group.problems == []
    assert group.owned_by_member() == {"g_a": 1, "g_b": 1}
    assert group.other_clients() == {}
    assert group.stats.keys() >= {"/consumers/g/ids/g_a", "/consumers/g/owners/t/0-0", "/consumers/g/offsets/gone/3-1"}
    assert group.subscribed(["t", "u"]) == ["t"]
    assert {str(tp): owner for tp, owner in group.plan({"t": {0: 3}, "u": {0: 1}}).items()} == {
        "t/0-0": ("g_a", 0),
        "t/0-1": ("g_b", 0),
        "t/0-2": ("g_b", 1),
    }
    assert await view.read_groups() == ["g"]


async def test_lists_problems_of_group(server: MemoryZooKeeper, view: ClusterView) -> None:
    server.put("/consumers/g/ids/g_a", b'{ "t": 0 }')
    server.put("/consumers/g/ids/g_b", b"\xff")
    server.put("/consumers/g/ids/g_c", None)
    server.put("/consumers/g/owners/t/0", b"g_a-0")
    server.put("/consumers/g/owners/t/0-0", b"nobody")
    server.put("/consumers/g/offsets/t/0-0", b"-5")
    group = await view.read_group("g")
    assert [member.subscription for member in group.members.values()] == [None] * 3
    assert group.owners == {}
    assert group.offsets == {}
    assert len(group.problems) == 6
    assert "member g_a" in group.problems[0]
    assert len(group.faults) == 6
    assert "/consumers/g/owners/t/0" in group.faults
    assert any("/consumers/g/owners/t/0 is not a node of Kafka 0.7" in problem for problem in group.problems)
    assert group.plan({"t": {0: 1}}) == {}
    assert group.subscribed(["t"]) == []


@pytest.mark.parametrize(("kind", "other"), [(ClusterView, NEW_BROKER), (V08ClusterView, b"vm-1:vm:9092")])
async def test_rejects_other_dialect(
    server: MemoryZooKeeper, zk: MemorySession, kind: type[ClusterView] | type[V08ClusterView], other: bytes
) -> None:
    server.put("/brokers/ids/0", other)
    with pytest.raises(DialectError):
        await kind(zk).read_brokers()


async def test_names_nodes_that_no_path_can_have(zk: MemorySession, view: ClusterView) -> None:
    """Servers before 3.5 accept them."""
    listed = zk.children

    async def lax(path: str, *, watch: bool = False) -> list[str]:
        return [*await listed(path, watch=watch), *(["a\0"] if path.endswith("/ids") else [])]

    await zk.create_ephemeral("/consumers/g/ids/g_a", b'{ "t": 1 }', wait=0)
    with patch.object(zk, "children", lax):
        group = await view.read_group("g")
    assert list(group.members) == ["g_a"]
    assert list(group.faults) == ["/consumers/g/ids/a\0"]
    assert group.problems == list(group.faults.values())
