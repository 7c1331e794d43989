"""Owners as real old consumers of 0.8.2.2 to 1.1.1 divided them, by range and by roundrobin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from consumerd.base.partition import NO_BROKER
from consumerd.group.assignors import Spelling
from consumerd.group.events import MembershipSnapshot
from consumerd.group.rules import V08Rules
from consumerd.group.target_assignment import TargetAssignmentBuilder

VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1")
#: The topics of the recording that its groups could see.
TOPICS = {"og.t1": {NO_BROKER: range(4)}, "og.t2": {NO_BROKER: range(3)}}


def owners_in(tree: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    found = {}
    for path, node in tree.items():
        match = re.fullmatch(r"/consumers/[^/]+/owners/([^/]+)/(\d+)", path)
        if match and node["data"]:
            found[match.group(1), match.group(2)] = node["data"]
    return found


def owners(rules: V08Rules, members: dict[str, str]) -> dict[tuple[str, str], str]:
    """The assignment that each member computes for itself from all registrations."""
    found = {}
    for name, text in members.items():
        builder = TargetAssignmentBuilder(name, rules.parse(text), rules)
        target = builder.build(MembershipSnapshot(members, None, TOPICS, {}))
        assert builder.take_warnings() == []
        for partition, stream in target.own.items():
            assert (partition.topic, partition.name) not in found
            found[partition.topic, partition.name] = f"{name}-{stream}"
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_writes_owners_as_recorded(golden: Path, version: str) -> None:
    steps = json.loads((golden / "zookeeper" / f"oldconsumer-{version}.json").read_text())["steps"]
    looked_at = []
    for step in steps:
        label = step["label"]
        # Partitions of a killed member stay unassigned until its session ends; a blacklist sees topics of other tests.
        if "zk" not in step or "before session expiry" in label or "blacklist" in label:
            continue
        members = {path.rsplit("/", 1)[1]: node["data"] for path, node in step["zk"].items() if "/ids/" in path}
        seen = owners_in(step["zk"])
        rules = [V08Rules()]
        if "roundrobin" in label:
            rules = [V08Rules("roundrobin", spelling) for spelling in Spelling]
        for each in rules:
            assert owners(each, members) == seen, label
        if seen:
            looked_at.append(label)
    assert any("roundrobin" in label for label in looked_at)
    assert len(looked_at) >= 4
