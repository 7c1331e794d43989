"""The target assignment of this member: the assignor of its group applied to what a snapshot shows as registered.

Strategy: hostile input stops here. Data of peers that cannot be read is left out with a warning, once per text, so that
one broken id node does not stop our part of the group (it does stop every JVM peer: golden notes, 5; anchors, A5). A
peer of the other dialect is an error, since such a group cannot be shared. Equal snapshots, which is what retries
mostly see, are not computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumerd.registry import DialectError, RegistryError, StaticSubscription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumerd.group.assignors import Wanted
    from consumerd.group.events import GroupSnapshot
    from consumerd.group.rules import GroupRules, Topics
    from consumerd.partition import TopicPartition
    from consumerd.registry import FilterSubscription, Subscription

#: Warnings that are not repeated; the number only bounds memory.
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """Who is to own what, as far as it concerns the topics that we subscribe to."""

    #: Partition -> stream number of ours.
    own: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Partitions that belong to others.
    others: frozenset[TopicPartition] = frozenset()


class TargetAssignmentBuilder:
    """Builds the target assignments of one member of a group with these rules."""

    def __init__(self, consumer_id: str, subscription: Subscription, rules: GroupRules) -> None:
        self._rules = rules
        self._consumer_id = consumer_id
        self._subscription = subscription
        self._parsed: dict[str, tuple[bytes | str | None, Subscription | None]] = {}
        self._seen: tuple[object, object] | None = None
        self._target = TargetAssignment()
        self._warned: set[str] = set()
        self._warnings: list[str] = []

    def build(self, snapshot: GroupSnapshot) -> TargetAssignment:
        """The target of a snapshot, as if our own id were in it. Raises DialectError for a peer of another."""
        if (snapshot.members, snapshot.topics) != self._seen:
            self._target = self._compute(self._members(snapshot.members), snapshot.topics)
            self._seen = dict(snapshot.members), {topic: dict(brokers) for topic, brokers in snapshot.topics.items()}
        return self._target

    def take_warnings(self) -> list[str]:
        """Sentences about what had to be left out since they were last taken."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def _members(self, data: Mapping[str, bytes | str | None]) -> dict[str, Subscription]:
        """Read all ids but our own, whose subscription we know."""
        parsed: dict[str, tuple[bytes | str | None, Subscription | None]] = {}
        for consumer_id, text in data.items():
            if consumer_id == self._consumer_id:
                continue
            known = self._parsed.get(consumer_id)
            parsed[consumer_id] = known if known and known[0] == text else (text, self._parse(consumer_id, text))
        self._parsed = parsed
        members = {consumer_id: entry[1] for consumer_id, entry in parsed.items() if entry[1] is not None}
        members[self._consumer_id] = self._subscription
        return members

    def _parse(self, consumer_id: str, text: bytes | str | None) -> Subscription | None:
        try:
            return self._rules.parse(text)
        except DialectError:
            raise
        except RegistryError as error:
            self._warn(f"member {consumer_id} is excluded from the assignment: {error}")
            return None

    def _compute(self, members: Mapping[str, Subscription], topics: Topics) -> TargetAssignment:
        wanted: dict[str, Wanted] = {
            name: subscription if isinstance(subscription, StaticSubscription) else _Filtered(self, name, subscription)
            for name, subscription in members.items()
        }
        mine = {topic for topic in topics if wanted[self._consumer_id].streams_for(topic)}
        relevant = (
            topics if self._rules.assigns_together else {topic: topics[topic] for topic in topics if topic in mine}
        )
        if warning := self._rules.incompatibility(relevant, wanted):
            self._warn(warning)
        own: dict[TopicPartition, int] = {}
        others: set[TopicPartition] = set()
        for partition, (consumer_id, stream) in self._rules.owners(relevant, wanted).items():
            if consumer_id == self._consumer_id:
                own[partition] = stream
            elif partition.topic in mine:
                others.add(partition)
        return TargetAssignment(own, frozenset(others))

    def streams(self, consumer_id: str, subscription: FilterSubscription, topic: str) -> int:
        """Streams of a member for a topic; 0, with a warning, when its filter cannot be applied to that name."""
        try:
            return self._rules.streams_for(subscription, topic)
        except RegistryError as error:
            self._warn(f"member {consumer_id} is excluded from the assignment of topic {topic!r}: {error}")
            return 0

    def _warn(self, sentence: str) -> None:
        if len(self._warned) >= _REMEMBERED:
            self._warned.clear()
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warnings.append(sentence)


class _Filtered:
    """What a member with a filter wants, as far as it can be known."""

    def __init__(self, builder: TargetAssignmentBuilder, consumer_id: str, subscription: FilterSubscription) -> None:
        self._builder = builder
        self._consumer_id = consumer_id
        self._subscription = subscription

    def streams_for(self, topic: str) -> int:
        return self._builder.streams(self._consumer_id, self._subscription, topic)
