"""Which segments a log may drop: by age, then by size (golden notes, 3; behaviour/retention.json).

Strategy: both rules only ever name a leading run, so what stays is contiguous; both look at what readers can see. They
decide; `Log.clean` deletes.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.storage.segment import Segment


def expired(segments: Sequence[Segment], max_age_ms: float, now_ms: int) -> int:
    """How many leading segments were last written more than `max_age_ms` before `now_ms`, both in milliseconds."""
    return sum(1 for _ in takewhile(lambda segment: now_ms - segment.file.modified_ms() > max_age_ms, segments))


def oversize(segments: Sequence[Segment], max_bytes: int) -> int:
    """How many leading segments can go while at least `max_bytes` stay."""
    spare = sum(segment.flushed for segment in segments) - max_bytes
    count = 0
    for segment in segments:
        spare -= segment.flushed
        if spare < 0:
            break
        count += 1
    return count
