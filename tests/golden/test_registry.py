"""Every znode that was recorded from 0.7.2 and Jafka is read, and written back byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import assign
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.paths import broker_path, id_path, offset_path, owner_path, topic_broker_path
from consumerd.wire.registry.spoken import broker_dialect, member_dialect
from consumerd.wire.registry.subscription import parse_subscription
from consumerd.wire.registry.values import (
    format_broker,
    format_offset,
    format_owner,
    format_partition_count,
    parse_broker,
    parse_offset,
    parse_owner,
    parse_partition_count,
)

Tree = dict[str, dict[str, Any]]


def trees(path: Path) -> Iterator[Tree]:
    """The one tree of a dump, or the trees of the steps of a recording."""
    content = json.loads(path.read_text())
    if "steps" not in content:
        yield content
    else:
        yield from (step["zk"] for step in content["steps"] if "zk" in step)


def v07_trees(golden: Path) -> Iterator[Tree]:
    names = ["tree-broker-0.7.2", "tree-broker-jafka-1.2.3", "tree-broker-jafka-3.0.6"]
    names += ["oldconsumer-0.7.2", "oldconsumer-jafka-1.2.3", "oldconsumer-jafka-3.0.6"]
    for path in [*(golden / "kafka-0.7.2/zk").glob("*.json"), *(golden / f"zookeeper/{name}.json" for name in names)]:
        yield from trees(path)


def values(tree: Tree, pattern: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Path, text and the pattern's groups of every node with data whose path matches."""
    for path, node in tree.items():
        if (match := re.fullmatch(pattern, path)) and node["data"]:
            yield path, node["data"], match.groups()


def test_reads_broker_nodes(golden: Path) -> None:
    seen = 0
    for tree in v07_trees(golden):
        for path, text, (broker,) in values(tree, "/brokers/ids/(.+)"):
            parsed = parse_broker(int(broker), text)
            assert format_broker(parsed) == text.removesuffix(":true")
            assert broker_path(parsed.id) == path
            seen += 1
        for path, text, (topic, broker) in values(tree, "/brokers/topics/([^/]+)/(.+)"):
            assert format_partition_count(parse_partition_count(text)) == text
            assert topic_broker_path(topic, int(broker)) == path
            seen += 1
    assert seen > 100


def test_reads_group_nodes(golden: Path) -> None:
    seen = {"ids": 0, "owners": 0, "offsets": 0}
    for tree in v07_trees(golden):
        for path, text, (group, consumer_id) in values(tree, "/consumers/([^/]+)/ids/(.+)"):
            formatted = parse_subscription(text).format()
            # Jafka's JSON has no blanks; 0.7.2 puts them where we do.
            assert formatted == text or (text.startswith('{"') and formatted.replace(" ", "") == text)
            assert id_path(group, consumer_id) == path
            seen["ids"] += 1
        for path, text, (group, topic, name) in values(tree, "/consumers/([^/]+)/owners/([^/]+)/(.+)"):
            assert format_owner(*parse_owner(text)) == text
            assert owner_path(group, TopicPartition.parse(topic, name)) == path
            seen["owners"] += 1
        for path, text, (group, topic, name) in values(tree, "/consumers/([^/]+)/offsets/([^/]+)/(.+)"):
            assert format_offset(parse_offset(text)) == text
            assert offset_path(group, TopicPartition.parse(topic, name)) == path
            seen["offsets"] += 1
    assert min(seen.values()) > 20


def test_recognises_the_dialect_of_every_recording(golden: Path) -> None:
    seen: set[tuple[Dialect, str]] = set()
    for path in (golden / "zookeeper").glob("*.json"):
        expected = Dialect.V07 if re.search(r"-0\.7\.2|jafka", path.name) else Dialect.V08
        for tree in trees(path):
            brokers = [text for _, text, _ in values(tree, "/brokers/ids/(.+)")]
            members = [text for _, text, _ in values(tree, "/consumers/([^/]+)/ids/(.+)")]
            assert {broker_dialect(text) for text in brokers} <= {expected}
            assert {member_dialect(text) for text in members} <= {expected}
            seen.update((expected, kind) for kind, found in (("broker", brokers), ("member", members)) if found)
            for text in members if expected is Dialect.V08 else ():
                with pytest.raises(DialectError):
                    parse_subscription(text)
            for text in brokers if expected is Dialect.V08 else ():
                with pytest.raises(DialectError):
                    parse_broker(0, text)
    assert len(seen) == 4


def test_reproduces_observed_assignments(golden: Path) -> None:
    lines = (golden / "kafka-0.7.2/rebalance/observed.jsonl").read_text().splitlines()
    for line in lines:
        case = json.loads(line)
        topics = {name: {int(b): count for b, count in brokers.items()} for name, brokers in case["topics"].items()}
        members = {consumer_id: parse_subscription(text) for consumer_id, text in case["ids"].items()}
        owners = {str(partition): format_owner(*owner) for partition, owner in assign(topics, members).items()}
        assert owners == case["owners"], case["name"]
    assert len(lines) == 76


@pytest.mark.parametrize("group", ["grp2", "grpw"])
def test_reproduces_assignments_of_real_groups(golden: Path, group: str) -> None:
    compared = 0
    for path in sorted((golden / "kafka-0.7.2/zk").glob("[23]*.json")):
        (tree,) = trees(path)
        topics: dict[str, dict[int, int]] = {}
        for _, text, (topic, broker) in values(tree, "/brokers/topics/([^/]+)/(.+)"):
            topics.setdefault(topic, {})[int(broker)] = parse_partition_count(text)
        members = {
            consumer_id: parse_subscription(text)
            for _, text, (consumer_id,) in values(tree, f"/consumers/{group}/ids/(.+)")
        }
        recorded = {
            f"{topic}/{name}": text
            for _, text, (topic, name) in values(tree, f"/consumers/{group}/owners/([^/]+)/(.+)")
        }
        owners = {str(partition): format_owner(*owner) for partition, owner in assign(topics, members).items()}
        assert owners == recorded, path.name
        compared += len(recorded)
    assert compared > 40
