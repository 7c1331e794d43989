"""Commands detect the kind of a cluster by the nodes in ZooKeeper."""

from __future__ import annotations

from pathlib import Path

from consumerd.cli.clusters import dialect_at
from consumerd.cli.session import cluster_address
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect


async def test_assumes_v07_if_both_dialects_are_registered(server: MemoryZooKeeper, zk: MemorySession) -> None:
    assert await dialect_at(zk) is None
    server.put("/consumers/g/offsets/t/0", b"1")
    assert await dialect_at(zk, ["g"]) is Dialect.V08
    assert await dialect_at(zk, ["h"]) is None
    server.put("/consumers/g/offsets/t/0-0", b"1")
    assert await dialect_at(zk, ["g"]) is Dialect.V07


def test_group_of_a_subscription_is_where_its_coordination_says(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[group]\nid = "old"\ntopics = { t = 1 }\n[zookeeper]\nconnect = "zk:1"\n[kafka]\nbootstrap = ["k:1"]\n'
        '[[subscriptions]]\nname = "new"\ngroup = { id = "new", coordination = "kafka" }\ntopics = { t = 1 }\n'
        '[subscriptions.handler]\nname = "null"\n'
    )
    found = {group: cluster_address(None, (), path, 1.0, group) for group in (None, "old", "new")}
    assert {name: (each.group, each.connect, each.bootstrap) for name, each in found.items() if each is not None} == {
        None: ("old", "zk:1", ()),
        "old": ("old", "zk:1", ()),
        "new": ("new", "", (("k", 1),)),
    }
