"""When a partition is polled again, by the rate of its messages."""

from __future__ import annotations

import math

import pytest

from consumerd.member.fetch.v07.pace import IDLE_GAP, Pace


def interval(pace: Pace, now: float, *, smallest: float = 0.01, longest: float = 1.0) -> float:
    return pace.interval(now, smallest=smallest, longest=longest)


def steady(gap: float, count: int = 1, begin: float = 100.0) -> tuple[Pace, float]:
    """A pace that saw `count` messages every `count * gap` seconds, and the time."""
    pace, now = Pace(begin), begin
    for _ in range(100):
        now += count * gap
        pace.seen(count, now)
    return pace, now


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize(
    ("gap", "expected"), [(0.001, 0.01), (0.01, 0.01), (0.1, 0.0316), (1, 0.1), (10, 0.3162), (100, 1), (120, 1)]
)
def test_the_interval_is_the_root_of_the_gap_between_messages_within_its_limits(
    gap: float, expected: float, count: int
) -> None:
    pace, now = steady(gap, count)
    assert interval(pace, now) == pytest.approx(expected, rel=1e-3)


def test_the_sum_of_delay_and_polls_is_least_at_the_interval() -> None:
    """A poll is worth a two hundredth of the longest interval."""
    pace, now = steady(0.7)

    def cost(each: float) -> float:
        return 0.005 * 0.7 / each + each / 2

    least = min((cost(number / 1000), number / 1000) for number in range(10, 1000))
    assert interval(pace, now) == pytest.approx(least[1], abs=0.001)


def test_a_longer_limit_makes_all_intervals_longer() -> None:
    pace, now = steady(1.0)
    assert interval(pace, now, longest=4.0) == pytest.approx(2 * interval(pace, now))
    assert interval(pace, now, smallest=0.3) == 0.3
    assert interval(pace, now, smallest=3.0) == 1.0  # a round trip that is longer than the longest interval


def test_a_rate_that_is_unknown_is_neither_zero_nor_high() -> None:
    pace = Pace(100.0)
    assert interval(pace, 100.0) == 0.01
    assert interval(pace, 101.0) == pytest.approx(0.1)  # as of a partition with a message every second
    assert interval(pace, 100.0 + IDLE_GAP) == 1.0


def test_silence_lengthens_the_interval_once_it_is_longer_than_the_gap() -> None:
    pace, now = steady(1.0)
    assert interval(pace, now) == interval(pace, now + 0.99) == pytest.approx(0.1)
    assert interval(pace, now + 4.0) == pytest.approx(0.2)
    waits = [interval(pace, now + silence) for silence in range(120)]
    assert waits == sorted(waits)
    assert waits[99] < waits[100] == waits[-1] == 1.0


def test_the_first_messages_tell_the_rate() -> None:
    pace = Pace(100.0)
    pace.seen(4, 102.0)
    assert interval(pace, 102.0) == pytest.approx(math.sqrt(0.5 / IDLE_GAP))


def test_a_message_counts_for_an_eighth_however_many_come_at_once() -> None:
    one, now = steady(8.0)
    one.seen(1, now)  # right after the last one
    assert interval(one, now) == pytest.approx(math.sqrt(7 / IDLE_GAP))
    many, now = steady(8.0)
    many.seen(1000, now)
    assert interval(many, now) == 0.01
    together, apart = steady(8.0)[0], steady(8.0)[0]
    together.seen(3, now + 3.0)
    for second in (1.0, 2.0, 3.0):
        apart.seen(1, now + second)
    assert interval(together, now + 3.0) == pytest.approx(interval(apart, now + 3.0))
