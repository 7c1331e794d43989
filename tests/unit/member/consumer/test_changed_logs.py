"""What a member tells when the log of a partition became another one: in its log, and on the status page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.partition import LogId, TopicPartition
from consumerd.member.consumer.partitions import OwnedPartitions
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.service.config.model import parse
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.status import read_status
from consumerd.service.daemon.status_page import render
from consumerd.testing.clock import FakeClock


async def reset(*_told: object) -> None:
    """In place of the commit, for which a batch of the new log would have to be on its way."""


FORMER, NOW = LogId(b"\x01" * 16, 4), LogId(b"\x02" * 16)


@pytest.mark.parametrize(
    ("change", "event", "gone"),
    [
        (LogChange(LogChangeKind.TRUNCATED, 150, FORMER, FORMER, 100), "log_truncated", 50),
        (LogChange(LogChangeKind.REPLACED, 150, FORMER, NOW, former_end=170), "log_replaced", 20),
        (LogChange(LogChangeKind.REPLACED, 150, FORMER, NOW), "log_replaced", None),
    ],
)
async def test_tells_both_logs_and_what_is_gone(
    group: Any, monkeypatch: pytest.MonkeyPatch, change: LogChange, event: str, gone: int | None
) -> None:
    group.topic("t", 1)
    monitor = Monitor(parse({"group": {"id": "g", "topics": {"t": 1}}}, "test", environment=False), FakeClock())
    member = await group.member()
    monitor.main.watch(member.consumer)
    await asyncio.wait_for(member.consumer.ready.wait(), 5.0)
    before = await read_status(monitor)
    assert [row["log_change"] for row in before["partitions"]] == [None]
    monkeypatch.setattr(OwnedPartitions, "reset", reset)
    with capture_logs() as logs:
        await member.consumer.log_changed(TopicPartition("t", 0, 0), change, change.divergence or 0)
    (line,) = [each for each in logs if each["event"] == event]
    assert line.get("messages_gone", "absent") == ("absent" if gone is None else gone)
    status = await read_status(monitor)
    (shown,) = [row["log_change"] for row in status["partitions"]]
    assert (shown["kind"], shown["offset"], shown["continued_at"]) == (change.kind, 150, change.divergence or 0)
    assert (shown["former"], shown["now"], shown["messages_gone"]) == (str(change.former), str(change.now), gone)
    assert f"log {change.kind} " in render(status, word=None).decode()
