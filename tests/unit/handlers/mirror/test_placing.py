from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from consumerd.base.errors import BrokerError, ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.mirror.placing import KeepingPartitioner, PlacedRouter, SourceCounts, SourcePartition
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.v07 import ErrorCode, FetchRequest, FetchResponse, Request

PLACE = KeepingPartitioner()


@pytest.mark.parametrize("brokers", [[0, 1, 2], [1001, 1002, 1003], [5, 7, 9]])
@pytest.mark.parametrize("partitions", [1, 4])
def test_mirrors_partitions_one_to_one_with_consecutive_broker_ids(brokers: list[int], partitions: int) -> None:
    count = len(brokers) * partitions
    places = [PLACE.partition(SourcePartition(b, p, partitions), count) for b in brokers for p in range(partitions)]
    if brokers == [0, 1, 2]:
        assert places == list(range(count))
    if brokers != [5, 7, 9]:
        assert sorted(places) == list(range(count))
    assert all(0 <= place < count for place in places)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 12])
def test_spreads_evenly_over_a_cluster_of_another_shape(count: int) -> None:
    places = Counter(PLACE.partition(SourcePartition(b, p, 6), count) for b in (0, 1) for p in range(6))
    assert max(places.values()) - min(places.values()) <= 1
    assert len(places) == min(count, 12)


async def test_reads_the_source_once(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/topics/t/3", b"7")
    server.put("/brokers/topics/t/4", b"many")
    counts = SourceCounts(zk)
    assert await counts.source(TopicPartition("t", 3, 2)) == SourcePartition(3, 2, 7)
    server.remove("/brokers/topics/t/3")
    assert await counts.source(TopicPartition("t", 3, 5)) == SourcePartition(3, 5, 7)
    with pytest.raises(
        BrokerError, match="broker 9 is not registered for topic 't': the target partition of t/9-0 is unknown"
    ):
        await counts.source(TopicPartition("t", 9, 0))
    with pytest.raises(RegistryError):
        await counts.source(TopicPartition("t", 4, 0))


class Cluster:
    """Brokers with 1, 2, 3... partitions, by port."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.opened: list[MemoryBroker] = []
        self.fault: Exception | None = None

    async def __call__(self, host: str, port: int) -> Any:
        broker = MemoryBroker()
        self.opened.append(broker)
        self.asked.append(port)

        def answer(request: Request) -> Any:
            if self.fault is not None:
                return self.fault
            assert isinstance(request, FetchRequest)
            error = ErrorCode.NONE if request.partition < port else ErrorCode.WRONG_PARTITION
            return FetchResponse(error, b"").encode()[4:]

        broker.on_request = answer
        return await broker.connect(host, port)


async def test_uses_a_list_of_brokers() -> None:
    cluster = Cluster()
    router = PlacedRouter([("h", 1), ("h", 3)], connect=cluster)
    routes = [await router.route("t", SourcePartition(b, p, 6), None) for b in (0, 1) for p in range(6)]
    assert [(r.port, r.partition) for r in routes] == [(1, 0)] * 6 + [(3, p % 3) for p in range(6)]
    assert cluster.asked == [1, 3]
    await router.route("u", SourcePartition(1, 0, 6), None)
    assert cluster.asked == [1, 3, 3]
    assert not any(broker.connections for broker in cluster.opened)
    await router.close()


async def test_asks_an_unavailable_broker_again() -> None:
    cluster = Cluster()
    router = PlacedRouter([("h", 2)], connect=cluster)
    cluster.fault = ConnectionClosedError("gone")
    with pytest.raises(ConnectError, match="while counting its partitions; nothing was sent"):
        await router.route("t", SourcePartition(0, 1, 2), None)
    cluster.fault = None
    assert (await router.route("t", SourcePartition(0, 1, 2), None)).partition == 1
    assert not any(broker.connections for broker in cluster.opened)
    with pytest.raises(ConfigError, match="list of brokers is empty"):
        PlacedRouter([], connect=cluster)
