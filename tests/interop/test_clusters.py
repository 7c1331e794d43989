"""Clusters of three brokers that lose one under load: leaders change, coordinators move, and nothing is lost.

Two producers of ours write the same partitions, one whose repeated batches brokers recognise and one without, and a
group of our daemons and of other projects' members reads them. At the end the log itself is read, which shows the
messages that must have been delivered.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import pytest_asyncio

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer.v08.batches import Delivered, Delivery
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from tests.interop.group_harness import GROUP, PARTITIONS, PATIENCE, TOPIC, Group
from tests.support.awakenings import PausableDaemon
from tests.support.kafka import RELEASES, KafkaBroker
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
CLOCK = SystemClock()
PLACES = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]


class Listener:
    """A listener for which every error during the read of the log is a failure."""

    def failed(self, *told: object) -> None:
        raise AssertionError(told)

    reset = log_changed = skipped = parked = failed


class Load:
    """A producer of ours that sends round the partitions; `name` begins all its messages."""

    def __init__(self, name: str, client: ClusterClient, settings: V08ProducerSettings) -> None:
        self.name = name
        self.sent: defaultdict[int, list[bytes]] = defaultdict(list)
        self.acked: defaultdict[int, int] = defaultdict(int)
        self.enough = asyncio.Event()
        self._client = client
        self._settings = settings

    async def run(self) -> None:
        """Send until it is `enough`; everything that was taken is acknowledged in the end."""
        deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        async with (
            V08Producer(self._client, self._settings, clock=CLOCK, rng=random.Random(1)) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._confirm(deliveries))
            for number in itertools.count():
                if self.enough.is_set():
                    break
                partition = number % PARTITIONS
                payload = b"%s-%d" % (self.name.encode(), number)
                deliveries.put_nowait(await producer.send(TOPIC, payload, partition=partition))
                self.sent[partition].append(payload)
                await asyncio.sleep(0.004)
            deliveries.put_nowait(None)

    async def _confirm(self, deliveries: asyncio.Queue[Delivery | None]) -> None:
        while (delivery := await deliveries.get()) is not None:
            told: Delivered = await delivery
            self.acked[told.partition.partition] += 1

    def assert_is_in(self, log: dict[int, list[bytes]], *, once: bool) -> None:
        """All that was sent is in the log, in its order. Repeated batches stand there again, unless `once`."""
        for partition, payloads in self.sent.items():
            found = [payload for payload in log[partition] if payload.startswith(self.name.encode())]
            if not once:
                found = list(dict.fromkeys(found))
            assert found == payloads


class Cluster:
    """Brokers, a client, producers and a group."""

    def __init__(self, brokers: KafkaCluster, client: ClusterClient, group: Group, loads: list[Load]) -> None:
        self.brokers = brokers
        self.client = client
        self.group = group
        self.loads = loads

    async def leader(self, partition: int) -> KafkaBroker:
        self.client.stale([TOPIC])
        node = await self.client.retrying("leader", lambda: self.client.leader(TOPIC, partition))
        return self.brokers.brokers[node.id]

    async def coordinator(self) -> KafkaBroker:
        self.client.forget_coordinator(GROUP)
        found = await self.client.retrying("coordinator", lambda: self.client.coordinator(GROUP))
        return self.brokers.brokers[found]

    async def committed(self) -> dict[int, int]:
        store = KafkaOffsetStore(self.client, GROUP)
        found = await store.load(PLACES)
        return {place.partition: offset for place, offset in found.items()}

    async def goes_on(self, limit: float = PATIENCE) -> None:
        """All partitions take messages again, and the group commits what it handled of each after that."""
        before = [dict(load.acked) for load in self.loads]
        await self.group.until(
            lambda: all(
                load.acked[number] > old.get(number, 0) + 5
                for load, old in zip(self.loads, before, strict=True)
                for number in range(PARTITIONS)
            ),
            limit,
        )
        ends = await self.client.retrying("ends", self.ends)
        async with asyncio.timeout(limit):
            while True:
                committed = await self.client.retrying("offsets", self._committed_or_nothing)
                if all(committed.get(number, 0) >= end for number, end in ends.items()):
                    return
                await asyncio.sleep(0.2)  # offsets are polled: nothing tells when they move

    async def _committed_or_nothing(self) -> dict[int, int]:
        try:
            return await self.committed()
        except OffsetsUnavailableError:
            return {}

    async def ends(self) -> dict[int, int]:
        pool = FetchPool(V08Brokers(self.client, FetchSettings(), CLOCK, random.Random(1), Listener()))
        return {place.partition: (await pool.list_offsets(place, -1))[0] for place in PLACES}

    async def wait_until_replicated(self) -> None:
        """Every broker is in sync with every leader again."""
        await self.brokers.wait_until_whole()

        async def in_sync() -> bool:
            metadata = await self.client.refresh([TOPIC])
            parts = metadata.topics[TOPIC].partitions.values()
            return len(parts) == PARTITIONS and all(len(part.isr) == 3 for part in parts)

        async with asyncio.timeout(PATIENCE):
            while not await self.client.retrying("replicas", in_sync):
                await asyncio.sleep(0.2)

    async def read_log(self) -> dict[int, list[bytes]]:
        """Every partition's messages; their places are their offsets."""
        pool = FetchPool(V08Brokers(self.client, FetchSettings(max_wait=0.1), CLOCK, random.Random(2), Listener()))
        ends = await self.client.retrying("ends", self.ends)
        budget = ByteBudget(64 << 20)

        async def read(place: TopicPartition) -> list[bytes]:
            lane = Lane(place, budget, max_bytes=16 << 20)
            pool.add(place, 0, lane)
            found: list[bytes] = []
            while len(found) < ends[place.partition]:
                got = await lane.get()
                for message in got.messages():
                    assert message.offset == len(found)
                    found.append(message.payload or b"")
                lane.finished(got)
            return found

        running = asyncio.create_task(pool.run())
        try:
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
                reading = {place.partition: tasks.create_task(read(place)) for place in PLACES}
        finally:
            running.cancel()
            await asyncio.wait([running])
        return {number: task.result() for number, task in reading.items()}

    async def account(self) -> None:
        """The log contains the sent messages, and the group got the messages of the log."""
        log = await self.read_log()
        for load in self.loads:
            load.assert_is_in(log, once=load.name == "once")
        self.group.sent = defaultdict(list, log)
        await self.group.account(late=True)


@pytest_asyncio.fixture
async def cluster(
    request: pytest.FixtureRequest,
    java: JavaRuntime,
    kafka_cluster: Callable[..., KafkaCluster],
    tmp_path: Path,
    cluster_client: Any,
    missing: Callable[[str], NoReturn],
) -> AsyncIterator[Cluster]:
    """Three brokers of the version that the test is parametrised with, a topic, and producers that are not started."""
    if "java" in request.node.callspec.params.get("strangers", ()) and java.compiler is None:
        missing(f"{java.executable} ({java.source}) has no javac beside it: install a JDK")  # before brokers start
    brokers = kafka_cluster(request.param, partitions=PARTITIONS)
    async with brokers, cluster_client(*brokers.brokers.values()) as client:
        group = Group(brokers.brokers, client, tmp_path, java)
        loads = [Load("again", client, V08ProducerSettings(idempotent=False, linger=0.02))]
        if RELEASES[request.param].number >= (0, 11):
            loads.append(Load("once", client, V08ProducerSettings(linger=0.02)))
        made = Cluster(brokers, client, group, loads)
        await group.create()
        await made.wait_until_replicated()
        try:
            yield made
        finally:
            for daemon in group.daemons:
                daemon.kill()
            for child in group.foreign:
                child.end_now()


def is_sorted_out(group: Group, daemons: list[PausableDaemon]) -> bool:
    """No partition is of two members of ours."""
    held = [partition for daemon in daemons for partition in group.share(daemon)]
    return len(held) == len(set(held))


def cases() -> Iterator[Any]:
    yield pytest.param("3.9.1", ("java", "confluent"))
    yield pytest.param("0.10.1.1", ("java", "aiokafka"), marks=pytest.mark.long)
    yield pytest.param("2.8.2", ("aiokafka", "confluent"), marks=pytest.mark.long)
    yield pytest.param("4.1.0", ("java", "confluent"), marks=pytest.mark.long)


@pytest.mark.parametrize(("cluster", "strangers"), list(cases()), indirect=["cluster"])
async def test_loses_nothing_when_leaders_and_the_coordinator_die_under_load(
    cluster: Cluster, strangers: tuple[str, ...]
) -> None:
    group = cluster.group
    async with asyncio.TaskGroup() as tasks:
        for load in cluster.loads:
            tasks.create_task(load.run())
        daemons = [await group.daemon() for _ in range(2)]
        for kind in strangers:
            await group.stranger(kind)
        await cluster.goes_on()

        # A leader that does not coordinate the group dies ...
        coordinator = await cluster.coordinator()
        leaders = [await cluster.leader(number) for number in range(PARTITIONS)]
        victim = next(broker for broker in leaders if broker is not coordinator)
        victim.kill()
        await cluster.goes_on()
        await victim.start()
        await cluster.wait_until_replicated()

        # ... then the coordinator, while a member of ours is frozen: the next coordinator assigns its share to others,
        # and its former partitions are not its own when it resumes ...
        victim = await cluster.coordinator()
        daemons[0].pause()
        victim.kill()
        await cluster.goes_on()
        assert await cluster.coordinator() is not victim
        daemons[0].resume()
        await victim.start()
        await cluster.wait_until_replicated()
        await daemons[0].wait_for_event("partitions_abandoned", PATIENCE)  # unfinished and uncommitted
        await group.until(lambda: bool(group.share(daemons[0])) and is_sorted_out(group, daemons))

        # ... and one is shut down in order, so its leaderships move.
        victim = await cluster.leader(0)
        await victim.stop(60)
        assert victim.child.returncode in (0, 143)
        await cluster.goes_on()
        await victim.start()
        await cluster.wait_until_replicated()
        await cluster.goes_on()
        for load in cluster.loads:
            load.enough.set()
    await cluster.account()
    for daemon in daemons:
        assert await daemon.stop() == ExitCode.OK


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["3.9.1"], indirect=True)
async def test_survives_a_suspended_leader_and_coordinator(cluster: Cluster) -> None:
    """Its connections stay open and say nothing; when it wakes it takes itself for what it was."""
    group = cluster.group
    async with asyncio.TaskGroup() as tasks:
        for load in cluster.loads:
            tasks.create_task(load.run())
        daemons = [await group.daemon() for _ in range(2)]
        await cluster.goes_on()
        victim = await cluster.coordinator()
        victim.pause()
        await cluster.goes_on(150)  # requests to it have to time out
        victim.resume()
        await cluster.wait_until_replicated()
        await cluster.goes_on()
        for load in cluster.loads:
            load.enough.set()
    await cluster.account()
    for daemon in daemons:
        assert await daemon.stop() == ExitCode.OK
