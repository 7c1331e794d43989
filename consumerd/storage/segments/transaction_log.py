"""The transactional ids in the segments of `__transaction_state` (since 0.11), and the transaction of each.

Strategy: every change of a transaction is a record whose key is the transactional id; the last one counts, and one
without a value says that the id expired. Records may be met in any order of segments, so each is kept with its place.

A key is (int16 version 0, string id). A value is (int16 version, int64 producer id, int16 epoch, int32 timeout, int8
state, array of topics with their partitions, int64 time of the last change, int64 time of the start); version 1 is
flexible. Source: Kafka's schemas, and what brokers of 3.9.1 and 4.1.0 write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from consumerd.storage.segments.batches import StoredBatch
from consumerd.storage.segments.fields import RecordFields, UnreadableRecordError

#: The topic of the transactions' coordinators.
TRANSACTIONS_TOPIC: Final = "__transaction_state"
#: As Kafka's tools print them.
_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
#: States in which records of the transaction wait for its markers.
_OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_FLEXIBLE: Final = 1


@dataclass(frozen=True, slots=True)
class ArchivedTransaction:
    """The last transaction of a transactional id. Times in milliseconds since 1970, None where there is none.

    `timeout`: milliseconds. `partitions`: (topic, partition), of a transaction that is under way.
    """

    producer_id: int
    epoch: int
    timeout: int
    state: str
    partitions: tuple[tuple[str, int], ...]
    updated: int | None
    started: int | None

    @property
    def is_open(self) -> bool:
        """Whether partitions have records of it that are neither committed nor aborted."""
        return self.state in _OPEN

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "timeout_ms": self.timeout,
            "state": self.state,
            "open": self.is_open,
            "partitions": [f"{topic}/{partition}" for topic, partition in self.partitions],
            "updated": self.updated,
            "started": self.started,
        }


class TransactionsReader:
    """Takes the batches of the topic's segments in any order, and says what was there at the end."""

    def __init__(self, until: int | None = None) -> None:
        """`until`: milliseconds since 1970; what was written after that is left out."""
        self._until = until
        self._last: dict[str, tuple[int, ArchivedTransaction | None]] = {}
        #: Records that no known broker writes.
        self.unreadable = 0

    def take(self, _: int, batch: StoredBatch) -> None:
        """Take a batch of a partition of the topic: an id is in one partition only."""
        if batch.control is not None:
            return
        for record in batch.records.messages():
            if self._until is not None and record.timestamp > self._until:
                continue
            try:
                name = read_transactional_id(record.key)
                found = None if record.payload is None else read_transaction(record.payload)
            except UnreadableRecordError:
                self.unreadable += 1
                continue
            if name not in self._last or self._last[name][0] < record.offset:
                self._last[name] = record.offset, found

    def transactions(self) -> dict[str, ArchivedTransaction]:
        """The last transaction of each transactional id, sorted by id."""
        return {name: found for name, (_, found) in sorted(self._last.items()) if found is not None}


def read_transactional_id(data: bytes | None) -> str:
    """The key of a record. Raises UnreadableRecordError."""
    fields = RecordFields(data)
    if (version := fields.int16()) != 0:
        raise UnreadableRecordError(f"a key of version {version}")
    return fields.text()


def read_transaction(data: bytes) -> ArchivedTransaction:
    """The value of a record. Raises UnreadableRecordError."""
    fields = RecordFields(data)
    version = fields.int16()
    if not 0 <= version <= _FLEXIBLE:
        raise UnreadableRecordError(f"a value of version {version}")
    fields.compact = version == _FLEXIBLE
    producer_id, epoch, timeout, state = fields.int64(), fields.int16(), fields.int32(), fields.int8()
    if not 0 <= state < len(_STATES):
        raise UnreadableRecordError(f"a transaction in state {state}")
    partitions: list[tuple[str, int]] = []
    for _ in range(fields.count()):
        topic = fields.text()
        partitions += [(topic, fields.int32()) for _ in range(fields.count())]
        if fields.compact:
            fields.skip_tags()
    updated, started = fields.int64(), fields.int64()
    return ArchivedTransaction(
        producer_id,
        epoch,
        timeout,
        _STATES[state],
        tuple(partitions),
        updated if updated >= 0 else None,
        started if started >= 0 else None,
    )
