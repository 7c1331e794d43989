"""The handled prefix of one partition: what may be committed while a range of it is being handled.

Strategy: two integers. One range is handled at a time; `position` is the end of its handled part, `end` the end of the
range, and both are equal when no range is being handled. So the position never passes a message that is not handled. A
handler that handles messages of one range out of order (lanes per key) reports their contiguous prefix.

Positions are boundaries of the outer message set (golden notes, 2). The leaves of a compressed wrapper but the last
have their wrapper's start as their next position: ranges of length zero.
"""

from __future__ import annotations


class HandledPrefix:
    """Tracks `position`, the offset up to which everything from the start was handled.

    Not thread-safe; used from one event loop.
    """

    __slots__ = ("_end", "position")

    def __init__(self, start: int) -> None:
        #: The offset to commit: everything before it was handled, or skipped by a policy. Not to be set by others.
        self.position = self._end = start

    def reset(self, offset: int) -> None:
        """Start again at `offset` (seek, out of range). The current range is forgotten."""
        self.position = self._end = offset

    def begin(self, start: int, end: int) -> None:
        """Begin the range from `start` to `end`, which must not start before the end of the former one.

        A gap between the former range and this one (a message skipped by a policy) counts as handled. Raises
        ValueError for a range that goes backwards (`reset` is for that), or while another one is being handled.
        """
        if self.position < self._end:
            raise ValueError(f"the range up to {self._end} is handled up to {self.position} only")
        if not self._end <= start <= end:
            raise ValueError(f"a range from {start} to {end} cannot follow offset {self._end}")
        self.position, self._end = start, end

    def done(self, upto: int) -> None:
        """Note that the current range was handled up to the boundary `upto`; may be called repeatedly.

        Raises ValueError if `upto` lies after the range; one that lies before an earlier `upto` changes nothing.
        """
        if upto > self._end:
            raise ValueError(f"{upto} lies behind the range that ends at {self._end}")
        if upto > self.position:
            self.position = upto
