"""Topics that the target lacks: made with the partitions that were asked for, and looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.forward.errors import NoTopicError
from consumerd.forward.topics import ForwardTopics

if TYPE_CHECKING:
    from consumerd.client import ClusterClient

pytestmark = pytest.mark.asyncio


class Cluster:
    """Brokers that make topics with so many replicas where none are asked for."""

    def __init__(self, brokers: int, default_replicas: int) -> None:
        self.default_replicas = default_replicas
        self._topics: dict[str, TopicMetadata] = {}
        nodes = {number: Node(number, "127.0.0.1", 9092) for number in range(brokers)}
        self.metadata = ClusterMetadata(nodes, self._topics)
        self.versions = self

    async def refresh(self, topics: Any = ()) -> ClusterMetadata:
        return self.metadata

    async def retrying(self, what: str, ask: Any) -> Any:
        return await ask()

    async def any_channel(self) -> Cluster:
        return self

    def pick(self, api: Any) -> int:
        return 5

    async def call(self, api: Any, body: dict[str, Any], *, version: int) -> dict[str, Any]:
        [asked] = body["create_topic_requests"]
        replicas = asked["replication_factor"] if asked["replication_factor"] > 0 else self.default_replicas
        one = PartitionMetadata(0, 0, tuple(range(replicas)), tuple(range(replicas)), 0)
        partitions = dict.fromkeys(range(asked["num_partitions"]), one)
        self._topics[asked["topic"]] = TopicMetadata(0, partitions, False)
        return {"topic_error_codes": [{"topic": asked["topic"], "error_code": 0}]}


def topics_of(cluster: Cluster, **settings: Any) -> ForwardTopics:
    return ForwardTopics(cast("ClusterClient", cluster), **settings)


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
