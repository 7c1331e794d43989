"""Every znode that was recorded from brokers of 0.8.2 to 3.9.1 and their old consumers is read.

What we write too is written back byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.paths import (
    broker_path,
    id_path,
    offset_path,
    owner_path,
    partition_state_path,
    topic_config_path,
    topic_path,
)
from consumerd.wire.registry.v08.broker import parse_broker_node
from consumerd.wire.registry.v08.subscription import format_subscription_v08, parse_subscription_v08
from consumerd.wire.registry.v08.topic import (
    format_topic_assignment,
    format_topic_config,
    parse_partition_state,
    parse_topic_assignment,
)
from consumerd.wire.registry.values import format_offset, format_owner, parse_offset, parse_owner

Tree = dict[str, dict[str, Any]]


def v08_trees(golden: Path) -> Iterator[tuple[str, Tree]]:
    """The file's name and every tree in it."""
    for path in sorted((golden / "zookeeper").glob("*.json")):
        if not re.search(r"-0\.7\.2|jafka", path.name):
            content = json.loads(path.read_text())
            steps = content.get("steps", [{"zk": content}])
            yield from ((path.stem, step["zk"]) for step in steps if "zk" in step)


def values(tree: Tree, pattern: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Path, text and the pattern's groups of every node with data whose path matches."""
    for path, node in tree.items():
        if (match := re.fullmatch(pattern, path)) and node["data"]:
            yield path, node["data"], match.groups()


def test_reads_and_writes_brokers_as_recorded(golden: Path) -> None:
    versions: dict[int, int] = {}
    for _, tree in v08_trees(golden):
        for path, text, (name,) in values(tree, "/brokers/ids/(.+)"):
            broker = parse_broker_node(int(name), text)
            recorded = json.loads(text)
            assert broker_path(broker.id) == path
            assert broker.address() == (broker.host, broker.port) == (recorded["host"], recorded["port"])
            assert [f"{one.listener}://{one.host}:{one.port}" for one in broker.endpoints] == recorded.get(
                "endpoints", [f"PLAINTEXT://{broker.host}:{broker.port}"]
            )
            versions[broker.version] = versions.get(broker.version, 0) + 1
    assert sorted(versions) == [1, 2, 3, 4, 5]


def test_reads_topics_as_recorded(golden: Path) -> None:
    versions, leaderless, configs = set(), 0, 0
    for _, tree in v08_trees(golden):
        for path, text, (topic,) in values(tree, "/brokers/topics/([^/]+)"):
            assignment = parse_topic_assignment(text)
            recorded = json.loads(text)
            versions.add(recorded["version"])
            assert topic_path(topic) == path
            written = format_topic_assignment(assignment)
            assert json.loads(written)["partitions"] == recorded["partitions"]
            if recorded["version"] == 1:
                assert re.sub(r'"\d+":\[[^]]*],?', "", written) == re.sub(r'"\d+":\[[^]]*],?', "", text)
        for path, text, (topic, number) in values(tree, "/brokers/topics/([^/]+)/partitions/([^/]+)/state"):
            state = parse_partition_state(text)
            assert partition_state_path(topic, int(number)) == path
            assert json.loads(text) == {**state._asdict(), "isr": list(state.isr)}
            assert set(state.isr) <= set(parse_topic_assignment(tree[topic_path(topic)]["data"])[int(number)])
            leaderless += state.leader == -1
        for path, text, (topic,) in values(tree, "/config/topics/([^/]+)"):
            assert format_topic_config(json.loads(text)["config"]) == text
            assert topic_config_path(topic) == path
            configs += 1
    assert versions == {1, 3}
    assert leaderless
    assert configs > 20


def test_reads_and_writes_groups_as_recorded(golden: Path) -> None:
    seen = {"ids": 0, "owners": 0, "offsets": 0}
    for name, tree in v08_trees(golden):
        for path, text, (group, consumer_id) in values(tree, "/consumers/([^/]+)/ids/(.+)"):
            wall_ms = int(json.loads(text)["timestamp"])
            formatted = format_subscription_v08(parse_subscription_v08(text), wall_ms)
            assert formatted == text, name
            assert id_path(group, consumer_id) == path
            seen["ids"] += 1
        for path, text, (group, topic, number) in values(tree, "/consumers/([^/]+)/owners/([^/]+)/(.+)"):
            assert format_owner(*parse_owner(text)) == text
            assert owner_path(group, TopicPartition.parse_numbered(topic, number)) == path
            seen["owners"] += 1
        for path, text, (group, topic, number) in values(tree, "/consumers/([^/]+)/offsets/([^/]+)/(.+)"):
            assert format_offset(parse_offset(text)) == text
            assert offset_path(group, TopicPartition.parse_numbered(topic, number)) == path
            seen["offsets"] += 1
    assert min(seen.values()) > 20
