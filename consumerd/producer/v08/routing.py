"""Routing of messages to partitions, and so to their queues.

Strategy: the metadata of a topic are kept in the form in which each message needs them, for as long as the client's
metadata are the same object. The key decides as for the JVM's producers of 0.8.2 and later, so that theirs and ours put
a key's messages into one partition: MurmurHash2 with their seed, its sign bit cleared, modulo the number of partitions.
Messages without one stick to a partition until its batch is sent, because few large batches cost less than many small
ones; or they take turns. They are sent to partitions that have a leader, if any has: elsewhere they would wait, and
fail in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import cycle
from random import Random
from typing import Final

from consumerd.base.errors import BrokerError
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.producer.v08.batches import PartitionQueue

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _M & _MASK
        word ^= word >> 24
        value = (value * _M & _MASK) ^ (word * _M & _MASK)
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _MASK
    value ^= value >> 13
    value = value * _M & _MASK
    return value ^ (value >> 15)


@lru_cache(maxsize=1 << 16)
def key_partition(key: bytes, count: int) -> int:
    """The partition of `key` among `count` (at least 1). Results are cached, since keys repeat."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class Route:
    """Routes messages to the `count` partitions of `topic`. `metadata`: its source. `queue_of` makes queues."""

    def __init__(
        self,
        topic: str,
        count: int,
        metadata: ClusterMetadata,
        queue_of: Callable[[int], PartitionQueue],
        rng: Random,
        *,
        in_turns: bool,
    ) -> None:
        self.topic = topic
        self.metadata = metadata
        self._queue_of = queue_of
        self._rng = rng
        self._queues: list[PartitionQueue | None] = [None] * count
        led = [number for number in range(count) if metadata.leader(topic, number) is not None]
        #: The partitions that messages without a key may use.
        self._open_to_all: Sequence[int] = led or range(count)
        self._turns = cycle(self._open_to_all) if in_turns else None
        self._sticky: PartitionQueue | None = None

    def queue(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The queue for a message. Raises BrokerError for a partition that the topic does not have."""
        if partition is None:
            if key is None:
                return self._sticky or self._next()
            partition = key_partition(key, len(self._queues))
        elif not 0 <= partition < len(self._queues):
            raise BrokerError(f"{self.topic} has no partition {partition}: it has {len(self._queues)} partitions")
        return self._queues[partition] or self._make(partition)

    def unstick(self, queue: PartitionQueue) -> None:
        """A batch of `queue` goes: messages without a key may go elsewhere."""
        if self._sticky is queue:
            self._sticky = None

    def keyless(self, queue: PartitionQueue) -> PartitionQueue:
        """Return the queue for a message without a key for which `queue` was chosen before, some time ago."""
        return queue if self._turns is not None else self._sticky or self._next()

    def _next(self) -> PartitionQueue:
        if self._turns is not None:
            number = next(self._turns)
            return self._queues[number] or self._make(number)
        # Of one there is no choice to make: a number from the system costs 2 µs.
        number = self._rng.choice(self._open_to_all) if len(self._open_to_all) > 1 else self._open_to_all[0]
        self._sticky = self._queues[number] or self._make(number)
        return self._sticky

    def _make(self, number: int) -> PartitionQueue:
        queue = self._queues[number] = self._queue_of(number)
        return queue
