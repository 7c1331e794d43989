"""Offsets in Kafka: OFFSET_COMMIT and OFFSET_FETCH, sent to the group's coordinator.

Strategy: one request for all partitions. A member of a group that the broker coordinates sends its generation and id
with every commit, and the broker refuses those of a member that has been thrown out: then everything that was to be
committed is lost, as with an owner node that is gone. Without a membership (fixed partitions, tools) there is nothing
to fence by. A transient error (a coordinator that moves, loads, or is unavailable) is raised as
OffsetsUnavailableError.

The version is the newest that both sides support, unless one is configured. Version 0 is another store: any broker with
a ZooKeeper accepts it, 0.8.1 too, and keeps the offsets there, in the nodes of old consumers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.base.rounds import Rounds
from consumerd.base.settings.group import CommitSection
from consumerd.member.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.member.offsets.guards import OwnedGuard, Ownership
from consumerd.member.offsets.metadata import OffsetNotes, format_metadata, parse_metadata
from consumerd.member.offsets.store import NO_NOTES, CommitResult, OffsetStore
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError, topic_error
from consumerd.net.errors import ConnectionClosedError
from consumerd.net.zk.errors import SessionChanged
from consumerd.wire.v08.apis import OFFSET_COMMIT, OFFSET_FETCH
from consumerd.wire.v08.error_codes import ErrorCode, error_info, is_unexplained
from consumerd.wire.v08.schema import NO_UUID, Api, RequestT, ResponseT

if TYPE_CHECKING:
    from consumerd.group.coordinated_base import BrokerMember
    from consumerd.member.offsets.store import Notes
    from consumerd.wire.v08.message_types import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchResponse,
        OffsetFetchResponsePartition,
        OffsetFetchResponseTopicPartition,
    )

#: Version 0 of both is ZooKeeper's; the last of both that names topics, and not their ids.
FIRST_VERSION: Final = 1
_LAST_WITH_NAMES: Final = 9
_Fetched: TypeAlias = "list[OffsetFetchResponsePartition] | list[OffsetFetchResponseTopicPartition]"
#: The first version of OFFSET_FETCH for several groups.
_GROUPS_SINCE: Final = 8
#: The first version of OFFSET_FETCH with the member that reads: one that was removed must not begin by old offsets.
_READER_SINCE: Final = 9
#: The first version of OFFSET_COMMIT with static members.
_INSTANCE_SINCE: Final = 7
#: The first version of OFFSET_FETCH that reads all of a group.
_ALL_SINCE: Final = 2
#: The first version of OFFSET_FETCH that can refuse offsets of which a transaction is open.
_STABLE_SINCE: Final = 7
#: The version of OFFSET_FETCH that reads the offsets of each configured version of OFFSET_COMMIT.
_FETCH_FOR: Final = {0: 0, 1: 1, 2: 1}
#: Errors that mean that other members own the partitions by now.
THROWN_OUT: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
#: Answers that mean that another broker coordinates the group.
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR_FOR_GROUP, ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE})
#: Transient errors: they end with the rebalance, with the transaction that holds an offset back, or when the next
#: heartbeat has brought the member's epoch.
_PASSING: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
#: Refusals that concern one topic. One that is gone may come back as another: there the position means another place,
#: so it is not written again and again until then.
_OF_TOPIC: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
)
_NO_OFFSET: Final = -1
_NO_EPOCH: Final = -1
#: The first version of OFFSET_COMMIT with a leader epoch.
_EPOCH_SINCE: Final = 6
#: Seconds for which a broker is sure to keep an offset that is not written again: far less than the day or week that
#: offsets.retention.minutes is by default.
_KEPT_FOR: Final = 1200.0
_DEFAULTS: Final = CommitSection()


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a partition; `metadata` is the text that was stored with it, `leader_epoch` the epoch of
    the last message before it, where the committing member knew it.
    """

    offset: int
    metadata: str | None = None
    leader_epoch: int | None = None

    @property
    def notes(self) -> OffsetNotes:
        """What is noted of the offset: the log that it is of, and whether the group began there."""
        notes = parse_metadata(self.metadata)
        if self.leader_epoch is None:
            return notes
        return notes._replace(log=notes.log._replace(leader_epoch=self.leader_epoch))


class _Begun(NamedTuple):
    """How far a group has come in a topic: two partitions of which it handled messages, if there are any.

    `partitions`: the fewest that the topic had when a member noted where the group begins; None if none did.
    """

    handled: list[TopicPartition]
    partitions: int | None

    def is_older_than(self, partition: TopicPartition) -> bool:
        """Whether the group began with the topic before this partition, which has no offset, was there."""
        younger = self.partitions is not None and partition.partition >= self.partitions
        return younger or any(other != partition for other in self.handled)


class KafkaOffsetStore(OffsetStore):
    """The committed offsets of one group.

    Version 0 of OFFSET_COMMIT stores them in ZooKeeper, through a broker, without coordinator or membership.
    Retention is of versions 2 to 4: brokers before 0.9 and after 2.0 decide by themselves.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        membership: BrokerMember | None = None,
        settings: CommitSection = _DEFAULTS,
    ) -> None:
        version, retention = settings.version, settings.retention
        if version == 0 and membership is not None:
            raise ValueError("OFFSET_COMMIT version 0 does not carry the member that commits")
        self._client = client
        self._group = group
        self._membership = membership
        self._metadata = settings.metadata
        self._retention_ms = -1 if retention is None else int(retention * 1000)
        self._version = version
        self._logs: dict[TopicPartition, LogId] = {}
        #: By topic, the reads of how far the group has come, and the fewest partitions that it had when that was read.
        self._begun: dict[str, Rounds[TopicPartition, _Begun]] = {}
        self._counts: dict[str, int] = {}
        #: Whether the coordinator has accepted a request of ours.
        self._accepted = False
        #: Brokers before 2.1 forget offsets by their age, those of groups without members later ones, too.
        self.keeps_for = None if version == 0 else min(_KEPT_FOR, math.inf if retention is None else retention)

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Load the stored offsets; partitions without one are absent. Raises OffsetsUnavailableError, BrokerError."""
        found = await self.read(partitions)
        self._logs.update({partition: committed.notes.log for partition, committed in found.items()})
        return {partition: committed.offset for partition, committed in found.items()}

    def log(self, partition: TopicPartition) -> LogId:
        """Return the log by the leader epoch and the topic id that were committed with the offset."""
        return self._logs.get(partition, UNKNOWN_LOG)

    async def is_new(self, partition: TopicPartition) -> bool:
        """Return whether the group began with the topic before it had this partition, which has no offset.

        It did if it handled messages of other partitions, or if they are of another client. A group that just began has
        nothing but starts, which its members fix one after the other; they note how many partitions there were.
        """
        name = partition.topic
        if name not in self._begun:
            self._begun[name] = Rounds(lambda _: self._read_begun(name))
        return (await self._begun[name].take_part([partition])).is_older_than(partition)

    async def _read_begun(self, name: str) -> _Begun:
        metadata = await self._client.topics([name])
        topic = metadata.topics.get(name)
        numbers = sorted(() if topic is None else topic.partitions)
        if numbers:  # fewer than before are those of a topic that was created again
            self._counts[name] = min(self._counts.get(name, len(numbers)), len(numbers))
        found = await self.read([TopicPartition.numbered(name, number) for number in numbers])
        notes = {partition: committed.notes for partition, committed in found.items()}
        handled = [partition for partition, noted in notes.items() if not noted.start]
        counts = [noted.partitions for noted in notes.values() if noted.partitions is not None]
        return _Begun(handled[:2], min(counts, default=None))

    async def read(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """As `load`, with the metadata; with None, all that the group committed (since 0.10.2).

        A partition that the broker leaves out is not one without an offset, where reading would begin elsewhere: that
        raises OffsetsUnavailableError.
        """
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for partition in partitions or ():
            by_topic[partition.topic].append(partition.partition)
        channel = await self._channel()
        ids = {topic: self._client.known_topic_id(topic) for topic in by_topic}
        first = FIRST_VERSION if partitions is not None else _ALL_SINCE
        last = _LAST_WITH_NAMES if partitions is None or NO_UUID in ids.values() else None
        if self._version is not None and partitions is not None:
            first = last = _FETCH_FOR[self._version]
        version = channel.versions.pick(OFFSET_FETCH, at_least=first, at_most=last)
        what = f"cannot read the offsets of group {self._group!r}"
        body = _fetch_body(self._group, None if partitions is None else by_topic, ids, version)
        membership = self._membership
        if membership is not None and membership.session_id and version >= _READER_SINCE:
            for of_group in body["groups"]:
                of_group |= {"member_id": membership.member_id, "member_epoch": membership.generation}
        if membership is not None and version >= _STABLE_SINCE:
            # A member waits for the end of a transaction that a former owner left open with offsets in it.
            body["require_stable"] = True
        answer = await self._ask(channel, OFFSET_FETCH, body, version, what)
        code, topics = _fetched(answer, {topic_id: topic for topic, topic_id in ids.items()}, version, what)
        if code in THROWN_OUT:  # the member learns it from its next heartbeat
            raise OffsetsUnavailableError(f"{what}: {error_info(code)}")
        self._raise(code, what)
        found = {}
        missing = {(topic, number) for topic, numbers in by_topic.items() for number in numbers}
        for topic, parts in topics:
            for part in parts:
                missing.discard((topic, part["partition_index"]))
                if version == 0 and part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # no node: there is none. A coordinator of 0.8.2 says so before it knows its topics
                self._raise(part["error_code"], what, topic)
                if part["committed_offset"] != _NO_OFFSET:
                    partition = TopicPartition.numbered(topic, part["partition_index"])
                    epoch = part.get("committed_leader_epoch", _NO_EPOCH)
                    known = None if epoch == _NO_EPOCH else epoch
                    found[partition] = CommittedOffset(part["committed_offset"], part["metadata"], known)
        if missing:
            raise OffsetsUnavailableError(
                f"{what}: {TopicPartition.numbered(*min(missing))} is missing from the answer"
            )
        self._accepted = True
        return found

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store the positions of partitions that were assigned in the generation of `session_id`.

        Brokers since 2.1 keep the leader epoch, by which Java members, too, notice a truncated log. There is no place
        for the topic id, and before for the epoch, so these stand in the metadata. Brokers since 4.2 get topics by the
        ids that the positions are of, and refuse those of a topic that was created again. Positions of topics for
        which we lack the permission, or that the broker does not have, are refused, and do not affect others.

        Raises OffsetsUnavailableError when that is not possible just now (some may be stored; committing again is
        safe), and BrokerRefusedError for a permanent error.
        """
        membership = self._membership
        if membership is not None and membership.session_id != session_id:
            return CommitResult(frozenset(), frozenset(positions))
        # Read now: after the wait for a coordinator the generation may be another one.
        generation = _NO_OFFSET if membership is None else membership.generation
        member_id = "" if membership is None else membership.member_id
        instance_id = None if membership is None else membership.instance_id
        channel = await self._channel()
        known = {topic: self._client.known_topic_id(topic) for topic in {each.topic for each in positions}}
        noted = {partition: notes.get(partition, OffsetNotes()) for partition in positions}
        ids = {partition: each.log.topic_id or known[partition.topic] for partition, each in noted.items()}
        first, last = FIRST_VERSION, _LAST_WITH_NAMES if NO_UUID in ids.values() else None
        if self._version is not None:
            first = last = self._version
        version = channel.versions.pick(OFFSET_COMMIT, at_least=first, at_most=last)
        by_topic: defaultdict[tuple[str, bytes], list[OffsetCommitRequestPartition]] = defaultdict(list)
        for partition, offset in positions.items():
            named = partition.topic, ids[partition] if version > _LAST_WITH_NAMES else NO_UUID
            by_topic[named].append(self._entry(partition, offset, noted[partition], version))
        body: OffsetCommitRequest = {
            "group_id": self._group,
            "generation_id_or_member_epoch": generation,
            "member_id": member_id,
            "retention_time_ms": self._retention_ms,
            "topics": [
                {"name": topic, "topic_id": topic_id, "partitions": parts}
                for (topic, topic_id), parts in by_topic.items()
            ],
        }
        if instance_id is not None and version >= _INSTANCE_SINCE:
            body["group_instance_id"] = instance_id
        what = f"the offsets of group {self._group!r} cannot be written"
        answer = await self._ask(channel, OFFSET_COMMIT, body, version, what)
        names = {topic_id: topic for topic, topic_id in by_topic}
        codes = {
            TopicPartition.numbered(
                topic["name"] if version <= _LAST_WITH_NAMES else names.get(topic["topic_id"], ""),
                part["partition_index"],
            ): part["error_code"]
            for topic in answer["topics"]
            for part in topic["partitions"]
        }
        return self._result(codes, positions, what)

    def _entry(
        self, partition: TopicPartition, offset: int, noted: OffsetNotes, version: int
    ) -> OffsetCommitRequestPartition:
        epoch = noted.log.leader_epoch
        if noted.start:
            noted = noted._replace(partitions=self._counts.get(partition.topic))
        return {
            "partition_index": partition.partition,
            "committed_offset": offset,
            "committed_leader_epoch": _NO_EPOCH if epoch is None else epoch,
            "committed_metadata": format_metadata(self._metadata, noted, with_epoch=version < _EPOCH_SINCE),
        }

    def _result(
        self, codes: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int], what: str
    ) -> CommitResult:
        """The result of a commit by the error codes of its partitions. Raises as `commit`."""
        committed, lost = set(), set()
        refused: dict[TopicPartition, BrokerError] = {}
        for partition, code in codes.items():
            if code in THROWN_OUT:
                lost.add(partition)
                continue
            if code == ErrorCode.UNKNOWN_TOPIC_ID:
                self._client.stale([partition.topic])  # the topic is another one by now, or new to the coordinator
            if code in _OF_TOPIC and partition in positions:
                error = topic_error(code, f"{what}: {partition}", partition.topic, "Read")
                assert error is not None  # the code is not 0
                refused[partition] = error
                continue
            self._raise(code, what)
            committed.add(partition)
        self._accepted = True
        return CommitResult(frozenset(committed & positions.keys()), frozenset(lost & positions.keys()), refused)

    async def _channel(self) -> Channel:
        try:
            if self._version == 0:
                return await self._client.any_channel()
            return await self._client.node_channel(await self._client.coordinator(self._group))
        except BrokerRefusedError as error:
            if not self._may_pass(error):
                raise
            raise OffsetsUnavailableError(str(error)) from error
        except BrokerError as error:
            self._client.forget_coordinator(self._group)
            raise OffsetsUnavailableError(str(error)) from error

    async def _ask(
        self, channel: Channel, api: Api[RequestT, ResponseT], body: RequestT, version: int, what: str
    ) -> ResponseT:
        """Send to the known coordinator; the next attempt looks it up again."""
        try:
            return await channel.call(api, body, version=version)
        except ConnectionClosedError as error:
            self._client.forget_coordinator(self._group)
            raise OffsetsUnavailableError(f"{what}: {error}") from error

    def _may_pass(self, error: BrokerRefusedError) -> bool:
        """Whether a later attempt may succeed. A broker that shuts down may return UNKNOWN.

        A permission that we had was taken away, and may be given back.
        """
        denied = error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        return error.retriable or error.code in _PASSING or is_unexplained(error.code) or (denied and self._accepted)

    def _raise(self, code: int, what: str, topic: str = "") -> None:
        """Raise the error for `code`, if it is one."""
        error = topic_error(code, what, topic)
        if error is None:
            return
        if code in MOVED:
            self._client.forget_coordinator(self._group)
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            self._client.stale([topic])  # the topic is another one by now, or new to the coordinator
        if self._may_pass(error):
            raise OffsetsUnavailableError(str(error))
        raise error


class ClaimedStore(KafkaOffsetStore):
    """The offsets of partitions that are claimed in `zk`.

    Kafka does not read owner nodes, and cannot reject a member that has lost a partition. So the owner nodes are
    read right before each commit, and a partition that is not ours on this session is left out. A partition lost after
    the read may still be written once: the owner's next commit corrects it, and until then its successor repeats. If
    Kafka refuses partitions that are ours by the owner nodes, the group has members of another kind, as in
    `consumerd.member.offsets.dual_store`: that stops the member. Another claim would not help, and would deliver the
    same messages without end.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        zk: ZooKeeper,
        ownership: Ownership | None = None,
        settings: CommitSection = _DEFAULTS,
    ) -> None:
        super().__init__(client, group, settings=settings)
        self._zk = zk
        self._owned = OwnedGuard(zk, group, ownership)

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store. Raises SessionChanged if the session of the claims is over, OffsetsHeldError, and errors of either."""
        if self._zk.session_id != session_id:
            raise SessionChanged(session_id, self._zk.session_id)
        lost = frozenset(await self._owned.find_lost(list(positions), session_id))
        ours = {each: position for each, position in positions.items() if each not in lost}
        if not ours:
            return CommitResult(frozenset(), lost)
        result = await super().commit(ours, session_id=session_id, notes=notes)
        if result.lost:
            raise OffsetsHeldError(self._group, min(result.lost), "Kafka")
        return CommitResult(result.committed, lost, result.refused)


def _fetch_body(
    group: str, by_topic: Mapping[str, list[int]] | None, ids: Mapping[str, bytes], version: int
) -> OffsetFetchRequest:
    """A request for these partitions, or for all (None)."""
    if version >= _GROUPS_SINCE:
        of_group: OffsetFetchRequestGroup = {"group_id": group, "topics": None}
        if by_topic is not None:
            of_group["topics"] = [
                {"name": topic, "topic_id": ids[topic], "partition_indexes": numbers}
                for topic, numbers in by_topic.items()
            ]
        return {"groups": [of_group]}
    if by_topic is None:
        return {"group_id": group, "topics": None}
    return {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_topic.items()],
    }


def _fetched(
    answer: OffsetFetchResponse, names: Mapping[bytes, str], version: int, what: str
) -> tuple[int, list[tuple[str, _Fetched]]]:
    """The error of a response and its partitions by topic. `names`: those of topic ids; others were not requested."""
    if version < _GROUPS_SINCE:
        return answer.get("error_code", 0), [(topic["name"], topic["partitions"]) for topic in answer["topics"]]
    if len(answer["groups"]) != 1:
        raise BrokerError(f"{what}: the broker returned {len(answer['groups'])} groups instead of one")
    (group,) = answer["groups"]
    if version <= _LAST_WITH_NAMES:
        return group["error_code"], [(topic["name"], topic["partitions"]) for topic in group["topics"]]
    return group["error_code"], [
        (names[topic["topic_id"]], topic["partitions"]) for topic in group["topics"] if topic["topic_id"] in names
    ]
