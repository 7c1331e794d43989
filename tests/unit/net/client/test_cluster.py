"""Whom a client asks, and how often, when many want to know the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.base.rounds import Rounds
from consumerd.net.client.channel import KnownResponse
from consumerd.net.client.cluster import GROUP, TRANSACTION, ClusterClient, topic_partitions
from consumerd.net.client.errors import BrokerRefusedError, UnavailableError
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.apis import APIS, FIND_COORDINATOR, HEARTBEAT, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.message_types import HeartbeatRequest, MetadataRequest
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
from tests.support.waiting import cancel

VERSIONS = BrokerVersions("", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})
NODES = (1, 2, 3)


class OneOfThree:
    """The channel to one of three brokers, all of which say that `leader` leads; one that hangs never answers."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.address, self.port = f"h:{port}", port
        last = cluster.version
        self.versions = VERSIONS if last is None else BrokerVersions("", VERSIONS.release, {METADATA.key: (0, last)})
        self.closed = False
        self.in_flight = 0
        self.cluster = cluster

    async def call(
        self, api: Any, body: dict[str, Any], *, known: KnownResponse | None = None, **_: Any
    ) -> dict[str, Any]:
        answer = await self._answer(api, body)
        return {} if known is not None and known.is_same(b"1234" + repr(answer).encode()) else answer

    async def _answer(self, api: Any, body: dict[str, Any]) -> dict[str, Any]:
        if api is FIND_COORDINATOR:
            found = {"error_code": self.cluster.error, "node_id": self.cluster.leader, "host": "h", "port": 9}
            return {"coordinators": [{"key": key, **found} for key in body["coordinator_keys"]]}
        if api is not METADATA:
            return {"error_code": 0}
        self.cluster.asked += 1
        if self.port in self.cluster.sends_away:
            return {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "brokers": [], "topics": []}
        if self.cluster.error:
            await asyncio.sleep(0)
            return {"error_code": self.cluster.error, "brokers": [], "topics": []}
        self.cluster.bodies.append(body)
        self.in_flight += 1
        await asyncio.sleep(3600 if self.port == self.cluster.hangs else 0)
        self.in_flight -= 1
        part = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": self.cluster.leader,
            "leader_epoch": self.cluster.epoch,
            "replica_nodes": [],
            "isr_nodes": [],
        }
        named = [] if body["topics"] is None else [each["name"] for each in body["topics"]]
        every = body["topics"] is None or (self.cluster.version == 0 and not named)
        names = sorted(self.cluster.topics) if every else [name for name in named if name not in self.cluster.left_out]
        return {
            "brokers": [{"node_id": node, "host": "h", "port": node} for node in self.cluster.nodes],
            "topics": [
                {
                    "error_code": self.cluster.topics.get(name, (0, 1))[0],
                    "name": name,
                    "partitions": [
                        part | {"partition_index": number}
                        for number in reversed(range(self.cluster.topics.get(name, (0, 1))[1]))
                    ],
                }
                for name in names
            ],
        }

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Cluster:
    """Opens channels to the brokers."""

    def __init__(self) -> None:
        self.leader, self.epoch, self.hangs, self.asked = 1, -1, 0, 0
        self.nodes = set(NODES)
        #: Ports of those that demand to bootstrap again, and the port of each connection that was made.
        self.sends_away: set[int] = set()
        self.dialed: list[int] = []
        #: Ports at which no connection can be made.
        self.gone: set[int] = set()
        #: The last version of METADATA, if it is not ours, and the bodies of the requests.
        self.version: int | None = None
        self.bodies: list[dict[str, Any]] = []
        #: The error of the next answers; the error and the number of partitions of topics; those not in answers.
        self.error = 0
        self.topics: dict[str, tuple[int, int]] = {}
        self.left_out: set[str] = set()
        self.retried: list[str] = []

    async def open(self, host: str, port: int) -> Any:
        self.dialed.append(port)
        if port in self.gone:
            raise ConnectError(f"cannot connect to broker {host}:{port}: Connection refused")
        return OneOfThree(self, port)

    def forget(self, host: str, port: int) -> None:
        """Nothing is remembered."""


def client_of(cluster: Cluster, *ports: int, seed: int = 1, clock: FakeClock | None = None) -> ClusterClient:
    opener: Any = cluster
    return ClusterClient(
        [("h", port) for port in ports or (1,)],
        opener,
        ClientSettings(retry_backoff_min=0.001),
        clock=clock or SystemClock(),
        rng=random.Random(seed),
        on_retry=lambda what, _: cluster.retried.append(what),
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    async with client_of(cluster) as made:
        yield made


async def test_callers_that_wait_for_metadata_of_another_continue_together_or_fail_with_it(
    cluster: Cluster, client: ClusterClient
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def looked_up() -> int:
        await client.leader("t", 0)
        return turns

    counting = asyncio.create_task(count())
    assert len(set(await asyncio.gather(*(looked_up() for _ in range(100))))) <= 2  # the first, and all others
    await cancel(counting)
    client.stale(["t"])
    cluster.asked, cluster.error = 0, ErrorCode.UNKNOWN
    found = await asyncio.gather(*(looked_up() for _ in range(100)), return_exceptions=True)
    assert {type(error) for error in found} == {BrokerRefusedError}
    assert cluster.asked == 1


async def test_what_callers_ask_for_behind_the_metadata_is_one_round(client: ClusterClient) -> None:
    """Else the offsets of a member's first partition would be looked up and committed before those of all others."""
    rounds: list[list[int]] = []

    async def note(items: list[int]) -> None:
        rounds.append(items)

    after = Rounds(note)

    async def look_up(number: int) -> None:
        await client.leader("t", 0)
        await after.take_part([number])

    await asyncio.gather(*map(look_up, range(10)))
    assert [sorted(items) for items in rounds] == [list(range(10))]


async def test_same_answer_leaves_the_metadata_as_they_are_and_fresh() -> None:
    cluster, clock = Cluster(), FakeClock()
    async with client_of(cluster, clock=clock) as client:
        metadata = await client.refresh(["t"])
        clock.jump(client.settings.metadata_max_age)
        assert not client.is_fresh("t")
        assert await client.refresh(["t"]) is metadata
        assert client.is_fresh("t")
        cluster.leader = 2
        assert (await client.refresh(["t"])) is not metadata
        assert (await client.leader("t", 0)).id == 2
        other = await client.refresh(["u"])
        assert set(other.topics) == {"t", "u"}
        cluster.leader = 1
        assert (await client.refresh(["t"])) is not other
        assert (await client.leader("t", 0)).id == 1


async def test_same_answers_with_an_older_epoch_are_counted(cluster: Cluster, client: ClusterClient) -> None:
    cluster.epoch = 5
    await client.refresh(["t"])
    cluster.epoch, cluster.leader = 3, 2
    leaders = [(await client.refresh(["t"])).topics["t"].partitions[0].leader for _ in range(4)]
    assert leaders == [1, 1, 2, 2]


async def test_asks_other_brokers_while_one_hangs(cluster: Cluster, client: ClusterClient) -> None:
    await client.leader("t", 0)
    for node in NODES:
        await client.node_channel(node)
    cluster.hangs = 1
    asked: MetadataRequest = {"topics": []}
    hanging = asyncio.create_task(client.call_node(1, METADATA, asked))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for _ in range(10):
            client.stale(["t"])
            await client.leader("t", 0)
    await cancel(hanging)


async def test_retries_until_broker_is_known_again(cluster: Cluster, client: ClusterClient) -> None:
    heartbeat: HeartbeatRequest = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    await client.refresh(["t"])
    cluster.leader = 3
    cluster.nodes.discard(3)
    await client.refresh()
    client.stale(["t"])
    asyncio.get_running_loop().call_later(0.05, cluster.nodes.add, 3)
    answer = await client.retrying("beat", lambda: client.call_coordinator("g", HEARTBEAT, heartbeat))
    assert answer == {"error_code": 0}
    cluster.nodes.discard(3)
    await client.refresh()
    asyncio.get_running_loop().call_later(0.05, cluster.nodes.add, 3)
    assert (await client.retrying("lead", lambda: client.leader("t", 0))).id == 3


async def test_looks_up_the_coordinator_again_that_cannot_be_connected_to() -> None:
    cluster = Cluster()
    async with client_of(cluster) as client:
        await client.refresh()
        cluster.gone, cluster.leader = {2}, 2
        for kind in (GROUP, TRANSACTION):
            with pytest.raises(ConnectError):
                await client.coordinator_channel("g", kind)
        cluster.leader = 3  # the metadata still have the former one
        for kind in (GROUP, TRANSACTION):
            assert (await client.coordinator_channel("g", kind)).address == "h:3"


@pytest.mark.parametrize("seed", range(8))
async def test_asks_the_other_servers_when_one_demands_to_bootstrap_again(seed: int) -> None:
    cluster = Cluster()
    cluster.sends_away = {7, 8}
    async with client_of(cluster, 7, 8, 9, seed=seed) as client:
        assert (await client.leader("t", 0)).id == 1
        assert cluster.dialed[-1] == 9
        assert len(cluster.dialed) == len(set(cluster.dialed)) == cluster.asked
        assert cluster.retried == ["bootstrap again"] * (cluster.asked - 1)
        dialed = len(cluster.dialed)
        await client.refresh()
        assert len(cluster.dialed) == dialed


async def test_closes_every_connection_when_a_broker_demands_to_bootstrap_again(
    cluster: Cluster, client: ClusterClient
) -> None:
    assert await client.coordinator("g") == 1
    await client.topics(["t"])
    channels = [await client.node_channel(1), await client.node_channel(2), await client.private_channel(3)]
    cluster.sends_away = {1}
    with pytest.raises(UnavailableError, match="REBOOTSTRAP_REQUIRED"):  # there is no other server yet
        await client.refresh()
    assert [channel.closed for channel in channels] == [True] * 3
    assert (client.metadata.nodes, client.metadata.topics) == ({}, {})
    cluster.sends_away, cluster.leader = set(), 2
    await client.refresh()
    assert await client.coordinator("g") == 2
    assert not (await client.private_channel(3)).closed


async def test_waits_for_a_server_that_does_not_demand_to_bootstrap_again(
    cluster: Cluster, client: ClusterClient
) -> None:
    cluster.sends_away = {1}
    asyncio.get_running_loop().call_later(0.02, cluster.sends_away.clear)
    metadata = await client.retrying("ask", client.refresh, timeout=60)
    assert set(metadata.nodes) == set(NODES)
    assert "ask" in cluster.retried


async def test_lists_the_partitions_of_each_topic_in_their_order(cluster: Cluster, client: ClusterClient) -> None:
    cluster.topics |= {"t": (0, 3)}
    assert await topic_partitions(client, ["t", "u"]) == {"t": [0, 1, 2], "u": [0]}
    assert cluster.asked == 1


async def test_broker_that_refuses_is_not_left() -> None:
    cluster = Cluster()
    async with client_of(cluster, 7, 8) as client:
        cluster.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(BrokerRefusedError, match="returned no metadata: CLUSTER_AUTHORIZATION_FAILED"):
            await client.refresh()
        with pytest.raises(BrokerRefusedError, match="returned no coordinator of group 'g': CLUSTER_AUTH"):
            await client.coordinator("g")
        cluster.error = 0
        await client.refresh()
        assert len(cluster.dialed) == 1


def asked(cluster: Cluster) -> Any:
    """The topics of the last request, None for all."""
    topics = cluster.bodies[-1]["topics"]
    return topics and [each["name"] for each in topics]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9, None])
async def test_asks_for_some_topics_for_none_or_for_all_in_every_version(
    version: int | None, cluster: Cluster, client: ClusterClient
) -> None:
    cluster.version, cluster.topics = version, {"t": (0, 1), "u": (0, 1), "v": (0, 1)}
    assert list((await client.refresh()).topics) == ([] if version != 0 else ["t", "u", "v"])
    assert asked(cluster) == []  # which is all in version 0
    assert list((await client.refresh(None)).topics) == ["t", "u", "v"]
    assert asked(cluster) == ([] if version == 0 else None)
    del cluster.topics["v"]
    await client.refresh()
    assert asked(cluster) == (["t"] if version == 0 else [])  # as few as it can
    await client.refresh(["u"])
    assert asked(cluster) == ["u"]
    assert list(client.metadata.topics) == ["t", "u", "v"]  # those that were not asked for stay
    await client.refresh(None)
    assert list(client.metadata.topics) == ["t", "u"]
    before = len(cluster.bodies)
    await client.topics(["t", "u"])
    assert len(cluster.bodies) == before  # all are fresh


@pytest.mark.parametrize(("version", "every"), [(0, True), (3, True), (4, False), (None, False)])
async def test_asks_old_brokers_for_all_topics_where_none_may_be_created(
    version: int | None, every: bool, cluster: Cluster, client: ClusterClient
) -> None:
    cluster.version, cluster.topics = version, {"t": (0, 1)}
    await client.refresh(["u"], never_create=True)
    assert asked(cluster) == (["u"] if not every else [] if version == 0 else None)
    await client.refresh(["u"])
    assert asked(cluster) == ["u"]
    for create in (False, True):
        await client.refresh(["u"], create=create)
        assert cluster.bodies[-1].get("allow_auto_topic_creation", create) is create
        await client.topics([f"new {create}"], create=create)
        assert cluster.bodies[-1].get("allow_auto_topic_creation", create) is create
    for asking in (client.refresh(["u"]), client.topics(["x"])):
        await asking
        assert not cluster.bodies[-1].get("allow_auto_topic_creation")
        assert asked(cluster) in (["u"], ["x"])


async def test_finds_the_leader_of_a_partition_that_was_added_while_the_metadata_were_fresh(
    cluster: Cluster, client: ClusterClient
) -> None:
    cluster.topics["t"] = (0, 2)
    await client.leader("t", 1)
    cluster.topics["t"] = (0, 12)
    found = await asyncio.gather(*(client.leader("t", number) for number in range(12)))
    assert [node.id for node in found] == [cluster.leader] * 12
    assert cluster.asked == 2


async def test_says_why_a_partition_has_no_leader(cluster: Cluster, client: ClusterClient) -> None:
    cluster.left_out = {"lost"}
    cluster.topics = {"secret": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0), "t": (0, 2)}
    for topic, partition, says in (
        ("lost", 0, "lost/0 has no leader: the brokers returned no metadata of the topic 'lost'"),
        ("secret", 0, "the client lacks the permission Describe on the topic 'secret'"),
        ("t", 2, "t/2 has no leader: the topic has 2 partitions"),
    ):
        with pytest.raises(BrokerError, match=says):
            await client.leader(topic, partition)


@pytest.mark.parametrize("left_out", [True, False])
async def test_believes_that_a_topic_is_missing_after_a_few_answers(left_out: bool) -> None:
    cluster = Cluster()
    if left_out:
        cluster.left_out = {"t"}
    else:
        cluster.topics = {"t": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
    async with client_of(cluster, clock=FakeClock(auto=True)) as client:
        with pytest.raises(NotFoundError, match="the brokers have no topic 't'; see `consumerd topics list`"):
            await topic_partitions(client, ["t"])
        assert cluster.asked == 4


async def test_waits_for_a_topic_that_has_no_partitions_yet_and_not_for_a_forbidden_one() -> None:
    cluster, clock = Cluster(), FakeClock(auto=True)
    cluster.topics = {"t": (0, 0)}
    async with client_of(cluster, clock=clock) as client:
        with pytest.raises(BrokerRefusedError, match="the topic 't' cannot be used: LEADER_NOT_AVAILABLE"):
            await topic_partitions(client, ["t"])
        assert cluster.asked > 4
        cluster.topics, cluster.asked = {"t": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)}, 0
        with pytest.raises(BrokerRefusedError, match="lacks the permission Describe on the topic 't'"):
            await topic_partitions(client, ["t"])
        assert cluster.asked == 1
