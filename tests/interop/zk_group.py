"""A group in ZooKeeper under test, whatever the brokers: daemons of ours, members of a JVM, their messages.

Strategy: members join, leave, freeze and are killed while messages are produced; each change is over when the owner
nodes are those that the assignor computes from the ids and topics in ZooKeeper, and every partition is delivered to the
member that is named there. Delivered messages are read from the members' files and, at the end, checked one by one.
Generations differ in how one produces, in the formula, in how partitions and messages are named
(`tests.interop.old_group_harness`, `tests.interop.jafka_group_harness`), and in what may come again
(`tests.interop.zk_group_account`).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NoNodeError

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord, parse_record
from consumerd.demo.children import Child
from consumerd.wire.registry.values import parse_owner
from tests.interop.zk_group_account import COMMIT_INTERVAL
from tests.support.awakenings import PausableDaemon

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: The time of each delivery, with the position of the message in its partition; None for a claim.
Handed = tuple[float, "TopicPartition", int | None]

GROUP = "g"


class ZooKeeperGroup(ABC):
    """A group, with a producer that continues while members join and leave."""

    def __init__(
        self, directory: Path, zookeeper: str, zk: KazooClient, stack: AsyncExitStack, session_timeout: float
    ) -> None:
        self.zk = zk
        self.daemons: dict[str, PausableDaemon] = {}
        self.jvms: dict[str, Child] = {}
        #: Partition -> member -> when it was killed as the owner, and what was committed.
        self.killed: defaultdict[TopicPartition, dict[str, tuple[float, int]]] = defaultdict(dict)
        #: Payloads that the broker took, in order.
        self.sent: dict[TopicPartition, list[bytes]] = {}
        self._directory = directory
        self._zookeeper = zookeeper
        self._session_timeout = session_timeout
        self._stack = stack
        #: For each member's file: the position up to which it was read, the number of lines, and their messages.
        self._read_so_far: dict[Path, tuple[int, int, list[Handed]]] = {}

    # -- what differs

    @abstractmethod
    def _sending(self) -> AbstractAsyncContextManager[Callable[[TopicPartition, list[bytes], bool], Awaitable[None]]]:
        """A function that sends payloads to a partition: packed (compressed as one) or each by itself."""

    @abstractmethod
    def _payload(self, place: TopicPartition, position: int) -> bytes:
        """The payload that is sent there; no payload is in a partition twice."""

    @abstractmethod
    def _formula(self) -> dict[TopicPartition, tuple[str, int]]:
        """The expected owner of each partition, computed from all registrations."""

    @abstractmethod
    def _parse(self, topic: str, name: str) -> TopicPartition:
        """The partition that a node of that name is of."""

    @abstractmethod
    def _said(self, line: bytes) -> Iterator[Handed]:
        """The messages in a line of a JVM's output."""

    @abstractmethod
    def _noted(self, record: AuditRecord) -> Iterator[Handed]:
        """The messages in a record of one of our members, without its claim."""

    @abstractmethod
    def _check(self, place: TopicPartition, handed: Mapping[str, list[tuple[float, int | None]]]) -> None:
        """Account for a partition, by the messages that each member got of it."""

    @abstractmethod
    async def join_ours(self, name: str, **tables: dict[str, Any]) -> PausableDaemon:
        """One more daemon, with keys of its own in some tables of its configuration."""

    @abstractmethod
    async def join_jvm(self, name: str, streams: int = 1) -> Child:
        """One more member of the JVM's."""

    # -- production

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Send batches, packed and not, round the partitions until the block ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce(stop))
            try:
                yield
            finally:
                stop.set()

    async def _produce(self, stop: asyncio.Event) -> None:
        batch = 0
        async with self._sending() as send:
            while not stop.is_set():
                places = list(self.sent)
                place = places[batch % len(places)]
                first = len(self.sent[place])
                payloads = [self._payload(place, position) for position in range(first, first + 8)]
                await send(place, payloads, bool(batch // len(places) % 2))
                self.sent[place] += payloads
                batch += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.02)

    # -- members

    async def _start_daemon(
        self, name: str, config: dict[str, dict[str, Any]], tables: dict[str, dict[str, Any]]
    ) -> PausableDaemon:
        """`config`: what the kind of group adds to what all have; `tables`: what the test adds to both."""
        wanted: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "consumer_id": name},
            "zookeeper": {"connect": self._zookeeper, "session_timeout": self._session_timeout},
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "consumerd.demo.recorder:RecordHandler",
                "options": {"directory": str(self._directory / "records"), "pause": 0.01},
            },
        }
        for added in (config, tables):
            wanted |= {table: wanted.get(table, {}) | keys for table, keys in added.items()}
        self.daemons[name] = daemon = PausableDaemon(self._directory, wanted, name=name)
        return await self._stack.enter_async_context(daemon)

    async def leave(self, name: str) -> None:
        if name in self.daemons:
            assert await self.daemons[name].stop() == ExitCode.OK
            return
        child = self.jvms[name]
        child.close_stdin()
        await child.wait_for_line("DONE".__eq__, 120.0)
        assert await child.wait(60.0) == 0

    async def kill(self, name: str) -> None:
        """SIGKILL of a member that commits what it owns. Returns when its session is over, too."""
        await self.silence(name, self.daemons[name].kill if name in self.daemons else self.jvms[name].end_now)

    async def silence(self, name: str, end: Callable[[], None]) -> None:
        before = self.committed()
        owned = self.owned(name)
        assert owned
        await self.until(
            lambda: not {p for p, offset in before.items() if self.committed()[p] == offset} & owned,
            f"commits of {name}",
        )
        end()
        at = time.monotonic()
        # A commit may be in flight. An offset read before the owner nodes are deleted is that of the last owner.
        while self.owned(name):
            committed = self.committed()
            if self.owned(name) != owned:
                break
            for partition in owned:
                self.killed[partition][name] = (at, committed[partition])
            await asyncio.sleep(0.05)

    # -- ZooKeeper, as another client sees it

    @property
    def topics(self) -> set[str]:
        return {place.topic for place in self.sent}

    async def until(self, condition: Callable[[], object], what: str, timeout: float = 120.0) -> float:
        """Seconds until `condition()`. ZooKeeper and files are polled: watching them would change what is tested."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > timeout:
                pytest.fail(f"no {what} within {timeout} s; owners: {self._owners()}, formula: {self._formula()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - start

    def _read(self, path: str) -> dict[str, str]:
        """The children of a node, with their values."""
        found = {}
        with suppress(NoNodeError):
            for name in self.zk.get_children(path):
                with suppress(NoNodeError):  # deleted between the two reads
                    found[name] = (self.zk.get(f"{path}/{name}")[0] or b"").decode()
        return found

    def _ids(self) -> dict[str, str]:
        """The members and what they registered."""
        return self._read(f"/consumers/{GROUP}/ids")

    def _by_partition(self, kind: str) -> dict[TopicPartition, str]:
        return {
            self._parse(topic, name): text
            for topic in self.topics
            for name, text in self._read(f"/consumers/{GROUP}/{kind}/{topic}").items()
        }

    def _owners(self) -> dict[TopicPartition, tuple[str, int]]:
        return {partition: parse_owner(text) for partition, text in self._by_partition("owners").items()}

    def committed(self) -> dict[TopicPartition, int]:
        return {partition: int(text) for partition, text in self._by_partition("offsets").items()}

    def owned(self, name: str) -> set[TopicPartition]:
        return {partition for partition, (owner, _) in self._owners().items() if owner == f"{GROUP}_{name}"}

    async def assigned(self, *members: str) -> float:
        """Seconds until just these are members and own what the formula says, each at least one partition."""
        names = {f"{GROUP}_{name}" for name in members}

        def as_the_formula_says() -> bool:
            return self._ids().keys() == names and self._owners() == self._formula()

        seconds = await self.until(as_the_formula_says, f"assignment to {', '.join(members)}")
        owners = self._owners()
        assert owners.keys() == set(self.sent)
        assert {owner for owner, _ in owners.values()} == names
        return seconds

    async def settled(self, *members: str) -> float:
        """Return when just these are members, own their computed share, and get the messages that are produced now.

        The seconds until ownership is as it should be.
        """
        seconds = await self.assigned(*members)
        owners = self._owners()
        aim = {partition: len(payloads) for partition, payloads in self.sent.items()}
        await self.until(lambda: self._flows(owners, aim), "flow to the owners")
        return seconds

    # -- delivered messages

    def _handed(self, name: str) -> list[Handed]:
        """The messages of a partition that a member got, with their times, in order; None for a claim."""
        if name in self.jvms:
            return self._told(self.jvms[name].log, lambda _, line: self._said(line))
        paths = sorted((self._directory / "records").glob(f"{GROUP}_{name}-*.ndjson"))
        return [entry for path in paths for entry in self._told(path, self._recorded)]

    def _told(self, path: Path, parse: Callable[[int, bytes], Iterator[Handed]]) -> list[Handed]:
        """The messages in a member's file so far. It only grows: the messages that were read are kept."""
        end, count, told = self._read_so_far.get(path, (0, 0, []))
        with path.open("rb") as file:
            file.seek(end)
            whole, newline, _ = file.read().rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        for number, line in enumerate(lines, count):
            told.extend(parse(number, line))
        self._read_so_far[path] = end + len(whole) + len(newline), count + len(lines), told
        return told

    def _recorded(self, number: int, line: bytes) -> Iterator[Handed]:
        """A line of one of ours."""
        record = parse_record(line)
        assert record.sequence == number, f"record {number} is missing: {record}"
        if record.claim:
            yield record.at, record.partition, None
        yield from self._noted(record)

    def _flows(self, owners: Mapping[TopicPartition, tuple[str, int]], aim: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition's owner got a message after this number of them."""
        reached = {
            (f"{GROUP}_{name}", partition)
            for name in (*self.daemons, *self.jvms)
            for _, partition, position in self._handed(name)
            if position is not None and position >= aim[partition]
        }
        return all((owner, partition) in reached for partition, (owner, _) in owners.items())

    def _all_handed(self) -> bool:
        handed = {(p, n) for name in (*self.daemons, *self.jvms) for _, p, n in self._handed(name) if n is not None}
        return len(handed) == sum(map(len, self.sent.values()))

    async def account(self) -> None:
        """Wait until all is delivered, let our members leave, then check every partition. Production is over."""
        await self.until(self._all_handed, "end of the backlog")
        for name in [name for name, member in self.daemons.items() if member.running]:
            await self.leave(name)
        handed = {name: self._dated(name) for name in (*self.daemons, *self.jvms)}
        for place in self.sent:
            by_member = {
                name: [(at, position) for at, of, position in entries if of == place]
                for name, entries in handed.items()
            }
            self._check(place, by_member)

    def _dated(self, name: str) -> list[Handed]:
        """As `_handed`; the batch that a stop caught on its way (`Caught`) is dated to the stop."""
        handed = self._handed(name)
        for _, woken_at, stopped_at in self.daemons[name].awakenings if name in self.daemons else ():
            first = next((entry for entry in handed if entry[0] >= woken_at), None)
            if first is not None and first[2] is not None:
                handed = [(stopped_at if at == first[0] else at, place, what) for at, place, what in handed]
        return handed
