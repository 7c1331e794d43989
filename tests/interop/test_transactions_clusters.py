"""Transactions on clusters of three brokers that lose leaders and the transaction coordinator while they run.

Two daemons forward a topic exactly once, and make pairs of its messages by a handler that produces in the transaction.
What they wrote is counted by consumers of committed messages that nobody here wrote: Kafka's own, and librdkafka.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.children import Child
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import TRANSACTION, ClusterClient
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.transactions import find_open_transactions
from consumerd.producer.v08.producer import V08Producer
from tests.interop.group_harness import PARTITIONS, PATIENCE, Group
from tests.interop.test_isolation import doctor
from tests.interop.test_transactions import read_committed
from tests.support.kafka import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
CLOCK = SystemClock()
SOURCE, COPIES, PAIRS = "source", "copies", "pairs"
GROUPS = ("copiers", "pairers")
READERS = "readers"
#: Seconds that an open transaction whose producer is gone may hold readers back.
TRANSACTION_SECONDS: Final = 30


def places(*topics: str) -> list[TopicPartition]:
    return [TopicPartition.numbered(topic, number) for topic in topics for number in range(PARTITIONS)]


def transactional(cluster: KafkaCluster) -> dict[str, Any]:
    """The configuration of a daemon with both kinds of transactions, in a group each."""
    policy = {"max_backoff": 1.0, "max_attempts": 100}
    copying = {
        "bootstrap": cluster.bootstrap,
        "topic": COPIES,
        "exactly_once": True,
        "delivery_timeout": TRANSACTION_SECONDS,
    }
    pairing = {"bootstrap": cluster.bootstrap, "topic": PAIRS}
    return {
        "group": {
            "id": GROUPS[0],
            "coordination": "kafka",
            "topics": {SOURCE: 1},
            "session_timeout": 6.0,
            "heartbeat_interval": 0.5,
            "rebalance_timeout": 10.0,
        },
        "kafka": {"bootstrap": cluster.bootstrap},
        "fetch": {"size": 4_000, "isolation": "read_committed"},
        "commit": {"interval": 0.5},
        "handler": {"name": "forward", "options": copying, **policy},
        "subscriptions": [
            {
                "name": "pairs",
                "group": {"id": GROUPS[1]},
                "topics": {SOURCE: 1},
                "handler": {"name": "pairing:PairingHandler", "options": pairing, **policy},
            }
        ],
    }


class TransactionalCluster:
    """Three brokers, a producer's messages in `SOURCE`, and two daemons."""

    def __init__(
        self, brokers: KafkaCluster, client: ClusterClient, group: Group, missing: Callable[[str], NoReturn]
    ) -> None:
        self.brokers = brokers
        self.client = client
        self.sent: list[bytes] = []
        self.daemons = [DaemonProcess(group.directory, transactional(brokers), name=name) for name in ("one", "two")]
        self.enough = asyncio.Event()
        self._group = group
        self._missing = missing

    async def produce(self) -> None:
        """Send small batches until it is `enough`, each to a partition at random."""
        rng = random.Random(7)
        async with V08Producer(self.client, clock=CLOCK, rng=rng) as producer:
            while not self.enough.is_set():
                messages = [b"%06d" % number for number in range(len(self.sent), len(self.sent) + 10)]
                self.sent += messages
                await producer.send_many(SOURCE, messages, partition=rng.randrange(PARTITIONS))
                await asyncio.sleep(0.05)

    async def leader(self, topic: str) -> KafkaBroker:
        self.client.stale([topic])
        node = await self.client.retrying("leader", lambda: self.client.leader(topic, 0))
        return self.brokers.brokers[node.id]

    async def coordinator(self) -> KafkaBroker:
        """Of all transactions: their log has one partition."""
        name = f"{GROUPS[0]}/{SOURCE}/0"
        self.client.forget_coordinator(name, TRANSACTION)
        found = await self.client.retrying("coordinator", lambda: self.client.coordinator(name, TRANSACTION))
        return self.brokers.brokers[found]

    async def goes_on(self, limit: float = PATIENCE) -> None:
        """Both groups commit what the source has now: their transactions are committed before."""
        goals = await self._ends(SOURCE)
        async with asyncio.timeout(limit):
            for name in GROUPS:
                store = KafkaOffsetStore(self.client, name)
                while not await self.client.retrying("offsets", lambda: self._reaches(store, goals)):  # noqa: B023
                    await asyncio.sleep(0.2)  # offsets are polled: nothing tells when they move

    @staticmethod
    async def _reaches(store: KafkaOffsetStore, goals: dict[TopicPartition, int]) -> bool:
        try:
            committed = await store.load(goals)
        except OffsetsUnavailableError:
            return False
        return all(committed.get(place, 0) >= goal for place, goal in goals.items())

    async def _ends(self, *topics: str) -> dict[TopicPartition, int]:
        wanted = places(*topics)
        async with asyncio.timeout(PATIENCE):
            while True:  # until all have leaders
                ranges = await V08BrokerLogs(self.client).ranges(wanted)
                ends = {place: found.end for place, found in ranges.items() if isinstance(found, LogRange)}
                if len(ends) == len(wanted):
                    return ends
                await asyncio.sleep(0.2)

    async def is_replicated(self) -> bool:
        """Whether every broker is in sync with every leader, also of the logs of offsets and transactions."""
        topics = (await self.client.refresh(None)).topics.values()
        return all(len(part.isr) == 3 for topic in topics for part in topic.partitions.values())

    async def restart(self, broker: KafkaBroker) -> None:
        await broker.start(PATIENCE)
        await self.wait_until_replicated()

    async def wait_until_replicated(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.client.retrying("replicas", self.is_replicated):
                await asyncio.sleep(0.2)

    async def account(self) -> None:
        """Readers of committed messages get each message once, and come to the ends: no transaction is open."""
        pairs = [b"%b-%b" % (side, message) for side in (b"left", b"right") for message in self.sent]
        written = {COPIES: sorted(self.sent), PAIRS: sorted(pairs)}
        address = self.brokers.bootstrap[0]
        for topic, expected in written.items():
            assert await asyncio.to_thread(read_committed, address, topic, self._missing) == expected
        java = await self._group.java_member("range", READERS, topics=f"{COPIES},{PAIRS}", isolation="read_committed")
        ends = await self._ends(COPIES, PAIRS)
        async with asyncio.timeout(PATIENCE):
            store = KafkaOffsetStore(self.client, READERS)
            while not await self.client.retrying("offsets", lambda: self._reaches(store, ends)):
                await asyncio.sleep(0.2)
        assert payloads(java) == sorted(self.sent + pairs)
        async with asyncio.TaskGroup() as tasks:
            told = [
                tasks.create_task(asyncio.to_thread(doctor, address, name, "--interval", "3"))
                for name in (*GROUPS, READERS)
            ]
        assert [task.result() for task in told] == [[], [], []]
        logs = V08BrokerLogs(self.client)
        assert await find_open_transactions(logs, await logs.ranges(places(COPIES, PAIRS))) == {}


def payloads(java: Child) -> list[bytes]:
    lines = (line.split(" ") for line in java.output().splitlines())
    return sorted(fields[4].encode("latin-1") for fields in lines if fields[0] == "MSG")


@pytest_asyncio.fixture
async def cluster(
    request: pytest.FixtureRequest,
    java: JavaRuntime,
    kafka_cluster: Callable[..., KafkaCluster],
    tmp_path: Path,
    cluster_client: Any,
    missing: Callable[[str], NoReturn],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[TransactionalCluster]:
    """Three brokers of the version that the test is parametrised with, topics, and daemons that are not started."""
    if java.compiler is None:
        missing(f"{java.executable} ({java.source}) has no javac beside it: install a JDK")  # before brokers start
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("handlers")))
    brokers = kafka_cluster(request.param, partitions=PARTITIONS, config={"transaction.state.log.min.isr": 2})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(brokers)
        client = await stack.enter_async_context(cluster_client(*brokers.brokers.values()))
        group = Group(brokers.brokers, client, tmp_path, java)
        stack.push_async_callback(group.close)
        made = TransactionalCluster(brokers, client, group, missing)
        for topic in (SOURCE, COPIES, PAIRS):
            await group.create(topic)
        for daemon in made.daemons:
            stack.callback(daemon.kill)
        yield made


@pytest.mark.parametrize("cluster", ["4.1.0", pytest.param("3.9.1", marks=pytest.mark.long)], indirect=True)
async def test_loses_and_doubles_nothing_when_a_leader_and_the_coordinator_are_killed(
    cluster: TransactionalCluster,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.produce())
        await asyncio.gather(*(daemon.start(PATIENCE) for daemon in cluster.daemons))
        await cluster.goes_on()
        coordinator = await cluster.coordinator()
        leaders = [await cluster.leader(topic) for topic in (COPIES, PAIRS, SOURCE)]
        victim = next((broker for broker in leaders if broker is not coordinator), leaders[0])
        victim.kill()
        await cluster.goes_on()
        await cluster.restart(victim)
        victim = await cluster.coordinator()
        victim.kill()
        await cluster.goes_on()
        assert await cluster.coordinator() is not victim
        await cluster.restart(victim)
        await cluster.goes_on()
        cluster.enough.set()
    await cluster.goes_on()
    await cluster.account()
    assert {await daemon.stop() for daemon in cluster.daemons} == {ExitCode.OK}


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["4.1.0", "3.9.1"], indirect=True)
async def test_loses_and_doubles_nothing_in_a_series_of_faults(cluster: TransactionalCluster) -> None:
    """Brokers and daemons are killed, stopped and suspended in turn, two of each kind of fault."""
    rng = random.Random(11)
    faults = 2 * ["kill", "stop", "suspend", "kill the coordinator", "suspend the coordinator", "kill us", "suspend us"]
    rng.shuffle(faults)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.produce())
        await asyncio.gather(*(daemon.start(PATIENCE) for daemon in cluster.daemons))
        for fault in faults:
            await cluster.goes_on()
            if fault.endswith("us"):
                await strike_daemon(cluster, rng.choice(cluster.daemons), fault)
                continue
            coordinates = fault.endswith("coordinator")
            victim = await (cluster.coordinator() if coordinates else cluster.leader(rng.choice((COPIES, PAIRS))))
            if fault.startswith("suspend"):
                victim.pause()
                await cluster.goes_on(2 * PATIENCE)  # requests to it have to time out
                victim.resume()
                await cluster.wait_until_replicated()
                continue
            if fault == "stop":
                await victim.stop(60)
            else:
                victim.kill()
            await cluster.goes_on()
            await cluster.restart(victim)
        await cluster.goes_on()
        cluster.enough.set()
    await cluster.goes_on()
    await cluster.account()
    assert {await daemon.stop() for daemon in cluster.daemons} == {ExitCode.OK}


async def strike_daemon(cluster: TransactionalCluster, daemon: DaemonProcess, fault: str) -> None:
    if fault.startswith("kill"):
        daemon.kill()
        await cluster.goes_on()
        await daemon.start(PATIENCE)
    else:  # its partitions go to the other one, and what it holds when it resumes is refused
        daemon.pause()
        await cluster.goes_on()
        daemon.resume()
