"""The topics of a cluster by KRaft's metadata log, `__cluster_metadata-0`, and by its snapshots.

Strategy: a record is a frame (varint version 1, varint API key, varint version) and a body of a flexible version, whose
first fields do not change between versions; records and fields that are not needed here are left alone. What stands
between the beginning of a transaction of the controller's and its end counts at the end, or not at all.

Source: Kafka's schemas of metadata records, and what brokers of 3.9.1 write.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from consumerd.storage.segments.batches import StoredBatch
from consumerd.storage.segments.fields import RecordFields, UnreadableRecordError

#: The topic of the metadata log, which has one partition.
METADATA_TOPIC: Final = "__cluster_metadata"
_FRAME_VERSION: Final = 1
_TOPIC, _PARTITION, _CONFIG, _PARTITION_CHANGE, _REMOVE_TOPIC = 2, 3, 4, 5, 9
_BEGIN, _END, _ABORT = 23, 24, 25
_TOPIC_RESOURCE: Final = 2
_REPLICAS_TAG: Final = 2


@dataclass(slots=True)
class ExistingTopic:
    """A topic that the cluster has. `partitions`: the ids of the brokers that have replicas, the preferred one first.

    `topic_id` as Kafka's tools print it. `configuration`: what was set for the topic; defaults are not there.
    """

    name: str
    topic_id: str
    partitions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    configuration: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "topic": self.name,
            "topic_id": self.topic_id,
            "partitions": {str(number): list(self.partitions[number]) for number in sorted(self.partitions)},
            "configuration": dict(sorted(self.configuration.items())),
        }


class ClusterMetadataReader:
    """Takes the batches of a snapshot, and of the log behind it, in order."""

    def __init__(self) -> None:
        self._topics: dict[bytes, ExistingTopic] = {}
        self._configurations: dict[str, dict[str, str]] = {}
        #: Topic id -> name, of topics that were deleted in the part of the log that was taken.
        self.deleted: dict[str, str] = {}
        #: Changes of a transaction that has not ended.
        self._pending: list[Callable[[], None]] | None = None
        #: Records that no known broker writes.
        self.unreadable = 0

    def take(self, batch: StoredBatch, start: int = 0) -> None:
        """Take the records of a batch from offset `start` on."""
        if batch.control is not None:
            return
        for record in batch.records.messages():
            if record.offset < start:
                continue
            try:
                change = self._read(record.payload)
            except UnreadableRecordError:
                self.unreadable += 1
                continue
            if change is not None:
                if self._pending is None:
                    change()
                else:
                    self._pending.append(change)

    def topics(self) -> dict[str, ExistingTopic]:
        """The topics that exist, by name."""
        found = {topic.name: topic for topic in self._topics.values()}
        for name, topic in found.items():
            topic.configuration = self._configurations.get(name, {})
        return dict(sorted(found.items()))

    def forget(self, former: ClusterMetadataReader) -> None:
        """Count as deleted what an earlier state of the cluster had, and this one does not."""
        gone = (topic for topic_id, topic in former._topics.items() if topic_id not in self._topics)
        self.deleted = former.deleted | {topic.topic_id: topic.name for topic in gone} | self.deleted
        self.unreadable += former.unreadable

    def _read(self, data: bytes | None) -> Callable[[], None] | None:
        """What a record changes; None for nothing that counts here. Raises UnreadableRecordError."""
        fields = RecordFields(data, compact=True)
        if (frame := fields.varint()) != _FRAME_VERSION:
            raise UnreadableRecordError(f"a frame of version {frame}")
        key = fields.varint()
        fields.varint()
        if key in (_BEGIN, _END, _ABORT):
            self._end_transaction(key)
            return None
        if key == _TOPIC:
            name, topic_id = fields.text(), fields.uuid()
            return lambda: self._topics.__setitem__(topic_id, ExistingTopic(name, id_text(topic_id)))
        if key == _REMOVE_TOPIC:
            removed = fields.uuid()
            return lambda: self._remove(removed)
        if key == _CONFIG:
            kind, name, setting, value = fields.int8(), fields.text(), fields.text(), fields.optional_text()
            return (lambda: self._configure(name, setting, value)) if kind == _TOPIC_RESOURCE else None
        if key in (_PARTITION, _PARTITION_CHANGE):
            number, topic_id = fields.int32(), fields.uuid()
            replicas = _numbers(fields) if key == _PARTITION else _changed_replicas(fields)
            return None if replicas is None else lambda: self._place(topic_id, number, replicas)
        return None

    def _end_transaction(self, key: int) -> None:
        changes, self._pending = self._pending or [], [] if key == _BEGIN else None
        if key == _END:
            for change in changes:
                change()

    def _remove(self, topic_id: bytes) -> None:
        if (topic := self._topics.pop(topic_id, None)) is not None:
            self.deleted[topic.topic_id] = topic.name
            self._configurations.pop(topic.name, None)

    def _configure(self, name: str, setting: str, value: str | None) -> None:
        settings = self._configurations.setdefault(name, {})
        if value is None:
            settings.pop(setting, None)
        else:
            settings[setting] = value

    def _place(self, topic_id: bytes, number: int, replicas: tuple[int, ...]) -> None:
        if (topic := self._topics.get(topic_id)) is not None:
            topic.partitions[number] = replicas


def id_text(topic_id: bytes) -> str:
    """A topic id as Kafka's tools print it, and as `partition.metadata` has it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _numbers(fields: RecordFields) -> tuple[int, ...]:
    return tuple(fields.int32() for _ in range(fields.count()))


def _changed_replicas(fields: RecordFields) -> tuple[int, ...] | None:
    """The replicas in the tagged fields of a change; None if they did not change."""
    for _ in range(fields.varint()):
        tag, size = fields.varint(), fields.varint()
        piece = fields.bytes(size)
        if tag == _REPLICAS_TAG:
            return _numbers(RecordFields(piece, compact=True))
    return None
