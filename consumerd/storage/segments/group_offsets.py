"""The committed offsets of groups in the segments of `__consumer_offsets` (since 0.8.2).

Strategy: every commit is a record whose key names group, topic and partition; the last one counts, and one without a
value says that the offset is gone. Records may be met in any order of segments, so each is kept with its place in the
log. One inside a transaction counts only if the first marker of its producer behind it is a commit.

A key is (int16 version 0 or 1, string group, string topic, int32 partition); version 2 and later describe members. A
value is (int16 version, int64 offset, from version 3 on int32 leader epoch, string metadata, int64 commit time, of
version 1 int64 expiry); later versions append tagged fields. Source: what brokers of 0.8.2 to 4.x write.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from consumerd.storage.segments.batches import StoredBatch
from consumerd.storage.segments.fields import RecordFields, UnreadableRecordError

#: The topic of the offsets.
OFFSETS_TOPIC: Final = "__consumer_offsets"
_KEY_VERSIONS: Final = (0, 1)
_VALUE_VERSIONS: Final = (0, 1, 2, 3, 4)
_WITH_EXPIRY: Final = 1
_WITH_EPOCH: Final = 3


class OffsetKey(NamedTuple):
    """The partition of a topic, and the group that read it."""

    group: str
    topic: str
    partition: int


class ArchivedOffset(NamedTuple):
    """A committed offset. `committed` in milliseconds since 1970, None where it is not known.

    `expires`, too: the commit itself has it in version 1 alone (0.9 to 2.0); the brokers' setting applies to others.
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    committed: int | None
    expires: int | None = None


class _Commit(NamedTuple):
    """A commit with its place, the offset in its partition of the offsets' topic. `value` None: it is gone."""

    place: int
    value: ArchivedOffset | None


class GroupOffsetsReader:
    """Takes the batches of the topic's segments in any order, and says what was committed at the end."""

    def __init__(self, until: int | None = None) -> None:
        """`until`: milliseconds since 1970; what was written after that is left out."""
        self._until = until
        self._last: dict[OffsetKey, _Commit] = {}
        #: (producer, partition of the topic) -> its commits in transactions, and the places of its markers.
        self._pending: dict[tuple[int, int], list[tuple[OffsetKey, _Commit]]] = {}
        self._markers: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        #: Records that no known broker writes.
        self.unreadable = 0

    def take(self, partition: int, batch: StoredBatch) -> None:
        """Take a batch of that partition of the topic."""
        source = (batch.producer.id if batch.producer is not None else -1, partition)
        if batch.control is not None:
            if not self._is_late(batch.max_timestamp):
                self._markers.setdefault(source, []).append((batch.offset, batch.control == "commit"))
            return
        for record in batch.records.messages():
            if self._is_late(record.timestamp):
                continue
            try:
                key = read_key(record.key)
                if key is None:
                    continue
                value = None if record.payload is None else read_value(record.payload)
            except UnreadableRecordError:
                self.unreadable += 1
                continue
            commit = _Commit(record.offset, value)
            if batch.transactional:
                self._pending.setdefault(source, []).append((key, commit))
            else:
                _keep(self._last, key, commit)

    def _is_late(self, timestamp: int | None) -> bool:
        return self._until is not None and timestamp is not None and timestamp > self._until

    def offsets(self) -> dict[OffsetKey, ArchivedOffset]:
        """The committed offsets, sorted by group, topic and partition."""
        last = dict(self._last)
        for source, commits in self._pending.items():
            markers = sorted(self._markers.get(source, ()))
            for key, commit in commits:
                at = bisect_right(markers, commit.place, key=lambda marker: marker[0])
                if at < len(markers) and markers[at][1]:
                    _keep(last, key, commit)
        return {key: commit.value for key, commit in sorted(last.items()) if commit.value is not None}


def _keep(last: dict[OffsetKey, _Commit], key: OffsetKey, commit: _Commit) -> None:
    former = last.get(key)
    if former is None or former.place < commit.place:
        last[key] = commit


def read_key(data: bytes | None) -> OffsetKey | None:
    """The key of a commit; None for a record about the members of a group. Raises UnreadableRecordError."""
    fields = RecordFields(data)
    if fields.int16() not in _KEY_VERSIONS:
        return None
    return OffsetKey(fields.optional_text() or "", fields.optional_text() or "", fields.int32())


def read_value(data: bytes) -> ArchivedOffset:
    """The value of a commit. Raises UnreadableRecordError."""
    fields = RecordFields(data)
    version = fields.int16()
    if version not in _VALUE_VERSIONS:
        raise UnreadableRecordError(f"a value of version {version}")
    offset, epoch = fields.int64(), fields.int32() if version >= _WITH_EPOCH else -1
    fields.compact = version > _WITH_EPOCH
    metadata, committed = fields.optional_text() or "", fields.int64()
    expires = fields.int64() if version == _WITH_EXPIRY else -1
    return ArchivedOffset(
        offset,
        epoch if epoch >= 0 else None,
        metadata,
        committed if committed >= 0 else None,
        expires if expires >= 0 else None,
    )
