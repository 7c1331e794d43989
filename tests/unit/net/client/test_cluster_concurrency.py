"""Concurrent callers of one client: what they share, what they wait for, and that nothing stays open behind them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.errors import BrokerError
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError, BrokerRefusedError, NoBrokerReachedError, UnavailableError
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.testing import FakeClock
from consumerd.wire.v08.apis import API_VERSIONS, APIS, FIND_COORDINATOR, HEARTBEAT, LIST_GROUPS, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.headers import ResponseHeader
from consumerd.wire.v08.message_types import HeartbeatRequest
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.versions import BrokerRelease
from tests.support.waiting import cancel, turns

BEAT: HeartbeatRequest = {"group_id": "g", "generation_id": 1, "member_id": "m"}


class Line:
    """A connection to a broker, which answers as its cluster says."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster, self.port = cluster, port
        self.closed = False
        self.in_flight = 0
        self.closings: list[str] = []

    async def request(self, frame: bytes, **_: Any) -> bytes:
        if self.closed:
            raise ConnectionClosedError(f"the connection to {self.port} is closed")
        self.in_flight += 1
        try:
            return await self.cluster.answer(self, frame)
        finally:
            self.in_flight -= 1

    async def wait_closed(self) -> None:
        """It is closed at once."""

    async def close(self) -> None:
        self.closings.append("close")
        self.closed = True

    def abort(self) -> None:
        self.closings.append("abort")
        self.closed = True


class Cluster:
    """Three brokers. `gates`: what is waited for before a connection, by port, or before an answer, by API."""

    def __init__(self) -> None:
        self.nodes = {1, 2, 3}
        self.coordinator = 1
        #: Groups that have none; the number of groups that an answer has.
        self.uncoordinated: set[str] = set()
        self.answered: int | None = None
        self.lines: list[Line] = []
        #: Ports that refuse connections, and APIs whose requests end the connection.
        self.refuses: set[int] = set()
        self.cuts: set[int] = set()
        #: Number of the next connections that fail.
        self.failures = 0
        self.throttle = 0
        self.asked: Counter[str] = Counter()
        self.topics_asked: list[list[str] | None] = []
        self.missing: set[str] = set()
        self.gates: dict[Any, asyncio.Event] = {}

    @property
    def open(self) -> list[Line]:
        return [line for line in self.lines if not line.closed]

    async def connect(self, host: str, port: int) -> Any:
        if gate := self.gates.get(port):
            await gate.wait()
        if port in self.refuses or self.failures > 0:
            self.failures -= 1
            raise ConnectError(f"{host}:{port} refuses the connection")
        line = Line(self, port)
        self.lines.append(line)
        return line

    async def answer(self, line: Line, frame: bytes) -> bytes:
        key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
        api = APIS[key]
        header, body = decode_request(api, frame[4:])
        self.asked[api.name] += 1
        if gate := self.gates.get(api.name):
            await gate.wait()
        await asyncio.sleep(0)
        if line.closed:
            raise ConnectionClosedError(f"the connection to {line.port} was closed")
        if key in self.cuts:
            line.abort()
            raise ConnectionClosedError(f"broker {line.port} closed the connection", blamed=True)
        answer = self._body(api, body)
        data = encode_response(api, version, ResponseMessage(ResponseHeader(header.correlation_id), answer))
        return data[4:]

    def _body(self, api: Any, body: dict[str, Any]) -> dict[str, Any]:
        if api is API_VERSIONS:
            keys = [
                {"api_key": key, "min_version": each.versions[0], "max_version": each.versions[1]}
                for key, each in APIS.items()
            ]
            return {"error_code": 0, "api_keys": keys, "throttle_time_ms": 0}
        if api.key == FIND_COORDINATOR.key:
            node = {"node_id": self.coordinator, "host": "h", "port": self.coordinator}
            found = {"error_code": 0, **node, "error_message": None}
            if "key" in body:
                return {**found, "throttle_time_ms": 0}
            errors = {key: {"error_code": 15, "node_id": -1} for key in self.uncoordinated}
            every = [{"key": key, **found, **errors.get(key, {})} for key in body["coordinator_keys"]]
            return {"coordinators": every[: self.answered], "throttle_time_ms": 0}
        if api is not METADATA:
            groups: dict[str, Any] = {"groups": []} if api is LIST_GROUPS else {}
            return {"error_code": 0, "throttle_time_ms": self.throttle, **groups}
        names = None if body["topics"] is None else [each["name"] for each in body["topics"]]
        self.topics_asked.append(names)
        part = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": 1,
            "replica_nodes": [],
            "isr_nodes": [],
            "leader_epoch": 0,
        }
        part["offline_replicas"] = []
        return {
            "error_code": 0,
            "throttle_time_ms": self.throttle,
            "brokers": [{"node_id": node, "host": "h", "port": node, "rack": None} for node in sorted(self.nodes)],
            "cluster_id": None,
            "controller_id": 1,
            "topics": [
                {
                    "error_code": 3 if name in self.missing else 0,
                    "name": name,
                    "topic_id": bytes(16),
                    "is_internal": False,
                    "partitions": [] if name in self.missing else [part],
                    "topic_authorized_operations": 0,
                }
                for name in names or ()
            ],
        }


def client_of(cluster: Cluster, clock: FakeClock | None = None, **options: Any) -> ClusterClient:
    clock = clock or FakeClock()
    authenticate = options.pop("authenticate", None)
    settings = ClientSettings(**options)
    opener = ChannelOpener(cluster.connect, settings, clock, authenticate=authenticate)
    return ClusterClient([("h", 1)], opener, settings, clock=clock, rng=random.Random(1))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    async with client_of(cluster) as made:
        yield made


class Authenticate:
    """Asks one request; then waits for `gate`, if there is one, and raises `error`, if there is one."""

    speaks_first = False

    def __init__(self, error: BaseException | None = None, gate: asyncio.Event | None = None) -> None:
        self.error, self.gate = error, gate

    async def __call__(self, channel: Channel) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error


# -- connections


@pytest.mark.parametrize("error", [AuthenticationError("no"), ConnectionClosedError("gone"), RuntimeError("a defect")])
async def test_drops_the_connection_when_authentication_fails(error: Exception) -> None:
    cluster = Cluster()
    async with client_of(cluster, authenticate=Authenticate(error)) as client:
        for attempt in range(1, 4):
            with pytest.raises(type(error)):
                await client.channel("h", 1)
            assert len(cluster.lines) == attempt
            assert not cluster.open


async def test_drops_the_connection_when_opening_is_cancelled() -> None:
    cluster, gate = Cluster(), asyncio.Event()
    cases: list[tuple[Any, Any]] = [(None, API_VERSIONS.name), (Authenticate(gate=gate), None)]
    for authenticate, waits_for in cases:
        cluster.gates = {waits_for: gate}
        async with client_of(cluster, authenticate=authenticate) as client:
            opening = asyncio.create_task(client.channel("h", 1))
            await turns()
            assert len(cluster.open) == 1
            await cancel(opening)
            assert opening.cancelled()
            assert not cluster.open


async def test_drops_each_connection_that_api_versions_fails_on(cluster: Cluster, client: ClusterClient) -> None:
    cluster.cuts = {API_VERSIONS.key, LIST_GROUPS.key, METADATA.key}
    with pytest.raises(ConnectionClosedError):
        await client.channel("h", 1)
    assert not cluster.open


async def test_drops_the_connection_that_opens_while_the_client_is_closed() -> None:
    cluster = Cluster()
    gate = cluster.gates[1] = asyncio.Event()
    client = client_of(cluster)
    opening = [asyncio.create_task(client.channel("h", 1)) for _ in range(3)]
    await turns()
    await client.close()
    gate.set()
    results = await asyncio.gather(*opening, return_exceptions=True)
    assert [str(result) for result in results] == ["the client of this cluster was closed"] * 3
    assert all(isinstance(result, BrokerError) for result in results)
    assert len(cluster.lines) == 1  # those that waited do not open another one
    assert not cluster.open
    with pytest.raises(BrokerError, match="was closed"):
        await client.channel("h", 2)
    assert len(cluster.lines) == 1


async def test_callers_of_an_address_share_one_connection(cluster: Cluster, client: ClusterClient) -> None:
    gate = cluster.gates[1] = asyncio.Event()
    opening = [asyncio.create_task(client.channel("h", 1)) for _ in range(5)]
    await turns()
    # Another address does not wait for this one.
    other = await client.channel("h", 2)
    gate.set()
    channels = await asyncio.gather(*opening)
    assert len(set(channels)) == 1
    assert other not in channels
    assert [line.port for line in cluster.lines] == [2, 1]
    assert await client.channel("h", 1) is channels[0]
    assert len(cluster.lines) == 2


async def test_another_caller_opens_the_connection_when_the_first_is_cancelled_or_fails() -> None:
    for cancelled in (True, False):
        cluster = Cluster()
        gate = cluster.gates[1] = asyncio.Event()
        async with client_of(cluster) as client:
            first, second = (asyncio.create_task(client.channel("h", 1)) for _ in range(2))
            await turns()
            if cancelled:
                await cancel(first)
                gate.set()
            else:
                cluster.failures = 1
                gate.set()
                with pytest.raises(ConnectError):
                    await first
            assert not (await second).closed
            assert len(cluster.open) == 1


async def test_cancelling_a_waiter_leaves_the_opening_to_the_others(cluster: Cluster, client: ClusterClient) -> None:
    gate = cluster.gates[1] = asyncio.Event()
    first, second, third = (asyncio.create_task(client.channel("h", 1)) for _ in range(3))
    await turns()
    await cancel(second)
    gate.set()
    assert await first is await third
    assert len(cluster.lines) == 1


async def test_reopens_a_closed_channel_once_for_all_callers(cluster: Cluster, client: ClusterClient) -> None:
    former = await client.channel("h", 1)
    cluster.lines[0].abort()
    channels = await asyncio.gather(*(client.channel("h", 1) for _ in range(5)))
    assert set(channels) == {channels[0]} != {former}
    assert len(cluster.lines) == 2


async def test_detects_the_release_again_after_a_connection_ended(cluster: Cluster, client: ClusterClient) -> None:
    cluster.cuts = {API_VERSIONS.key}
    old = await client.channel("h", 1)
    assert old.versions.release is BrokerRelease.V0_9
    assert len(cluster.open) == 1  # that of the probe is gone
    old.abort()
    cluster.cuts = set()  # the broker was upgraded
    assert (await client.channel("h", 1)).versions.release is BrokerRelease.V0_10_OR_NEWER


async def test_keeps_what_is_known_of_an_old_broker_when_it_connects_for_the_first_time(
    cluster: Cluster, client: ClusterClient
) -> None:
    client._opener._old["h", 1] = BrokerRelease.V0_9, 5000.0
    assert (await client.channel("h", 1)).versions.release is BrokerRelease.V0_9
    assert cluster.asked[API_VERSIONS.name] == 0


async def test_asks_for_the_brokers_before_it_says_that_one_is_not_alive(
    cluster: Cluster, client: ClusterClient
) -> None:
    assert (await client.node_channel(2)).address == "h:2"
    with pytest.raises(UnavailableError, match="broker 7 is not alive, or is not part of the cluster"):
        await client.node_channel(7)


async def test_finds_the_channel_to_a_broker_only_while_it_is_open() -> None:
    async with client_of(Cluster()) as client:
        assert client.open_node_channel(2) is None  # nothing is known of it
        await client.refresh()
        assert client.open_node_channel(2) is None
        channel = await client.node_channel(2)
        assert client.open_node_channel(2) is channel
        channel.abort()
        assert client.open_node_channel(2) is None
    with pytest.raises(BrokerError, match="was closed"):
        client.open_node_channel(2)


async def test_private_channel_belongs_to_its_caller(cluster: Cluster, client: ClusterClient) -> None:
    await client.refresh()
    shared, private = await client.node_channel(2), await client.private_channel(2)
    assert private is not shared
    assert await client.node_channel(2) is shared


@pytest.mark.parametrize("method", ["node_channel", "private_channel"])
async def test_marks_the_metadata_as_stale_when_a_broker_cannot_be_reached(
    method: str, cluster: Cluster, client: ClusterClient
) -> None:
    await client.topics(["t", "u"])
    cluster.refuses, cluster.topics_asked = {2}, []
    with pytest.raises(ConnectError):
        await getattr(client, method)(2)
    await client.topics(["t", "u"])
    assert cluster.topics_asked == [["t", "u"]]


async def test_private_channel_that_fails_detects_the_release_again(cluster: Cluster, client: ClusterClient) -> None:
    await client.refresh()
    cluster.cuts = {API_VERSIONS.key}
    assert (await client.private_channel(2)).versions.release is BrokerRelease.V0_9
    cluster.refuses = {2}
    with pytest.raises(ConnectError):
        await client.private_channel(2)
    cluster.refuses, cluster.cuts = set(), set()
    assert (await client.private_channel(2)).versions.release is BrokerRelease.V0_10_OR_NEWER


# -- any broker


async def test_any_channel_prefers_the_open_one_with_the_fewest_requests(
    cluster: Cluster, client: ClusterClient
) -> None:
    await client.refresh()
    busy, idle = await client.node_channel(1), await client.node_channel(2)
    cluster.lines[0].in_flight = 3
    assert await client.any_channel() is idle
    cluster.lines[1].in_flight = 4
    assert await client.any_channel() is busy
    idle.abort()
    busy.abort()
    assert await client.any_channel() not in (busy, idle)


async def test_any_channel_tries_known_brokers_and_then_the_bootstrap_list(
    cluster: Cluster, client: ClusterClient
) -> None:
    await client.refresh()
    for line in cluster.lines:
        line.abort()
    client.begin_with([("h", 1), ("h", 8), ("h", 9)])
    tried: list[int] = []

    async def refuse(host: str, port: int) -> Any:
        tried.append(port)
        raise ConnectError(f"{host}:{port} refuses the connection")

    orders: list[set[tuple[int, ...]]] = [set(), set()]
    client._opener._connect = refuse
    for _ in range(12):
        tried.clear()
        with pytest.raises(NoBrokerReachedError) as caught:
            await client.any_channel()
        assert (sorted(tried[:3]), sorted(tried[3:])) == ([1, 2, 3], [8, 9])
        assert str(caught.value) == (
            f"no broker of the cluster can be reached (5 tried); last error: h:{tried[-1]} refuses the connection"
        )
        assert len(caught.value.tried) == 5
        orders[0].add(tuple(tried[:3]))
        orders[1].add(tuple(tried[3:]))
    assert min(map(len, orders)) > 1  # in random order


async def test_any_channel_says_that_no_broker_is_known() -> None:
    client = client_of(Cluster())
    client.begin_with([])
    with pytest.raises(NoBrokerReachedError, match=r"\(0 tried\); last error: none is known yet$"):
        await client.any_channel()


# -- closing


async def test_close_ends_requests_that_are_under_way() -> None:
    cluster = Cluster()
    client = client_of(cluster)
    await client.refresh()
    for node in (1, 2, 3):
        await client.node_channel(node)
    gate = cluster.gates[HEARTBEAT.name] = asyncio.Event()
    calls = [asyncio.create_task(client.call_node(node, HEARTBEAT, BEAT)) for node in (1, 2, 3)]
    await turns()
    await client.close()
    assert [line.closings for line in cluster.lines] == [["close"]] * 3
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionClosedError] * 3
    with pytest.raises(BrokerError, match="was closed"):
        await client.call_node(1, HEARTBEAT, BEAT)
    await client.close()  # once more does nothing
    assert [line.closings for line in cluster.lines] == [["close"]] * 3


async def test_cancelling_one_request_leaves_the_others_of_the_channel(cluster: Cluster, client: ClusterClient) -> None:
    await client.refresh()
    gate = cluster.gates[HEARTBEAT.name] = asyncio.Event()
    first, second = (asyncio.create_task(client.call_node(1, HEARTBEAT, BEAT)) for _ in range(2))
    await turns()
    await cancel(first)
    gate.set()
    assert (await second)["error_code"] == 0
    assert len(cluster.open) == 1


# -- coordinators


async def test_finds_the_coordinators_of_many_groups_with_one_request(cluster: Cluster, client: ClusterClient) -> None:
    groups = [f"g{number}" for number in range(500)]
    cluster.uncoordinated = {"g7"}
    await client.find_coordinators(groups)
    assert [await client.coordinator(group) for group in groups if group != "g7"] == [1] * 499
    await client.find_coordinators([*groups[:7], *groups[8:]])
    assert cluster.asked[FIND_COORDINATOR.name] == 1
    with pytest.raises(BrokerRefusedError, match="returned no coordinator of group 'g7': GROUP_COORDINATOR"):
        await client.coordinator("g7")
    assert cluster.asked[FIND_COORDINATOR.name] == 2
    cluster.answered = 0
    with pytest.raises(BrokerError, match=r"returned no coordinator of group 'other'$"):
        await client.coordinator("other")


async def test_asks_for_one_coordinator_after_the_other_where_brokers_take_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(APIS, FIND_COORDINATOR.key, replace(FIND_COORDINATOR, versions=(0, 3)))
    cluster = Cluster()
    async with client_of(cluster) as client:
        await client.find_coordinators(["a", "b"])
        assert cluster.asked[FIND_COORDINATOR.name] == 0
        assert [await client.coordinator(group) for group in ("a", "b")] == [1, 1]
        assert cluster.asked[FIND_COORDINATOR.name] == 2


async def test_asks_for_a_coordinator_once_and_again_when_it_is_forgotten(
    cluster: Cluster, client: ClusterClient
) -> None:
    for _ in range(3):
        assert await client.coordinator("g") == 1
    assert cluster.asked[FIND_COORDINATOR.name] == 1
    cluster.coordinator = 3
    client.forget_coordinator("other")
    assert await client.coordinator("g") == 1
    client.forget_coordinator("g")
    assert await client.coordinator("g") == 3
    assert cluster.asked[FIND_COORDINATOR.name] == 2


@pytest.mark.parametrize("how", ["refused", "cut", "silent"])
async def test_forgets_a_coordinator_that_cannot_be_reached(how: str, cluster: Cluster, client: ClusterClient) -> None:
    cluster.coordinator = 2
    await client.refresh()
    if how == "refused":
        cluster.refuses = {2}
    elif how == "cut":
        cluster.cuts = {HEARTBEAT.key}
    else:
        await client.call_coordinator("g", HEARTBEAT, BEAT)
        (line,) = (line for line in cluster.lines if line.port == 2)

        async def silent(*_: Any, **__: Any) -> bytes:
            raise RequestTimeoutError("no answer")

        line.request = silent  # type: ignore[method-assign]
    with pytest.raises((ConnectError, ConnectionClosedError)):
        await client.call_coordinator("g", HEARTBEAT, BEAT)
    cluster.coordinator, cluster.cuts = 3, set()
    await client.call_coordinator("g", HEARTBEAT, BEAT)
    assert await client.coordinator("g") == 3


async def test_keeps_a_coordinator_whose_request_is_refused_for_another_reason() -> None:
    cluster = Cluster()
    long: HeartbeatRequest = {**BEAT, "member_id": "m" * 100}
    async with client_of(cluster, max_request_bytes=60) as client:
        await client.coordinator("g")
        with pytest.raises(BrokerError, match="larger than max_request_bytes"):
            await client.call_coordinator("g", HEARTBEAT, long)
        assert await client.coordinator("g") == 1
        assert cluster.asked[FIND_COORDINATOR.name] == 1


async def test_forgets_a_coordinator_that_left_the_cluster(cluster: Cluster, client: ClusterClient) -> None:
    cluster.coordinator = 2
    assert await client.coordinator("g") == 2
    cluster.nodes, cluster.coordinator = {1, 3}, 3
    await client.refresh()
    assert await client.coordinator("g") == 3


async def test_learns_of_a_coordinator_that_the_metadata_lack(cluster: Cluster, client: ClusterClient) -> None:
    cluster.nodes = {1}
    await client.refresh()
    cluster.nodes, cluster.coordinator = {1, 2}, 2
    assert await client.coordinator("g") == 2
    assert client.metadata.nodes.keys() == {1, 2}
    asked = cluster.asked[METADATA.name]
    client.forget_coordinator("g")
    await client.coordinator("g")
    assert cluster.asked[METADATA.name] == asked  # known now


# -- throttling


async def test_waits_out_what_a_broker_throttles() -> None:
    cluster, clock = Cluster(), FakeClock()
    async with client_of(cluster, clock) as client:
        await client.refresh()
        channel, other = await client.node_channel(1), await client.node_channel(2)
        cluster.throttle = 2_000
        await channel.call(HEARTBEAT, BEAT)
        cluster.throttle = 0
        asked = cluster.asked[HEARTBEAT.name]
        calls = [asyncio.create_task(channel.call(HEARTBEAT, BEAT)) for _ in range(2)]
        await turns()
        assert cluster.asked[HEARTBEAT.name] == asked
        await other.call(HEARTBEAT, BEAT)  # a quota is a broker's own
        assert cluster.asked[HEARTBEAT.name] == asked + 1
        await clock.advance(1.9)
        await turns()
        assert cluster.asked[HEARTBEAT.name] == asked + 1
        await clock.advance(0.1)
        await asyncio.gather(*calls)
        assert cluster.asked[HEARTBEAT.name] == asked + 3
        slept = len(clock.sleeps)
        await channel.call(HEARTBEAT, BEAT)
        assert len(clock.sleeps) == slept


async def test_later_and_shorter_throttle_does_not_shorten_an_earlier_one() -> None:
    cluster, clock = Cluster(), FakeClock()
    async with client_of(cluster, clock) as client:
        channel = await client.channel("h", 1)
        gate = cluster.gates[HEARTBEAT.name] = asyncio.Event()
        calls = [asyncio.create_task(channel.call(HEARTBEAT, BEAT)) for _ in range(2)]
        await turns()
        throttles = iter([2_000, 500])
        body = cluster._body
        cluster._body = lambda *asked: body(*asked) | {"throttle_time_ms": next(throttles, 0)}  # type: ignore[method-assign]
        gate.set()
        await asyncio.gather(*calls)
        waiting = asyncio.create_task(channel.call(HEARTBEAT, BEAT))
        await turns()
        assert clock.sleeps[-1] == pytest.approx(2.0)
        await clock.advance(2.0)
        await waiting


# -- metadata


async def test_callers_share_one_refresh_and_each_topic_is_asked_once(cluster: Cluster, client: ClusterClient) -> None:
    gate = cluster.gates[METADATA.name] = asyncio.Event()
    asking = [asyncio.create_task(client.topics([name])) for name in ("t", "t", "u", "t")]
    both = asyncio.create_task(client.topics(["t", "u", "v"]))
    await turns()
    assert cluster.asked[METADATA.name] == 1  # one at a time
    gate.set()
    await asyncio.gather(*asking, both)
    assert cluster.topics_asked == [["t"], ["u"], ["v"]]


async def test_cancelling_the_caller_that_asks_leaves_the_question_to_the_next(
    cluster: Cluster, client: ClusterClient
) -> None:
    gate = cluster.gates[METADATA.name] = asyncio.Event()
    first, second = (asyncio.create_task(client.topics(["t"])) for _ in range(2))
    await turns()
    await cancel(first)
    gate.set()
    assert "t" in (await second).topics
    assert first.cancelled()


async def test_fresh_topics_do_not_wait_for_others(cluster: Cluster, client: ClusterClient) -> None:
    await client.topics(["t"])
    gate = cluster.gates[METADATA.name] = asyncio.Event()
    other = asyncio.create_task(client.topics(["u"]))
    await turns()
    async with asyncio.timeout(60):
        assert "t" in (await client.topics(["t"])).topics
    assert not other.done()
    gate.set()
    await other


async def test_asks_again_for_stale_topics_alone(cluster: Cluster, client: ClusterClient) -> None:
    await client.topics(["t", "u", "v"])
    cluster.topics_asked.clear()
    await client.topics(["t", "u", "v"])
    assert cluster.topics_asked == []
    client.stale(["u"])
    await client.topics(["t"])
    assert cluster.topics_asked == []
    await client.topics(["t", "u", "v"])
    await client.topics(["t", "u", "v"])
    assert cluster.topics_asked == [["u"]]
    client.stale()  # all of them
    await client.topics(["t"])
    await client.topics(["t", "v"])
    assert cluster.topics_asked == [["u"], ["t"], ["v"]]


async def test_topic_stays_stale_while_no_broker_answers(cluster: Cluster, client: ClusterClient) -> None:
    await client.topics(["t"])
    client.stale(["t"])
    cluster.cuts, cluster.topics_asked = {METADATA.key}, []
    with pytest.raises(ConnectionClosedError):
        await client.topics(["t"])
    cluster.cuts = set()
    await client.topics(["t"])
    assert cluster.topics_asked == [["t"]]


async def test_asks_again_for_metadata_of_their_greatest_age() -> None:
    cluster, clock = Cluster(), FakeClock()
    async with client_of(cluster, clock, metadata_max_age=60.0) as client:
        await client.topics(["t"])
        clock.jump(30)
        await client.topics(["u"])
        cluster.topics_asked.clear()
        clock.jump(29.9)
        await client.topics(["t", "u"])
        assert cluster.topics_asked == []
        clock.jump(0.1)
        await client.topics(["t", "u"])
        await client.topics(["t", "u"])
        assert cluster.topics_asked == [["t"]]


async def test_asks_again_for_the_leader_of_a_topic_that_had_none(cluster: Cluster, client: ClusterClient) -> None:
    cluster.missing = {"t"}
    with pytest.raises(BrokerRefusedError) as caught:
        await client.leader("t", 0)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.missing = set()
    assert (await client.leader("t", 0)).id == 1
    asked = cluster.asked[METADATA.name]
    assert (await client.leader("t", 0)).id == 1
    assert cluster.asked[METADATA.name] == asked
    with pytest.raises(BrokerError, match="t/4 has no leader: the topic has 1 partitions"):
        await client.leader("t", 4)


async def test_drops_the_connection_whose_metadata_request_failed(cluster: Cluster, client: ClusterClient) -> None:
    """A broker that does not answer is not asked again over the same connection."""
    await client.refresh()
    (line,) = cluster.lines

    async def silent(*_: Any, **__: Any) -> bytes:
        raise RequestTimeoutError("no answer")

    line.request = silent  # type: ignore[method-assign]
    with pytest.raises(RequestTimeoutError):
        await client.refresh()
    assert line.closed
    await client.refresh()
