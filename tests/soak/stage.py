"""The stage of torture with more to do: messages by rate, and three consumer groups in each daemon.

Strategy: the main subscription records what it handles. The other two, in groups of their own, have the exactly-once
sinks; they share the process and its session, and so every fault. What was sent is not kept: a line is a function of
the number of its batch and its own, so the log can be checked without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, Final

import psutil

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.net.zk.errors import NoNode
from tests.kill.mirrors import TOPIC, producers
from tests.torture.stage import GROUP, PATIENCE, Member
from tests.torture.stage_v07 import OwnBrokerStage

#: The groups of the exactly-once sinks.
FILES_GROUP: Final = "files"
DATABASE_GROUP: Final = "database"
GROUPS: Final = (GROUP, FILES_GROUP, DATABASE_GROUP)
#: Bytes of messages that a daemon may hold in memory.
BUDGET: Final = 32 << 20
#: Messages of a batch of the producer.
LINES: Final = 200
_NOISE: Final = random.Random(7).randbytes(40_000).hex().encode()
_BACKOFF: Final = 0.2
#: Seconds of sending that are made up for after a fault.
_BEHIND: Final = 2.0


def lines_of(number: int) -> list[bytes]:
    """The messages of a batch: 20 to 300 bytes, and in some batches a few of 5 kB."""
    lines = []
    for line in range(LINES):
        size = 5000 if number % 16 == 5 and line % 50 == 0 else 10 + (number * 131 + line * 37) % 280
        start = (number * 7919 + line * 104_729) % (len(_NOISE) - size)
        lines.append(b"%d-%d %b" % (number, line, _NOISE[start : start + size]))
    return lines


def number_of(payload: bytes) -> tuple[int, int]:
    """The batch and the line of a message. Raises ValueError."""
    number, _, rest = payload.partition(b"-")
    line, _, _ = rest.partition(b" ")
    return int(number), int(line)


class SoakStage(OwnBrokerStage):
    """`rate` is messages per second, or None for as many as the broker takes."""

    def __init__(self, directory: Path, *, partitions: int, servers: int, disk: Path, dsn: str) -> None:
        super().__init__(directory, partitions=partitions, servers=servers, disk=disk)
        #: Where the broker serves its metrics.
        self.broker_port = free_port()
        self.broker_settings |= {
            "log.file.size": 32 << 20,
            "health.listen": f"127.0.0.1:{self.broker_port}",
            "health.metrics": "true",
        }
        self.files = directory / "files"
        self.rate: float | None = None
        #: Whether each batch that was sent was confirmed.
        self.confirmed = bytearray()
        #: Bytes of the smallest member when it had just joined: its size at rest.
        self.smallest: float = inf
        self._dsn = dsn
        self._ports: dict[str, int] = {}
        self._producing = asyncio.Event()
        self._producing.set()

    @property
    def sent_messages(self) -> int:
        """How many were sent so far."""
        return len(self.confirmed) * LINES

    async def join(self, pause: float) -> Member:
        """As the stage's; notes the size of the process."""
        member = await super().join(pause)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.smallest = min(self.smallest, psutil.Process(member.pid).memory_info().rss)
        return member

    def port_of(self, member: Member) -> int:
        """Where a member serves its metrics."""
        return self._ports[member.name]

    def member_config(self, name: str, connect: str, pause: float) -> dict[str, Any]:
        """As the stage's, with the further subscriptions, and an address for the metrics."""
        tables = super().member_config(name, connect, pause)
        port = self._ports[name] = free_port()
        tables["fetch"] = {**tables["fetch"], "size": 256 << 10, "budget": BUDGET, "partition_budget": BUDGET // 4}
        tables["handler"] = {**tables["handler"], "name": "tests.soak.handler:RangeRecordHandler"}
        sinks = {
            FILES_GROUP: {"name": "files", "options": {"directory": str(self.files)}, "linger": 1.0},
            DATABASE_GROUP: {"name": "postgres", "options": {"dsn": self._dsn}, "linger": 0.2},
        }
        return {
            **tables,
            "health": {**tables["health"], "listen": f"127.0.0.1:{port}", "metrics": True},
            "metrics": {"lag_interval": 5.0, "partition_labels": False},
            "subscriptions": [
                {
                    "name": group,
                    "group": {"id": group},
                    "topics": {TOPIC: 1},
                    "handler": {**handler, "max_batch": 5000, "max_backoff": 1.0},
                }
                for group, handler in sinks.items()
            ],
        }

    async def produce(self, stop: asyncio.Event) -> None:
        """Send at `rate` until `stop` is set, as the stage's; nothing is sent while `hold` is in force."""
        due = time.monotonic()
        while not stop.is_set():
            with contextlib.suppress(ConsumerdError):
                async with producers(self.broker.port, resends=0, retries=0) as each:
                    while not stop.is_set():
                        await self._producing.wait()
                        number = len(self.confirmed)
                        self.confirmed.append(0)
                        partition = self.partitions[number % len(self.partitions)].partition
                        await each[number % 3].send(TOPIC, lines_of(number), partition=partition)
                        self.confirmed[number] = 1
                        if self.rate is not None:
                            now = time.monotonic()
                            due = max(due + LINES / self.rate, now - _BEHIND)
                            await asyncio.sleep(max(0.0, due - now))
            if not stop.is_set():
                self.producer_errors += 1
                await asyncio.sleep(_BACKOFF)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Send nothing within the block."""
        self._producing.clear()
        try:
            yield
        finally:
            self._producing.set()

    async def warm_up(self) -> None:
        """Return when something was sent to each partition."""
        async with asyncio.timeout(PATIENCE):
            while self.confirmed.count(1) < len(self.partitions):
                await asyncio.sleep(0.05)

    def _log_end(self, partition: TopicPartition) -> int:
        folder = self.broker.log_directory / f"{partition.topic}-{partition.partition}"
        return sum(path.stat().st_size for path in folder.glob("*.kafka"))

    async def uncommitted(self) -> list[str]:
        """The partitions of groups that are not committed to the end of the log."""
        behind = []
        for group in GROUPS:
            for partition in self.partitions:
                try:
                    path = f"/consumers/{group}/offsets/{partition.topic}/{partition.name}"
                    data, _ = await self.session.get(path)
                except NoNode:
                    data = b"0"
                if int(data or b"0") < (end := self._log_end(partition)):
                    behind.append(f"{group} {partition.name}: {int(data or b'0')} of {end}")
        return behind

    async def wait_committed(self, limit: float) -> list[str]:
        """Wait until every group has committed all of the log, at most `limit` seconds; what is not."""
        end = time.monotonic() + limit
        while True:
            try:
                behind = await self.uncommitted()
            except ConsumerdError as error:
                behind = [str(error)]
            if not behind or time.monotonic() > end:
                return behind
            await asyncio.sleep(0.2)
