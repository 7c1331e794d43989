"""Consumerd's own broker of 0.7 and groups in ZooKeeper, with a fault proxy before each server for each client.

Strategy: members reach each ZooKeeper server through proxies of their own, so that a fault may concern one of them. The
broker listens on 127.0.0.2 and registers 127.0.0.1, where its proxy listens on the same port: members and the
producer come through that. The watch and the broker itself reach ZooKeeper directly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import BrokerProcess
from consumerd.net.zk.session import Session
from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from consumerd.testing.fault_proxy import FaultProxy
from tests.kill.mirrors import BROKER_SETTINGS, TOPIC, producers
from tests.support.slow_disk import SlowDisk
from tests.torture.groups import ZooKeeperGroup
from tests.torture.stage import (
    BROKER_HOST,
    CHROOT,
    GROUP,
    PRODUCER_BACKOFF,
    PRODUCER_PAUSE,
    SESSION_TIMEOUT,
    Log,
    Member,
    Stage,
    lines_of,
)


class ProxiedBroker(BrokerProcess):
    """A broker on 127.0.0.2 that registers 127.0.0.1 with the same port."""

    slow_disk: SlowDisk | None = None

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        host = ["--host", BROKER_HOST, "--set=hostname=127.0.0.1"]
        if self.slow_disk is not None:
            command = ["env", *(f"{name}={value}" for name, value in self.slow_disk.environment.items()), *command]
        await super()._launch([*command, *host], event, timeout, stdout)


class OwnBrokerStage(Stage):
    """One broker of consumerd, members that coordinate themselves in ZooKeeper."""

    title = "consumerd's own, coordination in ZooKeeper"
    broker: ProxiedBroker
    session: Session

    def __init__(self, directory: Path, *, partitions: int, servers: int, disk: Path) -> None:
        names = [TopicPartition(TOPIC, 0, number) for number in range(partitions)]
        super().__init__(directory, names, disk, servers=servers)
        #: Properties of the broker by their 0.7 names.
        self.broker_settings: dict[str, str | int] = {**BROKER_SETTINGS, "zk.sessiontimeout.ms": 6000}

    async def _start(self, stack: AsyncExitStack) -> None:
        assert self.ensemble is not None
        port = free_port()
        self.broker = ProxiedBroker(
            self.directory / "broker",
            f"{self.ensemble.connect}{CHROOT}",
            partitions=len(self.partitions),
            port=port,
            settings=self.broker_settings,
        )
        if self.slow_library is not None:
            self.broker.slow_disk = self.make_slow_disk("broker", self.broker.log_directory)
            self.slow_brokers = [self.broker.slow_disk]
        self.brokers = [self.broker]
        self.broker_links = [await stack.enter_async_context(FaultProxy(BROKER_HOST, port, port=port))]
        await stack.enter_async_context(self.broker)
        self.session = await self._open_session(stack)
        self.group = ZooKeeperGroup(self.session, self.partitions)

    async def _new_member(self, name: str, pause: float) -> Member:
        return await self._zookeeper_member(name, pause)

    def member_config(self, name: str, connect: str, pause: float) -> dict[str, Any]:
        return {
            "group": {"id": GROUP, "topics": {TOPIC: 1}},
            "zookeeper": {"connect": connect, "session_timeout": SESSION_TIMEOUT},
            **self._common_config(name, pause),
        }

    async def produce(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            with contextlib.suppress(ConsumerdError):
                async with producers(self.broker.port, resends=0, retries=0) as each:
                    while not stop.is_set():
                        partition = self.partitions[number % len(self.partitions)].partition
                        lines = lines_of(number)
                        number += 1
                        self.sent.update(lines)
                        await each[number % 3].send(TOPIC, lines, partition=partition)
                        self.acknowledged.update(lines)
                        await asyncio.sleep(PRODUCER_PAUSE)
            if not stop.is_set():
                self.producer_errors += 1
                await asyncio.sleep(PRODUCER_BACKOFF)

    async def read_log(self) -> Log:
        return await asyncio.to_thread(read_segments, self.broker.log_directory, self.partitions)


def read_segments(log_directory: Path, partitions: Iterable[TopicPartition]) -> Log:
    """The messages of a log directory. Blocks."""
    found: Log = {}
    for partition in partitions:
        messages = found[partition] = []
        folder = log_directory / f"{partition.topic}-{partition.partition}"
        for path, start in segments_of(folder):
            for entry in read_segment(path, start):
                if entry.valid:  # a torn end is cut off at the broker's next start
                    messages.append((entry.offset, entry.payloads))
    return found
