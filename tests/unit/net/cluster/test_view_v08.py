from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from consumerd.base.partition import TopicPartition
from consumerd.group.assignors import range_owners
from consumerd.net.cluster.view_v08 import PartitionView, V08ClusterView
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription


@pytest.fixture
def view(zk: MemorySession) -> V08ClusterView:
    return V08ClusterView(zk)


async def test_reads_cluster_of_three_brokers(server: MemoryZooKeeper, view: V08ClusterView, golden: Path) -> None:
    tree = json.loads((golden / "zookeeper/tree-cluster3-0.8.2.2.json").read_text())
    for path, node in tree.items():
        server.put(path, None if node["data"] is None else node["data"].encode())
    brokers = await view.read_brokers()
    assert sorted(brokers) == [0, 2]
    assert brokers[0].address() == ("127.0.0.1", 19151)
    topics = await view.read_topics()
    assert sorted(topics) == ["__consumer_offsets", "cl.a", "cl.isr", "cl.one"]
    assert topics["cl.a"][0] == PartitionView((0, 1), None, ())
    assert {state.leader for state in topics["cl.a"].values()} > {None}
    assert await view.read_topics(["cl.one", "none"]) == {"cl.one": topics["cl.one"]}


async def test_reads_groups_of_old_consumers(server: MemoryZooKeeper, view: V08ClusterView, golden: Path) -> None:
    step = next(
        step
        for step in json.loads((golden / "zookeeper/oldconsumer-0.8.2.2.json").read_text())["steps"]
        if "three members" in step["label"]
    )
    for path, node in step["zk"].items():
        if re.match(r"/consumers/.*/.*/", path) and node["data"]:
            server.put(path, node["data"].encode())
    group = await view.read_group("ga")
    assert group.problems == []
    kinds = {type(member.subscription) for member in group.members.values()}
    assert kinds == {StaticSubscription, FilterSubscription}
    members = {name: each.subscription for name, each in group.members.items() if each.subscription is not None}
    assert range_owners({"og.t1": range(4), "og.t2": range(3)}, members) == group.owners
    assert group.offsets[TopicPartition.numbered("og.t1", 0)] == 5
    assert await view.read_groups() == ["ga"]


async def test_skips_damaged_nodes(server: MemoryZooKeeper, view: V08ClusterView) -> None:
    server.put("/brokers/ids/0", b'{"version":1,"host":"h","port":1}')
    server.put("/brokers/ids/1", b'{"version":1}')
    server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}')
    server.put("/brokers/topics/u", b"{")
    state = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
    server.put("/brokers/topics/t/partitions/0/state", state)
    server.put("/brokers/topics/t/partitions/1/state", b'{"leader":"x"}')
    server.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    server.put("/consumers/g/owners/t/0-0", b"g_a-0")
    server.put("/consumers/g/offsets/t/0", b"-5")
    assert list(await view.read_brokers()) == [0]
    nobody = PartitionView((0,), None, ())
    assert await view.read_topics() == {"t": {0: PartitionView((0,), 0, (0,)), 1: nobody, 2: nobody}, "u": {}}
    group = await view.read_group("g")
    assert [member.subscription for member in group.members.values()] == [None]
    assert len(group.faults) == len(group.problems) == 3
    assert any("0.7" in problem for problem in group.problems)
    assert any("/consumers/g/owners/t/0-0 is not a node of Kafka 0.8 or later" in problem for problem in group.problems)


async def test_finds_the_owners_among_the_members_of_other_clients(
    server: MemoryZooKeeper, view: V08ClusterView
) -> None:
    """pykafka names owner nodes `leader-partition`, and has the bare id as their value."""
    uuid = "0b7e1f6c-3a52-4d7b-9c1e-5f0a2b3c4d5e"
    theirs, quiet, ours = f"host-1:{uuid}", f"host-2:{uuid}", "g_a"
    static = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
    server.put(f"/consumers/g/ids/{theirs}", b"t", session_id=5)
    server.put(f"/consumers/g/ids/{quiet}", b"t", session_id=7)
    server.put(f"/consumers/g/ids/{ours}", static, session_id=6)
    server.put("/consumers/g/ids/any", static, session_id=8)
    owners = "/consumers/g/owners/t"
    server.put(f"{owners}/0", theirs.encode(), session_id=5)
    server.put(f"{owners}/7-1", theirs.encode(), session_id=5)
    server.put(f"{owners}/7-2", b"gone", session_id=9)
    server.put(f"{owners}/3", b"g_a-0", session_id=6)
    server.put(f"{owners}/4", b"any", session_id=8)
    server.put(f"{owners}/x", theirs.encode(), session_id=5)
    server.put("/consumers/g/offsets/t/7-1", b"1")
    group = await view.read_group("g")
    assert {str(partition): claim for partition, claim in group.claims.items()} == {
        "t/0": (theirs, theirs, f"{owners}/0"),
        "t/1": (theirs, theirs, f"{owners}/7-1"),
        "t/4": ("any", "any", f"{owners}/4"),
    }
    assert group.owners == {TopicPartition.numbered("t", 3): ("g_a", 0)}
    assert group.owned_by_member() == {theirs: 2, "any": 1, "g_a": 1}
    assert group.other_clients() == {"any": "", theirs: "pykafka", quiet: "pykafka"}
    assert list(group.other_clients()) == ["any", theirs, quiet]
    others = {f"/consumers/g/ids/{name}" for name in (theirs, quiet)}
    assert group.faults.keys() - others == {f"{owners}/7-2", f"{owners}/x", "/consumers/g/offsets/t/7-1"}
    assert len(group.problems) == len(group.faults)
    for path in group.faults.keys() - others:
        assert sum(problem.startswith(f"{path} is not a node of") for problem in group.problems) == 1
    assert f"{owners}/7-1" in group.stats
    assert f"{owners}/7-2" not in group.stats


async def test_skips_nodes_deleted_between_list_and_read(
    server: MemoryZooKeeper, zk: MemorySession, view: V08ClusterView
) -> None:
    for topic in ("t", "u"):
        server.put(f"/brokers/topics/{topic}", b'{"version":1,"partitions":{"0":[0]}}')
    server.put("/consumers/g/owners/t/7-1", b"gone", session_id=9)
    listed = zk.children

    async def vanishing(path: str, *, watch: bool = False) -> list[str]:
        names = await listed(path, watch=watch)
        for name in {"u", "7-1"} & set(names):
            server.remove(f"{path}/{name}")
        return names

    with patch.object(zk, "children", vanishing), capture_logs() as logs:
        assert list(await view.read_topics()) == ["t"]
        assert (await view.read_group("g")).claims == {}
    assert logs == []
