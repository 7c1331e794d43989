"""The output of the tools for responses of brokers of Kafka 0.8 and later: scripted ones, and invalid ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.settings import ClientSettings
from consumerd.net.cluster.groups import GroupView
from consumerd.net.errors import ConnectionClosedError, RequestTimeoutError
from consumerd.operate.admin.changes import ChangePlanner, OffsetChange, OffsetTarget, OffsetTargetKind
from consumerd.operate.admin.diagnosis import diagnose_once
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.errors import CheckFailedError, RefusedError
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind
from consumerd.operate.admin.lag import read_lag
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.operate.admin.offset_plans import plan_set
from consumerd.operate.admin.removal import GroupRemains
from consumerd.operate.admin.v08.broker_groups import BrokerGroups
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.operate.admin.v08.topic_nodes import TopicPlan, assign_replicas
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from consumerd.operate.admin.v08.transactions import OpenProducer, TransactionOwner, find_open_transactions
from consumerd.wire.v08 import APIS
from consumerd.wire.v08.apis import DESCRIBE_PRODUCERS, FIND_COORDINATOR
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.subscription import MemberAssignment, MemberMetadata
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

T0, T1, T2 = (TopicPartition.numbered("t", number) for number in range(3))
Answer = dict[str, Any]


class ScriptedChannel:
    """Answers by API name, with what the script has for it, the last of it again and again. An error is raised."""

    def __init__(self, script: dict[str, list[Answer | Exception]], versions: BrokerVersions) -> None:
        self.address = versions.broker
        self.versions = versions
        self.closed = False
        self.in_flight = 0
        self.asked: list[tuple[str, int, Answer]] = []
        self._script = script

    async def call(self, api: Any, body: Answer, *, version: int | None = None, **_: Any) -> Answer:
        version = self.versions.pick(api) if version is None else version
        self.asked.append((api.name, version, body))
        answers = self._script[api.name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        if api is FIND_COORDINATOR and "coordinator_keys" in body:
            return {"coordinators": [{"key": key, **answer} for key in body["coordinator_keys"]]}
        return answer

    def abort(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


class Opener:
    def __init__(self, channel: ScriptedChannel) -> None:
        self.channel = channel

    async def open(self, host: str, port: int) -> Any:
        return self.channel

    def forget(self, host: str, port: int) -> None:
        """Nothing is remembered."""


METADATA: Answer = {
    "brokers": [{"node_id": 1, "host": "h", "port": 9, "rack": None}],
    "controller_id": 1,
    "topics": [
        {
            "error_code": 0,
            "name": "t",
            "partitions": [
                {"error_code": 0, "partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]},
                {"error_code": 5, "partition_index": 1, "leader_id": -1, "replica_nodes": [2], "isr_nodes": []},
            ],
        }
    ],
}
COORDINATOR: Answer = {"error_code": 0, "node_id": 1, "host": "h", "port": 9}
NEWEST = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})


def cluster(
    versions: BrokerVersions = NEWEST, **script: Answer | Sequence[Answer | Exception]
) -> tuple[ClusterClient, ScriptedChannel]:
    answers: dict[str, list[Answer | Exception]] = {"Metadata": [METADATA], "FindCoordinator": [COORDINATOR]}
    answers |= {name: [answer] if isinstance(answer, dict) else [*answer] for name, answer in script.items()}
    channel = ScriptedChannel(answers, versions)
    settings = ClientSettings(retry_backoff_min=0.001, retry_timeout=1)
    opener: Any = Opener(channel)
    return ClusterClient([("h", 9)], opener, settings, clock=SystemClock(), rng=random.Random(1)), channel


def offsets_of(*parts: tuple[int, int, int]) -> Answer:
    """An answer to LIST_OFFSETS: (partition, error, offset)."""
    told = [{"partition_index": number, "error_code": error, "offset": offset} for number, error, offset in parts]
    return {"topics": [{"name": "t", "partitions": told}]}


def planner(*answers: Answer, committed: dict[TopicPartition, int] | None = None) -> ChangePlanner:
    """For a group in ZooKeeper; `answers` of the leader to LIST_OFFSETS: by default, the log has 3 to 8."""
    client, _ = cluster(ListOffsets=answers or [offsets_of((0, 0, 3)), offsets_of((0, 0, 8))])
    snapshot = V08GroupSnapshot(GroupView("g", offsets=committed or {}), {"t": (0, 1)})
    return ChangePlanner(snapshot, V08BrokerLogs(client))


async def test_reports_partitions_whose_ends_are_unknown() -> None:
    client, _ = cluster(ListOffsets=[offsets_of((0, 0, 3)), offsets_of((0, 0, 8))])
    ranges = await V08BrokerLogs(client).ranges([T0, T1, T2, T0])
    assert list(ranges) == [T0, T1, T2]
    assert ranges[T0] == LogRange(3, 8)
    assert ranges[T1] == LookupFailure("the partition has no leader")
    assert ranges[T2] == LookupFailure("the cluster has no such partition")
    for answer, reason in (
        (offsets_of(), "returned no entry for it"),
        (offsets_of((0, 6, -1)), "NOT_LEADER"),
        (offsets_of((0, 0, -1)), "begins and ends"),
    ):
        client, _ = cluster(ListOffsets=answer)
        found = (await V08BrokerLogs(client).ranges([T0]))[T0]
        assert isinstance(found, LookupFailure)
        assert reason in found.reason
    assert await V08BrokerLogs(None, "away").ranges([T0]) == {T0: LookupFailure("away")}


async def test_finds_a_time_by_segments_and_by_messages() -> None:
    old = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {2: (0, 0), 3: (0, 0)})

    def by_segment(*offsets: int) -> Answer:
        part = {"partition_index": 0, "error_code": 0, "old_style_offsets": list(offsets)}
        return {"topics": [{"name": "t", "partitions": [part]}]}

    for told, after, note in (((5,), 5, "whole segments"), ((), 3, "whole segments")):
        client, channel = cluster(old, ListOffsets=[by_segment(3), by_segment(9), by_segment(*told)])
        planned = ChangePlanner(V08GroupSnapshot(GroupView("g"), {"t": (0,)}), V08BrokerLogs(client))
        [change] = await planned.reset([T0], OffsetTarget(OffsetTargetKind.TIME, 1000))
        assert (change.after, note in (change.note or "")) == (after, True)
        asked = [body["topics"][0]["partitions"][0] for name, _, body in channel.asked if name == "ListOffsets"]
        assert [each["timestamp"] for each in asked] == [-2, -1, 1000]
    planned = planner(*(offsets_of((0, 0, at)) for at in (3, 9, -1)))
    [change] = await planned.reset([T0], OffsetTarget(OffsetTargetKind.TIME, 1000))
    assert (change.after, change.note) == (9, "all messages in the log are older")


@pytest.mark.parametrize(("by", "after"), [(2, 7), (-9, 3), (99, 8)])
async def test_shift_stops_at_the_ends(by: int, after: int) -> None:
    [change] = await planner(committed={T0: 5}).reset([T0], OffsetTarget(OffsetTargetKind.SHIFT, by))
    assert (change.before, change.after, change.note is None) == (5, after, by == 2)


async def test_shift_needs_an_offset() -> None:
    [change] = await planner().reset([T0], OffsetTarget(OffsetTargetKind.SHIFT, 1))
    assert (change.unknown, change.problem) == (True, "no committed offset to shift")


@pytest.mark.parametrize(("committed", "after"), [({T0: 5}, 5), ({T0: 99}, 8), ({T0: 1}, 3), ({}, 8)])
async def test_current_offset_is_limited_to_the_log_and_its_end_where_none_is_committed(
    committed: dict[TopicPartition, int], after: int
) -> None:
    [change] = await planner(committed=committed).reset([T0], OffsetTarget(OffsetTargetKind.CURRENT))
    assert (change.after, change.problem) == (after, None)


async def test_reads_what_brokers_keep() -> None:
    snapshot = V08GroupSnapshot(GroupView("g", offsets={T0: 5}), {"t": (0, 1)}, CoordinatorKind.BROKER)
    changes = await ChangePlanner(snapshot, V08BrokerLogs(None)).set_to({T0: None, T1: None})
    assert [(change.moves, change.problem is None) for change in changes] == [(False, False), (False, True)]
    snapshot.coordinator = CoordinatorKind.ZOOKEEPER
    [change] = await ChangePlanner(snapshot, V08BrokerLogs(None)).set_to({T0: None})
    assert (change.moves, change.problem) == (True, None)


async def test_plans_for_a_group_at_brokers_whose_name_no_node_can_have() -> None:
    client, _ = cluster(ListOffsets=[offsets_of((0, 0, 3)), offsets_of((0, 0, 8))])
    snapshot = V08GroupSnapshot(GroupView("team/h"), {"t": (0,)}, CoordinatorKind.BROKER)
    [change] = await ChangePlanner(snapshot, V08BrokerLogs(client)).set_to({T0: 5})
    assert (change.group, change.after, change.version, change.problem) == ("team/h", 5, None, None)


MEMBER = {"group_instance_id": None, "client_id": "c", "client_host": "/10.0.0.1"}


def described(
    protocol_type: str = "consumer", error: int = 0, state: str = "Stable", **members: tuple[bytes, bytes]
) -> Answer:
    told = [
        {"member_id": name, **MEMBER, "member_metadata": metadata, "member_assignment": assignment}
        for name, (metadata, assignment) in members.items()
    ]
    group = {
        "error_code": error, "error_message": None, "group_id": "g", "group_state": state,
        "protocol_type": protocol_type, "protocol_data": "range", "members": told,
    }  # fmt: skip
    return {"groups": [group]}


def of_consumers(error: int = 0, state: str = "Stable", *members: Answer) -> Answer:
    group = {
        "error_code": error, "error_message": None, "group_id": "g", "group_state": state, "group_epoch": 3,
        "assignment_epoch": 3, "assignor_name": "uniform", "members": list(members),
    }  # fmt: skip
    return {"groups": [group]}


def consumer(name: str, topics: list[str], pattern: str | None, has: list[int], target: list[int]) -> Answer:
    def assignment(numbers: list[int]) -> Answer:
        return {"topic_partitions": [{"topic_name": "t", "partitions": numbers}] if numbers else []}

    return {
        "member_id": name, "client_id": "c", "client_host": "/10.0.0.1", "subscribed_topic_names": topics,
        "subscribed_topic_regex": pattern, "assignment": assignment(has), "target_assignment": assignment(target),
    }  # fmt: skip


def offsets_of_group(*responses: Answer) -> Answer:
    """An answer to OffsetFetch of version 9."""
    return {"groups": [{"group_id": "g", "error_code": 0, "topics": list(responses)}]}


NOTHING_COMMITTED = offsets_of_group()


async def test_reports_members_that_cannot_be_decoded() -> None:
    good = MemberMetadata(("t",)).encode(), MemberAssignment((("t", (0,)),)).encode()
    answers = [described(error=15), described(good=good, bad=(b"\x00\x00\x7f", b""), moving=(b"", b""))]
    client, _ = cluster(DescribeGroups=answers, OffsetFetch=NOTHING_COMMITTED)
    snapshot = await BrokerGroups(client).snapshot("g")
    assert (snapshot.state, snapshot.rule, snapshot.topics) == ("Stable", "range", {"t": (0, 1)})
    assert {name: member.subscription is not None for name, member in snapshot.view.members.items()} == {
        "good": True, "bad": False, "moving": False,
    }  # fmt: skip
    assert snapshot.clients["good"] == "c at 10.0.0.1"
    assert len(snapshot.view.problems) == 1
    assert snapshot.owner_name(T0) == "good"
    assert snapshot.partitions() == [T0, T1]
    assert len(in_the_way(snapshot, [T0])) == 3

    client, _ = cluster(DescribeGroups=described("connect", worker=(b"x", b"y")), OffsetFetch=NOTHING_COMMITTED)
    snapshot = await BrokerGroups(client).snapshot("g")
    assert "'connect'" in snapshot.view.problems[0]
    assert in_the_way(snapshot, [T0]) == ["member worker is alive, and its subscription cannot be read"]


@pytest.mark.parametrize(
    "told", [described(state="Dead"), described(error=69), {"groups": []}], ids=["dead", "not found", "not named"]
)
async def test_raises_for_an_unknown_group(told: Answer) -> None:
    none = {"error_code": 0, "groups": []}
    client, _ = cluster(
        DescribeGroups=told, ConsumerGroupDescribe=of_consumers(69), ListGroups=none, OffsetFetch=NOTHING_COMMITTED
    )
    with pytest.raises(NotFoundError, match="no broker knows a group 'g'"):
        await BrokerGroups(client).snapshot("g")


async def test_names_a_group_of_another_type() -> None:
    listed = {"error_code": 0, "groups": [
        {"group_id": "g", "protocol_type": "share", "group_state": "Stable", "group_type": "share"}
    ]}  # fmt: skip
    client, _ = cluster(
        DescribeGroups=described(error=69),
        ConsumerGroupDescribe=of_consumers(69),
        ListGroups=listed,
        OffsetFetch=NOTHING_COMMITTED,
    )
    snapshot = await BrokerGroups(client).snapshot("g")
    assert snapshot.state == "Stable"
    assert "of type 'share'" in snapshot.view.problems[0]
    with pytest.raises(CheckFailedError, match="the lag of group 'g' is unknown: it is a share group"):
        await read_lag(BrokerGroups(client), "g", ())


@pytest.mark.parametrize("told", [described(state="Dead"), described(error=69)], ids=["before 4.0", "since 4.0"])
async def test_reads_a_group_of_the_consumer_protocol(told: Answer) -> None:
    members = consumer("a", ["t"], None, [0, 1], [0]), consumer("b", [], "t|u", [], [1])
    client, _ = cluster(
        DescribeGroups=told,
        ConsumerGroupDescribe=[of_consumers(15), of_consumers(0, "Reconciling", *members)],
        OffsetFetch=NOTHING_COMMITTED,
    )
    snapshot = await BrokerGroups(client).snapshot("g")
    assert (snapshot.state, snapshot.rule, snapshot.moving) == ("Reconciling", "uniform", ["a", "b"])
    assert {name: member.text for name, member in snapshot.view.members.items()} == {"a": "t", "b": "t|u"}
    assert snapshot.view.owners == {T0: ("a", 0), T1: ("a", 0)}
    assert snapshot.clients["b"] == "c at 10.0.0.1"
    assert snapshot.subscribed == {"t": (0, 1)}
    assert not snapshot.view.problems
    assert len(in_the_way(snapshot, [T0])) == 2
    [finding] = [
        each for each in diagnose_once(DiagnosisInput(snapshot, {}, 0.0)) if each.kind is GroupFindingKind.REBALANCING
    ]
    assert "2 of 2 members" in finding.says


async def test_reports_an_unsupported_pattern_as_a_problem() -> None:
    members = consumer("a", [], "t,u", [0], [0]), consumer("b", [], "[", [], [])
    client, _ = cluster(
        DescribeGroups=described(error=69),
        ConsumerGroupDescribe=of_consumers(0, "Stable", *members),
        OffsetFetch=NOTHING_COMMITTED,
    )
    snapshot = await BrokerGroups(client).snapshot("g")
    assert snapshot.moving == []
    assert [member.subscription for member in snapshot.view.members.values()] == [None, None]
    assert len(snapshot.view.problems) == 2
    assert snapshot.view.owners == {T0: ("a", 0)}


async def test_rejects_changes_in_zookeeper_of_offsets_that_a_broker_keeps() -> None:
    snapshot = V08GroupSnapshot(GroupView("g", offsets={T0: 4}), {"t": (0, 1)}, at_broker={T1: 6})
    assert [snapshot.committed(one) for one in (T0, T1, T2)] == [4, 6, None]
    planned = ChangePlanner(snapshot, V08BrokerLogs(None))
    for changes in (
        await planned.set_to({T1: 7}), await planned.set_to({T1: None}),
        await planned.reset([T1], OffsetTarget(OffsetTargetKind.EARLIEST)),
    ):  # fmt: skip
        assert [(change.moves, change.unknown) for change in changes] == [(False, True)]
        assert "--bootstrap-server" in (changes[0].problem or "")


async def test_brokers_of_0_8_have_offsets_and_no_groups() -> None:
    part = {"partition_index": 0, "committed_offset": 7, "metadata": "", "error_code": 0}
    none = part | {"partition_index": 1, "committed_offset": -1}
    client, channel = cluster(
        BrokerVersions.of("h:9", BrokerRelease.V0_8),
        OffsetFetch={"topics": [{"name": "t", "partitions": [part, none]}]},
    )
    groups = BrokerGroups(client)
    snapshot = await groups.snapshot("g")
    assert (snapshot.view.offsets, snapshot.view.members, snapshot.state) == ({T0: 7}, {}, "")
    [(_, version, body)] = [asked for asked in channel.asked if asked[0] == "OffsetFetch"]
    assert (version, body["topics"]) == (1, [{"name": "t", "partition_indexes": [0, 1]}])
    with pytest.raises(UnsupportedApiError, match="give --zookeeper"):
        await groups.names()
    with pytest.raises(UnsupportedApiError, match=r"offsets\.retention\.minutes"):
        await groups.delete(GroupRemains("g", {}))


async def test_names_the_permission_that_an_offset_change_lacks() -> None:
    answer = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 29}]}]}
    client, _ = cluster(ListOffsets=[offsets_of((0, 0, 3)), offsets_of((0, 0, 8))], OffsetCommit=[answer])
    groups = BrokerGroups(client)
    snapshot = V08GroupSnapshot(GroupView("g"), {"t": (0,)}, CoordinatorKind.BROKER)
    changes = await ChangePlanner(snapshot, groups.logs).set_to({T0: 5})
    with pytest.raises(BrokerRefusedError, match="permission Read on the topic 't'"):
        await groups.write(changes, force=False)


async def test_rejects_offsets_for_a_group_that_became_active() -> None:
    part = {"partition_index": 0, "error_code": 25}
    answers = [{"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 14}]}]},
               {"topics": [{"name": "t", "partitions": [part]}]}]  # fmt: skip
    client, _ = cluster(ListOffsets=[offsets_of((0, 0, 3)), offsets_of((0, 0, 8))], OffsetCommit=answers)
    groups = BrokerGroups(client)
    snapshot = V08GroupSnapshot(GroupView("g"), {"t": (0,)}, CoordinatorKind.BROKER)
    changes = await ChangePlanner(snapshot, groups.logs).set_to({T0: 5})
    with pytest.raises(RefusedError, match="only from its members"):
        await groups.write(changes, force=True)


@pytest.mark.parametrize(
    ("codes", "error", "written"),
    [
        ([[0, 0], [25, 25]], RefusedError, 2),
        ([[0, 0], [0, 3]], BrokerError, 3),
        ([[3, 0]], BrokerError, 1),
    ],
    ids=["second group lives", "partition of the second group deleted", "partition of the first group deleted"],
)
async def test_says_how_many_offsets_were_written_before_a_refusal(
    codes: list[list[int]], error: type[Exception], written: int
) -> None:
    answers = [
        {"topics": [{"name": "t", "partitions": [{"partition_index": n, "error_code": code} for n, code in found]}]}
        for found in map(enumerate, codes)
    ]
    client, _ = cluster(OffsetCommit=answers)
    partitions = [TopicPartition.numbered("t", number) for number in range(2)]
    changes = [OffsetChange(group, each, None, 5, None) for group in ("g", "h") for each in partitions]
    with pytest.raises(error, match=f"; {written} of 4 offsets were written: correct this, and run the command again"):
        await BrokerGroups(client).write(changes, force=False)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (68, RefusedError, "has members"),
        (69, NotFoundError, "no broker knows"),
        (30, BrokerRefusedError, "not deleted"),
    ],
)
async def test_reports_groups_that_were_not_deleted(code: int, error: type[Exception], says: str) -> None:
    client, _ = cluster(DeleteGroups={"results": [{"group_id": "g", "error_code": code}]})
    with pytest.raises(error, match=says):
        await BrokerGroups(client).delete(GroupRemains("g", {}))


CUT = ConnectionClosedError("the broker closed the connection")


def group_answer(code: int) -> Answer:
    return {"results": [{"group_id": "g", "error_code": code}]}


@pytest.mark.parametrize("first", [CUT, RequestTimeoutError("no answer"), group_answer(7), group_answer(15)])
async def test_a_group_that_is_gone_after_an_unanswered_deletion_was_deleted(first: Answer | Exception) -> None:
    client, channel = cluster(DeleteGroups=[first, group_answer(69)])
    await BrokerGroups(client).delete(GroupRemains("g", {}))
    assert [name for name, *_ in channel.asked].count("DeleteGroups") == 2


@pytest.mark.parametrize("first", [{"FindCoordinator": [CUT, COORDINATOR]}, {"DeleteGroups": [group_answer(14)]}])
async def test_a_group_that_is_gone_where_no_deletion_went_unanswered_was_never_there(first: dict[str, Any]) -> None:
    script = {"DeleteGroups": [*first.pop("DeleteGroups", ()), group_answer(69)], **first}
    client, _ = cluster(**script)
    with pytest.raises(NotFoundError, match="no broker knows"):
        await BrokerGroups(client).delete(GroupRemains("g", {}))


def created(*codes: int) -> Answer:
    return {"topics": [{"name": "t", "error_code": code, "error_message": None} for code in codes]}


def deleted(*codes: int) -> Answer:
    return {"responses": created(*codes)["topics"]}


async def test_asks_the_new_controller_after_a_change() -> None:
    client, channel = cluster(CreateTopics=[created(41), created(0)], DeleteTopics=deleted(41))
    await TopicsByRequests(client).create(TopicPlan("t", assignment={0: (1,)}, config={"a": "b"}), timeout=2)
    asked = [body for name, _, body in channel.asked if name == "CreateTopics"]
    assert len(asked) == 2
    assert asked[0]["topics"][0] == {
        "name": "t", "num_partitions": -1, "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": [1]}],
        "configs": [{"name": "a", "value": "b"}],
    }  # fmt: skip
    assert (asked[0]["timeout_ms"], asked[0]["validate_only"]) == (2000, False)
    with pytest.raises(BrokerRefusedError, match="NOT_CONTROLLER"):
        await TopicsByRequests(client).delete("t", timeout=2)


async def test_a_topic_that_is_as_requested_after_an_unanswered_request_is_its_result() -> None:
    client, channel = cluster(CreateTopics=[CUT, created(36)], DeleteTopics=[CUT, deleted(3)])
    await TopicsByRequests(client).create(TopicPlan("t", 2, 1), timeout=2)  # METADATA has two partitions
    await TopicsByRequests(client).delete("t", timeout=2)
    assert [name for name, *_ in channel.asked if name != "Metadata"] == ["CreateTopics"] * 2 + ["DeleteTopics"] * 2


@pytest.mark.parametrize(
    ("partitions", "check_only", "answers"),
    [(3, False, [CUT, created(36)]), (2, True, [CUT, created(36)]), (2, False, [created(36)])],
)
async def test_another_topic_of_that_name_is_never_taken_for_a_created_one(
    partitions: int, check_only: bool, answers: list[Answer | Exception]
) -> None:
    client, _ = cluster(CreateTopics=answers)
    with pytest.raises(BrokerRefusedError, match="TOPIC_ALREADY_EXISTS"):
        await TopicsByRequests(client).create(TopicPlan("t", partitions, 1), timeout=2, check_only=check_only)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (deleted(7), BrokerRefusedError, r"delete\.topic\.enable"),
        (deleted(3), NotFoundError, "topics list"),
        (deleted(), BrokerError, "returned 0 topics"),
        (deleted(0, 0), BrokerError, "returned 2 topics"),
        (deleted(73), BrokerRefusedError, "TOPIC_DELETION_DISABLED"),
    ],
)
async def test_reports_topics_that_were_not_deleted(answer: Answer, error: type[Exception], says: str) -> None:
    client, _ = cluster(DeleteTopics=answer)
    with pytest.raises(error, match=says):
        await TopicsByRequests(client).delete("t", timeout=1)


async def test_rejects_creation_at_old_brokers() -> None:
    client, _ = cluster(BrokerVersions.of("h:9", BrokerRelease.V0_9))
    plan = TopicPlan("u", 1, 1)
    with pytest.raises(UnsupportedApiError, match=r"\(Kafka 0\.9\) .* give --zookeeper instead"):
        await TopicsByRequests(client).create(plan, timeout=1)
    ranges = {key: api.versions for key, api in APIS.items()} | {19: (0, 0)}
    client, _ = cluster(BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, ranges))
    with pytest.raises(ConfigError, match=r"before 2\.4"):
        await TopicsByRequests(client).create(TopicPlan("u", 1), timeout=1)
    with pytest.raises(UnsupportedApiError, match="one of 1 to"):
        await TopicsByRequests(client).create(plan, timeout=1, check_only=True)
    with pytest.raises(ConfigError, match=r"brokers \[2\] .* not alive"):
        await TopicsByRequests(client).create(TopicPlan("u", assignment={0: (2,)}), timeout=1)


@given(st.sets(st.integers(0, 40), min_size=1, max_size=9), st.integers(1, 60), st.data())
def test_assigns_replicas_evenly(brokers: set[int], partitions: int, data: st.DataObject) -> None:
    replication = data.draw(st.integers(1, len(brokers)))
    dealt = assign_replicas(list(brokers), partitions, replication, random.Random(data.draw(st.integers(0, 99))))
    TopicPlan("t", assignment=dealt)  # has as many different replicas everywhere
    assert len(dealt) == partitions
    assert {len(replicas) for replicas in dealt.values()} == {replication}
    if partitions % len(brokers) == 0:  # full rounds: all lead, and hold, the same
        led = Counter(replicas[0] for replicas in dealt.values())
        held = Counter(broker for replicas in dealt.values() for broker in replicas)
        assert len(set(led.values())) == len(set(held.values())) == 1
        assert led.keys() == held.keys() == brokers


@pytest.mark.parametrize(
    "call",
    [
        lambda: assign_replicas([1, 2], 1, 3, random.Random(1)),
        lambda: assign_replicas([1], 0, 1, random.Random(1)),
        lambda: TopicPlan(""),
        lambda: TopicPlan("a/b"),
        lambda: TopicPlan(".."),
        lambda: TopicPlan("x" * 250),
        lambda: TopicPlan("t", assignment={}),
        lambda: TopicPlan("t", assignment={1: (1,)}),
        lambda: TopicPlan("t", assignment={0: (1, 1)}),
        lambda: TopicPlan("t", assignment={0: (1,), 1: (1, 2)}),
    ],
)
def test_rejects_invalid_topics(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        call()


def producers_of(code: int, *open_since: int) -> Answer:
    """An answer of the leader of `t/0`: producers, and where the open transaction of each begins."""
    producers = [
        {"producer_id": 4000 + at, "producer_epoch": at, "last_timestamp": 7, "current_txn_start_offset": start}
        for at, start in enumerate(open_since)
    ]
    part = {"partition_index": 0, "error_code": code, "active_producers": producers}
    return {"topics": [{"name": "t", "partitions": [part]}]}


OWNER = TransactionOwner("pump", "Ongoing", 60_000, 1_700_000_000_000)


NOT_LISTED: Answer = {"error_code": 0, "unknown_state_filters": [], "transaction_states": []}


def listed_transactions(state: str = "Ongoing") -> Answer:
    entry = {"transactional_id": "pump", "producer_id": 4001, "transaction_state": state}
    return {"error_code": 0, "unknown_state_filters": [], "transaction_states": [entry]}


def described_transactions(state: str = "Ongoing", producer_id: int = 4001, error: int = 0) -> Answer:
    entry = {
        "error_code": error,
        "transactional_id": "pump",
        "transaction_state": state,
        "transaction_timeout_ms": 60_000,
        "transaction_start_time_ms": 1_700_000_000_000,
        "producer_id": producer_id,
        "producer_epoch": 1,
        "topics": [],
    }
    return {"transaction_states": [entry]}


@pytest.mark.parametrize(
    ("answer", "producer"),
    [
        (producers_of(0, -1, 5), OpenProducer(4001, 1, 7, OWNER)),
        (producers_of(0, -1, 6), "the broker knows of no such producer any more"),
        (producers_of(29), "permission Read on the topic 't'"),
        ({"topics": []}, "broker 1 did not name it"),
    ],
)
async def test_names_the_producer_of_an_open_transaction(answer: Answer, producer: OpenProducer | str) -> None:
    client, channel = cluster(
        ListOffsets=offsets_of((0, 0, 5)),
        DescribeProducers=answer,
        ListTransactions=listed_transactions(),
        DescribeTransactions=described_transactions(),
    )
    ranges: dict[TopicPartition, LogRange | LookupFailure] = {T0: LogRange(3, 8), T1: LookupFailure("away")}
    found = await find_open_transactions(V08BrokerLogs(client), ranges)
    assert list(found) == [T0]
    assert found[T0][:2] == (5, 3)
    told = found[T0].producer
    assert told == producer or (isinstance(producer, str) and producer in str(told))
    (asked,) = [body for name, _, body in channel.asked if name == "ListOffsets"]
    assert asked["isolation_level"] == 1
    asked_last: list[tuple[str, int, Answer]] = [
        ("DescribeProducers", 0, {"topics": [{"name": "t", "partition_indexes": [0]}]})
    ]
    if isinstance(producer, OpenProducer):
        asked_last.append(("ListTransactions", 2, {"state_filters": (), "producer_id_filters": [4001]}))
        asked_last.append(("DescribeTransactions", 0, {"transactional_ids": ["pump"]}))
    assert channel.asked[-len(asked_last) :] == asked_last


@pytest.mark.parametrize(
    ("listed", "described", "hangs"),
    [
        (listed_transactions(state="CompleteAbort"), {}, True),
        (NOT_LISTED, {}, True),
        (listed_transactions(), described_transactions(state="CompleteCommit"), True),
        (listed_transactions(), described_transactions(producer_id=4002), True),
        # It is not known whether it hangs.
        (NOT_LISTED | {"error_code": 14}, {}, False),
        (listed_transactions(), described_transactions(error=53), False),
    ],
)
async def test_a_transaction_that_no_coordinator_has_hangs(listed: Answer, described: Answer, hangs: bool) -> None:
    client, _ = cluster(
        ListOffsets=offsets_of((0, 0, 5)),
        DescribeProducers=producers_of(0, -1, 5),
        ListTransactions=listed,
        DescribeTransactions=described,
    )
    found = await find_open_transactions(V08BrokerLogs(client), {T0: LogRange(3, 8)})
    assert found[T0].producer == OpenProducer(4001, 1, 7, None, hangs)


async def test_finds_an_open_transaction_where_brokers_do_not_describe_producers() -> None:
    versions = {key: ranges for key, ranges in NEWEST.ranges.items() if key != DESCRIBE_PRODUCERS.key}
    client, _ = cluster(
        BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, versions), ListOffsets=offsets_of((0, 0, 5))
    )
    found = await find_open_transactions(V08BrokerLogs(client), {T0: LogRange(3, 8)})
    assert "does not serve DescribeProducers" in str(found[T0].producer)
    none = await find_open_transactions(V08BrokerLogs(client), {T0: LogRange(3, 5)})
    assert none == await find_open_transactions(V08BrokerLogs(None), {T0: LogRange(3, 8)}) == {}


def of_leader(epoch: int) -> Answer:
    """METADATA whose partition 0 is led in this epoch."""
    part = {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": epoch,
        "replica_nodes": [1],
        "isr_nodes": [1],
    }
    topic = {"error_code": 0, "name": "t", "topic_id": b"\x01" * 16, "partitions": [part]}
    return METADATA | {"topics": [topic]}


def committed(offset: int, *, epoch: int = -1, metadata: str = "") -> Answer:
    part = {
        "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": epoch, "metadata": metadata,
        "error_code": 0,
    }  # fmt: skip
    return offsets_of_group({"name": "t", "partitions": [part]})


def epoch_end(epoch: int, offset: int, error: int = 0) -> Answer:
    part = {"partition": 0, "error_code": error, "leader_epoch": epoch, "end_offset": offset}
    return {"topics": [{"topic": "t", "partitions": [part]}]}


async def offset_findings_of(offset: Answer, *, end: int, epoch: int, ends: list[Answer]) -> list[GroupFinding]:
    """What the doctor finds in the offsets of a stopped group; the log ends at `end`, and is led in `epoch`."""
    client, _ = cluster(
        Metadata=of_leader(epoch),
        DescribeGroups=described(state="Empty"),
        ListOffsets=[offsets_of((0, 0, 0)), offsets_of((0, 0, end))],
        OffsetForLeaderEpoch=ends,
        OffsetFetch=offset,
    )
    found = diagnose_once(await BrokerGroups(client).diagnosis_input("g"))
    return [each for each in found if each.kind is not GroupFindingKind.NO_MEMBERS]


@pytest.mark.parametrize("end", [300, 170])
@pytest.mark.parametrize("told", [{"epoch": 5}, {"metadata": "why leader-epoch=5"}], ids=["in its field", "as a note"])
async def test_reports_an_offset_whose_log_was_cut_off_before_it(end: int, told: dict[str, Any]) -> None:
    offset = committed(200, **told)
    (found,) = await offset_findings_of(offset, end=end, epoch=6, ends=[epoch_end(5, 150)])
    assert (found.kind, found.subject, found.fix) == (GroupFindingKind.TRUNCATED_LOG, "t/0", None)
    assert not found.is_notice
    assert found.says.startswith(
        "Offset 200 was committed with leader epoch 5, and in the leader's log that epoch ends at 150: the log was cut "
        "off there, as by an unclean leader election, and 50 messages that the group had read are gone. consumerd "
        "continues at 150"
    )
    assert "`consumerd offsets set` to 150 while the group is stopped" in found.remedy


async def test_reports_an_offset_in_the_log_of_another_replica_without_a_figure_that_nobody_knows() -> None:
    (found,) = await offset_findings_of(committed(200, epoch=5), end=300, epoch=6, ends=[epoch_end(3, 280)])
    assert (found.kind, found.subject) == (GroupFindingKind.TRUNCATED_LOG, "t/0")
    assert found.says == (
        "Offset 200 was committed with leader epoch 5, and the leader's log has no message of that epoch, but others "
        "up to the offset: it is another replica's, as after an unclean leader election, and the group may not have "
        "read what it has before the offset. consumerd continues at 200 (fetch.log_changed)."
    )
    assert found.remedy.startswith("To read what may have been passed over, `consumerd offsets set` to an earlier")


@pytest.mark.parametrize(
    ("offset", "end"),
    [
        (committed(200, epoch=5), epoch_end(5, 200)),
        (committed(200, epoch=5), epoch_end(-1, -1)),  # an older message format
        (committed(200, epoch=5), epoch_end(-1, -1, error=31)),  # CLUSTER_AUTHORIZATION_FAILED
        (committed(200), epoch_end(5, 150)),
        (committed(200, epoch=5, metadata="topic-id=AQEBAQEBAQEBAQEBAQEBAQ"), epoch_end(5, 260)),
    ],
    ids=["clean election", "forgotten", "not told", "no epoch", "of this topic"],
)
async def test_reports_no_offset_that_may_be_of_this_log(offset: Answer, end: Answer) -> None:
    assert await offset_findings_of(offset, end=300, epoch=6, ends=[end]) == []


async def test_reports_an_offset_of_a_topic_whose_epochs_began_again() -> None:
    """Brokers before 2.1, whose metadata name no leader epoch: the epoch after it is not there, either."""
    ends = [epoch_end(0, 150), epoch_end(-1, -1)]
    (found,) = await offset_findings_of(committed(200, epoch=0), end=150, epoch=-1, ends=ends)
    assert found.kind is GroupFindingKind.FORMER_LOG
    ends = [epoch_end(0, 150), epoch_end(1, 150)]
    (found,) = await offset_findings_of(committed(200, epoch=0), end=150, epoch=-1, ends=ends)
    assert found.kind is GroupFindingKind.TRUNCATED_LOG


async def test_reports_a_topic_that_was_created_again_once() -> None:
    offset = committed(200, epoch=5, metadata="topic-id=AAECAwQFBgcICQoLDA0ODw")
    (found,) = await offset_findings_of(offset, end=300, epoch=0, ends=[epoch_end(-1, -1)])
    assert found.kind is GroupFindingKind.FORMER_LOG
    assert "with topic id AAECAwQFBgcICQoLDA0ODw, leader epoch 5" in found.says


async def test_finds_the_coordinators_of_all_groups_of_a_file_with_one_request() -> None:
    wanted: GroupOffsets = {f"g{number}": {T0: 3} for number in range(500)}
    client, channel = cluster(
        DescribeGroups={"groups": []}, ConsumerGroupDescribe={"groups": []}, ListGroups={"error_code": 0, "groups": []},
        OffsetFetch={"groups": [{"group_id": "g", "error_code": 0, "topics": []}]}, ListOffsets=offsets_of((0, 0, 3)),
    )  # fmt: skip
    async with client:
        plan = await plan_set(BrokerGroups(client), wanted)
    assert len(plan.changes) == 500
    assert [name for name, _, _ in channel.asked].count("FindCoordinator") == 1
