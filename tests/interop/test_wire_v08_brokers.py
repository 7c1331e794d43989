"""Every version of every client's API that a real broker serves: it understands our request, we read its answer whole.

Each answer is encoded again and has to come out as the broker wrote it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumerd.wire.v08 import (
    APIS,
    Api,
    ErrorCode,
    answered_version,
    decode_response,
    encode_request,
    encode_response,
    error_info,
)
from consumerd.wire.v08.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
)
from consumerd.wire.v08.records import decode_records, encode_message_set, encode_record_batch
from tests.support.feature_needs import feature_needs
from tests.support.kafka import RELEASES

pytestmark = pytest.mark.interop
#: Releases that answer ApiVersions; recordings have what older ones say (tests/golden/test_guide_captures.py).
VERSIONS = [version for version, release in RELEASES.items() if release.number >= (0, 10)]
EVERYDAY = ("3.9.1",)
#: Not for clients, or not to be asked of a broker in use.
BETWEEN_BROKERS = {4, 5, 6, 7}
PATIENCE_S = 30.0
#: A broker is named as coordinator before it has read what it keeps.
LOADING = {ErrorCode.GROUP_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR_FOR_GROUP}


class Wire:
    """One connection, asked one thing after the other; remembers what it was asked."""

    def __init__(self, port: int, release: tuple[int, ...]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._release = release
        self._asked = 0
        self.ranges: dict[int, range] = {}
        self.done: set[tuple[int, int]] = set()

    def close(self) -> None:
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def call(self, api: Api[Any, Any], version: int, body: dict[str, Any]) -> Any:
        self._asked += 1
        self._socket.sendall(encode_request(api, version, body, correlation_id=self._asked, client_id="test"))
        frame = self._receive(4)
        frame += self._receive(struct.unpack(">i", frame)[0])
        message = decode_response(api, version, frame[4:])
        assert message.header.correlation_id == self._asked
        assert encode_response(api, answered_version(api, version, frame[4:]), message) == frame
        self.done.add((api.key, version))
        return message.body

    def learn(self) -> None:
        for served in self.call(API_VERSIONS, 0, {})["api_keys"]:
            api = APIS.get(served["api_key"])
            if api is not None and api.key not in BETWEEN_BROKERS:
                first = served["min_version"]
                if api is PRODUCE and self._release >= (4,):
                    first = 3  # it names older ones for the sake of a client that asks for them, and refuses them
                self.ranges[api.key] = range(first, min(served["max_version"], api.versions[1]) + 1)

    def versions(self, api: Api[Any, Any]) -> Iterator[int]:
        yield from self.ranges.get(api.key, ())

    def until(
        self, api: Api[Any, Any], version: int, body: dict[str, Any], good: Callable[[dict[str, Any]], bool]
    ) -> Any:
        """The first good answer: elections and coordinators take their time."""
        end = time.monotonic() + PATIENCE_S
        while not good(answer := self.call(api, version, body)):
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        return answer


def ask_for_versions(wire: Wire) -> None:
    for version in wire.versions(API_VERSIONS):
        body = {"client_software_name": "consumerd", "client_software_version": "1.0"}
        answer = wire.call(API_VERSIONS, version, body)
        assert answer["error_code"] == 0
        assert {told["api_key"] for told in answer["api_keys"]} >= set(wire.ranges)


def ask_for_metadata(wire: Wire, topics: list[str]) -> dict[str, bytes]:
    """The ids of the topics; zeros where there are none."""
    ids = {}
    for version in wire.versions(METADATA):
        wanted = [{"name": topic} for topic in topics]
        body: dict[str, Any] = {"topics": wanted, "allow_auto_topic_creation": version < 4}
        answer = wire.until(METADATA, version, body, led)
        assert {told["name"] for told in answer["topics"]} == set(topics)
        ids = {told["name"]: told.get("topic_id", bytes(16)) for told in answer["topics"]}
        assert wire.call(METADATA, version, {"topics": [] if version == 0 else None})["topics"]
    return ids


def led(answer: dict[str, Any]) -> bool:
    return all(
        topic["error_code"] == 0 and all(part["leader_id"] >= 0 for part in topic["partitions"])
        for topic in answer["topics"]
    )


def create_topics(wire: Wire) -> list[str]:
    topics = []
    for version in wire.versions(CREATE_TOPICS):
        topics.append(f"topic-{version}")
        asked = {"name": topics[-1], "num_partitions": 1, "replication_factor": 1}
        asked["configs"] = [{"name": "retention.ms", "value": "3600000"}]
        answer = wire.call(CREATE_TOPICS, version, {"topics": [asked], "timeout_ms": 10_000})
        assert [told["error_code"] for told in answer["topics"]] == [0]
        again = wire.call(CREATE_TOPICS, version, {"topics": [asked], "timeout_ms": 10_000})
        assert [told["error_code"] for told in again["topics"]] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    return topics


def delete_topics(wire: Wire, topics: list[str]) -> None:
    for version, topic in zip(wire.versions(DELETE_TOPICS), topics, strict=False):
        asked = [topic] if version < 6 else [{"name": topic}]
        answer = wire.call(
            DELETE_TOPICS, version, {"topic_names" if version < 6 else "topics": asked, "timeout_ms": 10_000}
        )
        assert [told["error_code"] for told in answer["responses"]] == [0]


def delete_groups(wire: Wire, group: str) -> None:
    """The group has no members any more: the first deletes it, the others find none."""
    expected = [0]
    for version in wire.versions(DELETE_GROUPS):
        (told,) = wire.call(DELETE_GROUPS, version, {"groups_names": [group]})["results"]
        assert (told["group_id"], told["error_code"]) == (group, expected[-1])
        expected.append(ErrorCode.GROUP_ID_NOT_FOUND)


def describe_groups_of_the_consumer_protocol(wire: Wire, group: str) -> None:
    """There is none of that name; brokers of 3.x serve the request, and have no such groups unless configured."""
    for version in wire.versions(CONSUMER_GROUP_DESCRIBE):
        (told,) = wire.call(CONSUMER_GROUP_DESCRIBE, version, {"group_ids": [group]})["groups"]
        assert told["group_id"] == group
        assert told["error_code"] in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def join_a_group_of_the_consumer_protocol(wire: Wire, group: str) -> None:
    for version in wire.versions(CONSUMER_GROUP_HEARTBEAT):
        member = {"group_id": group, "member_id": f"member-{version}", "rebalance_timeout_ms": 10_000}
        joined = {**member, "member_epoch": 0, "subscribed_topic_names": ["none"], "topic_partitions": []}
        code = wire.call(CONSUMER_GROUP_HEARTBEAT, version, joined)["error_code"]
        assert code in (0, ErrorCode.UNSUPPORTED_VERSION)
        if code == 0:
            left = wire.call(CONSUMER_GROUP_HEARTBEAT, version, {**member, "member_epoch": -1})
            assert left["error_code"] == 0


def describe_configs(wire: Wire, topic: str) -> None:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["max.message.bytes"]}
    for version in wire.versions(DESCRIBE_CONFIGS):
        (told,) = wire.call(DESCRIBE_CONFIGS, version, {"resources": [resource]})["results"]
        assert (told["error_code"], told["resource_type"], told["resource_name"]) == (0, 2, topic)
        (config,) = told["configs"]
        assert config["name"] == "max.message.bytes"
        assert int(config["value"]) > 0


def describe_producers(wire: Wire, topic: str) -> None:
    """Those of the batches above, whose producer id is -1, are not remembered."""
    for version in wire.versions(DESCRIBE_PRODUCERS):
        (told,) = wire.call(DESCRIBE_PRODUCERS, version, {"topics": [{"name": topic, "partition_indexes": [0]}]})[
            "topics"
        ]
        assert told["name"] == topic
        assert [
            (part["partition_index"], part["error_code"], part["active_producers"]) for part in told["partitions"]
        ] == [(0, 0, [])]


def produce_and_fetch(wire: Wire, topic: str, topic_id: bytes) -> None:
    count = 0
    for version in wire.versions(PRODUCE):
        if version < 3:
            data = encode_message_set([b"value"], keys=[b"key"], magic=0 if version < 2 else 1)
        else:
            data = encode_record_batch([b"value"], keys=[b"key"])
        asked = {"name": topic, "topic_id": topic_id, "partition_data": [{"index": 0, "records": data}]}
        answer = wire.call(PRODUCE, version, {"acks": -1, "timeout_ms": 10_000, "topic_data": [asked]})
        (told,) = answer["responses"][0]["partition_responses"]
        assert (told["error_code"], told["base_offset"]) == (0, count)
        count += 1
    for version in wire.versions(FETCH):
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        asked = {"topic": topic, "topic_id": topic_id, "partitions": [part]}
        answer = wire.call(FETCH, version, {"max_wait_ms": 100, "min_bytes": 1, "topics": [asked]})
        (told,) = answer["responses"][0]["partitions"]
        assert (told["error_code"], told["high_watermark"]) == (0, count)
        assert list(decode_records(told["records"], 0)) == [b"value"] * count
    for version in wire.versions(LIST_OFFSETS):
        asked = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}
        (told,) = wire.call(LIST_OFFSETS, version, {"topics": [asked]})["topics"][0]["partitions"]
        assert told["error_code"] == 0
        assert (told["old_style_offsets"] if version == 0 else [told["offset"]]) == [count]
    ask_for_ends_of_epochs(wire, topic, count)
    for version in wire.versions(INIT_PRODUCER_ID):
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        answer = wire.until(INIT_PRODUCER_ID, version, body, lambda told: told["error_code"] == 0)
        assert answer["producer_id"] >= 0


def ask_about_a_transaction(wire: Wire, topic: str, group: str) -> None:
    """Of a producer that does not exist: each request is read whole, and refused."""
    who = {"transactional_id": "nobody", "producer_id": 7, "producer_epoch": 0}
    part = {"partition_index": 0, "committed_offset": 1}
    more: dict[Api[Any, Any], dict[str, Any]] = {
        ADD_PARTITIONS_TO_TXN: {"topics": [{"name": topic, "partitions": [0]}]},
        ADD_OFFSETS_TO_TXN: {"group_id": group},
        END_TXN: {"committed": True},
        TXN_OFFSET_COMMIT: {"group_id": group, "topics": [{"name": topic, "partitions": [part]}]},
    }
    for api, body in more.items():
        for version in wire.versions(api):
            answer = wire.call(api, version, who | body)
            for told in answer.get("topics", ()) or answer.get("results_by_topic", ()):
                assert told["name"] == topic
            assert answer.get("error_code", 1), answer


def list_transactions(wire: Wire) -> None:
    """There are none."""
    for version in wire.versions(LIST_TRANSACTIONS):
        body = {"state_filters": ["Ongoing", "Odd"], "producer_id_filters": [7]}
        answer = wire.until(LIST_TRANSACTIONS, version, body, lambda told: told["error_code"] == 0)
        assert (answer["unknown_state_filters"], answer["transaction_states"]) == (["Odd"], [])
    for version in wire.versions(DESCRIBE_TRANSACTIONS):
        (told,) = wire.call(DESCRIBE_TRANSACTIONS, version, {"transactional_ids": ["nobody"]})["transaction_states"]
        assert (told["transactional_id"], told["error_code"] != 0) == ("nobody", True)


def ask_for_ends_of_epochs(wire: Wire, topic: str, end: int) -> None:
    """The log has one epoch, whose end is that of the log; of a later one it knows nothing."""
    for version in wire.versions(OFFSET_FOR_LEADER_EPOCH):
        for epoch, expected in ((0, (0, end)), (7, (-1, -1))):
            asked = {"topic": topic, "partitions": [{"partition": 0, "leader_epoch": epoch}]}
            answer = wire.call(OFFSET_FOR_LEADER_EPOCH, version, {"topics": [asked]})
            (told,) = answer["topics"][0]["partitions"]
            assert (told["error_code"], told["partition"]) == (0, 0)
            assert (told.get("leader_epoch", expected[0]), told["end_offset"]) == expected


def coordinate(wire: Wire, group: str) -> None:
    for version in wire.versions(FIND_COORDINATOR):
        if version < 4:
            found = wire.until(FIND_COORDINATOR, version, {"key": group}, lambda told: told["error_code"] == 0)
            assert found["port"] > 0
        else:
            found = wire.call(FIND_COORDINATOR, version, {"coordinator_keys": [group]})
            assert [(told["key"], told["error_code"]) for told in found["coordinators"]] == [(group, 0)]


def code_of_one(answer: dict[str, Any]) -> int:
    """The error code of the only partition of the only topic."""
    (told,) = answer["topics"][0]["partitions"]
    return int(told["error_code"])


def commit_and_fetch_offsets(wire: Wire, topic: str, topic_id: bytes, *, kraft: bool) -> None:
    for version in wire.versions(OFFSET_COMMIT):
        part = {"partition_index": 0, "committed_offset": 40 + version, "committed_metadata": "text"}
        asked = {"name": topic, "topic_id": topic_id, "partitions": [part]}
        body = {"group_id": "alone", "topics": [asked]}
        answer = wire.until(OFFSET_COMMIT, version, body, lambda answer: code_of_one(answer) not in LOADING)
        # Version 0 means ZooKeeper.
        assert code_of_one(answer) == (ErrorCode.UNSUPPORTED_VERSION if version == 0 and kraft else 0)
    committed = 40 + wire.ranges[OFFSET_COMMIT.key][-1]
    for version in wire.versions(OFFSET_FETCH):
        if version == 0:
            continue  # those of ZooKeeper, see below
        if version < 8:
            wanted = {"name": topic, "partition_indexes": [0]}
            answers = wire.call(OFFSET_FETCH, version, {"group_id": "alone", "topics": [wanted]})["topics"]
        else:
            every = {"name": topic, "topic_id": topic_id, "partition_indexes": [0]}
            groups = wire.call(OFFSET_FETCH, version, {"groups": [{"group_id": "alone", "topics": [every]}]})["groups"]
            answers = groups[0]["topics"]
        (told,) = answers[0]["partitions"]
        assert (told["error_code"], told["committed_offset"], told["metadata"]) == (0, committed, "text")
        if version > 1:
            one = {"group_id": "alone", "topics": None}
            wire.call(OFFSET_FETCH, version, one if version < 8 else {"groups": [one]})
    if 0 in wire.versions(OFFSET_FETCH):
        wanted = {"name": topic, "partition_indexes": [0]}
        told = wire.call(OFFSET_FETCH, 0, {"group_id": "alone", "topics": [wanted]})
        assert told["topics"][0]["name"] == topic


def be_a_member(wire: Wire, group: str) -> None:
    """One membership for each version of JoinGroup; the other APIs take turns through theirs."""

    def turn(api: Api[Any, Any], number: int) -> int:
        return wire.ranges[api.key][min(number, len(wire.ranges[api.key]) - 1)]

    most = max(
        len(wire.ranges[api.key])
        for api in (JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP, DESCRIBE_GROUPS, LIST_GROUPS)
    )
    for number in range(most):
        protocols = [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00"}]
        body: dict[str, Any] = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": protocols,
        }
        joined = wire.call(JOIN_GROUP, turn(JOIN_GROUP, number), body)
        if joined["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            joined = wire.call(JOIN_GROUP, turn(JOIN_GROUP, number), body | {"member_id": joined["member_id"]})
        assert joined["error_code"] == 0, error_info(joined["error_code"])
        member = joined["member_id"]
        assert [told["member_id"] for told in joined["members"]] == [member]
        mine = {"group_id": group, "generation_id": joined["generation_id"], "member_id": member}
        given = [{"member_id": member, "assignment": b"all of it"}]
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        synced = wire.call(SYNC_GROUP, turn(SYNC_GROUP, number), mine | named | {"assignments": given})
        assert (synced["error_code"], synced["assignment"]) == (0, b"all of it")
        beat = {"group_id": group, "generation_id": joined["generation_id"], "member_id": member}
        assert wire.call(HEARTBEAT, turn(HEARTBEAT, number), beat)["error_code"] == 0
        (told,) = wire.call(DESCRIBE_GROUPS, turn(DESCRIBE_GROUPS, number), {"groups": [group]})["groups"]
        assert (told["error_code"], told["group_state"], told["protocol_data"]) == (0, "Stable", "range")
        assert told["members"][0]["member_assignment"] == b"all of it"
        listed = wire.call(LIST_GROUPS, turn(LIST_GROUPS, number), {})
        assert group in {one["group_id"] for one in listed["groups"]}
        version = turn(LEAVE_GROUP, number)
        leaver = (
            {"member_id": member} if version < 3 else {"members": [{"member_id": member, "group_instance_id": None}]}
        )
        assert wire.call(LEAVE_GROUP, version, {"group_id": group} | leaver)["error_code"] == 0


def authenticate_where_nobody_asks(wire: Wire) -> None:
    for version in wire.versions(SASL_HANDSHAKE):
        answer = wire.call(SASL_HANDSHAKE, version, {"mechanism": "PLAIN"})
        assert answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    for version in wire.versions(SASL_AUTHENTICATE):
        answer = wire.call(SASL_AUTHENTICATE, version, {"auth_bytes": b"token"})
        assert answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in VERSIONS]
)
async def test_exchanges_every_version_that_a_broker_supports(version: str, kafka: Any) -> None:
    release = RELEASES[version]
    broker = await kafka(version, partitions=1, config={"delete.topic.enable": "true"})
    with contextlib.closing(Wire(broker.port, release.number)) as wire:
        wire.learn()
        ask_for_versions(wire)
        topics = create_topics(wire) or ["topic-0"]
        ids = ask_for_metadata(wire, topics)
        produce_and_fetch(wire, topics[0], ids[topics[0]])
        describe_producers(wire, topics[0])
        describe_configs(wire, topics[0])
        coordinate(wire, "together")
        commit_and_fetch_offsets(wire, topics[0], ids[topics[0]], kraft=release.kraft)
        be_a_member(wire, "together")
        list_transactions(wire)
        ask_about_a_transaction(wire, topics[0], "undecided")
        delete_groups(wire, "together")
        describe_groups_of_the_consumer_protocol(wire, "together")
        join_a_group_of_the_consumer_protocol(wire, "incremental")
        authenticate_where_nobody_asks(wire)
        delete_topics(wire, topics)
    for need in feature_needs():  # docs/which-brokers.md
        offered = need.version < wire.ranges.get(need.api.key, range(0)).stop
        assert offered is (need.broker <= release.number), need
    served = {(key, one) for key, versions in wire.ranges.items() for one in versions}
    assert wire.done >= served
    assert len(served) > 20
