"""The rules of each dialect in a group that ZooKeeper coordinates: how nodes are read and partitions assigned.

Strategy: there is one machine, and its rules are a value that it is given. They define how a member's node is read and
how partitions are assigned; nothing in them waits, does I/O or keeps state. A topic looks the same to both dialects
(`Topics`): numbers of partitions by broker, where 0.8 and later have NO_BROKER for the one broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.group.assignment import Assignment, assign_topic
from consumerd.group.assignors import Spelling, Wanted, agrees_on_streams, range_owners, roundrobin_owners
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08
from consumerd.wire.registry.subscription import (
    FilterSubscription,
    StaticSubscription,
    Subscription,
    parse_subscription,
)
from consumerd.wire.registry.v08.subscription import format_subscription_v08, parse_subscription_v08
from consumerd.wire.registry.v08.topic import INTERNAL_TOPICS

#: Topic -> broker (NO_BROKER since 0.8) -> the numbers of its partitions there.
Topics: TypeAlias = "Mapping[str, Mapping[int, Collection[int]]]"
Assignor: TypeAlias = Literal["range", "roundrobin"]


class V07Rules:
    """Kafka 0.7: sorted chunks of each topic's partitions, by name."""

    #: The data of a nudge's dummy id.
    nudge_value: Final = NUDGE_VALUE
    #: Whether the owners of a topic's partitions depend on the other topics.
    assigns_together: Final = False

    def format(self, subscription: Subscription, wall_ms: int) -> str:
        """Return the value of our own id node: `{ "t": 1 }` or `*1*regex`. `wall_ms`: milliseconds since the epoch."""
        return subscription.format()

    def parse(self, data: bytes | str | None) -> Subscription:
        """Read a member's node. Raises DialectError for the other dialect's, else RegistryError."""
        return parse_subscription(data)

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        """Return the streams for `topic` of a member with a filter. Raises RegistryError as the filter does."""
        return subscription.streams_for(topic)

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        """Return the owner of each partition, from the subscription of each member; each topic by itself."""
        owners: Assignment = {}
        for topic, brokers in topics.items():
            partitions = [TopicPartition(topic, broker, n) for broker, numbers in brokers.items() for n in numbers]
            streams = [(consumer, wanted.streams_for(topic)) for consumer, wanted in members.items()]
            owners.update(assign_topic(partitions, streams))
        return owners

    def incompatibility(self, topics: Topics, members: Mapping[str, Wanted]) -> str | None:
        """Return why JVM members may refuse to continue with these members, as a sentence: there is no such case."""
        return None


@dataclass(frozen=True, slots=True)
class V08Rules:
    """Kafka 0.8 to 1.1 (`partition.assignment.strategy`): chunks of each topic by number, or all topics in turn.

    `spelling` is that of the JVM members' release, and has an effect on roundrobin alone.
    """

    assignor: Assignor = "range"
    spelling: Spelling = Spelling.BRACKETS
    #: The node of a member without a subscription.
    nudge_value: ClassVar[bytes] = NUDGE_VALUE_V08

    @property
    def assigns_together(self) -> bool:
        """Whether the assignor is roundrobin."""
        return self.assignor == "roundrobin"

    def format(self, subscription: Subscription, wall_ms: int) -> str:
        """Return the JSON of 0.8.2."""
        return format_subscription_v08(subscription, wall_ms)

    def parse(self, data: bytes | str | None) -> Subscription:
        """Read a member's node."""
        return parse_subscription_v08(data)

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        """Return the filter's streams, 0 for internal topics (`exclude.internal.topics`)."""
        return 0 if topic in INTERNAL_TOPICS else subscription.streams_for(topic)

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        """Assign by the assignor."""
        numbers = {topic: brokers.get(NO_BROKER, ()) for topic, brokers in topics.items()}
        if self.assigns_together:
            return roundrobin_owners(numbers, members, spelling=self.spelling)
        return range_owners(numbers, members)

    def incompatibility(self, topics: Topics, members: Mapping[str, Wanted]) -> str | None:
        """Roundrobin of releases before 0.10.2 requires the same streams for all topics."""
        if not self.assigns_together or agrees_on_streams(topics, members):
            return None
        return (
            "members subscribe to different topics or numbers of streams: with the roundrobin assignor, old consumers "
            "before 0.10.2 refuse to rebalance"
        )


#: One dialect of a group: both have the same attributes and methods.
GroupRules: TypeAlias = V07Rules | V08Rules


def topics_to_read(
    rules: GroupRules, own: frozenset[str] | None, members: Iterable[bytes | str | None]
) -> frozenset[str] | None:
    """Return the topics on which the share of a member with the topics `own` depends; None for all.

    `members`: the nodes of all members; one that cannot be read is left out.
    """
    if own is None or not rules.assigns_together:
        return own
    wanted = set(own)
    for data in members:
        try:
            subscription = rules.parse(data)
        except RegistryError:
            continue  # left out of the assignment, with a warning; the formula refuses the other dialect
        if not isinstance(subscription, StaticSubscription):
            return None
        wanted.update(subscription.streams)
    return frozenset(wanted)
