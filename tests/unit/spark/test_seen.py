from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from consumerd.spark.seen import Seen, SeenLog, Source, Stretch, merge
from consumerd.spark.tables.files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

A, B = Source("t", 0, 0), Source("t", None, 0)


def test_a_log_that_is_landed_in_order_is_one_interval() -> None:
    seen = Seen()
    for start in range(0, 1000, 10):
        batch = [Stretch(A, start, start + 10), Stretch(B, start * 2, start * 2 + 20)]
        assert seen.overlapping(batch) == []
        seen = seen.with_stretches(batch)
    assert seen == Seen({A: [(0, 1000)], B: [(0, 2000)]})
    assert seen.overlapping([Stretch(A, 999, 1001), Stretch(A, 1000, 1001), Stretch(B, 1000, 1001)]) == [
        Stretch(A, 999, 1001),
        Stretch(B, 1000, 1001),
    ]


@pytest.mark.parametrize("seed", range(100))
def test_overlaps_are_those_of_the_offsets(seed: int) -> None:
    rng = random.Random(seed)
    taken: set[int] = set()
    seen = Seen()
    for _ in range(20):
        start = rng.randrange(100)
        stretch = Stretch(A, start, start + rng.randrange(1, 10))
        offsets = set(range(stretch.start, stretch.end))
        assert bool(seen.overlapping([stretch])) == bool(offsets & taken)
        seen = seen.with_stretches([stretch])
        taken |= offsets
    assert Seen.decode(seen.encode()) == seen
    assert {n for start, end in merge([(s, s + 1) for s in taken]) for n in range(start, end)} == taken


@pytest.mark.parametrize("data", [b"", b"{}x", b"[[1]]", b'[["t", 0, 0, [["a", 2]]]]', b"5", b"[" * 100_000])
def test_what_is_no_state_is_told(data: bytes) -> None:
    assert Seen.decode(data) is None


def test_a_batch_that_comes_again_starts_from_the_state_before_it(tmp_path: Path) -> None:
    log = SeenLog(LocalFiles(), str(tmp_path / "seen"))
    assert log.before(0) == Seen()
    states = [Seen({A: [(0, batch + 1)]}) for batch in range(9)]
    for batch, state in enumerate(states):
        log.store(batch, state)
    again = SeenLog(LocalFiles(), str(tmp_path / "seen"))
    assert (again.before(8), again.before(9)) == (states[7], states[8])
    assert again.before(3) is None
    assert len(list((tmp_path / "seen").iterdir())) == 5
