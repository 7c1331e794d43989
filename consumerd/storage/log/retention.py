"""Retention policies of a log: by age, by size, or a user's own (spec 003, 5.5 "Deletes").

Strategy: a policy gets facts about the segments and only returns how many *leading* ones may be deleted, so the rest
is always contiguous. Policies decide and `Log.clean` deletes; each sees the segments that the one before it left. Age
first, then size, is what 0.7.2 does (golden notes, 3; behaviour/retention.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Protocol


class SegmentFacts(NamedTuple):
    """The facts about a segment for a policy: `size` counts the bytes that readers see, times are ms since 1970."""

    path: Path
    start: int
    size: int
    modified_ms: int


class DeletePolicy(Protocol):
    """Chooses which segments of one log may be deleted. Called in a thread, one call per log at a time."""

    def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        """Return the number of leading segments to delete, from 0 to all of `segments` (oldest first, never empty)."""
        ...


@dataclass(frozen=True, slots=True)
class MaxAge:
    """Drop segments that were last written longer ago than `seconds`. log.retention.hours"""

    seconds: float

    def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        limit = self.seconds * 1000
        return sum(1 for _ in takewhile(lambda segment: now_ms - segment.modified_ms > limit, segments))


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """Drop the oldest segments while at least `size` bytes stay. log.retention.size"""

    size: int

    def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        spare = sum(segment.size for segment in segments) - self.size
        count = 0
        for segment in segments:
            spare -= segment.size
            if spare < 0:
                break
            count += 1
        return count
