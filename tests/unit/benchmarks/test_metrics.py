from __future__ import annotations

from benchmarks.metrics import alone, span, way


async def test_batches_go_all_the_way() -> None:
    assert await way(100, 10) > 0


async def test_parts_of_the_way_are_measured() -> None:
    assert alone(10, 100) > 0
    await span(1)
