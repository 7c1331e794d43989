"""The rules of each dialect in a group that ZooKeeper coordinates: how nodes are read and partitions assigned.

Strategy: the machine is one, its rules are a value that it is given. They say how a member's node is read and who is to
own what; nothing in them waits, reads or remembers. A topic looks the same to both dialects (`Topics`): numbers of
partitions by broker, where 0.8 and later have NO_BROKER for the one broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from consumerd.group.assignment import assign_topic
from consumerd.group.assignors import Spelling, agrees_on_streams, range_owners, roundrobin_owners
from consumerd.partition import NO_BROKER, TopicPartition
from consumerd.registry import (
    INTERNAL_TOPICS,
    NUDGE_VALUE,
    NUDGE_VALUE_V08,
    FilterSubscription,
    RegistryError,
    StaticSubscription,
    Subscription,
    format_subscription_v08,
    parse_subscription,
    parse_subscription_v08,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from consumerd.group.assignment import Assignment
    from consumerd.group.assignors import Wanted

#: Topic -> broker (NO_BROKER since 0.8) -> the numbers of its partitions there.
Topics: TypeAlias = "Mapping[str, Mapping[int, Collection[int]]]"
Assignor: TypeAlias = Literal["range", "roundrobin"]


class GroupRules(Protocol):
    """One dialect of a group."""

    @property
    def nudge_value(self) -> bytes:
        """What the dummy id of a nudge holds."""
        ...

    @property
    def assigns_together(self) -> bool:
        """Whether who owns a topic's partitions depends on the other topics."""
        ...

    def format(self, subscription: Subscription, wall_ms: int) -> str:
        """The value of our own id node. `wall_ms`: milliseconds since the epoch."""
        ...

    def parse(self, data: bytes | str | None) -> Subscription:
        """Read a member's node. Raises DialectError for the other dialect's, else RegistryError."""
        ...

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        """How many streams of a member with a filter take part in `topic`. Raises RegistryError as the filter does."""
        ...

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        """Who is to own what, given what each member wants."""
        ...

    def incompatibility(self, topics: Topics, members: Mapping[str, Wanted]) -> str | None:
        """Why JVM members may refuse to go on with these members, as a sentence; None where they do not."""
        ...


class V07Rules:
    """Kafka 0.7: sorted chunks of each topic's partitions, by name."""

    nudge_value: Final = NUDGE_VALUE
    assigns_together: Final = False

    def format(self, subscription: Subscription, wall_ms: int) -> str:
        """`{ "t": 1 }` or `*1*regex`."""
        return subscription.format()

    def parse(self, data: bytes | str | None) -> Subscription:
        """Read a member's node."""
        return parse_subscription(data)

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        """As the filter says."""
        return subscription.streams_for(topic)

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        """Each topic by itself."""
        owners: Assignment = {}
        for topic, brokers in topics.items():
            partitions = [TopicPartition(topic, broker, n) for broker, numbers in brokers.items() for n in numbers]
            streams = [(consumer, wanted.streams_for(topic)) for consumer, wanted in members.items()]
            owners.update(assign_topic(partitions, streams))
        return owners

    def incompatibility(self, topics: Topics, members: Mapping[str, Wanted]) -> str | None:
        """There is none."""
        return None


@dataclass(frozen=True, slots=True)
class V08Rules:
    """Kafka 0.8 to 1.1 (`partition.assignment.strategy`): chunks of each topic by number, or all topics in turn.

    `spelling` is that of the JVM members' release, and counts for roundrobin alone.
    """

    assignor: Assignor = "range"
    spelling: Spelling = Spelling.BRACKETS

    @property
    def nudge_value(self) -> bytes:
        """A member that wants nothing."""
        return NUDGE_VALUE_V08

    @property
    def assigns_together(self) -> bool:
        """Roundrobin does."""
        return self.assignor == "roundrobin"

    def format(self, subscription: Subscription, wall_ms: int) -> str:
        """The JSON of 0.8.2."""
        return format_subscription_v08(subscription, wall_ms)

    def parse(self, data: bytes | str | None) -> Subscription:
        """Read a member's node."""
        return parse_subscription_v08(data)

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        """As the filter says, but no internal topic (`exclude.internal.topics`)."""
        return 0 if topic in INTERNAL_TOPICS else subscription.streams_for(topic)

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        """By the assignor."""
        numbers = {topic: brokers.get(NO_BROKER, ()) for topic, brokers in topics.items()}
        if self.assigns_together:
            return roundrobin_owners(numbers, members, spelling=self.spelling)
        return range_owners(numbers, members)

    def incompatibility(self, topics: Topics, members: Mapping[str, Wanted]) -> str | None:
        """Roundrobin of releases before 0.10.2 wants the same streams for all topics."""
        if not self.assigns_together or agrees_on_streams(topics, members):
            return None
        return (
            "members subscribe to different topics or numbers of streams: with the roundrobin assignor, old consumers "
            "before 0.10.2 refuse to rebalance"
        )


def topics_to_read(
    rules: GroupRules, own: frozenset[str] | None, members: Iterable[bytes | str | None]
) -> frozenset[str] | None:
    """The topics on which the share of a member with the topics `own` depends; None for all there are.

    `members`: the nodes of all; what cannot be read counts for nothing.
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
