"""Several subscriptions of one daemon on a real broker, coordinated in all ways: each gets its messages once."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.producer.v08.producer import V08Producer
from tests.support.dead_letters import read_letters

#: Fails for each payload as often as that says, in all topics together, and prints the rest with their times.
FAILING = """
import json
import time


def handle(batch, failures={}):
    for message in batch.messages():
        count = failures[message.payload] = failures.get(message.payload, 0) + 1
        print(json.dumps([message.topic, message.payload.decode(), count, time.time()]), flush=True)
        if count <= int(message.payload.partition(b" ")[2] or 0):
            raise ValueError("not yet")


async def call(batch):
    handle(batch)
"""

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.timeout(300)]


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


@pytest.mark.long
async def test_failed_messages_are_tried_again_when_they_are_due_and_hold_nothing_back(
    kafka: Any, cluster_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await kafka("3.9.1", partitions=1)
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer,
    ):
        for sent in (b"a", b"once 1", b"b", b"twice 2", b"always 9", b"c"):
            await producer.send("t", sent)
    config: dict[str, Any] = {
        "group": {"id": "g", "coordination": "kafka", "topics": {"t": 1}},
        "kafka": {"bootstrap": [broker.address]},
        "handler": {
            "name": "failing:call",
            "max_batch": 1,
            "max_attempts": 1,
            "on_failure": "retry_topic",
            "retry_topic": "later",
            "retry_delays": [2, 3],
            "dead_letter": str(tmp_path / "letters.ndjson"),
        },
    }
    async with DaemonProcess(tmp_path, config) as daemon, asyncio.timeout(120):

        def calls() -> list[Any]:
            whole, _, _ = daemon.stdout_path.read_text().rpartition("\n")
            return [json.loads(line) for line in whole.splitlines()]

        while not (tmp_path / "letters.ndjson").exists() or len(calls()) < 11:
            await asyncio.sleep(0.05)
        assert await daemon.stop() == ExitCode.OK
    seen = [(topic, payload) for topic, payload, _, _ in calls()]
    failing = ["once 1", "twice 2", "always 9"]
    assert [each for topic, each in seen if topic == "t"] == ["a", "once 1", "b", "twice 2", "always 9", "c"]
    assert [each for topic, each in seen if topic == "later-2s"] == failing
    assert [each for topic, each in seen if topic == "later-3s"] == failing[1:]
    at = {(topic, payload): moment for topic, payload, _, moment in calls()}
    for payload in failing:
        assert at["later-2s", payload] - at["t", payload] >= 2.0
    for payload in failing[1:]:
        assert at["later-3s", payload] - at["later-2s", payload] >= 3.0
    (line,) = read_letters(tmp_path / "letters.ndjson")
    letter = line.letter
    assert letter is not None
    assert (letter.message.topic, letter.message.offset, letter.message.payload) == ("t", 4, b"always 9")
    assert (letter.attempts, letter.message.headers) == (3, ())
    async with cluster_client(broker) as client:
        stored = await KafkaOffsetStore(client, "g").load(
            TopicPartition.numbered(topic, 0) for topic in ("t", "later-2s", "later-3s")
        )
        assert [*stored.values()] == [6, 3, 2]
