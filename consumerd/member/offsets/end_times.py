"""The age of the first message that is not handled: by its timestamp, or by when a log ended where. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

#: Ends with a time that are kept of a log.
_TIMES: Final = 128


class EndTimes:
    """The ends that a log had, each with the last time at which that was seen: when messages came without timestamps.

    Their number is bounded: older times are kept further apart.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []

    def note(self, end: int, at: float, position: int) -> None:
        """Note the end at a time; ends before that at or before `position` are of no use any more."""
        seen = self._seen
        if seen and end < seen[-1][0]:
            seen.clear()  # the log is another one
        if seen and end == seen[-1][0]:
            seen.pop()
        seen.append((end, at))
        del seen[: max(0, bisect_right(seen, (position, math.inf)) - 1)]
        if len(seen) > _TIMES:
            del seen[1:-1:2]

    def ended_at(self, position: int) -> float | None:
        """The last time at which the log was seen to end at or before `position`; None: it was never seen to."""
        after = bisect_right(self._seen, (position, math.inf))
        return self._seen[after - 1][1] if after else None


def age_of_next(
    timestamp: int | None, times: EndTimes | None, position: int, *, wall: float, now: float
) -> float | None:
    """Seconds since the message at `position` came, at the time `wall` (since 1970), which is `now` of `times`.

    `timestamp`: that of the message, in milliseconds since 1970. Without one, or where it is later than `wall` because
    a clock is wrong, the message came after the log was last seen to end before it; None for unknown.
    """
    if timestamp is not None and (age := wall - timestamp / 1000) >= 0:
        return age
    ended = None if times is None else times.ended_at(position)
    return None if ended is None else now - ended
