"""How many leading segments each policy deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.storage import MaxAge, MaxBytes, SegmentFacts


def facts(*sizes: int, modified: tuple[int, ...] = ()) -> list[SegmentFacts]:
    times = modified or (0,) * len(sizes)
    return [
        SegmentFacts(Path(f"{number}.kafka"), number, size, time)
        for number, (size, time) in enumerate(zip(sizes, times, strict=True))
    ]


@pytest.mark.parametrize(("now", "deleted"), [(4_000, 0), (4_001, 1), (5_000, 1), (5_001, 2), (9_000, 2)])
def test_deletes_segments_older_than_the_age(now: int, deleted: int) -> None:
    """The last one here is younger than the two before it; none behind a young one is deleted."""
    assert MaxAge(3.0).deletable(facts(1, 1, 1, 1, modified=(1_000, 2_000, 9_000, 0)), now) == deleted


@pytest.mark.parametrize(
    ("sizes", "kept", "deleted"),
    [
        ((10, 10, 10), 20, 1),
        ((10, 10, 10), 21, 0),
        ((10, 10, 10), 19, 1),
        ((10, 10, 10), 10, 2),
        ((10, 10, 10), 0, 3),
        ((10, 10, 10), 100, 0),
        ((30, 1, 1, 1), 20, 0),  # without the first one less than 20 bytes would stay
    ],
)
def test_deletes_the_oldest_while_enough_bytes_stay(sizes: tuple[int, ...], kept: int, deleted: int) -> None:
    assert MaxBytes(kept).deletable(facts(*sizes), 0) == deleted
