"""A histogram with fixed buckets: one bisection and two additions for each value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

#: Upper bounds for the time of a batch in a handler and of a rebalance, in seconds.
DURATIONS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Upper bounds for the lateness of the event loop, in seconds.
LATENCIES: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: Upper bounds for the age of a message, in seconds: up to half a day.
AGES: Final = (*DURATIONS, 900.0, 3600.0, 10_800.0, 43_200.0)
#: Upper bounds for messages of a batch.
SIZES: Final = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


class Histogram:
    """Counts values by buckets. `bounds` ascend; a value equal to a bound belongs below it, as in Prometheus."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATIONS) -> None:
        self.bounds = bounds
        #: Values of each bucket alone; the last one is for those above all bounds.
        self.counts = [0] * (len(bounds) + 1)
        #: The sum of all values.
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_evenly(self, count: int, first: float, last: float) -> None:
        """Count `count` values (at least 1), evenly spaced from `first` to `last`, in either order; a constant cost."""
        low, high = (first, last) if first <= last else (last, first)
        bucket, end = bisect_left(self.bounds, low), bisect_left(self.bounds, high)
        counted = 0
        while bucket < end:
            up_to = int((self.bounds[bucket] - low) / (high - low) * (count - 1)) + 1
            self.counts[bucket] += up_to - counted
            bucket, counted = bucket + 1, up_to
        self.counts[end] += count - counted
        self.total += count * (low + high) / 2

    @property
    def count(self) -> int:
        """The number of values that were counted."""
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """The values of both, which have the same bounds. Raises ValueError."""
        if list(self.bounds) != list(other.bounds):
            raise ValueError("histograms with other bounds cannot be added")
        both = Histogram(self.bounds)
        both.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        both.total = self.total + other.total
        return both

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each upper bound, infinity last, with the number of values up to it."""
        count = 0
        for bound, here in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += here
            yield bound, count

    def quantile(self, share: float) -> float | None:
        """The upper bound below which `share` (0 to 1) of the values are; None without values. Infinity is possible."""
        wanted = share * self.count
        if not wanted:
            return None
        return next(bound for bound, count in self.cumulative() if count >= wanted)
