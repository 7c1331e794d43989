"""Our tools print the same about a cluster as the real command line tools of 0.7.2."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.cli.offsets_show import collect_offsets
from consumerd.net.connect import connect
from consumerd.operate.admin.changes import OffsetTarget, OffsetTargetKind, V07ChangePlanner
from consumerd.operate.admin.group_source import V07Groups
from consumerd.operate.admin.lag import lag_of
from consumerd.operate.admin.logs import BrokerLogs, OffsetsQuery
from consumerd.operate.admin.offset_file import format_text, parse_offsets
from consumerd.operate.admin.snapshot import read_v07_snapshot
from consumerd.operate.admin.verification import differences
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import LATEST, OffsetsRequest, ProduceRequest, encode_message

GROUP, TOPIC = "grp1", "alpha"


def load(golden: Path, name: str) -> MemoryZooKeeper:
    """A recorded tree. The recording does not name sessions: each member gets one, which owns what bears its name."""
    zookeeper = MemoryZooKeeper()
    nodes = json.loads((golden / f"kafka-0.7.2/zk/{name}.json").read_text())
    members = {path.rpartition("/")[2]: number for number, path in enumerate(sorted(nodes), 1) if "/ids/" in path}
    for path, node in sorted(nodes.items()):
        data = None if node["null_data"] else bytes.fromhex(node["data_hex"])
        if path != "/":
            owner = path.rpartition("/")[2] if "/ids/" in path else (data or b"").decode().rpartition("-")[0]
            session = members.get(owner, 99_999) if node["ephemeral"] else 0
            zookeeper.put(path, data, session_id=session)
    return zookeeper


def checked(golden: Path) -> dict[TopicPartition, tuple[int, int, int]]:
    """Committed offset, log size and lag, as ConsumerOffsetChecker printed them."""
    text = (golden / "kafka-0.7.2/tools/ConsumerOffsetChecker.txt").read_text()
    pattern = (
        rf"{GROUP},(\w+),([0-9-]+) .*\n +Owner = null\n +Consumer offset = (\d+)\n.*\n"
        r" +Log size = (\d+)\n.*\n +Consumer lag = (\d+)"
    )
    return {
        TopicPartition.parse(topic, name): (int(offset), int(size), int(lag))
        for topic, name, offset, size, lag in re.findall(pattern, text)
    }


@pytest_asyncio.fixture
async def zookeeper(golden: Path, tmp_path: Path) -> AsyncIterator[MemoryZooKeeper]:
    """The tree of that moment, with brokers of ours that hold logs of the recorded sizes."""
    zookeeper = load(golden, "25-group-all-down")
    async with AsyncExitStack() as stack:
        for number in (0, 1):
            config = BrokerConfig(
                log_dir=tmp_path / str(number), port=0, use_zookeeper=False, flush_messages=1, partitions=4
            )
            broker = await stack.enter_async_context(Broker(config, clock=SystemClock(), rng=random.Random(1)))
            zookeeper.put(f"/brokers/ids/{number}", f"vm-1:127.0.0.1:{broker.port}".encode())
            connection = await connect("127.0.0.1", broker.port)
            for partition, (offset, size, _) in checked(golden).items():
                if partition.broker != number:
                    continue
                sizes = [length for length in (offset, size - offset) if length]  # a message begins at the offset
                for length in sizes:
                    data = encode_message(b"x" * (length - 10))
                    await connection.send(ProduceRequest(TOPIC, partition.partition, data).encode())
                await connection.request(OffsetsRequest(TOPIC, partition.partition, LATEST, 1).encode())
            await connection.close()
        yield zookeeper


async def test_exports_offsets_as_recorded(golden: Path) -> None:
    lines = (golden / "kafka-0.7.2/tools/ExportZkOffsets.txt").read_text()
    async with load(golden, "25-group-all-down").session() as zk:
        offsets, problems = await collect_offsets(V07Groups(zk, connect), [GROUP], [])
    assert sorted(format_text(offsets).splitlines()) == sorted(lines.splitlines())
    assert parse_offsets(lines, "the tool") == offsets
    assert problems == []


async def test_reads_lag_as_the_recorded_offset_checker(golden: Path, zookeeper: MemoryZooKeeper) -> None:
    expected = checked(golden)
    assert len(expected) == 8
    async with zookeeper.session() as zk:
        snapshot = await read_v07_snapshot(zk, GROUP)
        lags = lag_of(snapshot, await BrokerLogs(snapshot.brokers, connect).ranges(snapshot.partitions()))
    assert {each.partition: (each.committed, each.end, each.lag) for each in lags} == expected
    assert {each.owner for each in lags} == {None}


async def test_reads_offsets_as_the_recorded_offset_shell(golden: Path, zookeeper: MemoryZooKeeper) -> None:
    text = (golden / "kafka-0.7.2/tools/GetOffsetShell.txt").read_text()
    asked = re.findall(r"--partition (\d+) --time (-\d) --offsets (\d+)\nget (\d+) results\n((?:\d+\n)+)", text + "\n")
    assert len(asked) == 4
    async with zookeeper.session() as zk:
        snapshot = await read_v07_snapshot(zk, GROUP)
    for partition, time, number, count, offsets in asked:
        question = OffsetsQuery(TopicPartition(TOPIC, 0, int(partition)), int(time), int(number))
        answer = (await BrokerLogs(snapshot.brokers, connect).ask([question]))[question]
        assert answer == tuple(map(int, offsets.split()))
        assert len(offsets.split()) == int(count)


async def test_updates_offsets_as_recorded(golden: Path, zookeeper: MemoryZooKeeper) -> None:
    text = (golden / "kafka-0.7.2/tools/UpdateOffsetsInZK.txt").read_text()
    expected = {
        TopicPartition.parse(TOPIC, name): int(offset)
        for name, offset in re.findall(r"updating partition ([0-9-]+) with new offset: (\d+)", text)
    }
    async with zookeeper.session() as zk:
        snapshot = await read_v07_snapshot(zk, GROUP)
        planner = V07ChangePlanner(snapshot, BrokerLogs(snapshot.brokers, connect))
        changes = await planner.reset(snapshot.partitions(), OffsetTarget(OffsetTargetKind.LATEST))
    assert {change.partition: change.after for change in changes} == expected
    assert len(expected) == 8


@pytest.mark.parametrize(
    ("dump", "members"),
    [
        ("20-group-2-consumers-streams-1-2", 2),
        ("21-group-3-consumers-streams-1-2-3", 3),
        ("22-group-5-consumers", 5),
        ("23-group-5-minus-c1-clean", 4),
        ("24-group-5-minus-c1-c2-kill9", 3),
        ("30-wildcard-consumers", None),
    ],
)
async def test_verifies_rebalances_as_the_real_verifier(golden: Path, dump: str, members: int | None) -> None:
    zookeeper = load(golden, dump)
    groups = {path.split("/")[2] for path in zookeeper.dump() if re.fullmatch(r"/consumers/[^/]+/ids/[^/]+", path)}
    assert groups
    for group in groups:
        async with zookeeper.session() as zk:
            snapshot = await read_v07_snapshot(zk, group)
        assert members is None or len(snapshot.view.members) == members
        assert snapshot.view.owners
        assert differences(snapshot) == []
