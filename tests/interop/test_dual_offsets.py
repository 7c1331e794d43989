"""Offsets in both places: old consumers of the JVM with dual commit, and daemons, take over from each other."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.children import Child
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from tests.support.jafka import java_command
from tests.support.jafka_clients import compile_java
from tests.support.kafka import KafkaBroker, kafka_jars
from tests.support.topics import create_and_lead

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PLACES = [TopicPartition.numbered("events", number) for number in range(2)]
GROUP = "group"


class Scene:
    """A broker with a topic of two partitions, and members of one group, one at a time."""

    def __init__(
        self, broker: KafkaBroker, client: ClusterClient, zk_root: str, zk: KazooClient, java: JavaRuntime, path: Path
    ) -> None:
        self.broker = broker
        self.client = client
        self._zk_root = zk_root
        self._zk = zk
        self._java = java
        self._path = path
        self._members = 0
        self._in_kafka = KafkaOffsetStore(client, GROUP)
        self.produced = 0
        #: Partition and offset of the messages that killed members got.
        self.seen: list[tuple[int, int]] = []

    async def produce(self, count: int) -> None:
        """`count` messages to each partition; their texts are numbers."""
        await create_and_lead(self.client, partitions=len(PLACES))
        settings = V08ProducerSettings()
        async with V08Producer(self.client, settings, clock=SystemClock(), rng=random.Random(1)) as producer:
            for number in range(self.produced, self.produced + count):
                for place in PLACES:
                    await producer.send("events", b"%d" % number, partition=place.partition)
            await producer.flush()
        self.produced += count

    async def stored(self) -> tuple[set[int], set[int]]:
        """The offsets of both partitions in ZooKeeper, and in Kafka."""
        in_zookeeper, in_kafka = await self._stored()
        return set(in_zookeeper.values()), set(in_kafka.values())

    async def _stored(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        await self.client.retrying("find the coordinator", lambda: self.client.coordinator(GROUP))
        async with asyncio.timeout(120):
            while (found := await self._load()) is None:
                await asyncio.sleep(0.1)
        nodes = {place: f"/consumers/{GROUP}/offsets/events/{place.name}" for place in PLACES}
        return {place: int(self._zk.get(node)[0]) for place, node in nodes.items() if self._zk.exists(node)}, found

    async def _load(self) -> dict[TopicPartition, int] | None:
        """None while the coordinator begins."""
        try:
            return await self._in_kafka.load(PLACES)
        except OffsetsUnavailableError:
            return None

    def set_back(self, offset: int) -> None:
        """In ZooKeeper."""
        for place in PLACES:
            self._zk.set(f"/consumers/{GROUP}/offsets/events/{place.name}", b"%d" % offset)

    async def old_consumer(self, expected: range) -> None:
        """A consumer of Kafka with dual commit gets exactly the offsets `expected`, and leaves."""
        jars = kafka_jars(self.broker.release)
        classes = self._path / "classes"
        if not classes.exists():
            source = Path(__file__).with_name("java") / "OldMember.java"
            await asyncio.to_thread(compile_java, self._java, [source], jars, classes)
        self._members += 1
        directory = self._path / f"jvm-{self._members}"
        settings = "offsets.storage=kafka", "dual.commit.enabled=true", "auto.commit.interval.ms=200"
        command = java_command(
            self._java,
            [classes, *jars],
            directory,
            "OldMember",
            self._zk_root,
            GROUP,
            directory.name,
            "events=1",
            *settings,
        )
        child = Child(command, log=directory / "log", name=directory.name, pipe=True)
        try:
            child.start()

            def said() -> Iterator[tuple[int, int]]:
                for line in child.output().splitlines():
                    if line.startswith("MSG "):
                        yield int(line.split(" ")[3]), int(line.split(" ")[4])

            await self._until_handed(lambda: list(said()), expected)
            child.close_stdin()
            await child.wait_for_line("DONE".__eq__, 120.0)
            await child.wait(60.0)
        finally:
            child.end_now()
        assert await self.stored() == ({expected.stop}, {expected.stop})

    def _daemon(self, **group: Any) -> DaemonProcess:
        self._members += 1
        config = {
            "group": {"id": GROUP, **group},
            "kafka": {"bootstrap": [self.broker.address]},
            "zookeeper": {"connect": self._zk_root, "session_timeout": 2.0},
            "handler": {"name": "print"},
            "commit": {"metadata": "ours", "interval": 0.2},
        }
        return DaemonProcess(self._path, config, name=f"daemon-{self._members}")

    async def daemon(self, expected: range, **group: Any) -> None:
        """One of ours likewise."""
        daemon = self._daemon(**group)
        async with daemon:
            await self._until_handed(lambda: handed(daemon), expected)
            assert await daemon.stop() == ExitCode.OK

    async def killed(self, **group: Any) -> None:
        """One of ours works until it has committed something, and is killed during its work."""
        before = max((max(each, default=0) for each in await self.stored()), default=0)
        daemon = self._daemon(**group)
        async with daemon:
            enough = asyncio.Event()
            producing = asyncio.create_task(self._produce_until(enough))
            async with asyncio.timeout(60):
                while min(min(each, default=0) for each in await self.stored()) <= before:
                    assert daemon.running, daemon.child.tail()
                    await asyncio.sleep(0.05)
            daemon.kill()
            await daemon.wait(60.0)
            enough.set()
            await producing
        self.seen += handed(daemon)
        # Neither store holds what was not handled.
        reached = {place.partition: 0 for place in PLACES}
        for partition, offset in self.seen:
            reached[partition] = max(reached[partition], offset + 1)
        for each in await self.stored():
            assert max(each) <= max(reached.values())
        assert all(max(each) > before for each in await self.stored())

    async def nobody_owns(self) -> None:
        """Return when ZooKeeper has deleted the owner nodes of a killed member: no other member writes before."""
        owners = f"/consumers/{GROUP}/owners/events"
        async with asyncio.timeout(60):
            while self._zk.exists(owners) and self._zk.get_children(owners):
                await asyncio.sleep(0.1)

    async def _produce_until(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            await self.produce(5)

    async def caught_up(self, **group: Any) -> None:
        """One of ours handles the rest; whatever was killed, every message was delivered."""
        daemon = self._daemon(**group)
        wanted = {(place.partition, offset) for place in PLACES for offset in range(self.produced)}
        # A killed member may have got messages without committing them: these are delivered again.
        stores = await self._stored()
        begin = {place: max(store.get(place, 0) for store in stores) for place in PLACES}
        rest = {(place.partition, offset) for place in PLACES for offset in range(begin[place], self.produced)}
        async with daemon:
            async with asyncio.timeout(60):
                while not (wanted <= {*self.seen, *handed(daemon)} and rest <= {*handed(daemon)}):
                    await asyncio.sleep(0.1)
            assert await daemon.stop() == ExitCode.OK
        assert await self.stored() == ({self.produced}, {self.produced})

    async def _until_handed(self, told: Any, expected: range) -> None:
        async with asyncio.timeout(60):
            while len(told()) < len(PLACES) * len(expected):
                await asyncio.sleep(0.1)
        found = defaultdict(list)
        for partition, offset in told():
            found[partition].append(offset)
        assert found == {place.partition: list(expected) for place in PLACES}


def handed(daemon: DaemonProcess) -> list[tuple[int, int]]:
    """Partition and offset of what it printed; a line that is being written is left out."""
    lines = map(json.loads, daemon.stdout_path.read_text("utf-8").split("\n")[:-1])
    return [(line["partition"], line["offset"]) for line in lines]


@pytest.fixture
def scene(kafka: Any, cluster_client: Any, zk_root: str, zk: KazooClient, java: JavaRuntime, tmp_path: Path) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def make(version: str) -> AsyncIterator[Scene]:
        broker = await kafka(version, partitions=2)
        async with cluster_client(broker) as client:
            yield Scene(broker, client, zk_root, zk, java, tmp_path)

    return make


async def test_repeats_nothing_when_a_group_moves_between_jvm_and_consumerd(
    scene: Any,
) -> None:
    begun: AbstractAsyncContextManager[Scene] = scene("0.8.2.2")
    async with begun as group:
        await group.produce(10)
        await group.old_consumer(range(10))
        await group.produce(5)
        await group.daemon(range(10, 15), coordination="zookeeper", topics={"events": 1}, offsets="both")
        assert await group.stored() == ({15}, {15})
        # One of the two is behind: the larger one counts, for them as for us.
        group.set_back(3)
        await group.produce(1)
        await group.old_consumer(range(15, 16))
        group.set_back(3)
        await group.produce(1)
        await group.daemon(range(16, 17), coordination="fixed", partitions={"events": [0, 1]}, offsets="both")
        assert await group.stored() == ({17}, {17})
        # In one place alone.
        await group.produce(1)
        await group.daemon(range(17, 18), coordination="zookeeper", topics={"events": 1}, offsets="kafka")
        assert await group.stored() == ({17}, {18})
        await group.daemon(range(17, 18), coordination="fixed", partitions={"events": [0, 1]}, offsets="zookeeper")
        assert await group.stored() == ({18}, {18})


async def test_coordinated_group_can_return_to_zookeeper(scene: Any) -> None:
    begun: AbstractAsyncContextManager[Scene] = scene("0.10.1.1")
    async with begun as group:
        await group.produce(10)
        await group.daemon(range(10), coordination="zookeeper", topics={"events": 1})
        assert await group.stored() == ({10}, set())
        await group.produce(5)
        await group.daemon(range(10, 15), coordination="kafka", topics={"events": 1}, offsets="both")
        assert await group.stored() == ({15}, {15})
        await group.produce(1)
        await group.daemon(range(15, 16), coordination="zookeeper", topics={"events": 1})
        assert await group.stored() == ({16}, {15})


async def test_killed_members_commit_only_handled_messages_to_both_stores(scene: Any) -> None:
    begun: AbstractAsyncContextManager[Scene] = scene("0.10.1.1")
    async with begun as group:
        await group.produce(1)
        for coordination in ("zookeeper", "zookeeper", "kafka"):
            await group.nobody_owns()
            await group.killed(coordination=coordination, topics={"events": 1}, offsets="both", session_timeout=6.0)
        await group.caught_up(coordination="kafka", topics={"events": 1}, offsets="both")
