"""The common case of sending: a message without a key, for an open batch that has room for it.

Strategy: a filling has a number of bytes that messages may use without a further check, and adds such messages to the
lists of its batch, which others use, too. The native one does the same and makes its deliveries natively. Everything
else (nulls, no room) is left to the producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from consumerd.base.native import codec as native_codec
from consumerd.producer.v08.batches import OVERHEAD, Delivery, ProducerBatch, delivered, new_delivery

_MILLISECOND: Final = 1_000_000


class Filling(Protocol):
    """Adds messages to `batch` as long as they have at most `room` bytes, as the producer counts them."""

    batch: ProducerBatch
    room: int

    def add(self, value: bytes | None, timestamp: int | None, /) -> Delivery | None:
        """Add a message, of now if `timestamp` is None. Return None, and add nothing, if the producer has to."""
        ...


class PureFilling:
    """`Filling` in Python. `wall`: seconds since the Unix epoch."""

    __slots__ = ("_nanoseconds", "_times", "_values", "batch", "room")

    def __init__(self, batch: ProducerBatch, wall: Callable[[], float]) -> None:
        self.batch = batch
        self.room = 0
        self._values = batch.values
        self._times = batch.timestamps
        # An int of a float costs twice as much as this division.
        self._nanoseconds = time.time_ns if wall is time.time else lambda: int(wall() * 1000) * _MILLISECOND

    def add(self, value: bytes | None, timestamp: int | None, /) -> Delivery | None:
        """As `Filling.add`."""
        if value is None:
            return None
        size = OVERHEAD + len(value)
        if size > self.room:
            return None
        self._times.append(self._nanoseconds() // _MILLISECOND if timestamp is None else timestamp)
        self.room -= size
        values = self._values
        values.append(value)
        return new_delivery((self.batch, len(values) - 1))


def new_filling(batch: ProducerBatch, wall: Callable[[], float]) -> Filling:
    """A filling without room. The native one does not call `wall` if it is the system's clock."""
    native = native_codec()
    if native is None:
        return PureFilling(batch, wall)
    clock = None if wall is time.time else wall
    return native.Filling(batch, batch.values, batch.timestamps, delivered, clock, OVERHEAD)
