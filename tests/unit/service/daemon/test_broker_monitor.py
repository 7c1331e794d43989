"""Probes of a broker, and metrics that show what its clients really did."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.metrics.catalogue import BROKER_METRICS, PROCESS_METRICS, Kind
from consumerd.base.metrics.exposition import Exposition
from consumerd.base.metrics.histogram import Histogram
from consumerd.service.daemon.broker_readings import BrokerMonitor, read_broker
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    encode_message,
)

ONE = encode_message(b"one")


def config(log_dir: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(**{"log_dir": log_dir, "port": 0, "broker_id": 3, "flush_messages": 1, **settings})


def values(monitor: BrokerMonitor) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each reading without the prefix of its name and the id of the broker; of a histogram its count."""
    found = {}
    for metric, labels, value in read_broker(monitor):
        assert len(labels) == len(metric.labels)
        assert (metric.kind is Kind.HISTOGRAM) == isinstance(value, Histogram)
        if metric not in PROCESS_METRICS:
            assert metric in BROKER_METRICS
            assert labels[0] == "3"
            labels = labels[1:]
        key = metric.name.removeprefix("consumerd_").removeprefix("broker_"), labels
        assert key not in found
        found[key] = value.count if isinstance(value, Histogram) else value
    return found


async def exchange(broker: Broker, *requests: bytes) -> bytes:
    """Send requests; all that the broker answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        async with asyncio.timeout(60):
            writer.write(b"".join(requests))
            writer.write_eof()
            return await reader.read()
    finally:
        writer.close()


async def test_counts_what_clients_did(tmp_path: Path) -> None:
    settings = config(tmp_path, use_zookeeper=False, partitions=2, segment_bytes=20, max_message_bytes=100)
    monitor = BrokerMonitor(settings, SystemClock())
    broker = Broker(settings, clock=SystemClock(), rng=random.Random(1))
    monitor.watch(broker)
    async with broker:
        requests = [
            ProduceRequest("t", 0, ONE * 3).encode(),
            ProduceRequest("t", 0, ONE).encode(),
            MultiProduceRequest((ProduceRequest("t", 1, ONE), ProduceRequest("u", 0, ONE))).encode(),
            ProduceRequest("t", 1, encode_message(b"x" * 101)).encode(),
            FetchRequest("t", 0, 0, 1000).encode(),
            FetchRequest("t", 0, 5000, 1000).encode(),
            MultiFetchRequest((FetchRequest("t", 9, 0, 10), FetchRequest("u", 0, 0, 10))).encode(),
            OffsetsRequest("t", 0, -1, 1).encode(),
        ]
        answered = await exchange(broker, *requests)
        invalid = struct.pack(">ih", 2, 99)
        assert await exchange(broker, invalid) == b""
        found = values(monitor)
    assert {kind: found["requests_total", (kind,)] for kind in ("produce", "multiproduce", "fetch")} == {
        "produce": 3,
        "multiproduce": 1,
        "fetch": 2,
    }
    assert found["requests_total", ("multifetch",)] == found["requests_total", ("offsets",)] == 1
    assert found["request_duration_seconds", ("produce",)] == 3
    assert found["requests_refused_total", ()] == 1
    assert found["requests_failed_total", ()] == 0
    assert found["oversized_sets_dropped_total", ()] == 1
    assert found["fetch_errors_total", ("1",)] == 1  # beyond the end
    assert found["fetch_errors_total", ("3",)] == 1  # no such partition
    assert found["messages_produced_total", ("t", "0")] == 4
    assert found["messages_produced_total", ("t", "1")] == found["messages_produced_total", ("u", "0")] == 1
    assert found["produced_bytes_total", ("t", "0")] == found["log_bytes", ("t", "0")] == 4 * len(ONE)
    assert found["log_segments", ("t", "0")] == 2
    assert found["log_end_offset", ("t", "0")] == 4 * len(ONE)
    assert found["log_unflushed_bytes", ("t", "0")] == 0
    assert found["segments_rolled_total", ()] == 1
    assert found["flush_duration_seconds", ()] >= 4
    assert found["logs", ()] == 3
    assert found["logs_offline", ()] == 0
    assert found["connections_accepted_total", ()] == 2
    assert found["received_bytes_total", ()] == sum(map(len, requests)) + len(invalid)
    assert found["sent_bytes_total", ()] == len(answered)
    assert found["request_memory_limit_bytes", ()] == settings.queued_bytes
    assert found["request_memory_used_bytes", ()] == 0
    assert ("registered", ()) not in found


async def test_sums_logs_up_by_topic(tmp_path: Path) -> None:
    settings = config(tmp_path, use_zookeeper=False, partitions=2, partition_labels=False)
    monitor = BrokerMonitor(settings, SystemClock())
    broker = Broker(settings, clock=SystemClock(), rng=random.Random(1))
    monitor.watch(broker)
    async with broker:
        await exchange(broker, *(ProduceRequest("t", number, ONE * (number + 1)).encode() for number in range(2)))
        found = values(monitor)
    assert found["messages_produced_total", ("t", "")] == 3
    assert found["log_bytes", ("t", "")] == 3 * len(ONE)
    assert found["log_segments", ("t", "")] == 2
    assert not [key for key in found if key[0] in ("log_end_offset", "log_start_offset")]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
async def test_shows_logs_whose_folder_has_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9-0")).mkdir()
    settings = config(tmp_path, use_zookeeper=False)
    monitor = BrokerMonitor(settings, SystemClock())
    broker = Broker(settings, clock=SystemClock(), rng=random.Random(1))
    monitor.watch(broker)
    async with broker:
        body, _ = Exposition(lambda: read_broker(monitor)).render("text/plain")
        assert values(monitor)["log_segments", ("caf\\udce9", "0")] == 1
    assert b'consumerd_broker_log_segments{broker="3",partition="0",topic="caf\\\\udce9"} 1.0' in body


async def test_counts_refused_connections(tmp_path: Path) -> None:
    settings = config(tmp_path, use_zookeeper=False, max_connections=1)
    monitor = BrokerMonitor(settings, SystemClock())
    broker = Broker(settings, clock=SystemClock(), rng=random.Random(1))
    monitor.watch(broker)
    async with broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(OffsetsRequest("t", 0, -1, 1).encode())
        await reader.readexactly(4)
        assert await exchange(broker) == b""
        found = values(monitor)
        writer.close()
    assert (found["connections", ()], found["connections_refused_total", ()]) == (1, 1)


async def test_is_ready_while_registered(tmp_path: Path) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=0.2) as zk:
        settings = config(tmp_path)
        monitor = BrokerMonitor(settings, SystemClock())
        assert (monitor.sick, monitor.unready) == (None, ["starting"])
        assert values(monitor)["ready", ()] == 0
        broker = Broker(settings, clock=SystemClock(), rng=random.Random(1), zookeeper=zk)
        monitor.watch(broker)
        assert monitor.unready == ["starting"]
        async with broker:
            assert monitor.unready == []
            found = values(monitor)
            assert (found["ready", ()], found["registered", ()]) == (1, 1)
            assert abs(found["registered_timestamp_seconds", ()] - SystemClock().wall()) < 60
            zookeeper.disconnect(zk)
            async with asyncio.timeout(60):
                while monitor.unready != ["not_registered"]:  # the session may have expired
                    await asyncio.sleep(0.01)
                zookeeper.expire(zk)
                zookeeper.reconnect(zk)
                while monitor.unready:  # it registers again
                    await asyncio.sleep(0.01)
            assert values(monitor)["registered_timestamp_seconds", ()] > found["registered_timestamp_seconds", ()]
            assert values(monitor)["topics_not_registered", ()] == 0
            zookeeper.put("/brokers/topics/t", None)
            zookeeper.denied.add("/brokers/topics/t")
            await exchange(broker, ProduceRequest("t", 0, ONE).encode())
            async with asyncio.timeout(60):
                while not values(monitor)["topics_not_registered", ()]:
                    await asyncio.sleep(0.01)
            assert monitor.unready == []
            broker.request_stop()
            assert monitor.unready == ["stopping"]


async def test_counts_tasks_that_are_not_done(tmp_path: Path) -> None:
    monitor = BrokerMonitor(config(tmp_path, use_zookeeper=False), SystemClock())
    before = values(monitor)["tasks", ()]
    assert before >= 1  # this test
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(asyncio.Event().wait()) for _ in range(3)]
        assert values(monitor)["tasks", ()] == before + 3
        for task in waiting:
            task.cancel()
    assert values(monitor)["tasks", ()] == before
