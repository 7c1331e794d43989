"""The target assignment of this member: the assignor of its group applied to what a snapshot shows as registered.

Strategy: hostile input is rejected here. Data of peers that cannot be read is left out with a warning, once per text,
so that one broken id node does not stop our part of the group (it does stop every JVM peer: golden notes, 5; anchors,
A5). A peer of the other dialect is an error, since such a group cannot be shared. Equal snapshots, which is what
retries mostly see, are not computed twice.

Ten thousand ids with intricate filters take minutes to read and apply, and heartbeats cannot wait for that: `steps` is
the computation in steps of some milliseconds, whose result `build` finds. Members that request more streams than any
group has are left out, the largest first: every stream is an entry in the memory of each member.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import Assignment
from consumerd.group.assignors import Wanted
from consumerd.group.events import MembershipSnapshot
from consumerd.group.rules import GroupRules, Topics
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription

#: A computation in steps.
Steps = Generator[None, None, None]


#: Warnings that are not repeated; the number only bounds memory.
_REMEMBERED = 1000
#: Streams of all members together for one topic.
MAX_STREAMS_OF_TOPIC: Final = 100_000
#: Work of one step, in units of about a microsecond.
_STEP: Final = 2_000
#: Units for a member, a stream, a partition; for a character of a static subscription, and of any other.
_MEMBER, _STREAM, _PARTITION, _CHARACTER, _PATTERN = 20, 2, 4, 0.05, 5


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The owners of the partitions of the topics to which we subscribe."""

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
        self._target: TargetAssignment | DialectError = TargetAssignment()
        self._warned: set[str] = set()
        self._warnings: list[str] = []

    def build(self, snapshot: MembershipSnapshot) -> TargetAssignment:
        """Return the target of a snapshot, as if our own id were in it. Raises DialectError for a peer of another."""
        for _ in self.steps(snapshot):
            pass
        if isinstance(self._target, DialectError):
            raise self._target
        return self._target

    def steps(self, snapshot: MembershipSnapshot) -> Steps:
        """Compute the target of a snapshot in steps of some milliseconds; `build` returns it then.

        The partitions of one topic are assigned in one step; with roundrobin, those of all topics.
        """
        if (snapshot.members, snapshot.topics) == self._seen:
            return
        target: TargetAssignment | DialectError
        work = _Work()
        try:
            members = yield from self._members(snapshot.members, work)
            target = yield from self._compute(members, snapshot.topics, work)
        except DialectError as error:
            target = error
        # All at once: another snapshot may have been computed between the steps.
        self._target = target
        self._seen = dict(snapshot.members), {topic: dict(brokers) for topic, brokers in snapshot.topics.items()}

    def take_warnings(self) -> list[str]:
        """Return the sentences about what was left out since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def _members(
        self, data: Mapping[str, bytes | str | None], work: _Work
    ) -> Generator[None, None, dict[str, Subscription]]:
        """Read all ids except our own, whose subscription we know."""
        parsed: dict[str, tuple[bytes | str | None, Subscription | None]] = {}
        for consumer_id, text in data.items():
            if consumer_id == self._consumer_id:
                continue
            known = self._parsed.get(consumer_id)
            if known is None or known[0] != text:
                known = text, self._parse(consumer_id, text)
                # What cannot be read may be a filter, which takes longest then.
                per_character = _CHARACTER if isinstance(known[1], StaticSubscription) else _PATTERN
                if work.ends_step(_MEMBER + len(text or "") * per_character):
                    yield
            parsed[consumer_id] = known
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

    def _compute(
        self, members: Mapping[str, Subscription], topics: Topics, work: _Work
    ) -> Generator[None, None, TargetAssignment]:
        mine = yield from self._mine(topics, work)
        relevant = topics if self._rules.assigns_together else {name: topics[name] for name in mine}
        wanted, totals = yield from self._wanted(members, relevant, work)
        if warning := self._rules.incompatibility(relevant, wanted):
            self._warn(warning)
        own: dict[TopicPartition, int] = {}
        others: set[TopicPartition] = set()
        for part in [relevant] if self._rules.assigns_together else [{name: relevant[name]} for name in relevant]:
            owners: Assignment = self._rules.owners(part, wanted)
            for partition, (consumer_id, stream) in owners.items():
                if consumer_id == self._consumer_id:
                    own[partition] = stream
                elif partition.topic in mine:
                    others.add(partition)
            streams = sum(totals[name] for name in part)
            if work.ends_step(len(members) * _MEMBER + streams * _STREAM + len(owners) * _PARTITION):
                yield
        return TargetAssignment(own, frozenset(others))

    def _mine(self, topics: Topics, work: _Work) -> Generator[None, None, dict[str, None]]:
        """Return the topics to which we subscribe, in their order."""
        mine: dict[str, None] = {}
        for topic in topics:
            if self._streams(self._consumer_id, self._subscription, topic):
                mine[topic] = None
            if work.ends_step(_units_of_match(self._subscription, topic)):
                yield
        return mine

    def _wanted(
        self, members: Mapping[str, Subscription], topics: Topics, work: _Work
    ) -> Generator[None, None, tuple[dict[str, Wanted], dict[str, int]]]:
        """Return the streams of each member for each topic, within `MAX_STREAMS_OF_TOPIC`, and their sum by topic."""
        found: dict[str, dict[str, int]] = {name: {} for name in members}
        totals: dict[str, int] = {}
        for topic in topics:
            total = 0
            for name, subscription in members.items():
                streams = self._streams(name, subscription, topic)
                if streams:
                    found[name][topic] = streams
                    total += streams
                if work.ends_step(_units_of_match(subscription, topic)):
                    yield
            totals[topic] = self._limit(topic, total, found) if total > MAX_STREAMS_OF_TOPIC else total
        return {name: _Counted(streams) for name, streams in found.items()}, totals

    def _limit(self, topic: str, total: int, found: Mapping[str, dict[str, int]]) -> int:
        """Leave out members with the most streams, as every member of ours does, until the rest is within the limit.

        Returns the streams that remain.
        """
        greatest = sorted((-streams[topic], name) for name, streams in found.items() if topic in streams)
        for less, name in greatest:
            if total <= MAX_STREAMS_OF_TOPIC:
                break
            if name != self._consumer_id:
                del found[name][topic]
                total += less
                self._warn(
                    f"member {name} is excluded from the assignment of topic {topic!r}: all members together ask for "
                    f"more than {MAX_STREAMS_OF_TOPIC} streams, and it for {-less}"
                )
        return total

    def _streams(self, consumer_id: str, subscription: Subscription, topic: str) -> int:
        """Return a member's streams for a topic; 0, with a warning, if its filter cannot be applied to that name."""
        if isinstance(subscription, StaticSubscription):
            return subscription.streams_for(topic)
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


class _Work:
    """The work done in the present step of a computation."""

    def __init__(self) -> None:
        self._units = 0.0

    def ends_step(self, units: float) -> bool:
        """Add work that was done. Returns whether the step ends with it; the next one begins then."""
        self._units += units
        if self._units <= _STEP:
            return False
        self._units = 0.0
        return True


def _units_of_match(subscription: Subscription, topic: str) -> float:
    """Return the work of applying a subscription to the name of a topic."""
    if isinstance(subscription, FilterSubscription):
        return 1 + subscription.filter.steps_for(topic) / 2
    return 1


class _Counted:
    """The streams of a member by topic."""

    def __init__(self, streams: Mapping[str, int]) -> None:
        self._streams = streams

    def streams_for(self, topic: str) -> int:
        return self._streams.get(topic, 0)
