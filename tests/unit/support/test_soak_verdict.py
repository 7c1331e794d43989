"""What grows is found, and what merely moves is not."""

from __future__ import annotations

import random

import pytest

from tests.soak.sampling import Life, parse_metrics
from tests.soak.verdict import growth, measure, memory_limit, not_flat, slope, too_large


def life(
    resident: list[float],
    *,
    tasks: list[int | None] | None = None,
    descriptors: list[int] | None = None,
    interval: float = 5.0,
    name: str = "member-0",
) -> Life:
    count = len(resident)
    return Life(
        name, 1, [interval * number for number in range(count)], resident,
        descriptors or [30] * count, tasks or [50] * count, [0.0] * count, [0.0] * count, [0.0] * count,
        max(resident),
    )  # fmt: skip


def test_slope_is_that_of_most_points() -> None:
    at = [float(number) for number in range(50)]
    assert slope(at, [3 * t + 7 for t in at]) == pytest.approx(3)
    assert slope(at, [3 * t if number % 5 else 1e6 for number, t in enumerate(at)]) == pytest.approx(3, rel=0.2)
    with pytest.raises(ValueError, match="two points"):
        slope([1.0], [1.0])


def test_flat_with_noise_is_flat() -> None:
    rng = random.Random(1)
    found = measure(life([100 + rng.uniform(-5, 5) for _ in range(400)]))
    assert not_flat(found) == []
    assert found.memory == pytest.approx(0, abs=2)


def test_growth_at_the_beginning_is_allowed() -> None:
    found = measure(life([min(100.0, 40 + number) for number in range(400)]))
    assert not_flat(found) == []
    assert found.memory == 0


def test_a_leak_of_few_bytes_for_each_message_is_found() -> None:
    # 12 MiB in the half of an hour: 2 bytes for each of 3,500 messages per second.
    found = measure(life([100 + 24 * number / 720 for number in range(720)]))
    assert found.memory == pytest.approx(12, rel=0.02)
    assert "grew by 12.0 MiB of memory in the last 30 of its minutes" in not_flat(found)[0]


def test_a_leak_of_tasks_is_found_though_some_answers_are_missing() -> None:
    tasks = [None if number % 7 == 0 else 50 + number // 10 for number in range(400)]
    [text] = not_flat(measure(life([100.0] * 400, tasks=tasks)))
    assert "tasks" in text


def closed_in_turn(samples: int) -> list[int]:
    """Descriptors every 3.06 seconds: more for ten seconds, then as few as before."""
    return [78 + int(5.6 * ((3.06 * number) % 10)) for number in range(samples)]


def test_descriptors_that_are_closed_in_turn_do_not_grow() -> None:
    descriptors = closed_in_turn(85)
    assert max(descriptors) - min(descriptors) > 50
    found = measure(life([100.0] * 85, descriptors=descriptors, interval=3.06))
    assert found.descriptors == pytest.approx(0, abs=1)
    assert not_flat(found) == []


def test_a_leak_of_descriptors_is_found_though_most_are_closed_in_turn() -> None:
    descriptors = [number + n // 20 for n, number in enumerate(closed_in_turn(200))]
    found = measure(life([100.0] * 200, descriptors=descriptors, interval=3.06))
    assert found.descriptors == pytest.approx(5, abs=1)
    [text] = not_flat(found)
    assert "file descriptors" in text


def test_few_samples_are_not_judged() -> None:
    assert growth([0.0, 5.0, 10.0], [1.0, 2.0, 3.0]) is None
    assert not_flat(measure(life([1.0, 200.0, 3000.0]))) == []


def test_a_member_may_have_its_budget_and_100_mb_beside_its_size_at_rest() -> None:
    limit = memory_limit(32 << 20, 60 << 20)
    assert limit == pytest.approx(92 + 95.37, abs=0.01)
    assert too_large([life([limit])], limit) == []
    assert len(too_large([life([limit + 1]), life([50.0])], limit)) == 1


def test_reads_metrics_of_all_groups() -> None:
    text = """
# HELP consumerd_tasks asyncio tasks that are not done.
consumerd_tasks 17.0
consumerd_messages_handled_total{broker="",group="group",partition="",topic="t"} 5.0
consumerd_messages_handled_total{broker="",group="group",partition="",topic="u"} 2.0
consumerd_messages_handled_total{broker="",group="files",partition="",topic="t"} 900.0
consumerd_lag_bytes{broker="",group="group",partition="",topic="t"} 10.0
consumerd_lag_bytes{broker="",group="files",partition="",topic="t"} 30.0
consumerd_lag_seconds{broker="",group="files",partition="",topic="t"} 4.0
"""
    assert parse_metrics(text, "group") == {"tasks": 17, "handled": 7, "lag": 40}
