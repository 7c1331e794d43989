from __future__ import annotations

import random
from pathlib import Path

import pytest

from consumerd.base.files import SystemFiles
from consumerd.spark.seen import OffsetStretch, SeenLog, SeenOffsets, SeenPartition, merge

A, B = SeenPartition("t", 0, 0), SeenPartition("t", None, 0)


def test_a_log_landed_in_order_is_one_interval() -> None:
    seen = SeenOffsets()
    for start in range(0, 1000, 10):
        batch = [OffsetStretch(A, start, start + 10), OffsetStretch(B, start * 2, start * 2 + 20)]
        assert seen.overlapping(batch) == []
        seen = seen.with_stretches(batch)
    assert seen == SeenOffsets({A: [(0, 1000)], B: [(0, 2000)]})
    assert seen.overlapping(
        [OffsetStretch(A, 999, 1001), OffsetStretch(A, 1000, 1001), OffsetStretch(B, 1000, 1001)]
    ) == [
        OffsetStretch(A, 999, 1001),
        OffsetStretch(B, 1000, 1001),
    ]


@pytest.mark.parametrize("seed", range(100))
def test_finds_overlapping_offsets(seed: int) -> None:
    rng = random.Random(seed)
    taken: set[int] = set()
    seen = SeenOffsets()
    for _ in range(20):
        start = rng.randrange(100)
        stretch = OffsetStretch(A, start, start + rng.randrange(1, 10))
        offsets = set(range(stretch.start, stretch.end))
        assert bool(seen.overlapping([stretch])) == bool(offsets & taken)
        seen = seen.with_stretches([stretch])
        taken |= offsets
    assert SeenOffsets.decode(seen.encode()) == seen
    assert {n for start, end in merge([(s, s + 1) for s in taken]) for n in range(start, end)} == taken


@pytest.mark.parametrize("data", [b"", b"{}x", b"[[1]]", b'[["t", 0, 0, [["a", 2]]]]', b"5", b"[" * 100_000])
def test_rejects_an_invalid_state(data: bytes) -> None:
    assert SeenOffsets.decode(data) is None


def test_a_retried_batch_starts_from_the_state_before_it(tmp_path: Path) -> None:
    log = SeenLog(SystemFiles(), str(tmp_path / "seen"))
    assert log.before(0) == SeenOffsets()
    states = [SeenOffsets({A: [(0, batch + 1)]}) for batch in range(9)]
    for batch, state in enumerate(states):
        log.store(batch, state)
    again = SeenLog(SystemFiles(), str(tmp_path / "seen"))
    assert (again.before(8), again.before(9)) == (states[7], states[8])
    assert again.before(3) is None
    assert len(list((tmp_path / "seen").iterdir())) == 5


def test_logs_of_one_partition_are_apart_and_files_of_earlier_releases_are_read() -> None:
    former, new = A._replace(topic_id="f"), A._replace(topic_id="n")
    seen = SeenOffsets().with_stretches([OffsetStretch(former, 0, 200)])
    assert seen.overlapping([OffsetStretch(new, 0, 300)]) == []
    assert seen.overlapping([OffsetStretch(former, 199, 300)]) == [OffsetStretch(former, 199, 300)]
    assert SeenOffsets.decode(seen.encode()) == seen
    assert SeenOffsets.decode(b'[["t", 0, 0, [[0, 200]]]]') == SeenOffsets({A: [(0, 200)]})
