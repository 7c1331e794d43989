"""Owners as real old consumers of 0.8.2.2 to 1.1.1 divided them, by range and by roundrobin."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from consumerd.group.assignors import Spelling, agrees_on_streams, range_owners, roundrobin_owners
from consumerd.registry import FilterKind, FilterSubscription, StaticSubscription, TopicFilter

if TYPE_CHECKING:
    from pathlib import Path

    from consumerd.registry import Subscription

VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1")
FILTERS = {"white_list": FilterKind.WHITELIST, "black_list": FilterKind.BLACKLIST}
#: The topics of the recording that its groups could see.
TOPICS = {"og.t1": range(4), "og.t2": range(3)}


def subscription(data: str) -> Subscription:
    found = json.loads(data)
    if found["pattern"] == "static":
        return StaticSubscription(found["subscription"])
    ((pattern, streams),) = found["subscription"].items()
    # 1.1.1 escapes twice, and so does not let through itself what it means.
    return FilterSubscription(TopicFilter(FILTERS[found["pattern"]], pattern), streams)


def owners_in(tree: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    found = {}
    for path, node in tree.items():
        match = re.fullmatch(r"/consumers/[^/]+/owners/([^/]+)/(\d+)", path)
        if match and node["data"]:
            found[match.group(1), match.group(2)] = node["data"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_owners(golden: Path, version: str) -> None:
    steps = json.loads((golden / "zookeeper" / f"oldconsumer-{version}.json").read_text())["steps"]
    looked_at = []
    for step in steps:
        label = step["label"]
        # What a killed member had is not dealt anew before its session ends; a blacklist sees topics of other tests.
        if "zk" not in step or "before session expiry" in label or "blacklist" in label:
            continue
        ids = {path.rsplit("/", 1)[1]: node for path, node in step["zk"].items() if "/ids/" in path}
        members = {name: subscription(node["data"]) for name, node in ids.items()}
        seen = owners_in(step["zk"])
        if "roundrobin" in label:
            assert agrees_on_streams(TOPICS, members)
            computed = roundrobin_owners(TOPICS, members, spelling=Spelling.BRACKETS)
            assert computed == roundrobin_owners(TOPICS, members, spelling=Spelling.DASH)
        else:
            computed = range_owners(TOPICS, members)
        named = {(one.topic, one.name): f"{owner}-{stream}" for one, (owner, stream) in computed.items()}
        assert named == seen, label
        if seen:
            looked_at.append(label)
    assert any("roundrobin" in label for label in looked_at)
    assert len(looked_at) >= 4
