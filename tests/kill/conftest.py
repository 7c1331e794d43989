"""A small cluster of whole processes for kill tests: ZooKeeper, a broker, a continuous producer, members that record.

Strategy: everything runs as an operator would run it. The input is produced while things die; afterwards every message
is accounted for by its identity (`consumerd.demo.audit`), against what the broker's segment files really hold.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditResult, audit, merge_records
from consumerd.demo.ledger import Ledger
from consumerd.demo.processes import BrokerProcess
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import owner_path
from tests.kill.mirrors import TOPIC, producers
from tests.support.awakenings import Caught, PausableDaemon
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

GROUP = "group"
PARTITIONS = 6
#: Of the members' sessions, in seconds. The servers' ticks are 250 ms.
SESSION_TIMEOUT = 2.0
#: Seconds for whatever has to come. How soon a takeover comes is asserted in simulated time, where no other work on the
#: machine counts (`tests/simulation/test_groups.py`).
PATIENCE = 90.0
#: That many batches are sent at least, however slow the machine is.
LEAST_BATCHES = 30


class Cluster:
    """One ZooKeeper (given), one broker, any number of members."""

    def __init__(self, directory: Path, zookeeper: ZooKeeperServer | ZooKeeperEnsemble, stack: AsyncExitStack) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.chroot = f"{zookeeper.connect}/kafka"
        self.records = directory / "records"
        self.ledger = Ledger()
        self.members: list[PausableDaemon] = []
        self._stack = stack
        self.broker = BrokerProcess(
            directory / "broker",
            self.chroot,
            partitions=PARTITIONS,
            settings={"log.flush.interval": 1, "log.file.size": 200_000, "zk.sessiontimeout.ms": 2000},
        )

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, 0, number) for number in range(PARTITIONS)]

    async def start(self) -> None:
        await self._stack.enter_async_context(self.broker)
        self.session = await self._stack.enter_async_context(
            Session(self.chroot, clock=SystemClock(), rng=random.Random(), session_timeout=10.0)
        )

    async def member(self, *, pause: float = 0.02, **options: Any) -> PausableDaemon:
        """Start one more member, which records its messages and spends `pause` seconds on each batch."""
        config: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "topics": {TOPIC: 1}},
            "zookeeper": {"connect": self.chroot, "session_timeout": SESSION_TIMEOUT},
            "fetch": {"size": 20_000, "idle_backoff": 0.1},
            "commit": {"interval": 0.5},
            "handler": {
                "name": "consumerd.demo.recorder:RecordHandler",
                "options": {"directory": str(self.records), "pause": pause},
            },
        }
        for table, keys in options.items():
            config[table] = {**config.get(table, {}), **keys}
        daemon = PausableDaemon(self.directory, config, name=f"member-{len(self.members)}")
        self.members.append(daemon)
        await self._stack.enter_async_context(daemon)
        return daemon

    # -- input

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Send batches of every codec round the partitions until the block ends."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._produce(stop))
        try:
            yield
        finally:
            stop.set()
            await task

    async def _produce(self, stop: asyncio.Event) -> None:
        number = 0
        # A batch whose answer is lost would be stored twice: then input and log no longer agree line by line. The kill
        # of a broker is tested while the producer pauses.
        async with producers(self.broker.port, resends=0) as each:
            while number < LEAST_BATCHES or not stop.is_set():
                partition = self.partitions[number % PARTITIONS]
                lines = [b"" if i == 7 else b"\xff%d-%d " % (number, i) * (i % 5) for i in range(20)]
                self.ledger.partition(partition).send(lines)
                await each[number % 3].send(TOPIC, lines, partition=partition.partition)
                number += 1
                await asyncio.sleep(0.002)

    # -- what happened

    async def owners(self) -> dict[TopicPartition, int | None]:
        """The session that owns each partition."""
        found: dict[TopicPartition, int | None] = {}
        for partition in self.partitions:
            stat = await self.session.exists(owner_path(GROUP, partition))
            found[partition] = None if stat is None else stat.ephemeral_owner
        return found

    async def wait_until(self, condition: Callable[[dict[TopicPartition, int | None]], bool]) -> None:
        """Return when `condition(owners)` holds. Fails with the owners when it does not come.

        ZooKeeper's tree is the outside world: it is polled, since watching it would change what is tested.
        """
        start = time.monotonic()
        while not condition(owners := await self.owners()):
            if time.monotonic() - start > PATIENCE:
                pytest.fail(f"not within {PATIENCE} s; owners: {owners}; logs in {self.directory}")
            await asyncio.sleep(0.05)

    async def wait_all_owned(self, members: int) -> None:
        """Return when all partitions are owned by `members` sessions, in fair shares."""

        def fair(owners: dict[TopicPartition, int | None]) -> bool:
            held = list(owners.values())
            shares = [held.count(session) for session in set(held)]
            return None not in held and len(shares) == members and max(shares) - min(shares) <= 1

        await self.wait_until(fair)

    async def goes_on(self) -> None:
        """Return when every partition is committed further than it is now. Offsets are polled as owners are."""
        before = await self.committed()
        start = time.monotonic()
        while len(now := await self.committed()) < PARTITIONS or any(now[each] <= before[each] for each in before):
            if time.monotonic() - start > PATIENCE:
                pytest.fail(f"not within {PATIENCE} s; committed: {before}, {now}; logs in {self.directory}")
            await asyncio.sleep(0.05)

    async def wait_handled(self, limit: float = PATIENCE) -> AuditResult:
        """Read the log back, wait until every message in it was delivered, and account for it."""
        for partition in self.partitions:
            self.ledger.read_log(self.broker.log_directory, partition)
        held = sum(each.held for each in self.ledger.partitions.values())
        start = time.monotonic()
        while True:
            caught = Caught(each for member in self.members for each in member.awakenings)
            records = merge_records(sorted(self.records.glob("*.ndjson")))
            result = audit(self.ledger, records, caught.excuses)
            if result.distinct == held or time.monotonic() - start > limit:
                return result
            await asyncio.sleep(0.2)

    async def committed(self) -> dict[TopicPartition, int]:
        """The offsets in ZooKeeper."""
        found = {}
        for partition in self.partitions:
            try:
                data, _ = await self.session.get(f"/consumers/{GROUP}/offsets/{partition.topic}/{partition.name}")
            except NoNode:
                continue
            found[partition] = int(data or b"")
        return found


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, zookeeper_factory: Any) -> AsyncIterator[Cluster]:
    """A started cluster without members. Everything ends with the test."""
    zookeeper = await zookeeper_factory(tick_ms=250, config={"maxSessionTimeout": 60_000})
    async with AsyncExitStack() as stack:
        made = Cluster(tmp_path, zookeeper, stack)
        await made.start()
        yield made
