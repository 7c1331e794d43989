"""The handled prefix of one partition: what may be committed while several ranges are being handled.

Strategy: ranges are begun in the order of the log and kept in a deque; each remembers how far it was handled. Whenever
one is finished, finished ranges are dropped from the front, and the position is how far the foremost open range got.
So the position never passes a message that is not handled, whatever the order of completion (one lane per partition
finishes in order, per-key lanes do not). Every step is O(1) amortised.

Positions are boundaries of the outer message set (golden notes, 2). The leaves of a compressed wrapper but the last
have their wrapper's start as their next position: ranges of length zero, which count like all others.
"""

from __future__ import annotations

from collections import deque


class Range:
    """A token: the part of the log from `start` to `next_offset` that is being handled. Made by `begin`."""

    __slots__ = ("complete", "generation", "handled", "next_offset", "start")

    def __init__(self, generation: object, start: int, next_offset: int) -> None:
        self.start = start
        self.next_offset = next_offset
        #: Up to here; set by `HandledPrefix.done` alone, like `complete`.
        self.handled = start
        self.complete = False
        #: Tells the ranges of before a `reset` from those after it.
        self.generation = generation

    def __repr__(self) -> str:
        return f"Range({self.start}..{self.next_offset}, handled to {self.handled})"


class HandledPrefix:
    """Tracks `position`, the offset up to which everything from the start was handled.

    Not thread-safe; used from one event loop.
    """

    __slots__ = ("_generation", "_open", "_position", "_tail")

    def __init__(self, start: int) -> None:
        self.reset(start)

    @property
    def position(self) -> int:
        """The offset to commit: everything before it was handled, or skipped by a policy."""
        return self._position

    def reset(self, offset: int) -> None:
        """Start anew at `offset` (seek, out of range). Ranges begun before are forgotten: `done` ignores them."""
        self._generation = object()
        self._open: deque[Range] = deque()
        self._position = self._tail = offset

    def begin(self, batch_start: int, batch_next: int) -> Range:
        """Open the range from `batch_start` to `batch_next`, which must lie behind all ranges begun so far.

        A gap between the former range and this one (a message skipped by a policy) counts as handled. Raises
        ValueError for a range that goes backwards: that is what `reset` is for.
        """
        if not self._tail <= batch_start <= batch_next:
            raise ValueError(f"a range from {batch_start} to {batch_next} cannot follow offset {self._tail}")
        token = Range(self._generation, batch_start, batch_next)
        self._open.append(token)
        self._tail = batch_next
        self._settle()
        return token

    def done(self, token: Range, upto: int | None = None) -> bool:
        """Note that `token` was handled, wholly or up to the boundary `upto`; calls may follow one another.

        Returns False, and does nothing, for a token from before a `reset`. Raises ValueError if `upto` lies outside
        the range; one that lies before an earlier `upto` changes nothing.
        """
        if token.generation is not self._generation:
            return False
        if upto is None:
            token.complete = True
            upto = token.next_offset
        elif not token.start <= upto <= token.next_offset:
            raise ValueError(f"{upto} lies outside the range from {token.start} to {token.next_offset}")
        token.handled = max(token.handled, upto)
        self._settle()
        return True

    def _settle(self) -> None:
        ranges = self._open
        while ranges and ranges[0].complete:
            self._position = ranges.popleft().next_offset
        if ranges:
            self._position = ranges[0].handled
