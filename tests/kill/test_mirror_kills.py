"""A mirror of two members, and its target, are killed while messages come in: nothing is lost, and the order holds.

Each message says which source partition it is of and its number there, so a source identity can be found again on the
target. There, within each source partition, a message may come again (the tail that was not committed), but never
before the one in front of it has come once.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from consumerd.demo.processes import BrokerProcess
from consumerd.storage.log.dump import find_segments, read_segment
from tests.kill.mirrors import BROKER_SETTINGS, TOPIC, MirrorProcess, all_committed, producers

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper, pytest.mark.asyncio]

PARTITIONS = 4


class Input:
    """Produces numbered messages in every codec, round the source's partitions, until stopped."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent = [0] * PARTITIONS
        self.stop = asyncio.Event()

    async def run(self) -> None:
        batch = 0
        async with producers(self.port) as each:
            while batch <= 100 or not self.stop.is_set():  # however slow the machine is
                partition = batch % PARTITIONS
                first = self.sent[partition]
                lines = [b"%d %d " % (partition, number) + b"x" * (number % 90) for number in range(first, first + 10)]
                await each[batch % 3].send(TOPIC, lines, partition=partition)
                self.sent[partition] += 10
                batch += 1
                await asyncio.sleep(0.004)


def held(broker: BrokerProcess) -> list[list[bytes]]:
    """The messages in the segment files, by partition, in order."""
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
async def test_loses_nothing_when_mirror_or_target_is_killed(
    tmp_path: Path, zookeeper_factory: Any, arguments: tuple[str, ...]
) -> None:
    zookeeper = await zookeeper_factory(tick_ms=250)
    source_place, target_place = f"{zookeeper.connect}/source", f"{zookeeper.connect}/target"
    async with AsyncExitStack() as stack:
        source = BrokerProcess(tmp_path / "source", source_place, partitions=PARTITIONS, settings=BROKER_SETTINGS)
        target = BrokerProcess(tmp_path / "target", target_place, partitions=PARTITIONS, settings=BROKER_SETTINGS)
        async with asyncio.TaskGroup() as starts:
            for broker in (source, target):
                starts.create_task(stack.enter_async_context(broker))
        where = ("--to-broker", target.address)
        first, second = (
            MirrorProcess(tmp_path, name, source_place, *where, *arguments) for name in ("first", "second")
        )
        feed = Input(source.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(feed.run())
            async with asyncio.TaskGroup() as starts:
                for each in (first, second):
                    starts.create_task(stack.enter_async_context(each))
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
        await all_committed(source_place, source, PARTITIONS)
        assert await first.stop() == 0
        assert await second.stop() == 0
    again = check(held(source), held(target))
    assert sum(feed.sent) > 1000
    assert again < sum(feed.sent), "only tails come again"
