"""Findings of the tools in recorded groups of real old consumers of 0.8.2.2 to 1.1.1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.operate.admin.v08.snapshot import read_v08_snapshot
from consumerd.operate.admin.verification import differences
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.v08.topic import format_topic_assignment
from consumerd.wire.registry.values import parse_owner

TOPICS = {"og.t1": 4, "og.t2": 3, "__consumer_offsets": 1}


@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1"])
async def test_recorded_groups_follow_their_assignor(golden: Path, version: str) -> None:
    steps = json.loads((golden / "zookeeper" / f"oldconsumer-{version}.json").read_text())["steps"]
    rules = {}
    for step in steps:
        label = step["label"]
        # A blacklist saw topics of other tests.
        if "zk" not in step or "blacklist" in label:
            continue
        memory = MemoryZooKeeper()
        for topic, count in TOPICS.items():
            memory.put(
                f"/brokers/topics/{topic}", format_topic_assignment({number: [0] for number in range(count)}).encode()
            )
        sessions: dict[str, int] = {}
        for path, node in step["zk"].items():
            if not node["data"]:
                memory.make(path)
                continue
            member = path.rpartition("/")[2]
            if "/owners/" in path:
                member = parse_owner(node["data"])[0]
            session = sessions.setdefault(member, len(sessions) + 1) if node["ephemeral"] else None
            memory.put(path, node["data"].encode(), **({} if session is None else {"session_id": session}))
        async with memory.session() as zk:
            snapshot = await read_v08_snapshot(zk, step["group"])
        assert snapshot.view.problems == []
        found = differences(snapshot)
        if "before session expiry" in label:  # what is left of it still looks like a member
            continue
        assert found == [], label
        if snapshot.view.owners:
            rules[label] = snapshot.rule.split(" or ")
    assert all("roundrobin" in rule for label, rule in rules.items() if "roundrobin" in label)
    assert all("range" in rule for label, rule in rules.items() if "roundrobin" not in label)
    assert ["range"] in rules.values()
    assert len(rules) > 4
