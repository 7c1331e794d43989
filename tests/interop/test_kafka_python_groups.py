"""Members' metadata, assignments and assignors beside kafka-python's."""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from consumerd.group.assignors import range_shares, roundrobin_shares
from consumerd.wire.v08.subscription import (
    MemberAssignment,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
)


@pytest.fixture(scope="module")
def kafka_module(missing: Callable[[str], NoReturn]) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # what it uses of the standard library
                return importlib.import_module(name)
        except ImportError as error:
            missing(f"kafka-python is not installed as these tests know it ({error}): see the `dev` dependency group")

    return load


@pytest.mark.parametrize("version", range(4))
def test_metadata_is_the_same_as_in_kafka_python(kafka_module: Callable[[str], Any], version: int) -> None:
    theirs = kafka_module("kafka.protocol.consumer.metadata").ConsumerProtocolSubscription
    ours = MemberMetadata(("a", "b"), b"u", (("a", (2, 3)),) if version else (), 5, "r", version).encode()
    found = theirs.decode(ours)
    assert (found.topics, found.user_data) == (["a", "b"], b"u")
    if version:
        assert [(one.topic, one.partitions) for one in found.owned_partitions] == [("a", [2, 3])]
    written = theirs(topics=["c"], user_data=None, version=version, owned_partitions=[], generation_id=7, rack_id="x")
    generation, rack = 7 if version >= 2 else -1, "x" if version >= 3 else None
    assert decode_metadata(written.encode()) == MemberMetadata(("c",), None, (), generation, rack, version)


@pytest.mark.parametrize("version", range(4))
def test_assignment_is_the_same_as_in_kafka_python(kafka_module: Callable[[str], Any], version: int) -> None:
    theirs = kafka_module("kafka.protocol.consumer.metadata").ConsumerProtocolAssignment
    ours = MemberAssignment((("a", (0, 1)), ("b", (7,))), b"", version)
    found = theirs.decode(ours.encode())
    assert found.partitions() == [("a", 0), ("a", 1), ("b", 7)]
    assert decode_assignment(found.encode()) == ours


class Cluster:
    """The methods of a cluster that an assignor of kafka-python calls."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.partitions[topic])) if topic in self.partitions else None


@pytest.mark.parametrize(("name", "deal"), [("range", range_shares), ("roundrobin", roundrobin_shares)])
def test_assignors_agree(kafka_module: Callable[[str], Any], name: str, deal: Callable[..., Any]) -> None:
    module = kafka_module(f"kafka.coordinator.assignors.{name}")
    theirs = getattr(module, {"range": "RangePartitionAssignor", "roundrobin": "RoundRobinPartitionAssignor"}[name])
    metadata = kafka_module("kafka.protocol.consumer.metadata").ConsumerProtocolSubscription
    rng = random.Random(name)
    for _ in range(100):
        partitions = {topic: rng.randint(1, 12) for topic in rng.sample(["a", "b", "b-1", "B", "c"], rng.randint(0, 4))}
        members = {
            f"m{rng.randint(0, 20)}": rng.sample([*partitions, "gone"], rng.randint(1, len(partitions) + 1))
            for _ in range(4)
        }
        if name == "roundrobin":
            # Theirs does not get along with members that want different topics.
            members = {member: [*partitions, "gone"] for member in members}
        given = [
            SimpleNamespace(member_id=member, group_instance_id=None, metadata=metadata(topics=topics, version=0))
            for member, topics in members.items()
        ]
        found = theirs.assign(Cluster(partitions), given)
        dealt = {
            member: {topic: list(numbers) for topic, numbers in share.assigned_partitions if numbers}
            for member, share in found.items()
        }
        assert deal(partitions, members) == dealt
