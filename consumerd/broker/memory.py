"""The memory that requests may take while they come in and are worked on, for all connections of a broker together.

Strategy: buffers grow with what arrives, and each growth is charged here first. Where there is no room it waits until
somebody gives memory back; who looks after the connections then ends the one that has kept its memory for the longest
time without getting on (`consumerd.broker.connections`), so that half requests of some do not keep out all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: A buffer of at most this size is not charged: what consumers send fits into it.
FREE = 1 << 13


class RequestMemory:
    """At most `limit` bytes are charged, but that one alone may always have what it needs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}  # a set that keeps its order

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for memory."""
        return bool(self._waiting)

    def charge(self, old: int, new: int) -> int | None:
        """Change what one connection holds from `old` to `new` bytes; returns `new`, or None where there is no room."""
        old, new = charged(old), charged(new)
        if new > old and self.used > old and self.used - old + new > self.limit:
            return None
        self.used += new - old
        if new < old:
            for wake in self._waiting:
                wake()
        return new

    def wait(self, wake: Callable[[], None]) -> None:
        """Have `wake` called whenever memory is given back, until `forget`."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """`wake` need not be called any more."""
        self._waiting.pop(wake, None)


def charged(size: int) -> int:
    """What a buffer of `size` bytes counts."""
    return size if size > FREE else 0
