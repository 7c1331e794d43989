"""Topics that the target lacks: made with the partitions that were asked for, and looked at."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.handlers.forward.errors import NoHeadersError, NoTopicError
from consumerd.handlers.forward.topics import ForwardTopics
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.settings import ClientSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.apis import APIS, CREATE_TOPICS, METADATA, PRODUCE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions


class Cluster:
    """Opener, channel and broker in one: makes topics with so many replicas where none are asked for.

    `errors`: of topics in METADATA, by name. `refuses`: the code of the next creations. `hides`: METADATA requests in
    which a new topic is missing. `older`: the last version of an API, where it is not ours.
    """

    closed, in_flight = False, 0

    def __init__(self, brokers: int = 1, default_replicas: int = 1, **older: int) -> None:
        self.brokers, self.default_replicas = brokers, default_replicas
        self.topics: dict[str, tuple[int, int]] = {}
        self.errors: dict[str, int] = {}
        self.refuses: list[int] = []
        self.hides = 0
        self.controller = -1
        self.port = 0
        #: The ports at which a topic was asked for, the bodies of these requests, and the number of METADATA requests.
        self.created: list[tuple[int, dict[str, Any]]] = []
        self.refreshed = 0
        served = {key: (api.versions[0], older.get(api.name, api.versions[1])) for key, api in APIS.items()}
        self.versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, served)

    async def open(self, host: str, port: int) -> Any:
        line = copy.copy(self)
        line.port = port
        line.address, line.cluster = f"h:{port}", self
        return line

    address: str
    cluster: Cluster

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self.cluster.metadata(body) if api is METADATA else self.cluster.create(self.port, body)

    def metadata(self, body: dict[str, Any]) -> dict[str, Any]:
        self.refreshed += 1
        names = sorted(self.topics) if body["topics"] is None else [each["name"] for each in body["topics"]]
        self.hides -= (hidden := self.hides > 0 and bool(names))
        return {
            "brokers": [{"node_id": number, "host": "h", "port": number} for number in range(self.brokers)],
            "controller_id": self.controller,
            "topics": [] if hidden else [self._described(name) for name in names],
        }

    def _described(self, name: str) -> dict[str, Any]:
        count, replicas = self.topics.get(name, (0, 0))
        parts = [
            {
                "error_code": 0,
                "partition_index": n,
                "leader_id": 0,
                "replica_nodes": list(range(replicas)),
                "isr_nodes": [],
            }
            for n in range(count)
        ]
        return {
            "error_code": self.errors.get(name, 0 if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            "name": name,
            "partitions": parts,
        }

    def create(self, port: int, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append((port, body))
        [asked] = body["topics"]
        error = self.refuses.pop(0) if self.refuses else 0
        if error in {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
            assert asked["replication_factor"] in {-1, *range(1, self.brokers + 1)}
            replicas = asked["replication_factor"] if asked["replication_factor"] > 0 else self.default_replicas
            self.topics[asked["name"]] = (asked["num_partitions"], replicas)
        return {"topics": [{"name": asked["name"], "error_code": error, "error_message": None}]}

    async def close(self) -> None:
        """Nothing is open."""


def topics_of(cluster: Cluster, **settings: Any) -> ForwardTopics:
    opener: Any = cluster
    client = ClusterClient(
        [("h", 0)], opener, ClientSettings(retry_timeout=5.0), clock=FakeClock(auto=True), rng=random.Random(1)
    )
    return ForwardTopics(client, **settings)


@pytest.mark.parametrize(
    ("brokers", "default", "asked", "warned"),
    [(3, 1, None, True), (3, 2, None, False), (1, 1, None, False), (3, 1, 1, False), (3, 1, 3, False)],
)
async def test_warns_of_a_default_replication_factor_of_one(
    brokers: int, default: int, asked: int | None, warned: bool
) -> None:
    topics = topics_of(Cluster(brokers, default), partitions=2, replication_factor=asked)
    with capture_logs() as logs:
        assert await topics.count("clicks") == 2
        assert await topics.count("clicks") == 2
    assert [line["topic"] for line in logs if line["event"] == "topic_has_one_replica"] == ["clicks"] * warned


async def test_numbers_each_topic_by_itself() -> None:
    topics = topics_of(Cluster(1, 1), partitions={"clicks": 4, "orders": 2})
    assert [await topics.count(name) for name in ("clicks", "orders")] == [4, 2]
    with pytest.raises(NoTopicError, match="no topic 'others': create it, or set its number of partitions"):
        await topics.count("others")


async def test_topic_that_is_there_is_looked_up_once() -> None:
    cluster = Cluster()
    cluster.topics["clicks"] = (4, 1)
    cluster.errors["clicks"] = ErrorCode.LEADER_NOT_AVAILABLE  # for one of its partitions
    topics = topics_of(cluster, partitions=2)
    assert await topics.count("clicks") == await topics.count("clicks") == 4
    assert cluster.refreshed == 1
    assert cluster.created == []


async def test_topic_that_may_not_be_described_is_not_missing() -> None:
    cluster = Cluster()
    cluster.errors["clicks"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(BrokerRefusedError, match="the target has no metadata for topic 'clicks'"):
        await topics_of(cluster, partitions=2).count("clicks")
    assert cluster.created == []


async def test_asks_the_present_controller_to_create_a_topic() -> None:
    cluster = Cluster(brokers=3)
    topics = topics_of(cluster, partitions={"clicks": 2, "orders": 2, "views": 2}, replication_factor=1)
    await topics.count("clicks")
    for cluster.controller, name in ((2, "orders"), (1, "views")):
        await topics.count(name)
    assert [port for port, _ in cluster.created[1:]] == [2, 1]
    assert [body["timeout_ms"] for _, body in cluster.created] == [30_000] * 3


async def test_asks_the_next_controller_when_the_former_one_refuses() -> None:
    class Moving(Cluster):
        def create(self, port: int, body: dict[str, Any]) -> dict[str, Any]:
            answer = super().create(port, body)
            self.controller = 2
            return answer

    cluster = Moving(brokers=3)
    cluster.controller, cluster.refuses = 1, [ErrorCode.NOT_CONTROLLER]
    assert await topics_of(cluster, partitions=2).count("clicks") == 2
    assert [port for port, _ in cluster.created] == [1, 2]


async def test_waits_until_a_created_topic_is_known() -> None:
    cluster = Cluster()
    cluster.hides = 5
    assert await topics_of(cluster, partitions=2).count("clicks") == 2
    assert len(cluster.created) == 1
    cluster.hides = 1000
    with pytest.raises(BrokerError, match="topic 'orders' was created and is not available yet"):
        await topics_of(cluster, partitions=2).count("orders")


async def test_creates_a_topic_once_for_all_partitions_that_need_it() -> None:
    cluster = Cluster()
    topics = topics_of(cluster, partitions=2)
    assert await asyncio.gather(*(topics.count("clicks") for _ in range(3))) == [2, 2, 2]
    assert len(cluster.created) == 1


async def test_topic_that_another_process_creates_first_is_as_good() -> None:
    cluster = Cluster()
    cluster.refuses = [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert await topics_of(cluster, partitions=2).count("clicks") == 2
    cluster.refuses = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerRefusedError, match="the topic 'orders' was not created"):
        await topics_of(cluster, partitions=2).count("orders")


async def test_brokers_without_a_default_need_a_replication_factor() -> None:
    since = [CREATE_TOPICS.name]
    cluster = Cluster(brokers=2, **dict.fromkeys(since, 4))
    assert await topics_of(cluster, partitions=2).count("clicks") == 2
    cluster = Cluster(brokers=2, **dict.fromkeys(since, 3))
    with pytest.raises(NoTopicError, match="have no default replication factor: set replication_factor"):
        await topics_of(cluster, partitions=2).count("clicks")
    assert cluster.created == []
    assert await topics_of(cluster, partitions=2, replication_factor=2).count("clicks") == 2
    [(_, body)] = cluster.created
    assert body["topics"] == [{"name": "clicks", "num_partitions": 2, "replication_factor": 2}]


async def test_brokers_support_headers_since_the_third_version_of_produce() -> None:
    await topics_of(Cluster(**{PRODUCE.name: 3})).require_headers()
    with pytest.raises(NoHeadersError, match=r"h:0 is older than 0\.11 and does not support headers"):
        await topics_of(Cluster(**{PRODUCE.name: 2})).require_headers()
