"""Partition assignment of 0.7: sorted chunks, as every member of a group computes them for itself.

Ring 0, pure functions over a snapshot. Per topic, partitions `broker-partition` and streams `consumerid-stream` are
sorted **as strings** (`0-10` before `0-2`), the streams get q = P div T consecutive partitions each, and the first
P mod T streams one more (golden notes, 5; all observed assignments of real 0.7.2 members are reproduced). Members do
not exchange messages about it: they agree because equal snapshots give equal results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.subscription import Subscription

#: A stream of a member: (consumer id, stream number).
Stream = tuple[str, int]
Assignment = dict[TopicPartition, Stream]


def java_order(text: str) -> bytes:
    """Sort key of Java's and Scala's strings: by UTF-16 units, which differs from Python's beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


class TopicAssignment(NamedTuple):
    """The assignment of one topic: partitions and streams in their order, and the share of each stream."""

    partitions: list[TopicPartition]
    streams: list[Stream]
    #: Each stream has q = `share` consecutive partitions, the first r = `extra` streams one more. 0 without streams.
    share: int
    extra: int

    def chunks(self) -> Iterator[tuple[Stream, list[TopicPartition]]]:
        """Return each stream with its partitions, perhaps none, in the order of assignment."""
        start = 0
        for index, stream in enumerate(self.streams):
            end = start + self.share + (index < self.extra)
            yield stream, self.partitions[start:end]
            start = end


def topic_assignment(partitions: Iterable[TopicPartition], streams: Iterable[tuple[str, int]]) -> TopicAssignment:
    """Sort partitions and streams, and divide. `streams` lists (consumer id, number of streams), in any order."""
    ordered = sorted(partitions, key=lambda partition: partition.name)
    return divide(ordered, sorted_streams(streams))


def sorted_streams(streams: Iterable[tuple[str, int]]) -> list[Stream]:
    """Return the streams in their order. `streams` lists (consumer id, number of streams), in any order."""
    return in_order((consumer, number) for consumer, count in streams for number in range(count))


def in_order(streams: Iterable[Stream]) -> list[Stream]:
    """Sort streams by their names."""
    return sorted(streams, key=lambda stream: java_order(f"{stream[0]}-{stream[1]}"))


def divide(partitions: list[TopicPartition], streams: list[Stream]) -> TopicAssignment:
    """Divide partitions and streams that are already sorted."""
    share, extra = divmod(len(partitions), len(streams)) if streams else (0, 0)
    return TopicAssignment(partitions, streams, share, extra)


def assign_topic(partitions: Iterable[TopicPartition], streams: Iterable[tuple[str, int]]) -> Assignment:
    """Assign the partitions of one topic to the members' streams.

    `streams` lists (consumer id, number of streams), in any order. The result maps every partition to exactly one
    (consumer id, stream number), in the order in which they were assigned; without streams it is empty.
    """
    result: Assignment = {}
    for stream, chunk in topic_assignment(partitions, streams).chunks():
        if not chunk:
            break
        for partition in chunk:
            result[partition] = stream
    return result


def partitions_of(topic: str, brokers: Mapping[int, int]) -> list[TopicPartition]:
    """Return the partitions of a topic, from the number that each broker has."""
    return [TopicPartition(topic, broker, number) for broker, count in brokers.items() for number in range(count)]


def assign(topics: Mapping[str, Mapping[int, int]], members: Mapping[str, Subscription]) -> Assignment:
    """Assign all partitions of all topics.

    `topics` maps topic -> broker id -> number of partitions; `members` maps consumer id -> subscription. Partitions of
    a topic without subscribers are not in the result. Raises RegistryError only where a filter does.
    """
    result: Assignment = {}
    for topic, brokers in topics.items():
        streams = [(consumer, subscription.streams_for(topic)) for consumer, subscription in members.items()]
        result.update(assign_topic(partitions_of(topic, brokers), streams))
    return result
