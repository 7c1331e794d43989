"""The log of one partition of a simulated cluster, with its leader epochs as brokers of 0.11 and later keep them.

Strategy: a message has the epoch of the leader that wrote it, by the list of the offsets at which epochs begin; a new
leader's epoch begins at the end of its log, before it has written anything. The rules are those of Kafka's
`LeaderEpochFileCache`. An unclean election takes messages away from the end; what is written there afterwards is of a
later epoch, at the same offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple, Protocol

from consumerd.wire.v08.records import encode_message_set, encode_record_batch

#: An unknown epoch or offset.
UNKNOWN: Final = -1


class Waiting(Protocol):
    """What waits for messages of the log."""

    def look(self) -> None:
        """The log has changed."""


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last message; both UNKNOWN for one that the log does not know."""

    epoch: int
    end: int


#: The epochs of a log in order: each with the offset at which it begins.
Epochs = list[tuple[int, int]]


class PartitionLog:
    """The messages of one partition, and who leads it."""

    def __init__(self, leader: int) -> None:
        self.leader: int | None = leader
        self.epoch = 0
        #: The partitions in the metadata: (leader, epoch).
        self.told: tuple[int | None, int] = (leader, 0)
        self.payloads: list[bytes] = []
        #: Of the messages that have any.
        self.headers: dict[int, Any] = {}
        #: Of each producer id its last batches: (sequence number, messages, offset). All replicas have them.
        self.producers: dict[int, list[tuple[int, int, int]]] = {}
        #: Fetches that wait for what comes.
        self.waiting: dict[Waiting, None] = {}
        self._epochs: Epochs = [(0, 0)]
        self._encoded: dict[tuple[int, bool], bytes] = {}

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return len(self.payloads)

    def elect(self, leader: int | None) -> None:
        """A new epoch begins: that of this leader, or one without a leader."""
        self.leader, self.epoch = leader, self.epoch + 1
        if leader is not None:
            self._epochs = [*(each for each in self._epochs if each[1] < self.end), (self.epoch, self.end)]

    def truncate(self, end: int) -> None:
        """The messages from `end` on are gone, as with a leader that never had them."""
        del self.payloads[end:]
        self.headers = {offset: headers for offset, headers in self.headers.items() if offset < end}
        self.producers = {
            producer: [batch for batch in batches if batch[2] + batch[1] <= end]
            for producer, batches in self.producers.items()
        }
        self._epochs = [each for each in self._epochs if each[1] < end]
        self._encoded = {key: data for key, data in self._encoded.items() if key[0] < end}

    def epoch_of(self, offset: int) -> int:
        """The epoch of the leader that wrote a message, or would write it."""
        at = bisect_right(self._epochs, offset, key=lambda each: each[1])
        return self._epochs[at - 1][0] if at else UNKNOWN

    def end_of(self, epoch: int) -> EpochEnd:
        """Where the messages of the largest epoch end that is not above `epoch`."""
        if epoch == UNKNOWN or not self._epochs or epoch > self._epochs[-1][0]:
            return EpochEnd(UNKNOWN, UNKNOWN)
        at = bisect_right(self._epochs, epoch, key=lambda each: each[0])
        if at == len(self._epochs):
            return EpochEnd(epoch, self.end)
        # Before the first epoch there may have been others, whose messages are deleted.
        return EpochEnd(self._epochs[at - 1][0] if at else epoch, self._epochs[at][1])

    def read(self, offset: int, limit: int, *, batches: bool) -> bytes:
        """About `limit` bytes of messages from `offset` on; at least one message, if there is one."""
        parts: list[bytes] = []
        size = 0
        while offset < len(self.payloads) and (size < limit or not parts):
            part = self._encoded.get((offset, batches))
            if part is None:
                part = self._encoded[offset, batches] = self._encode(offset, batches=batches)
            parts.append(part)
            size += len(part)
            offset += 1
        return b"".join(parts)

    def _encode(self, offset: int, *, batches: bool) -> bytes:
        payload = [self.payloads[offset]]
        if not batches:
            return encode_message_set(payload, base_offset=offset, timestamps=1000)
        headers = {0: self.headers[offset]} if offset in self.headers else None
        epoch = self.epoch_of(offset)
        return encode_record_batch(
            payload, base_offset=offset, timestamps=1000, headers=headers, leader_epoch=epoch
        )  # fmt: skip

    def wake(self) -> None:
        """Let fetches that wait look again."""
        for fetch in list(self.waiting):
            fetch.look()
