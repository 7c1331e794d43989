"""JVM members of Jafka and daemons of ours in one group, which come, leave and die while production goes on.

What is asserted of each run, message by message (`Account`):

- every message of every partition was handed over, by somebody;
- ours: within one ownership (from a claim to the next), messages come without a gap and without a step back;
- whoever takes a partition over begins at the first leaf of an outermost message, and hands nothing over again, but
  - after a member that was killed: what that member had handed over beyond its last commit, which is read from
    ZooKeeper once it is dead; its successor begins at exactly that commit;
  - after a JVM member: leaves of the one outermost message at which it begins. Jafka takes a message from its
    stream before it counts it, and commits the start of a compressed message until its last leaf;
  - a JVM member after one of ours: what ours handled since its last commit but one. Jafka (as 0.7.2) reads the
    committed offset *before* it claims: a partition that is committed and given back between the two begins at what
    was committed before.
  So between ours nothing at all is repeated, whether one leaves or the other joins.

And after each change, once quiet: the owner nodes are what the formula says of the ids and topics in ZooKeeper, and
every partition flows to the member that is named there.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NoNodeError

from consumerd.clock import SystemClock
from consumerd.embedded.audit import merge_records
from consumerd.embedded.ledger import digest
from consumerd.embedded.processes import BrokerProcess, DaemonProcess
from consumerd.group import assign
from consumerd.net import connect
from consumerd.partition import TopicPartition
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.registry import parse_owner, parse_partition_count, parse_subscription
from consumerd.storage.dump import read_segment
from consumerd.wire.v07 import Codec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from kazoo.client import KazooClient

    from consumerd.embedded.jafka_clients import JafkaMember
    from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.asyncio]

TOPIC = "events"
GROUP = "g"
#: More than ten: 0-10 is sorted before 0-2, by Jafka as by us.
PARTITIONS = 11
#: Those of 0.7.2; Jafka's own pause is 10 s.
JVM_TIMES = {"zk.sessiontimeout.ms": 6000, "zk.synctime.ms": 2000, "rebalance.backoff.ms": 2000}
COMMIT_INTERVAL = 0.5
#: Seconds that a JVM takes, on a busy machine, from reading an offset to handing over what comes first there.
LOOK_TO_CLAIM = 2.0


@dataclass
class Run:
    """Messages that one member was handed without a gap: the position of the first, and when each was handed over."""

    member: str
    first: int
    times: list[float]

    @property
    def last(self) -> int:
        return self.first + len(self.times) - 1

    @property
    def at(self) -> float:
        return self.times[0]

    def __repr__(self) -> str:
        return f"<{self.member} {self.first}-{self.last} at {self.at:.3f}>"


@dataclass
class Account:
    """What became of each message of one partition, given the identities (offset, index) of all that it holds."""

    identities: list[tuple[int, int]]
    jvm: set[str]
    #: When a member that owned the partition was killed, and the committed offset then.
    killed: Mapping[str, tuple[float, int]]
    runs: list[Run] = field(default_factory=list)

    def add(self, member: str, handed: list[tuple[float, int | None]]) -> None:
        """What a member was handed, None for a claim. Jafka's tell no claims: a gap means that there was one."""
        run: Run | None = None
        for at, position in handed:
            if position is None:
                run = None
            elif run is not None and position == run.last + 1:
                run.times.append(at)
            else:
                assert run is None or member in self.jvm, f"{run} goes on at {position}"
                run = Run(member, position, [at])
                self.runs.append(run)

    def check(self) -> None:
        handed: dict[int, list[tuple[float, Run]]] = {position: [] for position in range(len(self.identities))}
        for run in self.runs:
            assert self.identities[run.first][1] == 0, f"{run} begins within {self.identities[run.first]}"
            for position, at in enumerate(run.times, run.first):
                handed[position].append((at, run))
        for position, handovers in handed.items():
            assert handovers, f"{self.identities[position]} was never handed over"
            for (first, before), (second, run) in combinations(sorted(handovers, key=lambda each: each[0]), 2):
                assert self.may_repeat(self.identities[position][0], run, second, before, first), (
                    f"{run} repeats {self.identities[position]} of {before} after {second - first:.3f} s"
                )
        for member, (at, committed) in self.killed.items():
            others = [run for run in self.runs if run.at > at and run.member != member]
            successor = min(others, key=lambda run: run.at)
            assert self.identities[successor.first][0] == committed, f"{successor} does not begin at {committed}"

    def may_repeat(self, offset: int, run: Run, second: float, before: Run, first: float) -> bool:
        """Whether `run` may hold a message that another run handed over before. The module's text says when."""
        killed_at, committed = self.killed.get(before.member, (second, offset))
        if killed_at < second and offset >= committed:
            return True
        if before.member in self.jvm:
            return offset == self.identities[run.first][0]
        return run.member in self.jvm and second - first < COMMIT_INTERVAL + LOOK_TO_CLAIM


class MixedGroup:
    """A group on one broker, with a producer that goes on as long as the members come and go."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        zk: KazooClient,
        start_jafka: JafkaConsumerFactory,
        stack: AsyncExitStack,
        *,
        log_directory: Path,
        port: int,
        session_timeout: float,
        jvm: Mapping[str, str | int],
        partitions: int = PARTITIONS,
    ) -> None:
        self.zk = zk
        self.partitions = [TopicPartition(TOPIC, 0, number) for number in range(partitions)]
        self.daemons: dict[str, DaemonProcess] = {}
        self.jvms: dict[str, JafkaMember] = {}
        #: Partition -> member -> when it was killed as the owner, and what was committed.
        self.killed: dict[TopicPartition, dict[str, tuple[float, int]]] = {p: {} for p in self.partitions}
        self._directory = directory
        self._zookeeper = zookeeper
        self._start_jafka = start_jafka
        self._stack = stack
        self._log_directory = log_directory
        self._port = port
        self._session_timeout = session_timeout
        self._jvm = jvm
        #: Digests of what was sent, in order; and the place of each, by its digest.
        self._sent: dict[TopicPartition, list[int]] = {p: [] for p in self.partitions}
        self._places: dict[int, tuple[TopicPartition, int]] = {}

    # -- production

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Send batches, plain and gzip, round the partitions until the block ends. No payload is sent twice."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce(stop))
            try:
                yield
            finally:
                stop.set()

    async def _produce(self, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(
                    Producer(
                        StaticRouter([("127.0.0.1", self._port)], rng=random.Random(1)),
                        connect=connect,
                        clock=SystemClock(),
                        rng=random.Random(1),
                        settings=ProducerSettings(codec=codec, resends=0),
                    )
                )
                for codec in (Codec.NONE, Codec.GZIP)
            ]
            batch = 0
            while not stop.is_set():
                partition = self.partitions[batch % len(self.partitions)]
                first = len(self._sent[partition])
                lines = [b"%d:%d " % (partition.partition, first + n) + b"x" * n for n in range(8)]
                digests = [digest(line) for line in lines]
                self._places |= {found: (partition, first + n) for n, found in enumerate(digests)}
                await producers[batch // len(self.partitions) % 2].send(TOPIC, lines, partition=partition.partition)
                self._sent[partition] += digests
                batch += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.02)

    # -- members

    async def join_ours(self, name: str, **tables: dict[str, Any]) -> DaemonProcess:
        config: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "topics": {TOPIC: 1}, "consumer_id": name},
            "zookeeper": {"connect": self._zookeeper, "session_timeout": self._session_timeout},
            "fetch": {"idle_backoff": 0.1},
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "consumerd.embedded.recorder:RecordHandler",
                "options": {"directory": str(self._directory / "records"), "pause": 0.01},
            },
        }
        config |= {table: config.get(table, {}) | keys for table, keys in tables.items()}
        self.daemons[name] = daemon = DaemonProcess(self._directory, config, name=name)
        return await self._stack.enter_async_context(daemon)

    async def join_jvm(self, name: str, streams: int = 1) -> JafkaMember:
        settings = {"fetcher.backoff.ms": 100, "autocommit.interval.ms": int(1000 * COMMIT_INTERVAL), **self._jvm}
        self.jvms[name] = await self._start_jafka(
            self._zookeeper, GROUP, {TOPIC: streams}, consumer_id=name, settings=settings
        )
        return self.jvms[name]

    async def leave(self, name: str) -> None:
        if name in self.daemons:
            assert await self.daemons[name].stop() == 0
        else:
            await self.jvms[name].leave()

    async def kill(self, name: str) -> None:
        """SIGKILL of a member that commits what it owns. Returns when its session is over, too."""
        before = self._committed()
        owned = self.owned(name)
        assert owned
        await self.until(
            lambda: not {p for p, offset in before.items() if self._committed()[p] == offset} & owned,
            f"commits of {name}",
        )
        (self.daemons.get(name) or self.jvms[name]).kill()
        at = time.monotonic()
        # A commit may be on its way still. What was read before the owner nodes go is the last one's, whoever reads it.
        while self.owned(name):
            committed = self._committed()
            if self.owned(name) != owned:
                break
            for partition in owned:
                self.killed[partition][name] = (at, committed[partition])
            await asyncio.sleep(0.05)

    # -- ZooKeeper, as somebody else sees it

    async def until(self, condition: Callable[[], object], what: str, timeout: float = 30.0) -> float:
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
                with suppress(NoNodeError):  # gone between the two looks
                    found[name] = self.zk.get(f"{path}/{name}")[0].decode()
        return found

    def _formula(self) -> dict[TopicPartition, tuple[str, int]]:
        ids = self._read(f"/consumers/{GROUP}/ids")
        brokers = self._read(f"/brokers/topics/{TOPIC}")
        return assign(
            {TOPIC: {int(broker): parse_partition_count(text.encode()) for broker, text in brokers.items()}},
            {member: parse_subscription(text) for member, text in ids.items()},
        )

    def _owners(self) -> dict[TopicPartition, tuple[str, int]]:
        nodes = self._read(f"/consumers/{GROUP}/owners/{TOPIC}")
        return {TopicPartition.parse(TOPIC, name): parse_owner(text) for name, text in nodes.items()}

    def _committed(self) -> dict[TopicPartition, int]:
        nodes = self._read(f"/consumers/{GROUP}/offsets/{TOPIC}")
        return {TopicPartition.parse(TOPIC, name): int(text) for name, text in nodes.items()}

    async def settled(self, *members: str) -> None:
        """Return when just these are members, own what the formula says, and are handed what is produced now."""
        await self.assigned(*members)
        owners = self._owners()
        aim = {partition: len(digests) for partition, digests in self._sent.items()}
        await self.until(lambda: self._flows(owners, aim), "flow to the owners")

    async def assigned(self, *members: str) -> float:
        """Seconds until just these are members and own what the formula says, each at least one partition."""
        names = {f"{GROUP}_{name}" for name in members}

        def as_the_formula_says() -> bool:
            return self._read(f"/consumers/{GROUP}/ids").keys() == names and self._owners() == self._formula()

        seconds = await self.until(as_the_formula_says, f"assignment to {', '.join(members)}")
        owners = self._owners()
        assert owners.keys() == set(self.partitions)
        assert {owner for owner, _ in owners.values()} == names
        return seconds

    def owned(self, name: str) -> set[TopicPartition]:
        return {partition for partition, (owner, _) in self._owners().items() if owner == f"{GROUP}_{name}"}

    # -- what was handed over

    def _handed(self, name: str) -> Iterator[tuple[float, TopicPartition, int | None]]:
        """When a member was handed which message of a partition, in order; None for a claim."""
        if name in self.jvms:
            for message in self.jvms[name].messages():
                yield message.at, *self._places[digest(message.payload)]
            return
        for record in merge_records((self._directory / "records").glob(f"{GROUP}_{name}-*.ndjson")):
            if record.claim:
                yield record.at, record.partition, None
            for _, _, found in record.messages:
                yield record.at, *self._places[found]

    def _flows(self, owners: Mapping[TopicPartition, tuple[str, int]], aim: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition's owner was handed a message that comes after so many."""
        reached = {
            (f"{GROUP}_{name}", partition)
            for name in (*self.daemons, *self.jvms)
            for _, partition, position in self._handed(name)
            if position is not None and position >= aim[partition]
        }
        return all((owner, partition) in reached for partition, (owner, _) in owners.items())

    def _all_handed(self) -> bool:
        handed = {(p, n) for name in (*self.daemons, *self.jvms) for _, p, n in self._handed(name) if n is not None}
        return len(handed) == sum(map(len, self._sent.values()))

    async def account(self) -> None:
        """Wait until all is handed over, let our members leave, then check every partition. Production is over."""
        await self.until(self._all_handed, "end of the backlog")
        for name in [name for name, member in self.daemons.items() if member.running]:
            await self.leave(name)
        for partition in self.partitions:
            self._account_for(partition)

    def _account_for(self, partition: TopicPartition) -> None:
        entries = [
            entry
            for path in sorted((self._log_directory / f"{TOPIC}-{partition.partition}").iterdir())
            for entry in read_segment(path, int(path.stem))
        ]
        assert all(entry.valid for entry in entries)
        stored = [digest(payload) for entry in entries for payload in entry.payloads]
        assert stored == self._sent[partition]
        identities = [(entry.offset, index) for entry in entries for index in range(len(entry.payloads))]
        account = Account(identities, set(self.jvms), self.killed[partition])
        for name in (*self.daemons, *self.jvms):
            account.add(name, [(at, position) for at, of, position in self._handed(name) if of == partition])
        account.check()


async def come_and_go(group: MixedGroup, streams: int) -> None:
    """Every way to join and to leave, of ours and of Jafka's, each at other places of the order of ids."""
    async with group.producing():
        await group.join_ours("m")
        await group.settled("m")
        await group.join_jvm("d", streams)
        await group.settled("d", "m")
        await group.join_ours("x")
        await group.settled("d", "m", "x")
        await group.leave("m")
        await group.settled("d", "x")
        await group.join_ours("a")
        await group.settled("a", "d", "x")
        await group.leave("d")
        await group.settled("a", "x")
        await group.join_jvm("q", streams)
        await group.settled("a", "q", "x")
        await group.kill("a")
        await group.settled("q", "x")
        await group.join_ours("b")
        await group.settled("b", "q", "x")
        await group.kill("q")
        await group.settled("b", "x")
    await group.account()


async def test_a_mixed_group_on_a_jafka_broker(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_broker: JafkaBrokerFactory,
    jafka_consumer: JafkaConsumerFactory,
) -> None:
    """With the times of 0.7.2: sessions of 6 s, four looks 2 s apart."""
    broker = await jafka_broker(zk_root, partitions=PARTITIONS)
    async with AsyncExitStack() as stack:
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=6.0,
            jvm=JVM_TIMES,
        )  # fmt: skip
        await come_and_go(group, streams=1)


async def test_a_mixed_group_on_our_broker(
    zk: KazooClient, zk_root: str, tmp_path: Path, jafka_consumer: JafkaConsumerFactory
) -> None:
    """With shorter times, and two streams in each JVM."""
    broker = BrokerProcess(
        tmp_path / "broker", zk_root, partitions=PARTITIONS, settings={"log.flush.interval": 1, "log.file.size": 20_000}
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=2.0,
            jvm={"zk.sessiontimeout.ms": 2000, "zk.synctime.ms": 500, "rebalance.backoff.ms": 1000},
        )  # fmt: skip
        await come_and_go(group, streams=2)


@pytest.mark.parametrize("obeys", [True, False], ids=["in time", "too late"])
async def test_a_slow_handler_beside_a_jvm_member(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_consumer: JafkaConsumerFactory,
    monkeypatch: pytest.MonkeyPatch,
    obeys: bool,
) -> None:
    """A handler that obeys is cancelled after 4 s, in time for the JVM's look after 6 s. One that does not keeps its
    partition until it has ended; by then the JVM has given up, and has to be woken by a nudge.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("handlers")), prepend=os.pathsep)
    broker = BrokerProcess(tmp_path / "broker", zk_root, partitions=5, settings={"log.flush.interval": 1})
    hold = tmp_path / "hold"
    options = {"directory": str(tmp_path / "records"), "hold": str(hold), "obeys": obeys}
    moving = TopicPartition(TOPIC, 0, 2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=6.0, jvm=JVM_TIMES, partitions=5,
        )  # fmt: skip
        async with group.producing():
            slow = await group.join_ours("a", handler={"name": "holding:HoldingHandler", "options": options})
            jvm = await group.join_jvm("j")
            await group.settled("a", "j")
            assert moving in group.owned("a")
            hold.touch()
            await group.until(hold.with_name("hold.0-2").exists, "batch in hand")
            await group.join_ours("z")
            if obeys:
                await group.assigned("a", "j", "z")
                hold.unlink()
            else:
                await jvm.child.wait_for_line(lambda line: "can't rebalance after 4 retries" in line, 20)
                assert moving in group.owned("a")  # its handler has not ended
                assert group.owned("j") == set()
                hold.unlink()
                await slow.wait_for_event("group_nudged", 10)
            await group.settled("a", "j", "z")
            assert moving in group.owned("j")
        await group.account()
        logged = [event["event"] for event in slow.events()]
        assert "drain_deadline_passed" in logged
        assert logged.count("group_nudged") == (0 if obeys else 1)
        assert ("can't rebalance" in jvm.child.output()) is not obeys
