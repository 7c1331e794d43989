"""Responses of a coordinator are converted to events for the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.member.consumer.group_requests import ConsumerGroupRequests, GroupRequests
from consumerd.net.client.channel import Channel as RealChannel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError, error_of
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, encode_response
from consumerd.wire.v08.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.schema import Api
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
from tests.support.virtual_time import LoopClock, run_in_virtual_time

BEAT = e.Heartbeat(7, 3, "me")


class Versions:
    def __init__(self, at_most: int) -> None:
        self.at_most = at_most

    def pick(self, api: Api[Any, Any], *, at_least: int = 0, at_most: int | None = None) -> int:
        last = min(self.at_most, api.versions[1])
        if last < at_least:
            raise UnsupportedApiError("too old")
        return last


class Channel:
    """Gives scripted answers, and records the requests."""

    def __init__(self, answers: list[Any], at_most: int) -> None:
        self.answers = answers
        self.versions = Versions(at_most)
        self.asked: list[tuple[Api[Any, Any], int, dict[str, Any]]] = []
        self.timeouts: list[float] = []
        self.closed = False

    async def call(
        self, api: Api[Any, Any], body: dict[str, Any], *, version: int = -1, timeout: float = 0.0
    ) -> dict[str, Any]:
        self.asked.append((api, version, body))
        self.timeouts.append(timeout)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return cast("dict[str, Any]", answer)

    def abort(self) -> None:
        self.closed = True


class Client:
    """Knows who coordinates, and opens channels."""

    def __init__(self, *answers: Any, at_most: int = 9) -> None:
        self.answers = list(answers)
        self.at_most = at_most
        self.channels: list[Channel] = []
        self.forgotten = 0
        self.failure: Exception | None = None
        self.metadata = ClusterMetadata()
        self.settings = ClientSettings(rack="zone-a")
        self.refreshed: list[Any] = []

    async def coordinator(self, group: str) -> int:
        if self.failure is not None:
            raise self.failure
        return 1

    async def private_channel(self, node_id: int) -> Channel:
        self.channels.append(Channel(self.answers, self.at_most))
        return self.channels[-1]

    def forget_coordinator(self, group: str) -> None:
        self.forgotten += 1

    async def refresh(self, topics: Any) -> ClusterMetadata:
        self.refreshed.append(topics)
        if self.failure is not None:
            raise self.failure
        return self.metadata


def requests(client: Client, **settings: Any) -> GroupRequests:
    return GroupRequests(cast("ClusterClient", client), "g", CoordinationSettings(**settings))


JOINED = {
    "error_code": 0,
    "generation_id": 4,
    "protocol_name": "range",
    "leader": "me",
    "member_id": "me",
    "members": [{"member_id": "me", "metadata": b"m", "group_instance_id": "i"}],
    "skip_assignment": True,
}


async def test_join_returns_member_and_generation() -> None:
    client = Client(JOINED)
    event = await requests(client).join(e.Join(1, "", (("range", b"m"),)))
    members = (e.GroupMember("me", b"m", "i"),)
    assert event == e.Joined(1, 4, "me", "range", True, members, 60.0, keep_assignment=True)
    api, version, body = client.channels[0].asked[0]
    assert (api, version) == (JOIN_GROUP, 9)
    assert (body["session_timeout_ms"], body["rebalance_timeout_ms"], body["protocol_type"]) == (
        45000,
        60000,
        "consumer",
    )
    assert body["protocols"] == [{"name": "range", "metadata": b"m"}]


@pytest.mark.parametrize(("at_most", "timeout"), [(0, 10.0), (1, 60.0)])
async def test_oldest_brokers_take_the_session_timeout_as_rebalance_timeout(at_most: int, timeout: float) -> None:
    event = await requests(Client(JOINED, at_most=at_most), session_timeout=10.0).join(e.Join(1, "", ()))
    assert isinstance(event, e.Joined)
    assert event.rebalance_timeout == timeout


async def test_lowers_session_timeout_refused_by_oldest_brokers() -> None:
    """Those of 0.9 grant 30 s by default; the lease then ends with what they granted."""
    refused = JOINED | {"error_code": 26}
    client = Client(refused, JOINED, refused, at_most=0)
    asking = requests(client)
    assert await asking.join(e.Join(1, "", ())) == e.Failed(1)
    event = await asking.join(e.Join(2, "", ()))
    assert isinstance(event, e.Joined)
    assert event.rebalance_timeout == 30.0
    assert [body["session_timeout_ms"] for _, _, body in client.channels[0].asked] == [45000, 30000]
    assert isinstance(await asking.join(e.Join(3, "", ())), e.Refused)
    assert "group.session_timeout" in str(asking.refusal)
    assert isinstance(await requests(Client(refused)).join(e.Join(1, "", ())), e.Refused)


async def test_stop_does_not_wait_for_silent_coordinator() -> None:
    client = Client({"error_code": 0})
    asking = requests(client, session_timeout=3600.0, rebalance_timeout=3600.0)
    assert await asking.leave(e.Leave(3, "me")) == e.Left(3)
    [patience] = client.channels[0].timeouts
    assert patience * CoordinationSettings().leave_attempts < 10.0  # then Docker kills a container


async def test_first_join_waits_for_rebalance_timeout() -> None:
    """Brokers before 2.2 count a repeated join without an id as one more member, which never answers."""
    old = Client(JOINED, JOINED, at_most=3)
    asking = requests(old)
    await asking.join(e.Join(1, "", ()))
    await asking.join(e.Join(2, "me", ()))
    assert old.channels[0].timeouts == [305.0, 65.0]
    patient = Client(JOINED, at_most=1)
    await requests(patient, rebalance_timeout=600.0).join(e.Join(1, "", ()))
    assert patient.channels[0].timeouts == [605.0]
    told_first = Client(JOINED)
    await requests(told_first).join(e.Join(1, "", ()))
    assert told_first.channels[0].timeouts == [65.0]


async def test_static_membership_requires_supporting_brokers() -> None:
    client = Client(JOINED)
    await requests(client, instance_id="i").join(e.Join(1, "", ()))
    assert client.channels[0].asked[0][2]["group_instance_id"] == "i"
    old = requests(Client(at_most=4), instance_id="i")
    assert await old.join(e.Join(1, "", ())) == e.Refused(1, 35)
    assert isinstance(old.refusal, UnsupportedApiError)


@pytest.mark.parametrize(("api", "since"), [(JOIN_GROUP, 5), (SYNC_GROUP, 3), (HEARTBEAT, 3)])
async def test_requests_of_static_members_have_the_first_version_that_names_them(
    api: Api[Any, Any], since: int
) -> None:
    def ask(asking: GroupRequests) -> Awaitable[e.Event]:
        if api is JOIN_GROUP:
            return asking.join(e.Join(7, "me", ()))
        return asking.sync(e.Sync(7, 4, "me", "range", ())) if api is SYNC_GROUP else asking.beat(BEAT)

    client = Client(JOINED | {"assignment": b""}, at_most=since)
    assert not isinstance(await ask(requests(client, instance_id="i")), e.Refused)
    [(asked, version, body)] = client.channels[0].asked
    assert (asked, version, body["group_instance_id"]) == (api, since, "i")
    assert await ask(requests(Client(at_most=since - 1), instance_id="i")) == e.Refused(7, 35)


async def test_join_returns_id_of_new_member() -> None:
    answer = JOINED | {"error_code": 79, "member_id": "new"}
    assert await requests(Client(answer)).join(e.Join(1, "", ())) == e.Refused(1, 79, "new")


async def test_sync_sends_and_receives_assignments() -> None:
    client = Client({"error_code": 0, "assignment": b"mine"})
    event = await requests(client).sync(e.Sync(2, 4, "me", "range", (("me", b"a"),)))
    assert event == e.Synced(2, b"mine")
    api, _, body = client.channels[0].asked[0]
    assert api is SYNC_GROUP
    assert body["assignments"] == [{"member_id": "me", "assignment": b"a"}]
    assert client.channels[0].timeouts == [65.0]  # the rebalance may take as long


@pytest.mark.parametrize(("at_most", "field"), [(2, "member_id"), (3, "members")])
async def test_leaves_in_version_of_broker(at_most: int, field: str) -> None:
    client = Client({"error_code": 0}, at_most=at_most)
    assert await requests(client).leave(e.Leave(3, "me")) == e.Left(3)
    api, _, body = client.channels[0].asked[0]
    assert api is LEAVE_GROUP
    assert body.keys() == {"group_id", field}


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (0, e.Confirmed(7)),
        (27, e.Refused(7, 27)),
        (22, e.Refused(7, 22)),
        (25, e.Refused(7, 25)),
        (82, e.Refused(7, 82)),
        (14, e.Failed(7)),
        (15, e.Failed(7)),
        (16, e.Failed(7)),
        (-1, e.Failed(7)),
        (999, e.Failed(7)),
    ],
)
async def test_maps_heartbeat_error_codes(code: int, event: e.Event) -> None:
    client = Client({"error_code": code})
    assert await requests(client).beat(BEAT) == event
    assert client.channels[0].asked[0][0] is HEARTBEAT
    assert client.forgotten == client.channels[0].closed == (code in (15, 16))  # another broker may coordinate


async def test_reconnects_and_looks_up_coordinator() -> None:
    client = Client(ConnectionClosedError("gone"), {"error_code": 0})
    asked = requests(client)
    assert await asked.beat(BEAT) == e.Failed(7)
    assert client.forgotten == 1
    assert await asked.beat(BEAT) == e.Confirmed(7)
    assert len(client.channels) == 2


@pytest.mark.parametrize("action", [BEAT, e.Leave(7, "me")], ids=["heartbeat", "leave"])
async def test_times_out_after_a_third_of_the_session_timeout(action: e.Heartbeat | e.Leave) -> None:
    """So that there is time for the next attempt."""
    client = Client(None, {"error_code": 0})
    asked = requests(client, session_timeout=0.3, heartbeat_interval=0.1)

    async def ask() -> e.Event:
        return await (asked.beat(action) if isinstance(action, e.Heartbeat) else asked.leave(action))

    with capture_logs() as logs:
        assert await ask() == e.Failed(7)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("coordinator_unavailable", "no answer within 0.1 s")
    ]
    assert client.channels[0].closed
    assert await ask() in (e.Confirmed(7), e.Left(7))


@pytest.mark.parametrize(
    ("failure", "event"),
    [
        (error_of(30, "no"), e.Refused(7, 30)),
        (error_of(15, "no"), e.Failed(7)),
        (AuthenticationError("no"), e.Refused(7, 58)),
        (BrokerError("away"), e.Failed(7)),
    ],
)
async def test_reports_missing_coordinator(failure: Exception, event: e.Event) -> None:
    client = Client()
    client.failure = failure
    asked = requests(client)
    assert await asked.beat(BEAT) == event
    assert asked.refusal is (failure if isinstance(event, e.Refused) else None)


async def test_credentials_and_permissions_that_are_taken_away_later_may_come_back() -> None:
    client = Client(JOINED, {"error_code": 30}, {"error_code": 0})
    asked = requests(client)
    assert isinstance(await asked.join(e.Join(1, "", ())), e.Joined)
    with capture_logs() as logs:
        assert await asked.beat(BEAT) == e.Failed(7)
        for failure in (error_of(30, "no coordinator"), AuthenticationError("refuses the authentication")):
            asked.forget()
            client.failure = failure
            assert await asked.beat(BEAT) == e.Failed(7)
    assert [line["event"] for line in logs] == ["coordinator_unavailable"] * 2
    assert logs[0]["reason"].endswith("; the client lacks the permission Read on the group")
    client.failure = None
    assert await asked.beat(BEAT) == e.Confirmed(7)
    assert asked.refusal is None


async def test_refusals_of_group_name_remedy() -> None:
    asked = requests(Client({"error_code": 26}))
    await asked.beat(BEAT)
    assert "group.session_timeout" in str(asked.refusal)


@pytest.mark.parametrize(("asked", "found"), [(None, {"t": 2}), (("t", "u", "__consumer_offsets"), None)])
async def test_lists_topics_without_internal_ones(asked: tuple[str, ...] | None, found: dict[str, int] | None) -> None:
    def topic(count: int, internal: bool = False) -> TopicMetadata:
        partitions: dict[int, PartitionMetadata] = {n: PartitionMetadata(1, 0, (1,), (1,), 0) for n in range(count)}
        return TopicMetadata(0, partitions, internal)

    client = Client()
    topics = {"t": topic(2), "u": topic(0), "__consumer_offsets": topic(3), "inner": topic(1, internal=True)}
    client.metadata = ClusterMetadata({1: Node(1, "h", 1)}, topics)
    event = await requests(client).read_topics(e.ReadTopics(5, asked))
    assert client.refreshed == [asked]
    assert event == e.TopicsRead(5, {"t": 2, "__consumer_offsets": 3} if found is None else found)


async def test_keeps_why_a_subscribed_topic_is_not_shown() -> None:
    client = Client()
    one = PartitionMetadata(1, 0, (1,), (1,), 0)
    topics = {"t": TopicMetadata(0, {0: one, 1: one}), "u": TopicMetadata(29, {}), "v": TopicMetadata(3, {})}
    client.metadata = ClusterMetadata({1: Node(1, "h", 1)}, topics)
    asking = requests(client)
    read = e.TopicsRead(5, {"t": 2}, denied=frozenset({"u"}))
    assert await asking.read_topics(e.ReadTopics(5, ("t", "u", "v", "w"))) == read
    assert list(asking.denied_topics) == ["u"]
    assert "lacks the permission Describe on the topic 'u'" in asking.denied_topics["u"]
    await asking.read_topics(e.ReadTopics(6, None))
    assert asking.denied_topics == {}


@pytest.mark.parametrize("failure", [None, BrokerError("away")])
async def test_reports_failed_topic_read(failure: Exception | None) -> None:
    client = Client()
    client.failure = failure
    with capture_logs() as logs:
        assert await requests(client).read_topics(e.ReadTopics(5, ("t",))) == e.Failed(5)
    assert [entry["reason"] for entry in logs] == ([] if failure is None else ["away"])


async def test_reopens_dropped_connection() -> None:
    client = Client({"error_code": 0}, {"error_code": 0})
    asked = requests(client)
    await asked.beat(BEAT)
    asked.forget()
    asked.forget()
    await asked.beat(BEAT)
    assert [channel.closed for channel in client.channels] == [True, False]


async def test_each_request_names_group_generation_and_member() -> None:
    client = Client(JOINED, {"error_code": 0, "assignment": b""}, {"error_code": 0}, {"error_code": 0})
    asking = requests(client)
    await asking.join(e.Join(1, "me", (("range", b"m"),)))
    await asking.sync(e.Sync(2, 4, "me", "range", (("me", b"a"), ("you", b"b"))))
    await asking.beat(e.Heartbeat(3, 4, "me"))
    await asking.leave(e.Leave(4, "me"))
    assert [(api, body) for api, _, body in client.channels[0].asked] == [
        (
            JOIN_GROUP,
            {
                "group_id": "g",
                "session_timeout_ms": 45000,
                "rebalance_timeout_ms": 60000,
                "member_id": "me",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b"m"}],
            },
        ),
        (
            SYNC_GROUP,
            {
                "group_id": "g",
                "generation_id": 4,
                "member_id": "me",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [
                    {"member_id": "me", "assignment": b"a"},
                    {"member_id": "you", "assignment": b"b"},
                ],
            },
        ),
        (HEARTBEAT, {"group_id": "g", "generation_id": 4, "member_id": "me", "group_instance_id": None}),
        (LEAVE_GROUP, {"group_id": "g", "members": [{"member_id": "me", "group_instance_id": None}]}),
    ]


@pytest.mark.parametrize("code", [15, 27, 30])
async def test_refused_sync_and_leave_are_reported(code: int) -> None:
    expected = e.Failed(7) if code == 15 else e.Refused(7, code)
    answer = {"error_code": code}
    assert await requests(Client(answer)).sync(e.Sync(7, 4, "me", "range", ())) == expected
    assert await requests(Client(answer)).leave(e.Leave(7, "me")) == expected


async def test_join_of_a_follower_has_no_members() -> None:
    """A follower gets less: no members, no protocol, and nothing about keeping the assignment."""
    answer = JOINED | {"protocol_name": None, "leader": "you", "members": []}
    del answer["skip_assignment"]
    event = await requests(Client(answer)).join(e.Join(1, "me", ()))
    assert event == e.Joined(1, 4, "me", "", False, (), 60.0, keep_assignment=False)


@pytest.mark.parametrize(("at_most", "timeout"), [(3, 305.0), (4, 65.0)])
async def test_new_member_gets_its_id_at_once_since_version_4(at_most: int, timeout: float) -> None:
    client = Client(JOINED, at_most=at_most)
    await requests(client).join(e.Join(1, "", ()))
    assert client.channels[0].timeouts == [timeout]


async def test_logs_an_unavailable_coordinator_once_until_it_answers() -> None:
    client = Client(*[{"error_code": code} for code in (14, 14, 0, 14)])
    asking = requests(client)
    with capture_logs() as logs:
        for _ in range(4):
            await asking.beat(BEAT)
    assert [entry["event"] for entry in logs] == ["coordinator_unavailable"] * 2


async def test_logs_each_reason_for_an_unavailable_coordinator_once() -> None:
    """The first one, of a cluster that has just been made, says nothing of an address that cannot be reached."""
    away = ConnectionClosedError("the host name of broker b:9092 does not resolve")
    client = Client({"error_code": 15}, away, {"error_code": 15}, away, {"error_code": 0}, away)
    asking = requests(client)
    with capture_logs() as logs:
        for _ in range(6):
            await asking.beat(BEAT)
    assert [entry["event"] for entry in logs] == ["coordinator_unavailable"] * 3
    assert "(15)" in logs[0]["reason"]
    assert [entry["reason"] for entry in logs[1:]] == ["the host name of broker b:9092 does not resolve"] * 2
    changing = requests(Client(*[ConnectionClosedError(f"attempt {number}") for number in range(50)]))
    with capture_logs() as logs:
        for _ in range(50):
            await changing.beat(BEAT)
    assert len(logs) == 5


async def test_reads_no_topics_of_a_broker_that_just_started() -> None:
    assert await requests(Client()).read_topics(e.ReadTopics(5, None)) == e.Failed(5)


# ---- the consumer protocol

ID = bytes(range(16))
HEARTBEAT_OF_ALL = e.ConsumerHeartbeat(3, "me", 4, ("t",), None, {ID: (0, 2)})


def consumer_requests(client: Client, **settings: Any) -> ConsumerGroupRequests:
    return ConsumerGroupRequests(cast("ClusterClient", client), "g", CoordinationSettings(**settings))


def beaten(code: int = 0, assignment: Any = None) -> dict[str, Any]:
    return {
        "error_code": code,
        "member_id": "me",
        "member_epoch": 5,
        "heartbeat_interval_ms": 5000,
        "assignment": assignment,
    }


async def test_heartbeat_of_the_consumer_protocol_names_all_and_returns_the_assignment() -> None:
    client = Client(beaten(assignment={"topic_partitions": [{"topic_id": ID, "partitions": [1]}]}), beaten())
    asking = consumer_requests(client, instance_id="i", remote_assignor="uniform")
    assert await asking.consumer_beat(HEARTBEAT_OF_ALL) == e.Assigned(3, "me", 5, 5.0, {ID: (1,)})
    api, version, body = client.channels[0].asked[0]
    assert (api, version) == (CONSUMER_GROUP_HEARTBEAT, 1)
    assert body == {
        "group_id": "g",
        "member_id": "me",
        "member_epoch": 4,
        "instance_id": "i",
        "rack_id": "zone-a",
        "rebalance_timeout_ms": 60000,
        "subscribed_topic_names": ("t",),
        "server_assignor": "uniform",
        "topic_partitions": [{"topic_id": ID, "partitions": (0, 2)}],
    }
    assert await asking.consumer_beat(HEARTBEAT_OF_ALL) == e.Assigned(3, "me", 5, 5.0, None)


class SilencedConnection:
    """Answers each request at once, and demands a silence of so many seconds."""

    closed = False

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sent: list[float] = []

    async def request(self, frame: bytes, **_: Any) -> bytes:
        api, version = (HEARTBEAT, 4) if frame[4:6] == HEARTBEAT.key.to_bytes(2) else (CONSUMER_GROUP_HEARTBEAT, 1)
        self.sent.append(asyncio.get_running_loop().time())
        answer = {"throttle_time_ms": int(self.seconds * 1000)} | (beaten() if version == 1 else {"error_code": 0})
        header = ResponseHeader(int.from_bytes(frame[8:12]))
        return encode_response(api, version, ResponseMessage(header, answer))[4:]

    def abort(self) -> None:
        self.closed = True


class SilencingClient(Client):
    """Its coordinator demands a silence after each answer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.connections: list[SilencedConnection] = []

    async def private_channel(self, node_id: int) -> Any:
        self.connections.append(connection := SilencedConnection(self.seconds))
        versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {HEARTBEAT.key: (0, 4), 68: (0, 1)})
        return RealChannel(cast("Any", connection), "h:9", versions, ClientSettings(), LoopClock())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("silence", "sent"), [(5.0, [[0.0, 5.0]]), (20.0, [[0.0], [15.0]])], ids=["short", "longer than the lease allows"]
)
def test_heartbeats_are_silent_for_as_long_as_a_quota_demands_and_the_lease_allows(
    protocol: str, silence: float, sent: list[list[float]]
) -> None:
    """A connection that would be silent for too long is replaced, so that the coordinator hears of the member."""
    client = SilencingClient(silence)

    async def beats() -> list[e.Event]:
        classic, consumer = requests(client, session_timeout=45.0), consumer_requests(client, session_timeout=45.0)
        events: list[e.Event] = []
        while not events[1:]:
            event = await (classic.beat(BEAT) if protocol == "classic" else consumer.consumer_beat(HEARTBEAT_OF_ALL))
            events += [] if isinstance(event, e.Failed) else [event]
        return events

    run_in_virtual_time(beats())
    assert [connection.sent for connection in client.connections] == sent


async def test_pattern_needs_a_version_that_has_it() -> None:
    with_pattern = replace(HEARTBEAT_OF_ALL, topics=(), pattern="t.*")
    client = Client(beaten())
    await consumer_requests(client).consumer_beat(with_pattern)
    assert client.channels[0].asked[0][2]["subscribed_topic_regex"] == "t.*"
    old = consumer_requests(Client(at_most=0))
    assert await old.consumer_beat(with_pattern) == e.Refused(3, 35)


@pytest.mark.parametrize("code", [25, 110, 111, 112])
async def test_refusal_of_the_consumer_protocol_is_an_event_with_its_code(code: int) -> None:
    asking = consumer_requests(Client(beaten(code)))
    assert await asking.consumer_beat(HEARTBEAT_OF_ALL) == e.Refused(3, code)
    assert "ConsumerGroupHeartbeat" in str(asking.refusal)


async def test_moved_coordinator_is_looked_up_again_by_the_consumer_protocol() -> None:
    client = Client(beaten(16))
    assert await consumer_requests(client).consumer_beat(HEARTBEAT_OF_ALL) == e.Failed(3)
    assert client.forgotten == 1


async def test_leaves_by_a_heartbeat_with_a_negative_epoch() -> None:
    client = Client(beaten(), beaten(25))
    asking = consumer_requests(client, instance_id="i")
    assert await asking.leave(e.Leave(7, "me", -2)) == e.Left(7)
    body = client.channels[0].asked[0][2]
    assert body == {"group_id": "g", "member_id": "me", "member_epoch": -2, "instance_id": "i"}
    assert await asking.leave(e.Leave(8, "me", -1)) == e.Refused(8, 25)


async def test_brokers_without_the_consumer_protocol_are_named_with_the_remedy() -> None:
    class Old(Client):
        async def private_channel(self, node_id: int) -> Channel:
            raise UnsupportedApiError("the broker at h:1 does not have ConsumerGroupHeartbeat")

    asking = consumer_requests(Old())
    assert await asking.consumer_beat(HEARTBEAT_OF_ALL) == e.Refused(3, 35)
    assert str(asking.refusal) == (
        "cannot be a member of group 'g': the broker at h:1 does not have ConsumerGroupHeartbeat; set group.protocol = "
        '"classic", or enable the consumer protocol at the brokers (Kafka 4.0 and later, feature group.version).'
    )


def settings_of_group(code: int, value: str | None) -> dict[str, Any]:
    configs = [] if value is None else [{"name": "consumer.session.timeout.ms", "value": value}]
    return {"results": [{"error_code": code, "resource_name": "g", "configs": configs}]}


@pytest.mark.parametrize(
    ("answer", "known", "event"),
    [
        (settings_of_group(0, "30000"), 30.0, "session_timeout_shortened"),
        (settings_of_group(0, "60000"), 60.0, None),
        (settings_of_group(0, "soon"), None, None),
        (settings_of_group(30, None), None, "session_timeout_unknown"),
    ],
)
async def test_joining_reads_the_session_timeout_of_the_group(answer: Any, known: float | None, event: Any) -> None:
    client = Client(answer, beaten())
    with capture_logs() as logs:
        joined = await consumer_requests(client).consumer_beat(replace(HEARTBEAT_OF_ALL, epoch=0))
    assert joined == e.Assigned(3, "me", 5, 5.0, None, known)
    assert [entry["event"] for entry in logs] == ([] if event is None else [event])
    (resource,) = client.channels[0].asked[0][2]["resources"]
    assert (resource["resource_type"], resource["resource_name"]) == (32, "g")
