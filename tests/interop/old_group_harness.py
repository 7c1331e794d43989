"""A group in ZooKeeper under test: real brokers, daemons of ours, old consumers, and the account of each message.

Asserted of each run (`Account`):

- every message was handed over, by somebody, in the order of its partition, and it is the one that was sent;
- ours: within one ownership (from a claim to the next), messages come without a gap and without a step back;
- one owner at a time: once a partition's next owner was handed something, the one before is handed nothing more;
- whoever takes over hands nothing over again, but
  - after a member that was killed or frozen: what it had handed over beyond its last commit;
  - after a JVM member: the one message per stream that its iterator holds when it is asked to let go;
  - a JVM member after one of ours: what ours handled lately, since old consumers read the committed offset before they
    claim the partition.

And after each change, once quiet: the owner nodes are what the formula says of the ids and topics in ZooKeeper, and
every partition flows to the member that is named there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NoNodeError

from consumerd.client import error_of
from consumerd.embedded.audit import parse_record
from consumerd.embedded.children import Child
from consumerd.embedded.jafka import java_command
from consumerd.embedded.jafka_clients import compile_java
from consumerd.embedded.kafka import RELEASES, kafka_jars
from consumerd.embedded.ledger import digest
from consumerd.embedded.processes import DaemonProcess
from consumerd.errors import BrokerError, ExitCode
from consumerd.group import Spelling
from consumerd.group.assignors import range_owners, roundrobin_owners
from consumerd.partition import TopicPartition
from consumerd.registry import (
    format_topic_assignment,
    parse_owner,
    parse_partition_state,
    parse_subscription_v08,
    parse_topic_assignment,
    partition_state_path,
)
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.records import Codec, encode_message_set

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from kazoo.client import KazooClient

    from consumerd.client import ClusterClient
    from consumerd.embedded.kafka import KafkaBroker
    from consumerd.java import JavaRuntime

#: When which offset of a partition was handed over; None for a claim.
Handed = tuple[float, TopicPartition, int | None]

GROUP = "g"
#: Two topics, so that dealing them one by one and together differ; one with more than ten partitions.
TOPICS = {"events": 11, "evenings": 3}
COMMIT_INTERVAL = 0.5
#: Seconds that a JVM takes, on a busy machine, from reading an offset to handing over what comes first there.
LOOK_TO_CLAIM = 2.0
#: Those of the old consumers themselves.
DEFAULT_TIMES = {"zookeeper.session.timeout.ms": 6000, "zookeeper.sync.time.ms": 2000, "rebalance.backoff.ms": 2000}
SHORT_TIMES = {"zookeeper.session.timeout.ms": 2000, "zookeeper.sync.time.ms": 500, "rebalance.backoff.ms": 1000}


@dataclass(frozen=True)
class Scene:
    """Of what kind a group is: the release of the JVM members (and the broker's), how it deals, what they want."""

    version: str
    assignor: str = "range"
    filters: bool = False
    times: Mapping[str, int] = field(default_factory=lambda: SHORT_TIMES)
    broker: str | None = None
    brokers: int = 1
    #: Offsets in Kafka and in ZooKeeper, as in a group that moves from one to the other.
    both: bool = False

    def __str__(self) -> str:
        release = f"{self.version}-on-{self.broker}" if self.broker else self.version
        return f"{release}-{self.assignor}-{'filters' if self.filters else 'topics'}{'-both' if self.both else ''}"

    @property
    def spelling(self) -> Spelling:
        return Spelling.DASH if self.version.startswith("1.") else Spelling.BRACKETS

    @property
    def session_timeout(self) -> float:
        return self.times["zookeeper.session.timeout.ms"] / 1000

    def streams(self, wanted: int) -> int:
        """Filters ask for one stream."""
        return 1 if self.filters else wanted


@dataclass
class Run:
    """Messages that one member was handed without a gap: the offset of the first, and when each was handed over."""

    member: str
    first: int
    times: list[float]

    @property
    def last(self) -> int:
        return self.first + len(self.times) - 1

    def __repr__(self) -> str:
        return f"<{self.member} {self.first}-{self.last} from {self.times[0]:.3f} to {self.times[-1]:.3f}>"


@dataclass
class Account:
    """What became of each of the `count` messages of one partition."""

    count: int
    jvm: set[str]
    #: When a member that owned the partition was killed or frozen, and the committed offset then.
    killed: Mapping[str, tuple[float, int]]
    runs: list[Run] = field(default_factory=list)

    def add(self, member: str, handed: list[tuple[float, int | None]]) -> None:
        """What a member was handed, None for a claim. JVM members tell no claims: a gap means that there was one."""
        run: Run | None = None
        for at, offset in handed:
            if offset is None:
                run = None
            elif run is not None and offset == run.last + 1:
                run.times.append(at)
            else:
                assert run is None or member in self.jvm, f"{run} goes on at {offset}"
                run = Run(member, offset, [at])
                self.runs.append(run)

    def part(self) -> None:
        """Part the runs of JVM members where another member had the partition in between, from its claim to its end.

        One that gets a partition back goes on where it was, if nothing was committed meanwhile.
        """
        whole, self.runs = self.runs, []
        for run in whole:
            first = 0
            for at in range(1, len(run.times) if run.member in self.jvm else 0):
                before, after = run.times[at - 1], run.times[at]
                if any(
                    other.member != run.member and before < other.times[0] and other.times[-1] < after
                    for other in whole
                ):
                    self.runs.append(Run(run.member, run.first + first, run.times[first:at]))
                    first = at
            self.runs.append(Run(run.member, run.first + first, run.times[first:]))

    def check(self) -> None:
        self.part()
        self.runs.sort(key=lambda run: run.times[0])
        handed: dict[int, tuple[float, Run]] = {}
        for run in self.runs:
            for offset, at in enumerate(run.times, run.first):
                if offset in handed:
                    first, before = handed[offset]
                    assert self.may_repeat(offset, run, at, before, first), (
                        f"{run} repeats {offset} of {before} after {at - first:.3f} s"
                    )
                handed[offset] = at, run
        missing = set(range(self.count)) - handed.keys()
        assert not missing, f"never handed over: {sorted(missing)[:10]} of {self.count}; {self.runs}"
        for before, run in pairwise(self.runs):
            if before.member != run.member:
                late = [at for at in before.times if at > run.times[0]]
                assert len(late) <= (before.member in self.jvm), f"{before} goes on while {run} has begun"

    def may_repeat(self, offset: int, run: Run, second: float, before: Run, first: float) -> bool:
        """Whether `run` may hold a message that another run handed over before. The module's text says when."""
        killed_at, committed = self.killed.get(before.member, (second, offset))
        if first <= killed_at < second and offset >= committed:
            return True
        if before.member in self.jvm:
            return offset == before.last
        return run.member in self.jvm and second - first < COMMIT_INTERVAL + LOOK_TO_CLAIM


class OldGroup:
    """A group on real brokers, with a producer that goes on as long as the members come and go."""

    def __init__(
        self,
        scene: Scene,
        brokers: list[KafkaBroker],
        client: ClusterClient,
        directory: Path,
        zookeeper: str,
        zk: KazooClient,
        java: JavaRuntime,
        stack: AsyncExitStack,
    ) -> None:
        self.scene = scene
        self.zk = zk
        self.client = client
        self.daemons: dict[str, DaemonProcess] = {}
        self.jvms: dict[str, Child] = {}
        #: Partition -> member -> when it was killed as the owner, and what was committed.
        self.killed: defaultdict[TopicPartition, dict[str, tuple[float, int]]] = defaultdict(dict)
        #: Payloads that the broker took, in order.
        self.sent: dict[TopicPartition, list[bytes]] = {}
        self.brokers = brokers
        self._directory = directory
        self._zookeeper = zookeeper
        self._java = java
        self._stack = stack
        self._class_path: list[Path] = []
        #: How far each member's file was read, and what it told.
        self._read_so_far: dict[Path, tuple[int, list[Handed]]] = {}

    # -- production

    async def create(self) -> None:
        """The topics, as the tool writes them: the controller does the rest."""
        for topic, count in TOPICS.items():
            await self.set_partitions(topic, count)

    async def set_partitions(self, topic: str, count: int) -> None:
        """Make a topic, or add partitions to it."""
        path = f"/brokers/topics/{topic}"
        ids = [broker.broker_id for broker in self.brokers]
        replicas = {number: ids[number % len(ids) :] + ids[: number % len(ids)] for number in range(count)}
        if self.zk.exists(path):
            node = json.loads(self.zk.get(path)[0])  # later brokers keep more there
            for number in range(len(node["partitions"]), count):
                node["partitions"][str(number)] = replicas[number]
            self.zk.set(path, json.dumps(node).encode())
        else:
            self.zk.create(path, format_topic_assignment(replicas).encode())
        for number in range(count):
            await self._led(topic, number)
        for number in range(count):
            self.sent.setdefault(TopicPartition.numbered(topic, number), [])

    async def _led(self, topic: str, number: int) -> None:
        """Return when the partition has a leader; the controller takes its time."""
        async with asyncio.timeout(30):
            while True:
                self.client.stale([topic])
                try:
                    await self.client.leader(topic, number)
                except BrokerError:
                    await asyncio.sleep(0.1)
                else:
                    return

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Send batches, plain and gzip, round the partitions until the block ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce(stop))
            try:
                yield
            finally:
                stop.set()

    async def _produce(self, stop: asyncio.Event) -> None:
        batch = 0
        while not stop.is_set():
            places = list(self.sent)
            place = places[batch % len(places)]
            first = len(self.sent[place])
            payloads = [b"%d:%d" % (place.partition, first + n) for n in range(8)]
            codec = Codec.GZIP if batch // len(places) % 2 else Codec.NONE
            await self.client.retrying("produce", partial(self._send, place, payloads, codec))
            self.sent[place] += payloads
            batch += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.02)

    async def _send(self, place: TopicPartition, payloads: list[bytes], codec: Codec) -> None:
        leader = await self.client.leader(place.topic, place.partition)
        channel = await self.client.node_channel(leader.id)
        version = channel.versions.pick(PRODUCE, at_most=2)
        magic = int(version >= 2)
        times = int(time.time() * 1000) if magic else -1  # what is old is deleted
        data = encode_message_set(payloads, magic=magic, codec=codec, timestamps=times)
        part = {"partition": place.partition, "record_set": data}
        body: dict[str, Any] = {"acks": -1, "timeout": 30_000, "topic_data": [{"topic": place.topic, "data": [part]}]}
        answer = await channel.call(PRODUCE, body, version=version)
        if error := error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce"):
            raise error  # of a broker that had not taken it

    def is_gone(self, broker: KafkaBroker) -> bool:
        return str(broker.broker_id) not in self._read("/brokers/ids")

    def in_sync(self, missing: int = 0) -> bool:
        """Whether every replica of every partition follows its leader, but for those of so many brokers."""
        states = [
            parse_partition_state(self.zk.get(partition_state_path(place.topic, place.partition))[0])
            for place in self.sent
        ]
        return all(len(state.isr) == len(self.brokers) - missing for state in states)

    async def all_led(self) -> None:
        for place in self.sent:
            await self._led(place.topic, place.partition)

    # -- members

    async def join_ours(self, name: str, **tables: dict[str, Any]) -> DaemonProcess:
        wanted: dict[str, Any] = {"whitelist": "even.*"} if self.scene.filters else {"topics": dict.fromkeys(TOPICS, 1)}
        deal: dict[str, Any] = {"assignor": self.scene.assignor}
        if self.scene.assignor == "roundrobin":
            deal["roundrobin_as"] = "1.0" if self.scene.spelling is Spelling.DASH else "0.8"
        if self.scene.both:
            deal["offsets"] = "both"
        config: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "consumer_id": name, **wanted, **deal},
            "zookeeper": {"connect": self._zookeeper, "session_timeout": self.scene.session_timeout},
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "consumerd.embedded.recorder:RecordHandler",
                "options": {"directory": str(self._directory / "records"), "pause": 0.01},
            },
        }
        config |= {table: config.get(table, {}) | keys for table, keys in tables.items()}
        self.daemons[name] = daemon = DaemonProcess(self._directory, config, name=name)
        return await self._stack.enter_async_context(daemon)

    async def join_jvm(self, name: str, streams: int = 2) -> Child:
        if not self._class_path:
            jars = kafka_jars(RELEASES[self.scene.version])
            classes = self._directory / "classes"
            source = Path(__file__).with_name("java") / "OldMember.java"
            await asyncio.to_thread(compile_java, self._java, [source], jars, classes)
            self._class_path = [classes, *jars]
        wanted = "*even.*" if self.scene.filters else ",".join(f"{topic}={streams}" for topic in TOPICS)
        settings = {
            "auto.commit.interval.ms": int(1000 * COMMIT_INTERVAL),
            "partition.assignment.strategy": self.scene.assignor,
            **self.scene.times,
            **({"offsets.storage": "kafka", "dual.commit.enabled": "true"} if self.scene.both else {}),
        }
        directory = self._directory / f"jvm-{name}"
        command = java_command(
            self._java, self._class_path, directory, "OldMember", self._zookeeper, GROUP, name, wanted,
            *(f"{key}={value}" for key, value in settings.items()),
        )  # fmt: skip
        child = Child(command, log=directory / "log", name=f"jvm-{name}", pipe=True)
        self._stack.callback(child.end_now)
        child.start()
        await child.wait_for_line(lambda line: line.startswith("READY"), 60.0)
        self.jvms[name] = child
        return child

    async def leave(self, name: str) -> None:
        if name in self.daemons:
            assert await self.daemons[name].stop() == ExitCode.OK
            return
        child = self.jvms[name]
        child.close_stdin()
        await child.wait_for_line("DONE".__eq__, 30.0)
        assert await child.wait(10.0) == 0

    async def kill(self, name: str) -> None:
        """SIGKILL of a member that commits what it owns. Returns when its session is over, too."""
        await self._silence(name, self.daemons[name].kill if name in self.daemons else self.jvms[name].end_now)

    async def freeze(self, name: str) -> None:
        """SIGSTOP of one of ours, likewise."""
        await self._silence(name, self.daemons[name].pause)

    async def _silence(self, name: str, end: Callable[[], None]) -> None:
        before = self.committed()
        owned = self.owned(name)
        assert owned
        await self.until(
            lambda: not {p for p, offset in before.items() if self.committed()[p] == offset} & owned,
            f"commits of {name}",
        )
        end()
        at = time.monotonic()
        # A commit may be on its way still. What was read before the owner nodes go is the last one's, whoever reads it.
        while self.owned(name):
            committed = self.committed()
            if self.owned(name) != owned:
                break
            for partition in owned:
                self.killed[partition][name] = (at, committed[partition])
            await asyncio.sleep(0.05)

    @property
    def topics(self) -> set[str]:
        return {place.topic for place in self.sent}

    # -- ZooKeeper, as somebody else sees it

    async def until(self, condition: Callable[[], object], what: str, timeout: float = 40.0) -> float:
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
                    found[name] = (self.zk.get(f"{path}/{name}")[0] or b"").decode()
        return found

    def _formula(self) -> dict[TopicPartition, tuple[str, int]]:
        members = {name: parse_subscription_v08(text) for name, text in self._read(f"/consumers/{GROUP}/ids").items()}
        topics = {
            topic: list(parse_topic_assignment(text))
            for topic, text in self._read("/brokers/topics").items()
            if topic in self.topics
        }
        if self.scene.assignor == "roundrobin":
            return roundrobin_owners(topics, members, spelling=self.scene.spelling)
        return range_owners(topics, members)

    def _by_partition(self, kind: str) -> dict[TopicPartition, str]:
        return {
            TopicPartition.parse_numbered(topic, name): text
            for topic in self.topics
            for name, text in self._read(f"/consumers/{GROUP}/{kind}/{topic}").items()
        }

    def _owners(self) -> dict[TopicPartition, tuple[str, int]]:
        return {partition: parse_owner(text) for partition, text in self._by_partition("owners").items()}

    def committed(self) -> dict[TopicPartition, int]:
        return {partition: int(text) for partition, text in self._by_partition("offsets").items()}

    async def settled(self, *members: str) -> float:
        """Return when just these are members, own what the formula says, and are handed what is produced now.

        The seconds until ownership is as it should be.
        """
        names = {f"{GROUP}_{name}" for name in members}

        def as_the_formula_says() -> bool:
            return self._read(f"/consumers/{GROUP}/ids").keys() == names and self._owners() == self._formula()

        seconds = await self.until(as_the_formula_says, f"assignment to {', '.join(members)}")
        owners = self._owners()
        assert owners.keys() == set(self.sent)
        assert {owner for owner, _ in owners.values()} == names
        aim = {partition: len(payloads) for partition, payloads in self.sent.items()}
        await self.until(lambda: self._flows(owners, aim), "flow to the owners")
        return seconds

    def owned(self, name: str) -> set[TopicPartition]:
        return {partition for partition, (owner, _) in self._owners().items() if owner == f"{GROUP}_{name}"}

    # -- what was handed over

    def _handed(self, name: str) -> list[Handed]:
        """When a member was handed which offset of a partition, in order; None for a claim."""
        if name in self.jvms:
            paths = [self.jvms[name].log]
        else:
            paths = sorted((self._directory / "records").glob(f"{GROUP}_{name}-*.ndjson"))
        return [entry for path in paths for entry in self._told(path, self._said if name in self.jvms else self._noted)]

    def _told(self, path: Path, parse: Callable[[bytes], Iterator[Handed]]) -> list[Handed]:
        """What a member's file tells so far. It only grows: what was read is kept."""
        end, told = self._read_so_far.get(path, (0, []))
        with path.open("rb") as file:
            file.seek(end)
            whole, newline, _ = file.read().rpartition(b"\n")
        for line in whole.split(b"\n") if newline else ():
            told.extend(parse(line))
        self._read_so_far[path] = end + len(whole) + len(newline), told
        return told

    def _said(self, line: bytes) -> Iterator[Handed]:
        """A line of an old consumer."""
        if line.startswith(b"MSG "):
            _, at, topic, number, offset, text = line.split(b" ")
            place = TopicPartition.numbered(topic.decode(), int(number))
            assert self._is_sent(place, int(offset), digest(text))
            yield int(at) / 1e9, place, int(offset)

    def _noted(self, line: bytes) -> Iterator[Handed]:
        """A record of one of ours."""
        record = parse_record(line)
        if record.claim:
            yield record.at, record.partition, None
        for offset, _, found in record.messages:
            assert self._is_sent(record.partition, offset, found)
            yield record.at, record.partition, offset

    def _is_sent(self, place: TopicPartition, offset: int, found: int) -> bool:
        return digest(b"%d:%d" % (place.partition, offset)) == found

    def _flows(self, owners: Mapping[TopicPartition, tuple[str, int]], aim: Mapping[TopicPartition, int]) -> bool:
        """Whether each partition's owner was handed a message that comes after so many."""
        reached = {
            (f"{GROUP}_{name}", partition)
            for name in (*self.daemons, *self.jvms)
            for _, partition, offset in self._handed(name)
            if offset is not None and offset >= aim[partition]
        }
        return all((owner, partition) in reached for partition, (owner, _) in owners.items())

    def _all_handed(self) -> bool:
        handed = {(p, n) for name in (*self.daemons, *self.jvms) for _, p, n in self._handed(name) if n is not None}
        return len(handed) == sum(map(len, self.sent.values()))

    async def account(self) -> None:
        """Wait until all is handed over, let our members leave, then check every partition. Production is over."""
        await self.until(self._all_handed, "end of the backlog")
        for name in [name for name, member in self.daemons.items() if member.running]:
            await self.leave(name)
        for partition in self.sent:
            account = Account(len(self.sent[partition]), set(self.jvms), self.killed[partition])
            for name in (*self.daemons, *self.jvms):
                account.add(name, [(at, offset) for at, of, offset in self._handed(name) if of == partition])
            account.check()
