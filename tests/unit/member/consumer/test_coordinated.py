"""A member whose group a broker coordinates: what its machine's actions do, and how its group ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError, IdTakenError
from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP

T0, T1, U0 = (TopicPartition.numbered(topic, number) for topic, number in (("t", 0), ("t", 1), ("u", 0)))


async def test_consumes_its_assignment_until_it_leaves(cluster: Any) -> None:
    member = cluster.coordinated()
    assert (member.member_id, member.settled, member.assigned) == ("", False, [])
    running = cluster.run(member)
    await cluster.turns()
    assert member.ready.is_set()
    assert (member.member_id, member.settled, member.assigned) == ("me", True, [T0, T1])
    assert member.controls.assignment() == {T0: 0, T1: 0}
    assert cluster.logs.expected == [T0, T1]
    assert member.group_metadata == (member._member.generation, "me", None)
    assert member.group_metadata.generation >= 0
    assert member.stats.rebalances == 1
    await cluster.clock.advance(30.0)
    assert cluster.asked.count("Heartbeat") >= 10
    assert len(member._stragglers()) <= 1  # none that was answered
    member.request_stop()
    await running
    assert cluster.asked[-1] == "LeaveGroup"
    assert [channel.closed for channel in cluster.channels] == [True]


async def test_stops_when_its_partitions_are_handled_to_their_ends(cluster: Any) -> None:
    cluster.store.offsets = {T0: cluster.logs.end, T1: cluster.logs.end}
    member = cluster.coordinated(stop_at_end=True)
    await asyncio.wait_for(cluster.run(member), 60)
    assert cluster.asked[-1] == "LeaveGroup"


async def test_consumes_topics_of_another_subscription_as_soon_as_they_exist(cluster: Any) -> None:
    member = cluster.coordinated()
    cluster.run(member)
    await cluster.turns()
    with capture_logs() as logs:
        member.change_subscription(StaticSubscription({"u": 1}))
        await cluster.turns()
        assert member.assigned == []
        cluster.topics["u"] = 1
        await cluster.clock.advance(60.0)
    assert member.assigned == [U0]
    awaited = [entry for entry in logs if entry["event"] in ("waiting_for_topics", "topics_found")]
    assert [entry.get("topics", "found") for entry in awaited] == [["u"], "found"]


async def test_joins_again_when_the_lease_ends_without_an_answer_to_heartbeats(cluster: Any) -> None:
    """Before the end of the session, when others may get its partitions, by the margin of its lease."""
    member = cluster.coordinated(lease_margin=2.0)
    cluster.run(member)
    await cluster.turns()
    cluster.handler.hold()
    cluster.logs.put(member, T0, 200, b"one")
    cluster.answers[HEARTBEAT] = [None]
    await cluster.clock.advance(42.75)
    assert (cluster.handler.holding, cluster.handler.cancelled) == (1, 0)
    await cluster.clock.advance(0.5)
    assert cluster.handler.cancelled == 1
    assert cluster.asked.count("JoinGroup") == 2
    assert member.settled
    assert member.stats.rebalances == 2


async def test_leaves_while_the_coordinator_holds_back_the_answer_to_its_join(cluster: Any) -> None:
    """On a new connection: on the former one the coordinator would read no request before it has answered."""
    cluster.answers[JOIN_GROUP] = [{"error_code": 79, "member_id": "me"}, None]
    member = cluster.coordinated()
    running = cluster.run(member)
    await cluster.turns()
    assert cluster.asked == ["JoinGroup", "JoinGroup"]
    with capture_logs() as logs:
        member.request_stop()
        await running
    assert cluster.asked[2:] == ["LeaveGroup"]
    assert len(cluster.channels) == 2
    assert [entry["event"] for entry in logs] == ["member_left"]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"error_code": 82}, IdTakenError, "the group.instance_id 'i' is held by another live member of group 'g'"),
        ({"error_code": 26}, BrokerError, "set group.session_timeout within"),
        (
            {"error_code": 0, "generation_id": 1, "protocol_name": "sticky", "leader": "you", "members": []},
            BrokerError,
            "cannot be a member of group 'g'",
        ),
    ],
    ids=["instance id", "timeout", "assignor"],
)
async def test_ends_with_the_reason_of_a_refusal(
    cluster: Any, answer: dict[str, Any], error: type[Exception], words: str
) -> None:
    cluster.answers[JOIN_GROUP] = [answer | {"member_id": "me"}]
    with pytest.raises(error, match=words):
        await asyncio.wait_for(cluster.run(cluster.coordinated(instance_id="i")), 60)


async def test_releases_only_what_the_broker_takes_away_by_the_consumer_protocol(cluster: Any) -> None:
    member = cluster.coordinated(protocol="consumer")
    running = cluster.run(member)
    await cluster.turns()
    assert (member.member_id, member.settled, member.assigned) == ("me", True, [T0, T1])
    assert member.stats.rebalances == 1
    kept = cluster.logs.lanes[T0]
    cluster.answers[CONSUMER_GROUP_HEARTBEAT] = [cluster.assigned({"t": 1})] * 3
    await cluster.clock.advance(2.0)
    await cluster.turns()
    assert member.assigned == [T0]
    assert member.settled
    assert set(cluster.logs.lanes) == {T0}
    assert cluster.logs.lanes[T0] is kept
    assert member.stats.rebalances == 2
    member.request_stop()
    await running
    assert cluster.asked[-1] == "ConsumerGroupHeartbeat"
    assert "JoinGroup" not in cluster.asked


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (82, IdTakenError, "the group.instance_id 'i' is held by another live member of group 'g'"),
        (111, IdTakenError, "the group.instance_id 'i' is held by another live member of group 'g'"),
        (35, BrokerError, 'set group.protocol = "classic"'),
        (69, BrokerError, "the group is of another type"),
        (112, BrokerError, "set group.remote_assignor"),
        (128, BrokerError, "must be a pattern of RE2"),
    ],
)
async def test_ends_with_the_reason_of_a_refusal_by_the_consumer_protocol(
    cluster: Any, code: int, error: type[Exception], words: str
) -> None:
    cluster.answers[CONSUMER_GROUP_HEARTBEAT] = [cluster.assigned({}) | {"error_code": code} for _ in range(40)]
    running = cluster.run(cluster.coordinated(instance_id="i", protocol="consumer"))
    with capture_logs():
        await cluster.turns()
        await cluster.clock.advance(100.0)  # one whose former process has the name waits
    with pytest.raises(error, match=words):
        await asyncio.wait_for(running, 60)


async def test_missing_permission_on_a_partition_holds_back_that_partition_alone(cluster: Any) -> None:
    cluster.store.denied = {T0}
    member = cluster.coordinated(initial="latest")
    cluster.run(member)
    with capture_logs() as logs:
        await cluster.turns()
        await cluster.clock.advance(60.0)
        assert set(cluster.logs.lanes) == {T1}
        cluster.logs.put(member, T1, cluster.logs.end, b"x")
        await cluster.turns()
        assert cluster.handler.seen == [b"x"]
        with pytest.raises(BrokerError, match="Read is missing"):
            await member.controls.commit()
        cluster.store.denied = set()
        await cluster.clock.advance(10.0)
    assert set(cluster.logs.lanes) == {T0, T1}
    assert cluster.store.offsets[T0] == cluster.logs.end
    assert [entry["partition"] for entry in logs if entry["event"] == "commit_refused"] == ["t/0"]
    assert set(await member.controls.commit()) == {T0, T1}
