import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.broker.partitions import MAX_RANGE, BrokerPartitions
from consumerd.clock import SystemClock
from consumerd.storage import FlushFailedError, Log, LogManager, LogSettings, OsFiles, OsSegmentFile, StorageError


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager(tmp_path, OsFiles(), lambda topic: LogSettings(segment_bytes=1000, flush_messages=1))
    manager.open(0.0)
    yield manager
    manager.abandon()


@pytest.mark.asyncio
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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_writes_a_large_set_in_a_thread(logs: LogManager) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    await partition.append(bytes(3 << 20), 1)
    assert partition.log.flushed_offset == 3 << 20
    found = partition.hold(1, (1 << 31) - 1)
    assert found.length == min(MAX_RANGE, (3 << 20) - 1)
    found.segment.release()


@pytest.mark.asyncio
async def test_rejects_holding_a_closed_log(logs: LogManager) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)
    partition.log.close()
    with pytest.raises(StorageError, match="t-0 is closed"):
        partition.hold(0, 10)


@pytest.mark.asyncio
async def test_failed_sync_reaches_every_waiting_producer(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, _ = await BrokerPartitions(logs, SystemClock()).get_or_create("t", 0)

    def fail(file: OsSegmentFile) -> None:
        raise StorageError("cannot sync it: Input/output error")

    monkeypatch.setattr(OsSegmentFile, "sync", fail)
    outcomes = await asyncio.gather(*(partition.append(b"x", 1) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [FlushFailedError] * 3


@pytest.mark.asyncio
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
