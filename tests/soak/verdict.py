"""Which promise of a long run is broken, as sentences, with the figures beside them.

Strategy: whether something grows is asked of processes that lived long, over the second half of their lives: what fills
up at first (caches, the allocator's arenas) is full by then. The line through the samples is that of Theil and Sen, the
median of the slopes between all pairs, which a rebalance or a frozen minute does not move. The growth over that half
is judged, not the slope by itself: so a short run is not judged by its noise.

Of descriptors the fewest in half a minute count. A broker closes a segment that was not read for 10 to 20 seconds
(`consumerd.storage.broker.server`), so at full speed their number rises and falls by sixty in ten seconds, and
single samples would show the phase in which they were taken. What is never closed raises the fewest, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.soak.sampling import Life

#: What a process may grow in the second half of its life: MiB of memory, descriptors, tasks.
MEMORY_GROWTH: Final = 8.0
DESCRIPTOR_GROWTH: Final = 4.0
TASK_GROWTH: Final = 8.0
#: Megabytes that a member may have above its size at rest and its budget, as in `tests/integration/test_memory.py`.
ABOVE_BUDGET: Final = 100.0
_MIB: Final = 1 << 20
#: Seconds of which the fewest descriptors count.
FEWEST_SECONDS: Final = 30.0
#: Samples of a fit at most: of more, each n-th counts.
_POINTS: Final = 400
_FEWEST: Final = 8


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The median slope between any two points. Raises ValueError for less than two."""
    step = -(-len(at) // _POINTS)
    points = list(zip(at, values, strict=True))[::step]
    slopes = [(v - w) / (t - u) for (u, w), (t, v) in combinations(points, 2) if t > u]
    if not slopes:
        raise ValueError("a line needs two points at different times")
    return median(slopes)


def growth(at: Sequence[float], values: Sequence[float | None]) -> float | None:
    """How much the line through the second half rises over it; None with too few samples."""
    middle = (at[0] + at[-1]) / 2
    points = [(t, v) for t, v in zip(at, values, strict=True) if v is not None and t >= middle]
    if len(points) < _FEWEST:
        return None
    return slope([t for t, _ in points], [v for _, v in points]) * (points[-1][0] - points[0][0])


def lows(at: Sequence[float], values: Sequence[float], seconds: float) -> list[float]:
    """For each point the smallest value of the last `seconds`."""
    return [min(values[bisect_left(at, until - seconds) : n + 1]) for n, until in enumerate(at)]


@dataclass(frozen=True, slots=True)
class Growth:
    """What one process grew in the second half of its life; None: it had too few samples."""

    name: str
    seconds: float
    #: MiB at the beginning and at the end of that half, as medians of a tenth of the life each.
    before: float
    after: float
    memory: float | None
    descriptors: float | None
    tasks: float | None
    #: MiB.
    peak: float

    def as_json(self) -> dict[str, Any]:
        """The same, rounded."""
        return {
            "name": self.name,
            "seconds": round(self.seconds),
            "memory_before": round(self.before, 1),
            "memory_after": round(self.after, 1),
            "memory_growth": _rounded(self.memory),
            "descriptor_growth": _rounded(self.descriptors),
            "task_growth": _rounded(self.tasks),
            "peak": round(self.peak, 1),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def measure(life: Life) -> Growth:
    """The growth of one life."""
    middle, tenth = (life.at[0] + life.at[-1]) / 2, life.seconds / 10
    samples = list(zip(life.at, life.resident, strict=True))
    return Growth(
        life.name,
        life.seconds,
        median([size for at, size in samples if middle <= at <= middle + tenth] or [life.resident[-1]]),
        median([size for at, size in samples if at >= life.at[-1] - tenth]),
        growth(life.at, life.resident),
        growth(life.at, lows(life.at, life.descriptors, FEWEST_SECONDS)),
        growth(life.at, life.tasks),
        life.peak,
    )


def not_flat(found: Growth) -> list[str]:
    """What grew by more than it may, in words."""
    minutes = found.seconds / 120
    return [
        f"{found.name} grew by {grown:.1f} {what} in the last {minutes:.0f} of its minutes: more than {limit:g}"
        for grown, what, limit in (
            (found.memory, "MiB of memory", MEMORY_GROWTH),
            (found.descriptors, "file descriptors", DESCRIPTOR_GROWTH),
            (found.tasks, "tasks", TASK_GROWTH),
        )
        if grown is not None and grown > limit
    ]


def memory_limit(budget: int, at_rest: float) -> float:
    """MiB that a member may have at any time; both in bytes."""
    return (at_rest + budget + ABOVE_BUDGET * 10**6) / _MIB


def too_large(lives: Sequence[Life], limit: float) -> list[str]:
    """Members that were larger than `limit` MiB at any time."""
    return [
        f"{life.name} took {life.peak:.0f} MiB of memory: more than at rest, its budget and 100 MB, {limit:.0f} MiB"
        for life in lives
        if life.peak > limit
    ]
