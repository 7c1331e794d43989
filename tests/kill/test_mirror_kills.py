"""A mirror of two members, and its target, are killed while messages come in: nothing is lost, and the order holds.

Each message says which source partition it is of and its number there, so a source identity can be found again on the
target. There, within each source partition, a message may come again (the tail that was not committed), but never
before the one in front of it has come once.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.clock import SystemClock
from consumerd.embedded.processes import BrokerProcess, Process, consumerd_command, format_toml
from consumerd.net import connect
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.storage.dump import find_segments, read_segment
from consumerd.wire.compression import Codec
from consumerd.zk import NoNode, Session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper, pytest.mark.asyncio]

TOPIC = "events"
PARTITIONS = 4
SESSION_TIMEOUT = 2.0


class MirrorProcess(Process):
    """One member of the mirror."""

    def __init__(self, directory: Path, name: str, source: str, *arguments: str) -> None:
        super().__init__(name, directory)
        self.arguments = arguments
        self.config = directory / f"{name}.toml"
        tables: dict[str, dict[str, Any]] = {
            "group": {"id": "mirror", "topics": {TOPIC: 1}},
            "zookeeper": {"connect": source, "session_timeout": SESSION_TIMEOUT},
            "fetch": {"size": 20_000, "idle_backoff": 0.05},
            "commit": {"interval": 0.5},
            "log": {"format": "json"},
        }
        self.config.write_text(format_toml(tables))

    async def start(self, timeout: float = 30.0) -> None:
        await self._launch(consumerd_command("mirror", "-c", str(self.config), *self.arguments), "ready", timeout)


class Input:
    """Produces numbered messages in every codec, round the source's partitions, until told to stop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent = [0] * PARTITIONS
        self.stop = asyncio.Event()

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            producers = []
            for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY):
                router = StaticRouter([("127.0.0.1", self.port)], rng=random.Random())
                settings = ProducerSettings(codec=codec)
                made = Producer(router, connect=connect, clock=SystemClock(), rng=random.Random(), settings=settings)
                producers.append(await stack.enter_async_context(made))
            batch = 0
            while not self.stop.is_set():
                partition = batch % PARTITIONS
                first = self.sent[partition]
                lines = [b"%d %d " % (partition, number) + b"x" * (number % 90) for number in range(first, first + 10)]
                await producers[batch % 3].send(TOPIC, lines, partition=partition)
                self.sent[partition] += 10
                batch += 1
                await asyncio.sleep(0.004)


def held(broker: BrokerProcess) -> list[list[bytes]]:
    """What is in the segment files, by partition, in order."""
    found: list[list[bytes]] = []
    for partition in range(PARTITIONS):
        folder = broker.log_directory / f"{TOPIC}-{partition}"
        entries = [
            entry
            for path, start in find_segments(sorted(folder.glob("*.kafka")))
            for entry in read_segment(path, start)
            if entry.valid
        ]
        found.append([payload for entry in entries for payload in entry.payloads])
    return found


async def all_committed(source: str, broker: BrokerProcess, limit: float = 30.0) -> None:
    """Wait until the mirror has committed the end of every partition. ZooKeeper is the outside world: polled."""
    ends = {}
    for partition in range(PARTITIONS):
        folder = broker.log_directory / f"{TOPIC}-{partition}"
        ends[f"0-{partition}"] = sum(path.stat().st_size for path in folder.glob("*.kafka"))
    found: dict[str, int] = {}
    async with Session(source, clock=SystemClock(), rng=random.Random()) as zk:
        try:
            async with asyncio.timeout(limit):
                while True:
                    for name in ends:
                        try:
                            found[name] = int((await zk.get(f"/consumers/mirror/offsets/{TOPIC}/{name}"))[0] or b"")
                        except NoNode:
                            found[name] = 0
                    if found == ends:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"committed {found} of {ends}")


def check(source: list[list[bytes]], target: list[list[bytes]]) -> int:
    """Account for every message; how many came more than once."""
    assert [len(payloads) for payloads in source] == [len(set(payloads)) for payloads in source]
    again = 0
    for partition, wanted in enumerate(source):
        numbers = {payload: number for number, payload in enumerate(wanted)}
        places = {place for place, payloads in enumerate(target) if not numbers.keys().isdisjoint(payloads)}
        assert len(places) == 1, f"all of partition {partition} is in one partition"
        came = [numbers[payload] for payload in target[places.pop()] if payload in numbers]
        reached = -1
        for number in came:
            assert number <= reached + 1, f"{number} of partition {partition} came when {reached} was the last"
            reached = max(reached, number)
        assert reached == len(wanted) - 1, f"the end of partition {partition} is missing"
        again += len(came) - len(wanted)
    everything = {payload for payloads in source for payload in payloads}
    assert {payload for payloads in target for payload in payloads} == everything, "nothing is invented"
    return again


@pytest.mark.parametrize("arguments", [("--codec", "gzip"), ("--verify",)], ids=["gzip", "verify"])
async def test_sigkill_of_the_mirror_and_of_the_target(
    tmp_path: Path, zookeeper_factory: Any, arguments: tuple[str, ...]
) -> None:
    zookeeper = await zookeeper_factory(tick_ms=250)
    source_place, target_place = f"{zookeeper.connect}/source", f"{zookeeper.connect}/target"
    settings: dict[str, str | int] = {
        "log.flush.interval": 1, "log.file.size": 100_000, "zk.sessiontimeout.ms": 2000,
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        source = BrokerProcess(tmp_path / "source", source_place, partitions=PARTITIONS, settings=settings)
        target = BrokerProcess(tmp_path / "target", target_place, partitions=PARTITIONS, settings=settings)
        await stack.enter_async_context(source)
        await stack.enter_async_context(target)
        where = ("--to-broker", target.address)
        first, second = (
            MirrorProcess(tmp_path, name, source_place, *where, *arguments) for name in ("first", "second")
        )
        feed = Input(source.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(feed.run())
            await stack.enter_async_context(first)
            await stack.enter_async_context(second)
            await asyncio.sleep(0.7)
            first.kill()
            await asyncio.sleep(0.5)
            target.kill()
            await asyncio.sleep(0.5)
            await first.start()
            await target.start()
            await asyncio.sleep(0.7)
            second.kill()
            target.kill()
            await target.start()
            await second.start()
            await asyncio.sleep(0.5)
            feed.stop.set()
        await all_committed(source_place, source)
        assert await first.stop() == 0
        assert await second.stop() == 0
    again = check(held(source), held(target))
    assert sum(feed.sent) > 1000
    assert again < sum(feed.sent), "only tails come again"
