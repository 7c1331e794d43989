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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumerd.registry import DialectError, FilterSubscription, RegistryError, StaticSubscription

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from consumerd.group.assignment import Assignment
    from consumerd.group.assignors import Wanted
    from consumerd.group.events import GroupSnapshot
    from consumerd.group.rules import GroupRules, Topics
    from consumerd.partition import TopicPartition
    from consumerd.registry import Subscription

    #: A computation in steps.
    Steps = Generator[None, None, None]

#: Warnings that are not repeated; the number only bounds memory.
_REMEMBERED = 1000
#: Streams of all members together for one topic.
MAX_STREAMS_OF_TOPIC: Final = 100_000
#: Work of one step, in units of about a microsecond.
_STEP: Final = 2_000
#: Units for a member, a stream, a partition; for a character of a static subscription, and of a filter.
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

    def build(self, snapshot: GroupSnapshot) -> TargetAssignment:
        """Return the target of a snapshot, as if our own id were in it. Raises DialectError for a peer of another."""
        for _ in self.steps(snapshot):
            pass
        if isinstance(self._target, DialectError):
            raise self._target
        return self._target

    def steps(self, snapshot: GroupSnapshot) -> Steps:
        """Compute the target of a snapshot in steps of some milliseconds; `build` returns it then."""
        if (snapshot.members, snapshot.topics) == self._seen:
            return
        target: TargetAssignment | DialectError
        try:
            members = yield from self._members(snapshot.members)
            target = yield from self._compute(members, snapshot.topics)
        except DialectError as error:
            target = error
        # All at once: another snapshot may have been computed between the steps.
        self._target = target
        self._seen = dict(snapshot.members), {topic: dict(brokers) for topic, brokers in snapshot.topics.items()}

    def take_warnings(self) -> list[str]:
        """Return the sentences about what was left out since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def _members(self, data: Mapping[str, bytes | str | None]) -> Generator[None, None, dict[str, Subscription]]:
        """Read all ids except our own, whose subscription we know."""
        parsed: dict[str, tuple[bytes | str | None, Subscription | None]] = {}
        done = 0.0
        for consumer_id, text in data.items():
            if consumer_id == self._consumer_id:
                continue
            known = self._parsed.get(consumer_id)
            if known is None or known[0] != text:
                known = text, self._parse(consumer_id, text)
                is_filter = isinstance(known[1], FilterSubscription)
                done += _MEMBER + len(text or "") * (_PATTERN if is_filter else _CHARACTER)
            parsed[consumer_id] = known
            if done > _STEP:
                yield
                done = 0.0
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

    def _compute(self, members: Mapping[str, Subscription], topics: Topics) -> Generator[None, None, TargetAssignment]:
        mine = {topic for topic in topics if self._streams(self._consumer_id, members[self._consumer_id], topic)}
        relevant = topics if self._rules.assigns_together else {name: topics[name] for name in topics if name in mine}
        wanted = yield from self._wanted(members, relevant)
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
            if len(members) * _MEMBER + len(owners) * _PARTITION > _STEP:
                yield
        return TargetAssignment(own, frozenset(others))

    def _wanted(self, members: Mapping[str, Subscription], topics: Topics) -> Generator[None, None, dict[str, Wanted]]:
        """Return the streams of each member for each topic, within `MAX_STREAMS_OF_TOPIC`."""
        found: dict[str, dict[str, int]] = {name: {} for name in members}
        done = 0.0
        for topic in topics:
            total = 0
            for name, subscription in members.items():
                streams = self._streams(name, subscription, topic)
                if streams:
                    found[name][topic] = streams
                    total += streams
                if isinstance(subscription, FilterSubscription):
                    done += subscription.filter.steps_for(topic) / 2
                done += 1
                if done > _STEP:
                    yield
                    done = 0.0
            if total > MAX_STREAMS_OF_TOPIC:
                self._limit(topic, total, found)
            done += min(total, MAX_STREAMS_OF_TOPIC) * _STREAM
        return {name: _Counted(streams) for name, streams in found.items()}

    def _limit(self, topic: str, total: int, found: Mapping[str, dict[str, int]]) -> None:
        """Leave out members with the most streams, as every member of ours does, until the rest is within the limit."""
        greatest = sorted((-streams[topic], name) for name, streams in found.items() if topic in streams)
        for less, name in greatest:
            if total <= MAX_STREAMS_OF_TOPIC:
                return
            if name != self._consumer_id:
                del found[name][topic]
                total += less
                self._warn(
                    f"member {name} is excluded from the assignment of topic {topic!r}: all members together ask for "
                    f"more than {MAX_STREAMS_OF_TOPIC} streams, and it for {-less}"
                )

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


class _Counted:
    """The streams of a member by topic."""

    def __init__(self, streams: Mapping[str, int]) -> None:
        self._streams = streams

    def streams_for(self, topic: str) -> int:
        return self._streams.get(topic, 0)
