from __future__ import annotations

import random

import pytest

from consumerd.net.zk.supervisor import ReconnectDelay


class Top(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_grows_from_zero_to_a_second() -> None:
    backoff = ReconnectDelay(Top())
    assert [backoff.delay() for _ in range(8)] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_healthy_connection_resets_the_delay_and_a_short_one_does_not() -> None:
    backoff = ReconnectDelay(Top())
    for _ in range(7):
        backoff.delay()
    backoff.lived(0.9)
    assert backoff.delay() == 1.0
    backoff.lived(1.0)
    assert backoff.delay() == 0
    backoff.lived(0.2)
    assert backoff.delay() == 0.05


@pytest.mark.parametrize("seed", range(5))
def test_jitter_keeps_at_least_half(seed: int) -> None:
    backoff = ReconnectDelay(random.Random(seed))
    backoff.delay()
    assert 0.025 <= backoff.delay() <= 0.05
