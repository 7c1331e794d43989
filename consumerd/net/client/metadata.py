"""The metadata of a cluster: its brokers, topics, partitions and their leaders. No I/O.

Strategy: an immutable snapshot per answer; a new one takes over the topics of the former that were not requested.
A partition's leader is taken from a newer answer only if that is not older by its leader epoch (where brokers have
epochs): brokers learn of elections at different times, and going back to a deposed leader costs a round trip each time.
Where topics have no ids (before 2.8) one that was recreated, whose epochs restart, looks the same; so
an older epoch that is repeated is accepted in the end. A topic keeps the partitions
that it had while an answer names none of them without saying that the topic is gone, and those that an answer leaves
out while its id is the same: no topic loses partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.wire.v08.error_codes import ErrorCode, is_unexplained
from consumerd.wire.v08.schema import NO_UUID

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        MetadataRequest,
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

#: From this version on METADATA requests can prevent the creation of topics.
NO_CREATION_SINCE: Final = 4
#: An older epoch is accepted after this number of successive responses with it.
_OLDER_EPOCHS_NEEDED: Final = 3


def metadata_body(version: int, topics: Sequence[str] | None, *, create: bool = False) -> MetadataRequest:
    """Return the body of a METADATA request for `topics`, for none, or for all (None); version 0 has no form for none.

    `create`: the brokers may create what is missing; they always may in versions without this field.
    """
    body: MetadataRequest = {"topics": None if topics is None else [{"name": name} for name in topics]}
    if version == 0 and topics is None:
        body["topics"] = []
    if version >= NO_CREATION_SINCE:
        body["allow_auto_topic_creation"] = create
    return body


class Node(NamedTuple):
    """A broker with its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    """A partition. `leader`: broker id, None while there is none. `leader_epoch`: -1 where brokers do not send it.

    `older_epochs_seen`: number of answers with an older epoch since.
    """

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int
    older_epochs_seen: int = 0


class TopicMetadata(NamedTuple):
    """A topic: its error code (0 for none), its partitions by number, whether it is the brokers' own, and its id."""

    error: int
    partitions: Mapping[int, PartitionMetadata]
    internal: bool = False
    id: bytes = NO_UUID


#: In place of a topic that is not in an answer.
MISSING_TOPIC: Final = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A snapshot of the cluster. `nodes`: the brokers that are alive, by id."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    controller: int | None = None
    cluster_id: str | None = None

    def leader(self, topic: str, partition: int) -> Node | None:
        """Return the broker that leads a partition; None while the leader, or its address, is unknown."""
        found = self.topics.get(topic)
        entry = found.partitions.get(partition) if found is not None else None
        return None if entry is None or entry.leader is None else self.nodes.get(entry.leader)

    @property
    def is_settled(self) -> bool:
        """Whether the same answers change nothing: no older epoch is counted."""
        return not any(part.older_epochs_seen for topic in self.topics.values() for part in topic.partitions.values())

    def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic; NO_UUID while it is unknown, as with brokers before 2.8."""
        found = self.topics.get(topic)
        return NO_UUID if found is None else found.id

    def updated(self, body: MetadataResponse, *, complete: bool) -> ClusterMetadata:
        """Return the snapshot after an answer to METADATA; `complete` if all topics were requested."""
        nodes = {
            entry["node_id"]: Node(entry["node_id"], entry["host"], entry["port"], entry.get("rack"))
            for entry in body["brokers"]
        }
        topics = {name: self._topic(name, entry) for entry in body["topics"] if (name := entry["name"]) is not None}
        controller = body.get("controller_id", -1)
        return ClusterMetadata(
            nodes or self.nodes,  # a broker that just started may not know of any
            topics if complete else {**self.topics, **topics},
            controller if controller >= 0 else None,
            body.get("cluster_id"),
        )

    def _topic(self, name: str, entry: MetadataResponseTopic) -> TopicMetadata:
        former = self.topics.get(name)
        error = entry["error_code"]
        if former is not None and not entry["partitions"] and (not error or is_unexplained(error)):
            return former._replace(error=error)
        topic_id = entry.get("topic_id", NO_UUID)
        same = former is not None and former.id == topic_id
        partitions = dict(former.partitions) if same and former is not None and topic_id != NO_UUID else {}
        for part in entry["partitions"]:
            number = part["partition_index"]
            fresh = _partition(part)
            known = former.partitions.get(number) if same and former is not None else None
            if known is not None and 0 <= fresh.leader_epoch < known.leader_epoch:
                times = known.older_epochs_seen + 1
                if topic_id != NO_UUID or times < _OLDER_EPOCHS_NEEDED:
                    fresh = known._replace(older_epochs_seen=times)
            partitions[number] = fresh
        return TopicMetadata(error, partitions, entry.get("is_internal", False), topic_id)


def _partition(entry: MetadataResponsePartition) -> PartitionMetadata:
    leader = entry["leader_id"]
    return PartitionMetadata(
        leader if leader >= 0 else None,
        entry.get("leader_epoch", -1),
        tuple(entry["replica_nodes"]),
        tuple(entry["isr_nodes"]),
        entry["error_code"],
    )
