"""The partitions of messages with and without a key, and how long one is kept."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.producer.v08.batches import PartitionQueue
from consumerd.producer.v08.routing import Route, key_partition, murmur2

COUNT = 4


class Routed:
    """A route to four partitions, of which those in `led` have a leader, and the queues that it had made."""

    def __init__(self, led: tuple[int, ...] = (0, 1, 2, 3), *, in_turns: bool = False) -> None:
        self.made: Counter[int] = Counter()
        parts = {n: PartitionMetadata(0 if n in led else None, 0, (0,), (0,), 0) for n in range(COUNT)}
        metadata = ClusterMetadata({0: Node(0, "memory", 1)}, {"t": TopicMetadata(0, parts)})
        self.route = Route("t", COUNT, metadata, self._queue, random.Random(3), in_turns=in_turns)

    def _queue(self, number: int) -> PartitionQueue:
        self.made[number] += 1
        return PartitionQueue(TopicPartition.numbered("t", number))

    def next(self) -> int:
        return self.route.queue(None, None).partition.partition


@pytest.mark.parametrize("in_turns", [False, True])
def test_key_or_partition_decides(in_turns: bool) -> None:
    """Also where that partition has no leader; with both the partition does."""
    routed = Routed((1,), in_turns=in_turns)
    for _ in range(2):
        for number in range(20):
            key = b"%d" % number
            assert routed.route.queue(key, None).partition.partition == key_partition(key, COUNT)
            assert routed.route.queue(key, number % COUNT).partition.partition == number % COUNT
    for wrong in (-1, COUNT):
        with pytest.raises(BrokerError, match=f"t has no partition {wrong}: it has 4 partitions"):
            routed.route.queue(None, wrong)
    assert routed.made == Counter(range(COUNT))


def test_messages_without_a_key_keep_a_partition_until_its_batch_goes() -> None:
    routed = Routed()
    found = set()
    for _ in range(50):
        queue = routed.route.queue(None, None)
        found.add(queue.partition.partition)
        other = routed.route.queue(None, (queue.partition.partition + 1) % COUNT)
        routed.route.unstick(other)
        assert {routed.next() for _ in range(5)} == {queue.partition.partition}
        assert routed.route.keyless(other) is queue
        routed.route.unstick(queue)
        chosen = routed.route.keyless(queue)
        assert routed.route.queue(None, None) is chosen
        routed.route.unstick(chosen)
    assert found == set(range(COUNT))
    assert routed.made == Counter(range(COUNT))


def test_messages_without_a_key_take_turns() -> None:
    routed = Routed((0, 2, 3), in_turns=True)
    assert [routed.next() for _ in range(7)] == [0, 2, 3, 0, 2, 3, 0]
    chosen = routed.route.queue(None, 1)
    assert routed.route.keyless(chosen) is chosen
    assert routed.next() == 2


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("led", [(), (1,), (0, 3)])
def test_messages_without_a_key_avoid_partitions_without_a_leader(led: tuple[int, ...], in_turns: bool) -> None:
    """If none has a leader, they wait in any."""
    routed = Routed(led, in_turns=in_turns)
    found = set()
    for _ in range(60):
        queue = routed.route.queue(None, None)
        found.add(queue.partition.partition)
        routed.route.unstick(queue)
    assert found == set(led or range(COUNT))


# Results of Java's `Utils.murmur2` from the tests of its clients; int32 there, so the sign is removed.
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_as_java_does(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % (1 << 32)


def test_partition_of_a_key_is_in_range_and_stable() -> None:
    places = {key: key_partition(key, 7) for key in (b"%d" % n for n in range(500))}
    assert set(places.values()) == set(range(7))
    assert all(key_partition(key, 7) == place for key, place in places.items())
    assert key_partition(b"", 1) == 0
