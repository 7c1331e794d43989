"""The stage: one ZooKeeper, one broker with one topic, and an observer with a session of its own.

Strategy: the observer asks ZooKeeper itself, not through a line, for the owner nodes: few reads, and none between them.
When all are as they should be, the youngest of them says when that came to be, by ZooKeeper's clock, which is this
machine's: how often the observer looks does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from benchmarks.group_stage.feed import Feed
from benchmarks.group_stage.host import Host
from benchmarks.group_stage.line import Line
from benchmarks.group_stage.members import GROUP, MEMBERS, PATIENCE, TOPIC, Member
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import id_path, offset_path, owners_path, topic_broker_path

#: Seconds between looks, at least; reading all owner nodes takes no more than a twentieth of the time.
LOOK_EVERY = 0.1
READ_AT_MOST = 0.05
#: Owner nodes that are read at once.
PIPELINED = 500


class UnsettledError(Exception):
    """The group did not come to rest."""


class Stage:
    """`partitions` partitions of one topic, and lines to ZooKeeper of `milliseconds` a round trip."""

    def __init__(self, directory: Path, partitions: int, milliseconds: int, rate: float = 1.0) -> None:
        self.directory = directory
        self.partitions = partitions
        self.milliseconds = milliseconds
        self.rate = rate
        self.members: list[Member] = []
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self._stack = contextlib.AsyncExitStack()
        self._read_seconds = 0.0
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        async with self._stack:
            enter = self._stack.enter_async_context
            await enter(self.zookeeper)
            root = f"{self.zookeeper.connect}/kafka"
            # Consumers see what is flushed: soon, and without a sync for every message.
            settings: dict[str, str | int] = {
                "log.default.flush.interval.ms": 500,
                "log.default.flush.scheduler.interval.ms": 250,
            }
            self.broker = await enter(
                BrokerProcess(self.directory / "broker", root, partitions=self.partitions, settings=settings)
            )
            self.zk = await enter(Session(root, clock=SystemClock(), rng=random.Random(1), session_timeout=10))
            self._stack.callback(lambda: [member.kill() for member in self.members])
            self.feed = Feed(self.broker.port, TOPIC, self.partitions, self.rate)
            await self.feed.backlog(1)
            while await self.zk.exists(topic_broker_path(TOPIC, 0)) is None:
                await asyncio.sleep(0.05)
            self._kept = self._stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kept.aclose()

    async def member(self, kind: str, name: str, initial: str, *, forked: bool = False) -> Member:
        """A member that does not run yet; `forked` for one of many (see `Host`)."""
        if forked and self._host is None:
            self._host = await self._kept.enter_async_context(Host(self.directory))
        line = await self._kept.enter_async_context(Line(self.zookeeper.port, self.milliseconds))
        member = await asyncio.to_thread(
            MEMBERS[kind], name, self.directory, line, initial, self._host if forked else None
        )
        self.members.append(member)
        return member

    # -- what ZooKeeper holds

    async def _values(self, paths: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Data and time of the last change of the nodes that are there."""
        found = {}

        async def read(path: str) -> None:
            with contextlib.suppress(NoNode):
                data, stat = await self.zk.get(path)
                found[path] = (data or b"").decode(), stat.modified_ms / 1000

        for first in range(0, len(paths), PIPELINED):
            await asyncio.gather(*map(read, paths[first : first + PIPELINED]))
        return found

    async def registered(self, member: Member) -> float:
        """When its id node was made. Raises NoNode."""
        _, stat = await self.zk.get(id_path(GROUP, f"{GROUP}_{member.name}"))
        return stat.modified_ms / 1000

    async def committed(self) -> dict[int, int]:
        """The committed offset of each partition that has one."""
        paths = {offset_path(GROUP, TopicPartition(TOPIC, 0, n)): n for n in range(self.partitions)}
        return {paths[path]: int(data) for path, (data, _) in (await self._values(list(paths))).items()}

    async def settled(
        self, members: Sequence[Member], timeout: float = PATIENCE, partitions: int | None = None
    ) -> float:
        """When the last partition came to belong to its owner, all being shared evenly among `members`.

        Waits for it, at most `timeout` seconds (UnsettledError).
        """
        wanted = self.partitions if partitions is None else partitions
        deadline = time.monotonic() + timeout
        root = owners_path(GROUP, TOPIC)
        shares: Counter[str] = Counter()
        names: list[str] = []
        while time.monotonic() < deadline:
            with contextlib.suppress(NoNode):
                names = await self.zk.children(root)
            if len(names) == wanted:
                began = time.monotonic()
                nodes = await self._values([f"{root}/{name}" for name in names])
                self._read_seconds = time.monotonic() - began
                shares = Counter(
                    next((it.name for it in members if owner.startswith(it.owner)), "?") for owner, _ in nodes.values()
                )
                if "?" not in shares and sorted(shares.values()) == even_shares(wanted, len(members)):
                    return max(at for _, at in nodes.values())
                await asyncio.sleep(self._read_seconds / READ_AT_MOST)
            await asyncio.sleep(LOOK_EVERY)
        raise UnsettledError(f"after {timeout:g} s {len(names)} of {wanted} partitions have an owner: {dict(shares)}")


def even_shares(partitions: int, members: int) -> list[int]:
    """How many partitions each member has that has any, the fewest first."""
    few, odd = divmod(partitions, members)
    return [share for share in [few] * (members - odd) + [few + 1] * odd if share]


async def until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for `condition`, at most `timeout` seconds; whether it came."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)
    return True
