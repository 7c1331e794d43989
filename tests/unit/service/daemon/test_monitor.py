"""The tasks of a daemon's monitor, and a reload of their intervals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.service.config.model import Config, parse
from consumerd.service.daemon.monitor import Monitor
from consumerd.testing import FakeClock


def config(**metrics: Any) -> Config:
    document = {
        "group": {"id": "g", "topics": {"t": 1}},
        "health": {"listen": "127.0.0.1:0"},
        "metrics": metrics,
    }
    return parse(document, "a test", environment=False)


async def test_lag_and_summary_follow_another_interval_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(0.0)
    monitor = Monitor(config(lag_interval=3600.0, summary_interval=3600.0), clock)
    looks: list[float] = []
    summaries: list[float] = []

    async def look() -> None:
        looks.append(clock.now)

    monkeypatch.setattr(monitor.main, "look_at_lag", look)
    monkeypatch.setattr(monitor.main, "log_summary", lambda: summaries.append(clock.now))

    async def until(time: float) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await clock.advance(time - clock.now)

    async with monitor:
        await until(10.5)
        monitor.reconfigure(config(lag_interval=4.0, summary_interval=5.0))
        await until(19.0)
        monitor.reconfigure(config(lag_interval=4.0, summary_interval=0))
        await until(40.0)
        monitor.reconfigure(config(lag_interval=1000.0, summary_interval=30.0))
        await until(50.0)
    assert looks == [0.0, 10.5, 14.5, 18.5, 22.5, 26.5, 30.5, 34.5, 38.5]
    assert summaries == [10.5, 15.5, 45.5]
