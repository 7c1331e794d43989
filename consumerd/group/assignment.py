"""Who owns which partition: sorted chunks, as every member of a 0.7 group computes them for itself.

Ring 0, pure functions over a snapshot. Per topic, partitions `broker-partition` and streams `consumerid-stream` are
sorted **as strings** (`0-10` before `0-2`), the streams get q = P div T consecutive partitions each, and the first
P mod T streams one more (golden notes, 5; all observed assignments of real 0.7.2 members are reproduced). Members do
not talk to each other about it: equal snapshots give equal results, and that is the whole agreement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from consumerd.registry import Subscription

#: A stream of a member: (consumer id, stream number).
Stream = tuple[str, int]
Assignment = dict[TopicPartition, Stream]


def java_order(text: str) -> bytes:
    """Sort key of Java's and Scala's strings: by UTF-16 units, which differs from Python's beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def assign_topic(partitions: Iterable[TopicPartition], streams: Sequence[tuple[str, int]]) -> Assignment:
    """Deal the partitions of one topic to the members' streams.

    `streams` lists (consumer id, number of streams), in any order. The result maps every partition to exactly one
    (consumer id, stream number), in the order in which they were dealt; without streams it is empty.
    """
    names = sorted(
        (java_order(f"{consumer}-{number}"), consumer, number) for consumer, count in streams for number in range(count)
    )
    if not names:
        return {}
    ordered = sorted(partitions, key=lambda partition: partition.name)
    share, extra = divmod(len(ordered), len(names))
    result: Assignment = {}
    start = 0
    for index, (_, consumer, number) in enumerate(names):
        end = start + share + (index < extra)
        for partition in ordered[start:end]:
            result[partition] = (consumer, number)
        start = end
        if start == len(ordered):
            break
    return result


def partitions_of(topic: str, brokers: Mapping[int, int]) -> list[TopicPartition]:
    """The partitions of a topic, given how many each broker has."""
    return [TopicPartition(topic, broker, number) for broker, count in brokers.items() for number in range(count)]


def assign(topics: Mapping[str, Mapping[int, int]], members: Mapping[str, Subscription]) -> Assignment:
    """Assign all partitions of all topics.

    `topics` maps topic -> broker id -> number of partitions; `members` maps consumer id -> subscription. Partitions of
    a topic to which nobody subscribes are not in the result. Raises RegistryError only where a filter does.
    """
    result: Assignment = {}
    for topic, brokers in topics.items():
        streams = [(consumer, subscription.streams_for(topic)) for consumer, subscription in members.items()]
        result.update(assign_topic(partitions_of(topic, brokers), streams))
    return result
