"""A member beside znodes that a hostile client writes to a real ZooKeeper, in each place that the member reads.

It names what is wrong, continues with the rest, and keeps its session: no step of its work holds the event loop for a
second of processor time (the canary), so heartbeats are sent in time. Time is the loop's thread's own, as other
processes may have the processors for as long as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from consumerd import ConsumerConfig, ConsumerConnector, Whitelist
from consumerd.base.clock import SystemClock
from consumerd.base.ports import Create
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import LATEST, OffsetsRequest, ProduceRequest, encode_message_set

pytestmark = [pytest.mark.zookeeper]

CHILDREN = 10_000
#: Bytes of a node, a little below what the server takes.
HUGE = 1_000_000
#: More steps for a name than are allowed, which takes a tenth of a second for each.
INTRICATE = b"*1*(?:a?){60}" + b"(?:a?){60}" * 29 + b"b"


def session(connect_string: str) -> Session:
    return Session(connect_string, clock=SystemClock(), rng=random.Random(1), session_timeout=30)


async def plant(zk: Session, nodes: dict[str, bytes]) -> None:
    """Small nodes by multis of a thousand, large ones one by one."""
    for parent in sorted({path.rpartition("/")[0] for path in nodes}):
        await zk.ensure(parent)
    small = [Create(path, data) for path, data in nodes.items() if len(data) < 1000]
    for start in range(0, len(small), 1000):
        await zk.multi(small[start : start + 1000])
    for path, data in nodes.items():
        if len(data) >= 1000:
            await zk.create(path, data)


def hostile_nodes() -> dict[str, bytes]:
    """By path. `aaa` stands before every member of ours, `zzz` behind."""
    values = {
        "empty": b"",
        "binary": bytes(range(256)),
        "json": b'{ "t": ',
        "list": b"[" * 900,
        "negative": b'{ "t": -1 }',
        "streams": b'{ "t": 99999999999999999999 }',
        "topics": b'{ "../../t": 1, "": 1 }',
        "regex": b"*1*(((((",
        "huge": b"{" * HUGE,
        "huge-binary": b"\xff" * HUGE,
        "huge-json": b'{ "x": "' + b"y" * (HUGE - 20) + b'" }',
    }
    ids = {f"/consumers/g/ids/aaa-{name}": data for name, data in values.items()}
    ids |= {f"/consumers/g/ids/zzz-intricate-{number}": INTRICATE + b"%d" % number for number in range(3)}
    ids |= {f"/consumers/g/ids/aaa-{number:05}": b"" for number in range(CHILDREN)}
    brokers = {f"/brokers/ids/{number}": data for number, data in enumerate(values.values(), 100)}
    brokers |= {f"/brokers/ids/{name}": b"c:h:1" for name in ("-1", "1e3", "x", "99999999999999999999")}
    topics = {f"/brokers/topics/t/{number}": data for number, data in enumerate(values.values(), 100)}
    topics |= {f"/brokers/topics/t/{number}": b"100000" for number in range(1000, 1003)}
    topics |= {"/brokers/topics/t/..x": b"1", "/brokers/topics/" + "a" * 250: b"", "/brokers/topics/t2/0": b"zero"}
    owners = {f"/consumers/g/owners/t/{name}": b"x" * 500 for name in ("0-x", "..0-0", "0-0-0", "\u00e9-0")}
    offsets = {f"/consumers/g/offsets/t/9-{number}": data for number, data in enumerate(values.values())}
    return ids | brokers | topics | owners | offsets


class Canary:
    """The longest time for which this loop's thread computed without a turn for others, and its growth in bytes."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.grown = 0
        self._process = psutil.Process()
        self._began = self._process.memory_info().rss

    async def run(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.02)
            self.worst = max(self.worst, time.thread_time() - before)
            self.grown = max(self.grown, self._process.memory_info().rss - self._began)


@contextlib.asynccontextmanager
async def canary() -> AsyncIterator[Canary]:
    made = Canary()
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


class Worker:
    """A member with a filter, which reads all topics, and what it got."""

    def __init__(self, zookeeper: str) -> None:
        config = ConsumerConfig(
            group="g", zookeeper=zookeeper, session_timeout=10.0, idle_backoff=0.05, consumer_timeout=None
        )
        self.connector = ConsumerConnector(config)
        self.seen: list[bytes] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.connector.start()
        (stream,) = await self.connector.create_message_streams_by_filter(Whitelist("t.*|a.*"), 1)

        async def read() -> None:
            async for message in stream:
                self.seen.append(message.payload)
                self._arrived.set()

        self._task = asyncio.create_task(read())

    async def until_seen(self, *payloads: bytes) -> None:
        async with asyncio.timeout(120):
            while not {*payloads} <= {*self.seen}:
                self._arrived.clear()
                await self._arrived.wait()

    async def stop(self) -> None:
        await self.connector.shutdown()
        assert self._task is not None
        await self._task


async def produce(broker: Broker, payload: bytes) -> None:
    connection = await connect("127.0.0.1", broker.port)
    await connection.send(ProduceRequest("t", 0, encode_message_set([payload])).encode())
    await connection.request(OffsetsRequest("t", 0, LATEST, 1).encode())
    await connection.close()


async def until_named(nodes: dict[str, bytes], logs: Sequence[MutableMapping[str, Any]]) -> None:
    """Wait until warnings name each of the nodes that a member reads, by path or name.

    Owner nodes are read at a reconciliation, and offsets by the owner of their partition, of which these have none.
    """
    unread = ("/consumers/g/offsets", "/consumers/g/owners", "/brokers/topics/aaa")
    left = {path.rpartition("/")[2] for path in nodes if not path.startswith(unread)}
    looked_at = 0
    async with asyncio.timeout(120):
        while left:
            for each in logs[looked_at:]:
                looked_at += 1
                if each["log_level"] == "warning":
                    left -= {*re.split(r"[^\w.-]+", str(each))}
            await asyncio.sleep(0.05)  # logs cannot be awaited


async def test_member_goes_on_beside_hostile_nodes(zk_root: str, tmp_path: Path) -> None:
    config = BrokerConfig(log_dir=tmp_path, broker_id=0, port=0, partitions=2, flush_messages=1)
    async with session(zk_root) as attacker, session(zk_root) as own, contextlib.AsyncExitStack() as stack:
        broker = Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=own)
        await stack.enter_async_context(broker)
        await produce(broker, b"before")
        nodes = hostile_nodes()
        crowd = {path: nodes.pop(path) for path in list(nodes) if not nodes[path]}
        await plant(attacker, crowd)  # before the member starts
        with structlog.testing.capture_logs() as logs:
            async with canary() as watched:
                worker = Worker(zk_root)
                await worker.start()
                stack.push_async_callback(worker.stop)
                await worker.until_seen(b"before")
                await plant(attacker, nodes)  # and the others while it is at work
                await produce(broker, b"after")
                await worker.until_seen(b"after")
                await until_named(nodes, logs)
    events: dict[str, list[Any]] = {}
    for each in logs:
        events.setdefault(each["event"], []).append(each)
    assert events.get("session_suspended") is events.get("session_expired") is None
    assert watched.worst < 1.0
    assert watched.grown < 200 << 20
    await until_named(crowd, logs)
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert len(warnings) < 1.2 * len(nodes | crowd)  # each once


async def test_a_tool_reads_a_group_beside_hostile_nodes(zk_root: str) -> None:
    from consumerd.net.cluster.view import ClusterView

    nodes = {path: data for path, data in hostile_nodes().items() if not path.startswith("/consumers/g/ids/aaa-0")}
    async with session(zk_root) as zk:
        await plant(zk, nodes)
        await zk.create("/consumers/g/ids/g_a", b'{ "t": 1 }')
        await zk.create("/consumers/g/offsets/t/0-0", b"12")
        view = await ClusterView(zk).read_group("g")
    assert view.members["g_a"].subscription is not None
    assert list(view.offsets.values()) == [12]
    assert len(view.faults) > 25
