"""A group of old consumers under test: real brokers, daemons of ours, members in JVMs that commit to ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumerd.base.errors import BrokerError
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord
from consumerd.demo.children import Child
from consumerd.demo.ledger import digest
from consumerd.demo.ports import free_port
from consumerd.group.assignors import Spelling, range_owners, roundrobin_owners
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.wire.registry.paths import partition_state_path
from consumerd.wire.registry.v08.subscription import parse_subscription_v08
from consumerd.wire.registry.v08.topic import format_topic_assignment, parse_partition_state, parse_topic_assignment
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest, ProduceRequestPartitionData
from consumerd.wire.v08.records import RecordCodec, encode_message_set
from tests.interop.zk_group import GROUP, Handed, ZooKeeperGroup
from tests.interop.zk_group_account import COMMIT_INTERVAL, LOOK_TO_CLAIM, OldAccount
from tests.support.awakenings import PausableDaemon
from tests.support.jafka import java_command
from tests.support.jafka_clients import compile_java
from tests.support.kafka import RELEASES, KafkaBroker, kafka_jars

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: Two topics, so that dealing them one by one and together differ; one with more than ten partitions.
TOPICS = {"events": 11, "evenings": 3}
#: Those of the old consumers themselves.
DEFAULT_TIMES = {"zookeeper.session.timeout.ms": 6000, "zookeeper.sync.time.ms": 2000, "rebalance.backoff.ms": 2000}
SHORT_TIMES = {"zookeeper.session.timeout.ms": 2000, "zookeeper.sync.time.ms": 500, "rebalance.backoff.ms": 1000}


@dataclass(frozen=True)
class Scene:
    """The kind of a group: the release of the JVM members and of the broker, the assignor, and the subscriptions."""

    version: str
    assignor: str = "range"
    filters: bool = False
    times: Mapping[str, int] = field(default_factory=lambda: SHORT_TIMES)
    broker: str | None = None
    brokers: int = 1
    #: Offsets in Kafka and in ZooKeeper, as in a group that moves from one to the other.
    both: bool = False
    topics: Mapping[str, int] = field(default_factory=lambda: TOPICS)
    #: Seconds that each answer of ZooKeeper takes; for a `WideGroup`.
    round_trip: float = 0.0

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

    @property
    def look_to_claim(self) -> float:
        """A JVM reads the offsets of all its partitions, then claims them, one by one: twice what that takes."""
        return LOOK_TO_CLAIM + 2 * (2 * self.round_trip * sum(self.topics.values()))


class OldGroup(ZooKeeperGroup):
    """On real brokers."""

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
        super().__init__(directory, zookeeper, zk, stack, scene.session_timeout)
        self.scene = scene
        self.client = client
        self.brokers = brokers
        self._java = java
        self._class_path: list[Path] = []

    # -- production

    async def create(self) -> None:
        """The topics, as the tool writes them: the controller does the rest."""
        for topic, count in self.scene.topics.items():
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
        async with asyncio.timeout(120):
            while True:
                self.client.stale([topic])
                try:
                    await self.client.leader(topic, number)
                except BrokerError:
                    await asyncio.sleep(0.1)
                else:
                    return

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[Callable[[TopicPartition, list[bytes], bool], Awaitable[None]]]:
        async def send(place: TopicPartition, payloads: list[bytes], packed: bool) -> None:
            codec = RecordCodec.GZIP if packed else RecordCodec.NONE
            await self.client.retrying("produce", partial(self._send, place, payloads, codec))

        yield send

    def _payload(self, place: TopicPartition, position: int) -> bytes:
        return b"%d:%d" % (place.partition, position)

    async def _send(self, place: TopicPartition, payloads: list[bytes], codec: RecordCodec) -> None:
        await self._append({place: payloads}, codec)

    async def _append(self, sets: Mapping[TopicPartition, list[bytes]], codec: RecordCodec) -> None:
        """Send to partitions that have one leader, in one request."""
        first = next(iter(sets))
        leader = await self.client.leader(first.topic, first.partition)
        channel = await self.client.node_channel(leader.id)
        version = channel.versions.pick(PRODUCE, at_most=2)
        magic = int(version >= 2)
        times = int(time.time() * 1000) if magic else -1  # what is old is deleted
        parts: defaultdict[str, list[ProduceRequestPartitionData]] = defaultdict(list)
        for place, payloads in sets.items():
            data = encode_message_set(payloads, magic=magic, codec=codec, timestamps=times)
            parts[place.topic].append({"index": place.partition, "records": data})
        body: ProduceRequest = {
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [{"name": topic, "partition_data": data} for topic, data in parts.items()],
        }
        answer = await channel.call(PRODUCE, body, version=version)
        for found in answer["responses"]:
            for part in found["partition_responses"]:
                if error := error_of(part["error_code"], "produce"):
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

    async def join_ours(self, name: str, **tables: dict[str, Any]) -> PausableDaemon:
        wanted: dict[str, Any] = (
            {"whitelist": "even.*"} if self.scene.filters else {"topics": dict.fromkeys(self.scene.topics, 1)}
        )
        deal: dict[str, Any] = {"assignor": self.scene.assignor}
        if self.scene.assignor == "roundrobin":
            deal["roundrobin_as"] = "1.0" if self.scene.spelling is Spelling.DASH else "0.8"
        if self.scene.both:
            deal["offsets"] = "both"
        return await self._start_daemon(name, {"group": {**wanted, **deal}}, tables)

    async def join_jvm(self, name: str, streams: int = 1) -> Child:
        if not self._class_path:
            jars = kafka_jars(RELEASES[self.scene.version])
            classes = self._directory / "classes"
            source = Path(__file__).with_name("java") / "OldMember.java"
            await asyncio.to_thread(compile_java, self._java, [source], jars, classes)
            self._class_path = [classes, *jars]
        wanted = "*even.*" if self.scene.filters else ",".join(f"{topic}={streams}" for topic in self.scene.topics)
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

    async def freeze(self, name: str) -> None:
        """SIGSTOP of one of ours that commits what it owns. Returns when its session is over, too."""
        await self.silence(name, self.daemons[name].pause)

    # -- ZooKeeper, as another client sees it

    def _formula(self) -> dict[TopicPartition, tuple[str, int]]:
        members = {name: parse_subscription_v08(text) for name, text in self._ids().items()}
        topics = {
            topic: list(parse_topic_assignment(text))
            for topic, text in self._read("/brokers/topics").items()
            if topic in self.topics
        }
        if self.scene.assignor == "roundrobin":
            return roundrobin_owners(topics, members, spelling=self.scene.spelling)
        return range_owners(topics, members)

    def _parse(self, topic: str, name: str) -> TopicPartition:
        return TopicPartition.parse_numbered(topic, name)

    # -- delivered messages

    def _said(self, line: bytes) -> Iterator[Handed]:
        if line.startswith(b"MSG "):
            _, at, topic, number, offset, text = line.split(b" ")
            place = TopicPartition.numbered(topic.decode(), int(number))
            assert self._is_sent(place, int(offset), digest(text))
            yield int(at) / 1e9, place, int(offset)

    def _noted(self, record: AuditRecord) -> Iterator[Handed]:
        for offset, _, found in record.messages:
            assert self._is_sent(record.partition, offset, found)
            yield record.at, record.partition, offset

    def _is_sent(self, place: TopicPartition, offset: int, found: int) -> bool:
        return digest(self._payload(place, offset)) == found

    def _check(self, place: TopicPartition, handed: Mapping[str, list[tuple[float, int | None]]]) -> None:
        account = OldAccount(set(self.jvms), self.killed[place], look_to_claim=self.scene.look_to_claim)
        for name, entries in handed.items():
            account.add(name, entries)
        account.check(len(self.sent[place]))


class WideGroup(OldGroup):
    """Of many partitions on one broker, with a ZooKeeper that is far from all members, ours and the JVM's."""

    async def create(self) -> None:
        hosts, slash, chroot = self._zookeeper.partition("/")
        port = free_port()
        script = Path(__file__).with_name("clients") / "delaying_proxy.py"
        target = hosts.rpartition(":")[2]
        command = [sys.executable, str(script), str(port), target, str(self.scene.round_trip)]
        proxy = Child(command, log=self._directory / "proxy.log", name="delaying_proxy", pipe=True)
        self._stack.callback(proxy.end_now)
        proxy.start()
        await proxy.wait_for_line("READY".__eq__, 60.0)
        self._zookeeper = f"127.0.0.1:{port}{slash}{chroot}"
        await super().create()

    async def _produce(self, stop: asyncio.Event) -> None:
        """A message to each partition at once, twice a second."""
        while not stop.is_set():
            sets = {place: [self._payload(place, len(payloads))] for place, payloads in self.sent.items()}
            await self._append(sets, RecordCodec.NONE)
            for place, payloads in sets.items():
                self.sent[place] += payloads
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.5)

    async def changed(self, change: Coroutine[Any, Any, object], *members: str) -> float:
        """As `settled`, of a member that comes or goes. The seconds since ZooKeeper knows of it."""
        names = {f"{GROUP}_{name}" for name in members}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change)
            await self.until(lambda: self._ids().keys() == names, f"ids of {', '.join(members)}")
            seconds = await self.assigned(*members)
        await self.settled(*members)
        return seconds

    def repeated(self, name: str) -> int:
        """The number of messages that were delivered to that member after another delivery."""
        members = (*self.daemons, *self.jvms)
        handed = [(at, place, n, who) for who in members for at, place, n in self._handed(who) if n is not None]
        seen: set[tuple[TopicPartition, int]] = set()
        count = 0
        for _, place, position, who in sorted(handed, key=lambda each: each[0]):
            count += who == name and (place, position) in seen
            seen.add((place, position))
        return count
