"""The memory of requests while they are received and handled, for all connections of a broker together.

Strategy: buffers grow with what arrives, and each growth is charged here first. A connection that finds no room waits
until another one gives memory back. Meanwhile `consumerd.storage.broker.connections` ends the connection that has held
memory for the longest time without progress, so that half requests of a few clients do not keep out all others.
"""

from __future__ import annotations

from collections.abc import Callable

#: A buffer of at most this many bytes is not charged: requests of consumers fit into it.
UNCHARGED_BYTES = 1 << 13


class RequestMemory:
    """At most `limit` bytes are charged at a time; a single connection may always exceed it.

    For one event loop; nothing here waits or raises.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Bytes that are charged now, of all connections together.
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}  # a set that keeps its order

    @property
    def wanted(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def charge(self, old: int, new: int) -> int | None:
        """Change what one connection holds from `old` to `new` bytes.

        Returns the charged size, to be passed as `old` the next time: `new`, or 0 for a small buffer. None,
        and nothing is changed, if there is no room. A smaller size always has room, and wakes those that wait.
        """
        old, new = charged(old), charged(new)
        if new > old and self.used > old and self.used - old + new > self.limit:
            return None
        self.used += new - old
        if new < old:
            for wake in self._waiting:
                wake()
        return new

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever memory is released, until `forget`. It must not call back into this object."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        self._waiting.pop(wake, None)


def charged(size: int) -> int:
    """Return the bytes that are charged for a buffer of `size` bytes."""
    return size if size > UNCHARGED_BYTES else 0
