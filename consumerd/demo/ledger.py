"""The messages of a topic's partitions by identity: the truth that deliveries are checked against.

Strategy: a line's way is followed twice. `sent` notes a digest of each line of the input when the producer takes it;
`store` reads the brokers' segment files back and gives every leaf its identity. Position by position the two have to
agree. Memory is 17 bytes per message, in arrays, and no payload is kept: inputs may be large.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from consumerd.base.partition import TopicPartition
from consumerd.demo.errors import AuditError
from consumerd.storage.log.dump import read_segment
from consumerd.storage.segments.finding import find_segment_files
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits


def digest(payload: bytes) -> int:
    """64 bits of BLAKE2: enough to detect a changed payload, and short."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest())


class PartitionLedger:
    """One partition: the lines sent to it, in order, and the messages that it holds, by (offset, index)."""

    __slots__ = ("_firsts", "_held", "_offsets", "_sent")

    def __init__(self) -> None:
        self._sent = array("Q")
        self._held = array("Q")
        #: Offset of each outermost message that has leaves, and the position of its first leaf.
        self._offsets = array("q")
        self._firsts = array("q")

    def send(self, payloads: Sequence[bytes]) -> None:
        """Note lines of the input on their way into this partition."""
        self._sent.extend(map(digest, payloads))

    def store(self, offset: int, payloads: Sequence[bytes]) -> None:
        """Note an outermost message that the partition holds, with its leaves. Offsets have to grow."""
        if self._offsets and offset <= self._offsets[-1]:
            raise AuditError(f"log offsets must increase, not go from {self._offsets[-1]} to {offset}")
        if payloads:
            self._offsets.append(offset)
            self._firsts.append(len(self._held))
            self._held.extend(map(digest, payloads))

    @property
    def sent(self) -> int:
        """The number of lines that were sent."""
        return len(self._sent)

    @property
    def held(self) -> int:
        """The number of messages that the partition holds."""
        return len(self._held)

    def position(self, offset: int, index: int) -> int | None:
        """Return the number of the message with this identity in the partition, from 0; None if there is none."""
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset or index < 0:
            return None
        end = self._firsts[at + 1] if at + 1 < len(self._firsts) else len(self._held)
        position = self._firsts[at] + index
        return position if position < end else None

    def is_input(self, position: int, payload_digest: int) -> bool:
        """Whether a payload is the line that was sent as number `position`."""
        return position < len(self._sent) and self._sent[position] == payload_digest

    def changed(self) -> int:
        """Return the number of messages in the partition that are not the line that was sent in their place."""
        return sum(not self.is_input(position, found) for position, found in enumerate(self._held))


class Ledger:
    """The partitions of one run."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionLedger] = {}

    def partition(self, partition: TopicPartition) -> PartitionLedger:
        """The partition's own ledger, made when it is new."""
        return self.partitions.setdefault(partition, PartitionLedger())

    def read_log(
        self, log_directory: Path, partition: TopicPartition, *, limits: DecodeLimits = DEFAULT_LIMITS
    ) -> None:
        """Note all that a broker's log directory holds of `partition`; a partition without a folder holds nothing.

        Raises AuditError when its segment files hold anything but valid messages. Blocks.
        """
        ledger = self.partition(partition)
        folder = log_directory / f"{partition.topic}-{partition.partition}"
        if not folder.is_dir():
            return
        for path, start, _ in find_segment_files([folder]):
            for entry in read_segment(path, start, limits=limits):
                if not entry.valid:
                    raise AuditError(f"{path} is damaged: {entry.problem}")
                ledger.store(entry.offset, entry.payloads)
