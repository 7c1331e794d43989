"""How long to wait before a partition that was read to its end is polled again. Pure: time is an argument.

Theory: messages that come at intervals of `gap` seconds, polled for every `interval` seconds, wait for interval / 2 on
average and cost gap / interval polls each. If a poll is worth as much as delaying one message by `price` seconds, the
sum price * gap / interval + interval / 2 is least at

    interval = sqrt(2 * price * gap)

The price is a two hundredth of the longest interval: at gaps of `IDLE_GAP` longest intervals the square root reaches
the longest one. A gap is estimated as the larger of the mean gap
(exponentially weighted, a message counting for an eighth) and the silence since the last message. The square root
makes the estimate uncritical: of a gap that is wrong by a factor of 2, the sum is larger by 6 %.

    with longest = 1 s:   gap        interval   mean wait   polls per message
                          0.001 s    0.010 s    0.005 s     0.1   (the smallest interval)
                          0.01 s     0.010 s    0.005 s     1
                          0.1 s      0.032 s    0.016 s     3.2
                          1 s        0.1 s      0.05 s      10
                          10 s       0.32 s     0.16 s      32
                          100 s      1 s        0.5 s       100   (the longest interval, from here on)

Chosen by simulation over Poisson, regular and bursty arrivals: an interval that is a fraction of the gap polls too
often where messages are frequent and too seldom where they are rare, and doubling from the smallest interval after each
message costs more polls for three times the delay.
"""

from __future__ import annotations

import math

#: In longest intervals: the gap between messages from which on a partition is polled at the longest interval.
IDLE_GAP = 100
#: The part of the mean gap that stays, of the gap before one message.
_KEPT = 7 / 8


class Pace:
    """The rate at which one partition has messages, since `now`; times and intervals in seconds."""

    __slots__ = ("_gap", "_last")

    def __init__(self, now: float) -> None:
        #: The mean gap; None as long as there was no message: then only the silence counts.
        self._gap: float | None = None
        self._last = now

    def seen(self, count: int, now: float) -> None:
        """Note `count` messages, at least one, that came since the last ones."""
        gap = (now - self._last) / count
        self._last = now
        self._gap = gap if self._gap is None else gap + (self._gap - gap) * _KEPT**count

    def interval(self, now: float, *, smallest: float, longest: float) -> float:
        """Return the time until the next poll, at most `longest`. While nothing is seen it never becomes shorter."""
        silence = now - self._last
        gap = silence if self._gap is None else max(self._gap, silence)
        return min(longest, max(smallest, math.sqrt(longest * gap / IDLE_GAP)))
