"""Partition assignment of Kafka 0.8 and later, where partitions are numbers in their topic.

Ring 0, pure functions over a snapshot, in two families. Where ZooKeeper coordinates (`range_owners`,
`roundrobin_owners`), every member computes the whole for itself, so the results are exactly those of the JVM's old
consumers (golden recordings of ZooKeeper; the classes of 0.8.2.2 to 1.1.1). Where a broker coordinates (`range_shares`,
`roundrobin_shares`), the leader alone computes the assignment; the orders are still those of the JVM's
assignors of these names, so that it does not matter who leads. "range" assigns each topic in consecutive chunks, as 0.7
does, but partitions are sorted as numbers; "roundrobin" assigns the partitions of all topics in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from itertools import cycle
from typing import Protocol, TypeAlias

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import Assignment, divide, in_order, java_order, sorted_streams

#: Partitions of each topic for each member.
Shares: TypeAlias = "dict[str, dict[str, list[int]]]"


class Wanted(Protocol):
    """The topics that a member requests: a subscription, or the streams computed from it."""

    def streams_for(self, topic: str) -> int:
        """Return the number of the member's streams for `topic`."""
        ...


class Spelling(Enum):
    """The text of a partition in old consumers; "roundrobin" sorts by its hash.

    A group whose members spell it differently does not agree about owners.
    """

    #: 0.8.2 to 0.11.
    BRACKETS = "[{},{}]"
    #: 1.0 and 1.1.
    DASH = "{}-{}"


def range_owners(topics: Mapping[str, Collection[int]], members: Mapping[str, Wanted]) -> Assignment:
    """Assign each topic's partitions, in the order of their numbers, to the streams in the order of their names.

    `topics`: topic -> the numbers of its partitions; `members`: consumer id -> its subscription. Partitions of
    a topic without subscribers are not in the result.
    """
    owners: Assignment = {}
    for topic, numbers in topics.items():
        partitions = [TopicPartition.numbered(topic, number) for number in sorted(numbers)]
        streams = sorted_streams((consumer, wanted.streams_for(topic)) for consumer, wanted in members.items())
        for stream, chunk in divide(partitions, streams).chunks():
            owners.update(dict.fromkeys(chunk, stream))
    return owners


def roundrobin_owners(
    topics: Mapping[str, Collection[int]],
    members: Mapping[str, Wanted],
    *,
    spelling: Spelling = Spelling.BRACKETS,
) -> Assignment:
    """Assign the partitions of all topics, in the order of their hashes, to the streams in turn.

    A stream is passed over for topics for which its member has fewer streams. Old consumers before 0.10.2 refuse to
    continue where that could happen (`agrees_on_streams`).
    """
    wanted = {
        topic: {(consumer, number) for consumer, found in members.items() for number in range(found.streams_for(topic))}
        for topic in topics
    }
    everyone = in_order({stream for streams in wanted.values() for stream in streams})
    partitions = [
        TopicPartition.numbered(topic, number)
        for topic, numbers in topics.items()
        if wanted[topic]
        for number in numbers
    ]
    partitions.sort(key=lambda one: (java_hash(spelling.value.format(one.topic, one.partition)), one))
    turns = cycle(everyone)
    return {one: next(stream for stream in turns if stream in wanted[one.topic]) for one in partitions}


def agrees_on_streams(topics: Iterable[str], members: Mapping[str, Wanted]) -> bool:
    """Whether each member has as many streams for one topic as for any other topic of the group.

    Old consumers before 0.10.2 require it if "roundrobin" is configured.
    """
    wanted = [topic for topic in topics if any(found.streams_for(topic) for found in members.values())]
    return all(len({found.streams_for(topic) for topic in wanted}) <= 1 for found in members.values())


def java_hash(text: str) -> int:
    """`String.hashCode` of the JVM: int32, computed over UTF-16 code units."""
    units = java_order(text)
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = value * 31 + (high << 8 | low) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def range_shares(
    partitions: Mapping[str, int], members: Mapping[str, Collection[str]], instances: Mapping[str, str] | None = None
) -> Shares:
    """Assign each topic's partitions in chunks to the members that subscribe to it.

    `partitions`: topic -> number of partitions; a topic that is not in it is not assigned. `members`: member id ->
    topics. `instances`: member id -> group instance id, of static members, which come first. Every member is in the
    result.
    """
    shares: Shares = {member: {} for member in members}
    order = _members_in_order(members, instances or {})
    for topic in sorted({topic for topics in members.values() for topic in topics} & partitions.keys(), key=java_order):
        subscribed = [member for member in order if topic in members[member]]
        share, extra = divmod(partitions[topic], len(subscribed))
        start = 0
        for place, member in enumerate(subscribed):
            end = start + share + (place < extra)
            if start < end:
                shares[member][topic] = list(range(start, end))
            start = end
    return shares


def roundrobin_shares(
    partitions: Mapping[str, int], members: Mapping[str, Collection[str]], instances: Mapping[str, str] | None = None
) -> Shares:
    """Assign the partitions of all topics, sorted by topic and number, to the members in turn.

    A member is passed over for topics to which it does not subscribe. Arguments and result are those of
    `range_shares`.
    """
    shares: Shares = {member: {} for member in members}
    turns = cycle(_members_in_order(members, instances or {}))
    for topic in sorted({topic for topics in members.values() for topic in topics} & partitions.keys(), key=java_order):
        for number in range(partitions[topic]):
            member = next(member for member in turns if topic in members[member])
            shares[member].setdefault(topic, []).append(number)
    return shares


def _members_in_order(members: Iterable[str], instances: Mapping[str, str]) -> list[str]:
    def rank(member: str) -> tuple[bool, bytes]:
        return member not in instances, java_order(instances.get(member, member))

    return sorted(members, key=rank)
