"""The order of keys through retry topics on a real broker, with daemons that are killed while keys wait."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess
from consumerd.net.client.cluster import ClusterClient
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.producer.v08.producer import V08Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

#: Notes each attempt, and fails for the keys that begin with "bad" until the file `fixed` is there.
ATTEMPTS = """
import json
from pathlib import Path


def handle(batch, folder=Path(__file__).parent):
    for number, message in enumerate(batch.messages()):
        passed = not message.key.startswith(b"bad") or (folder / "fixed").exists()
        with (folder / "attempts").open("a") as trace:
            print(json.dumps([message.topic, message.key.decode(), int(message.payload), passed]), file=trace)
        if not passed:
            raise ValueError("not yet")
        batch.mark(number + 1)


async def call(batch):
    handle(batch)
"""
KEYS = ("good 1", "bad 1", "good 2", "bad 2", "bad 3")


class Attempt(NamedTuple):
    topic: str
    key: str
    number: int
    passed: bool


def attempts(folder: Path) -> list[Attempt]:
    path = folder / "attempts"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [Attempt(*json.loads(line)) for line in whole.splitlines()]


def passed(folder: Path) -> dict[str, list[int]]:
    """The numbers of the messages of each key in the order in which they were first handled."""
    found: dict[str, list[int]] = defaultdict(list)
    for each in attempts(folder):
        if each.passed and each.number not in found[each.key]:
            found[each.key].append(each.number)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the files that daemons write: the outside world is polled."""
    while not condition():
        await asyncio.sleep(0.05)


async def stored(client: ClusterClient, topic: str) -> int:
    """The number of messages in a topic with two partitions."""
    ranges = await V08BrokerLogs(client).ranges([TopicPartition.numbered(topic, number) for number in (0, 1)])
    return sum(found.end for found in ranges.values() if isinstance(found, LogRange))


def ordered(folder: Path, offsets: str, group: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a daemon, without its servers, and its handler in a file of `folder`."""
    (folder / "ordered.py").write_text(ATTEMPTS)
    return {
        "group": {"id": "g", "topics": {"t": 1}, "offsets": offsets, **group},
        "commit": {"interval": 0.3},
        "fetch": {"initial": "earliest"},
        "handler": {
            "name": "ordered:call",
            "max_attempts": 1,
            "on_failure": "retry_topic",
            "retry_topic": "later",
            "retry_delays": [1, 2, 4],
            "retry_order": "key",
            "dead_letter": str(folder / "letters.ndjson"),
        },
    }


#: The tables of a group that a broker coordinates, and of one in ZooKeeper.
BY_BROKER = {"group": {"coordination": "kafka", "session_timeout": 1.5, "heartbeat_interval": 0.3}}
IN_ZOOKEEPER: dict[str, Any] = {"group": {}, "zookeeper": {"session_timeout": 4.0}}


async def test_group_in_zookeeper_knows_the_keys_that_wait_after_a_kill(
    kafka: Any, zk_root: str, cluster_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await kafka("1.1.1", partitions=2)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = ordered(tmp_path, "zookeeper", IN_ZOOKEEPER["group"]) | {"zookeeper": {"connect": zk_root}}
    config["handler"]["retry_delays"] = [2]
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer,
        asyncio.timeout(120),
    ):

        async def send(number: int) -> None:
            for key in ("bad 1", "good 1"):
                await producer.send("t", b"%d" % number, key.encode())

        await send(0)
        await send(1)
        async with DaemonProcess(tmp_path, config) as daemon:
            while await stored(client, "later-2s") < 2:  # the first because it failed, the other behind it
                await asyncio.sleep(0.05)
            daemon.kill()
            (tmp_path / "fixed").touch()
            await send(2)
            await daemon.start()
            await until(lambda: all(len(passed(tmp_path)[key]) == 3 for key in ("bad 1", "good 1")))
            assert await daemon.stop() == ExitCode.OK
    assert passed(tmp_path) == {"bad 1": [0, 1, 2], "good 1": [0, 1, 2]}
    assert {each.topic for each in attempts(tmp_path) if each.key == "bad 1" and each.passed} == {"later-2s"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "tables", "offsets"),
    [
        ("3.9.1", BY_BROKER, "kafka"),
        ("2.8.2", IN_ZOOKEEPER, "zookeeper"),
        ("0.11.0.3", IN_ZOOKEEPER, "both"),
        ("1.1.1", IN_ZOOKEEPER, "kafka"),
    ],
)
async def test_keys_keep_their_order_through_retry_topics_while_daemons_are_killed(
    version: str,
    tables: dict[str, Any],
    offsets: str,
    kafka: Any,
    zk_root: str,
    cluster_client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await kafka(version, partitions=2)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = ordered(tmp_path, offsets, tables["group"])
    if "zookeeper" in tables:
        config["zookeeper"] = {"connect": zk_root, **tables["zookeeper"]}
    else:
        config["kafka"] = {"bootstrap": [broker.address]}
    count = 0
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer,
        asyncio.timeout(60),
    ):

        async def send(rounds: int) -> None:
            nonlocal count
            for _ in range(rounds):
                deliveries = [await producer.send("t", b"%d" % count, key.encode()) for key in KEYS]
                for each in deliveries:
                    await each
                count += 1

        await send(10)  # before the group looks for its topics
        async with DaemonProcess(tmp_path, config, name="first") as first:
            await until(lambda: any(each.topic == "later-1s" for each in attempts(tmp_path)))
            first.kill()
            await send(10)
            (tmp_path / "fixed").touch()
            await first.start()
            async with DaemonProcess(tmp_path, config, name="second") as second:
                first.kill()
                await send(10)
                await first.start()
                await until(lambda: all(len(passed(tmp_path)[key]) == count for key in KEYS))
                # Once nothing waits any more, a key is handled where it comes from.
                while attempts(tmp_path)[-1][:2] != ("t", "bad 1"):
                    await producer.send("t", b"%d" % count, b"bad 1")
                    count += 1
                    await asyncio.sleep(1.0)
                assert await first.stop() == await second.stop() == ExitCode.OK
    for key, numbers in passed(tmp_path).items():
        assert numbers == sorted(numbers), key
    assert {each.topic for each in attempts(tmp_path) if each.key.startswith("good")} == {"t"}
    followed = [each for each in attempts(tmp_path) if each.key.startswith("bad") and 0 < each.number < 10]
    assert "t" not in {each.topic for each in followed}
    assert {(each.key, each.number) for each in attempts(tmp_path) if not each.passed} == {
        (key, 0) for key in KEYS if key.startswith("bad")
    }
