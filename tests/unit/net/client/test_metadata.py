from __future__ import annotations

from typing import Any

import pytest

from consumerd.net.client.metadata import ClusterMetadata, Node, metadata_body
from consumerd.wire.v08.apis import METADATA
from consumerd.wire.v08.messages import decode_request, encode_request


def partition(number: int, leader: int, epoch: int = -1) -> dict[str, Any]:
    entry = {"error_code": 0, "partition_index": number, "leader_id": leader, "replica_nodes": [1, 2], "isr_nodes": [1]}
    return entry | ({"leader_epoch": epoch} if epoch >= 0 else {})


def answer(*partitions: dict[str, Any], topic: str = "t", topic_id: bytes = bytes(16)) -> Any:
    return {
        "brokers": [{"node_id": 1, "host": "a", "port": 9}, {"node_id": 2, "host": "b", "port": 9, "rack": "r"}],
        "controller_id": 2,
        "topics": [{"error_code": 0, "name": topic, "topic_id": topic_id, "partitions": list(partitions)}],
    }


def test_finds_leader_of_partition() -> None:
    metadata = ClusterMetadata().updated(answer(partition(0, 2), partition(1, -1), partition(2, 7)), complete=True)
    assert metadata.leader("t", 0) == Node(2, "b", 9, "r")
    assert metadata.leader("t", 1) is None  # has none
    assert metadata.leader("t", 2) is None  # is not alive
    assert metadata.leader("t", 3) is None
    assert metadata.leader("u", 0) is None
    assert metadata.controller == 2


def test_tells_what_old_brokers_do_not_say_as_unknown() -> None:
    body = answer(partition(0, 0), partition(1, -1)) | {"brokers": [{"node_id": 0, "host": "a", "port": 9}]}
    for topic in body["topics"]:
        del topic["topic_id"]
    metadata = ClusterMetadata().updated(body | {"controller_id": 0}, complete=True)
    assert metadata.controller == 0
    assert metadata.leader("t", 0) == Node(0, "a", 9)
    topic = metadata.topics["t"]
    assert not topic.internal
    assert (topic.partitions[0].leader_epoch, topic.partitions[1].leader) == (-1, None)
    del body["controller_id"]
    assert ClusterMetadata().updated(body, complete=True).controller is None


def test_tells_the_id_and_the_kind_of_a_topic() -> None:
    body = answer(partition(0, 1), topic_id=b"x" * 16)
    body["topics"][0]["is_internal"] = True
    body["topics"].append(body["topics"][0] | {"name": None})  # which only an id names
    metadata = ClusterMetadata().updated(body, complete=True)
    assert metadata.topic_id("t") == b"x" * 16
    assert metadata.topic_id("u") == bytes(16)
    assert list(metadata.topics) == ["t"]
    assert metadata.topics["t"].internal


def test_keeps_topics_not_in_response() -> None:
    metadata = ClusterMetadata().updated(answer(partition(0, 1)), complete=True)
    more = metadata.updated(answer(partition(0, 2), topic="u"), complete=False)
    assert sorted(more.topics) == ["t", "u"]
    assert sorted(metadata.updated(answer(partition(0, 2), topic="u"), complete=True).topics) == ["u"]


@pytest.mark.parametrize(("code", "kept"), [(0, True), (-1, True), (999, True), (3, False), (29, False)])
def test_keeps_the_partitions_of_a_topic_unless_an_answer_says_that_it_is_gone(code: int, kept: bool) -> None:
    before = ClusterMetadata().updated(answer(partition(0, 1), partition(1, 2), topic_id=b"x" * 16), complete=True)
    body = answer()
    body["topics"][0]["error_code"] = code
    topic = before.updated(body, complete=True).topics["t"]
    assert (len(topic.partitions), topic.error) == (2 if kept else 0, code)


def test_keeps_partitions_that_an_answer_leaves_out_while_the_topic_is_the_same() -> None:
    before = ClusterMetadata().updated(answer(partition(0, 1), partition(1, 2), topic_id=b"x" * 16), complete=True)
    after = before.updated(answer(partition(1, 1), topic_id=b"x" * 16), complete=True)
    assert [after.leader("t", number) for number in (0, 1)] == [before.nodes[1], before.nodes[1]]
    assert list(before.updated(answer(partition(1, 1), topic_id=b"y" * 16), complete=True).topics["t"].partitions) == [
        1
    ]
    unnamed = ClusterMetadata().updated(answer(partition(0, 1), partition(1, 2)), complete=True)
    assert list(unnamed.updated(answer(partition(1, 1)), complete=True).topics["t"].partitions) == [1]


def test_ignores_leader_with_older_epoch() -> None:
    metadata = ClusterMetadata().updated(answer(partition(0, 2, epoch=5)), complete=True)
    assert metadata.updated(answer(partition(0, 1, epoch=4)), complete=True).leader("t", 0) == Node(2, "b", 9, "r")
    assert metadata.updated(answer(partition(0, 1, epoch=6)), complete=True).leader("t", 0) == Node(1, "a", 9)
    again = metadata.updated(answer(partition(0, 1, epoch=5)), complete=True)
    assert again.leader("t", 0) == Node(1, "a", 9)  # not older
    # Recreated, the topic counts from the beginning.
    fresh = metadata.updated(answer(partition(0, 1, epoch=0), topic_id=b"x" * 16), complete=True)
    assert fresh.leader("t", 0) == Node(1, "a", 9)


def test_accepts_recreated_topic_without_ids() -> None:
    metadata = ClusterMetadata().updated(answer(partition(0, 2, epoch=5), partition(1, 2, epoch=5)), complete=True)
    recreated = answer(partition(0, 1, epoch=0), partition(1, 1, epoch=0))
    for _ in range(2):  # as a broker would say that has not heard of the last elections
        metadata = metadata.updated(recreated, complete=False)
        assert metadata.leader("t", 0) == Node(2, "b", 9, "r")
    metadata = metadata.updated(answer(partition(0, 1, epoch=0), partition(1, 2, epoch=5)), complete=False)
    assert metadata.leader("t", 0) == Node(1, "a", 9)
    metadata = metadata.updated(recreated, complete=False)
    assert metadata.leader("t", 1) == Node(2, "b", 9, "r")  # that was not said three times in a row
    # With an id it is the same topic for sure.
    metadata = ClusterMetadata().updated(answer(partition(0, 2, epoch=5), topic_id=b"x" * 16), complete=True)
    for _ in range(9):
        metadata = metadata.updated(answer(partition(0, 1, epoch=4), topic_id=b"x" * 16), complete=False)
    assert metadata.leader("t", 0) == Node(2, "b", 9, "r")


def test_keeps_brokers_when_response_names_none() -> None:
    metadata = ClusterMetadata().updated(answer(partition(0, 1)), complete=True)
    empty: Any = {"brokers": [], "topics": [], "controller_id": -1}
    assert metadata.updated(empty, complete=False).nodes == metadata.nodes
    assert metadata.updated(empty, complete=False).controller is None


@pytest.mark.parametrize("version", range(METADATA.versions[1] + 1))
@pytest.mark.parametrize("create", [False, True])
def test_asks_for_some_topics_or_all_in_every_version(version: int, create: bool) -> None:
    for topics in (["t", "u"], None, []):
        made = metadata_body(version, topics, create=create)
        frame = encode_request(METADATA, version, made, correlation_id=1, client_id="c")
        body = decode_request(METADATA, frame[4:]).body
        names = body["topics"]
        asked = None if names is None else [name["name"] for name in names]
        assert asked == (topics or [] if version == 0 else topics)
        assert ("allow_auto_topic_creation" in made) == (version >= 4)
        assert made.get("allow_auto_topic_creation", create) == create
        assert create or metadata_body(version, topics) == made
