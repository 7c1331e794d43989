import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.storage import FlushFailedError, Log, LogManager, LogSettings, OsFiles, OsSegmentFile, StorageError
from consumerd.storage.broker.partitions import MAX_RANGE, BrokerPartition, BrokerPartitions
from consumerd.storage.broker.stats import BrokerStats, ProducedCounts
from tests.support.waiting import until


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager(tmp_path, OsFiles(), lambda topic: LogSettings(segment_bytes=1000, flush_messages=1))
    manager.open(0.0)
    yield manager
    manager.abandon()


async def test_concurrent_producers_share_syncs(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    syncing, go_on, syncs = threading.Event(), threading.Event(), []

    def slow(file: OsSegmentFile) -> None:
        syncs.append(file.size())
        syncing.set()
        assert go_on.wait(10)

    monkeypatch.setattr(OsSegmentFile, "sync", slow)
    async with asyncio.TaskGroup() as group:
        group.create_task(partition.append(b"0123456789", 1))
        assert await asyncio.to_thread(syncing.wait, 10)
        for _ in range(20):
            group.create_task(partition.append(b"0123456789", 1))
        await asyncio.sleep(0)
        assert partition.log.end_offset == 210
        assert partition.log.flushed_offset == 0
        go_on.set()
    assert syncs == [10, 210]
    assert partition.log.flushed_offset == 210


async def test_rolls_in_order_under_concurrent_appends(logs: LogManager) -> None:
    partitions = BrokerPartitions(logs, SystemClock())
    made = await asyncio.gather(*(partitions.get_or_create("t", 0) for _ in range(5)))
    assert [new for _, new in made].count(True) == 1
    assert len({id(partition) for partition, _ in made}) == 1
    partition = made[0][0]
    async with asyncio.TaskGroup() as group:
        for i in range(100):
            group.create_task(partition.append(bytes([i]) * 100, 1))
    log = partition.log
    assert [segment.size for segment in log.segments] == [1100] * 9 + [100]
    data = b"".join(log.read(segment.start, 2000) for segment in log.segments)
    assert data == b"".join(bytes([i]) * 100 for i in range(100))


async def test_writes_a_large_set_in_a_thread(logs: LogManager) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    await partition.append(bytes(3 << 20), 1)
    assert partition.log.flushed_offset == 3 << 20
    found = partition.hold(1, (1 << 31) - 1)
    assert found.length == min(MAX_RANGE, (3 << 20) - 1)
    found.segment.release()


async def test_rejects_holding_a_closed_log(logs: LogManager) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    partition.log.close()
    with pytest.raises(StorageError, match="t-0 is closed"):
        partition.hold(0, 10)


async def test_failed_sync_reaches_every_waiting_producer(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)

    def fail(file: OsSegmentFile) -> None:
        raise StorageError("cannot sync it: Input/output error")

    monkeypatch.setattr(OsSegmentFile, "sync", fail)
    outcomes = await asyncio.gather(*(partition.append(b"x", 1) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [FlushFailedError] * 3


async def test_cancelled_append_releases_the_log_only_after_the_write(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next append would get into the middle of a roll."""
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    await partition.append(bytes(1001), 1)
    rolling, go_on = threading.Event(), threading.Event()
    roll = Log.roll

    def slow(log: Log, now: float) -> None:
        rolling.set()
        assert go_on.wait(10)
        roll(log, now)

    monkeypatch.setattr(Log, "roll", slow)
    first = asyncio.create_task(partition.append(b"first", 1))
    assert await asyncio.to_thread(rolling.wait, 10)
    first.cancel()
    second = asyncio.create_task(partition.append(b"second", 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    go_on.set()
    await second
    assert first.cancelled()
    assert [segment.size for segment in partition.log.segments] == [1001, len(b"second")]


class GatedLog:
    """A log whose disk work waits for `gate`, and which notes what ran, and what ran beside it."""

    def __init__(self) -> None:
        self.end_offset = self.flushed_offset = 0
        self.gate = threading.Event()
        self.events: list[str] = []
        self.rolls = False
        self._running = 0

    def _work(self, name: str) -> None:
        self._running += 1
        self.events.append(name if self._running == 1 else f"{name} beside other work")
        assert self.gate.wait(60)
        self._running -= 1

    def flush(self, now: float) -> None:
        covered = self.end_offset
        self._work("flush")
        self.flushed_offset = covered

    def roll(self, now: float) -> None:
        self._work("roll")

    def clean(self, now: float, now_ms: int) -> list[str]:
        self._work("clean")
        return []

    def rest(self) -> None:
        self.events.append("rest")

    def append(self, data: bytes, messages: int, now: float) -> None:
        self.end_offset += len(data)
        self.events.append("append")

    def roll_due(self, now: float) -> bool:
        return self.rolls

    def flush_due(self) -> bool:
        return False


@pytest.fixture
def gated() -> tuple[BrokerPartition, Any]:
    log: Any = GatedLog()
    return BrokerPartition(log, SystemClock(), BrokerStats(), ProducedCounts()), log


async def test_a_sync_serves_all_that_was_appended_before_it(gated: tuple[BrokerPartition, Any]) -> None:
    partition, log = gated
    async with asyncio.TaskGroup() as group:
        log.end_offset = 10
        group.create_task(partition.flush())
        await until(lambda: log.events)
        log.end_offset = 20
        waiting = [group.create_task(partition.flush()) for _ in range(3)]
        await asyncio.sleep(0)
        log.gate.set()
        await asyncio.wait(waiting)
    assert log.events == ["flush"] * 2


async def test_a_flush_that_is_done_is_not_repeated_for_later_appends(gated: tuple[BrokerPartition, Any]) -> None:
    partition, log = gated
    log.end_offset = 10
    async with asyncio.TaskGroup() as group:
        group.create_task(partition.flush())
        await until(lambda: log.events)
        group.create_task(partition.flush())  # its bytes are in the running flush
        await asyncio.sleep(0)
        log.end_offset = 20
        log.gate.set()
    assert log.events == ["flush"]


async def test_files_rest_and_are_cleaned_only_between_appends(gated: tuple[BrokerPartition, Any]) -> None:
    partition, log = gated
    log.rolls = True
    async with asyncio.TaskGroup() as group:
        group.create_task(partition.append(b"one", 1))
        await until(lambda: log.events)
        group.create_task(partition.clean())
        group.create_task(partition.append(b"two", 1))
        await asyncio.sleep(0.01)
        partition.rest()
        assert log.events == ["roll"]
        log.gate.set()
    assert log.events == ["roll", "append", "clean", "roll", "append"]
    log.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(partition.flush())
        await until(lambda: log.events[-1] == "flush")
        partition.rest()
        assert log.events[-1] == "flush"
        log.gate.set()
    partition.rest()
    assert log.events[-1] == "rest"
