"""Several subscriptions of one daemon on a real broker, coordinated in all ways: each gets its messages once."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.producer.v08.producer import V08Producer

if TYPE_CHECKING:
    from kazoo.client import KazooClient

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.asyncio, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("version", "group"), [("0.8.2.2", "g"), ("1.1.1", "h")])
async def test_each_gets_its_messages_once_and_commits(
    version: str, group: str, kafka: Any, cluster_client: Any, zk: KazooClient, zk_root: str, tmp_path: Path
) -> None:
    mixed = version != "0.8.2.2"
    broker = await kafka(version, partitions=2)
    sent = Counter[tuple[str, str]]()
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer,
    ):
        for number in range(20):
            for topic in ("t", "u1", "v", "w") if mixed else ("t", "u1"):
                await producer.send(topic, b"%d" % number)
                sent[topic, str(number)] += 1
    printing = {"name": "print"}
    config: dict[str, Any] = {
        "group": {"id": "g", "topics": {"t": 1}, "consumer_id": "pod-0"},
        "zookeeper": {"connect": zk_root},
        "handler": printing,
        "subscriptions": [{"name": "audit", "group": {"id": group}, "whitelist": "u.*", "handler": printing}],
    }
    if mixed:
        config["kafka"] = {"bootstrap": [broker.address]}
        config["subscriptions"] += [
            {"name": "k", "group": {"id": "k", "coordination": "kafka"}, "topics": {"v": 1}, "handler": printing},
            {"name": "f", "group": {"coordination": "fixed"}, "partitions": {"w": [0, 1]}, "handler": printing},
        ]
    async with DaemonProcess(tmp_path, config) as daemon, asyncio.timeout(120):

        def handled() -> Counter[tuple[str, str]]:
            whole, _, _ = daemon.stdout_path.read_text().rpartition("\n")
            records = map(json.loads, whole.splitlines())
            return Counter((record["topic"], record["payload"]) for record in records)

        while handled() != sent:
            await asyncio.sleep(0.05)
        ids = await asyncio.to_thread(zk.get_children, "/consumers/g/ids")
        assert set(ids) == ({"g_pod-0", "g_pod-0_audit"} if group == "g" else {"g_pod-0"})
        assert await daemon.stop() == ExitCode.OK
    assert handled() == sent
    for name, topic in (("g", "t"), (group, "u1")):
        offsets = [
            int((await asyncio.to_thread(zk.get, f"/consumers/{name}/offsets/{topic}/{partition}"))[0])
            for partition in (0, 1)
        ]
        assert sum(offsets) == 20
    if mixed:
        async with cluster_client(broker) as client:
            for name, topic in (("k", "v"), ("g", "w")):
                stored = KafkaOffsetStore(client, name).load(TopicPartition.numbered(topic, n) for n in (0, 1))
                assert sum((await stored).values()) == 20
