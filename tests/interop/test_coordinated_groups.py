"""Groups of our daemons, and of daemons with other projects' members, that real brokers coordinate.

Every message that was produced is accounted for, whatever died: handed over, in the order of its partition, and never
by anybody but the partition's latest owner.
"""

from __future__ import annotations

import asyncio
import heapq
import importlib.util
import sys
import time
from collections import defaultdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from consumerd.client import error_of
from consumerd.embedded.audit import Record, merge_records
from consumerd.embedded.children import Child
from consumerd.embedded.errors import ChildError
from consumerd.embedded.jafka import java_command
from consumerd.embedded.jafka_clients import compile_java
from consumerd.embedded.kafka import kafka_jars
from consumerd.embedded.ledger import digest
from consumerd.embedded.ports import free_port
from consumerd.embedded.processes import DaemonProcess
from consumerd.errors import ExitCode
from consumerd.offsets import KafkaOffsetStore
from consumerd.partition import TopicPartition
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.records import encode_message_set, encode_record_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from consumerd.client import ClusterClient
    from consumerd.embedded.kafka import KafkaBroker
    from consumerd.java import JavaRuntime

pytestmark = [pytest.mark.interop, pytest.mark.asyncio, pytest.mark.timeout(240)]
EVERYDAY = ("0.10.1.1", "3.9.1")
OTHERS = ("0.9.0.1", "0.11.0.3", "1.1.1", "2.8.2")
VERSIONS = [*EVERYDAY, *(pytest.param(version, marks=pytest.mark.long) for version in OTHERS)]
TOPIC, GROUP, PARTITIONS = "events", "group", 6
SESSION_TIMEOUT = 6.0


def said_by_java(child: Child) -> Iterator[Record]:
    """The lines of `KafkaMember` as records; nothing of a member of another kind, which writes a file."""
    for line in child.output().splitlines():
        kind, *fields = line.split(" ")
        if kind not in ("CLAIM", "MSG"):
            continue
        place = TopicPartition.numbered(TOPIC, int(fields[1]))
        messages = [(int(fields[2]), 0, digest(fields[3].encode("latin-1")))] if kind == "MSG" else []
        yield Record(int(fields[0]) / 1e9, child.name, 0, place, kind == "CLAIM", messages)


class Group:
    """A broker, a client of it, a topic; members that record what they are handed."""

    def __init__(self, broker: KafkaBroker, client: ClusterClient, directory: Path, java: JavaRuntime) -> None:
        self.java = java
        self.broker = broker
        self.client = client
        self.directory = directory
        self.records = directory / "records"
        self.records.mkdir()
        self.sent: defaultdict[int, list[bytes]] = defaultdict(list)
        self.daemons: list[DaemonProcess] = []
        self.foreign: list[Child] = []
        #: Held while a batch is on its way; whoever holds it has the producer rest.
        self.sending = asyncio.Lock()
        self.enough = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker.port}"

    # -- input

    async def create(self, topic: str = TOPIC) -> None:
        async def led() -> None:
            await self.client.refresh([topic], create=True)
            for number in range(PARTITIONS):
                await self.client.leader(topic, number)

        await self.client.retrying("create the topic", led)

    async def produce_on(self) -> None:
        """Small batches round the partitions until it is `enough`."""
        number = 0
        while not self.enough.is_set():
            async with self.sending:
                await self.produce(number % PARTITIONS, [b"%d-%d" % (number, i) for i in range(10)])
            number += 1
            await asyncio.sleep(0.005)

    async def produce(self, partition: int, payloads: list[bytes]) -> None:
        while not await self._taken(partition, payloads):
            await asyncio.sleep(0.1)
        self.sent[partition] += payloads

    async def _taken(self, partition: int, payloads: list[bytes]) -> bool:
        """Whether the broker took it; False where it does not lead yet, and has written nothing."""
        channel = await self.client.node_channel(self.broker.broker_id)
        version = channel.versions.pick(PRODUCE, at_most=9)
        now = int(time.time() * 1000)  # what is old is deleted: retention goes by it
        data = (
            encode_record_batch(payloads, timestamps=now)
            if version >= 3
            else encode_message_set(payloads, magic=int(version >= 2), timestamps=now if version >= 2 else -1)
        )
        body: dict[str, Any] = {
            "acks": -1,
            "timeout": 5000,
            "topic_data": [{"topic": TOPIC, "data": [{"partition": partition, "record_set": data}]}],
        }
        answer = await channel.call(PRODUCE, body, version=version)
        error = error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce")
        if error is not None and not error.retriable:
            raise error
        return error is None

    # -- members

    async def daemon(self, *, pause: float = 0.01, **group: Any) -> DaemonProcess:
        config: dict[str, dict[str, Any]] = {
            "group": {
                "id": GROUP,
                "coordination": "kafka",
                "topics": {TOPIC: 1},
                "session_timeout": SESSION_TIMEOUT,
                "heartbeat_interval": 0.5,
                "rebalance_timeout": 15.0,
                **group,
            },
            "kafka": {"bootstrap": [self.address]},
            "rebalance": {"reconcile_interval": 2.0},
            "commit": {"interval": 0.5},
            "handler": {
                "name": "consumerd.embedded.recorder:RecordHandler",
                "options": {"directory": str(self.records), "pause": pause},
            },
        }
        config["group"] = {key: value for key, value in config["group"].items() if value is not None}
        daemon = DaemonProcess(self.directory, config, name=f"member-{len(self.daemons)}")
        self.daemons.append(daemon)
        await daemon.start(60.0)
        return daemon

    async def stranger(self, kind: str) -> Child:
        if kind == "java":
            return await self.java_member()
        number = len(self.foreign)
        script = Path(__file__).with_name("clients") / "group_member.py"
        child = Child(
            [sys.executable, "-W", "ignore", str(script), kind, self.address, GROUP, TOPIC,
             str(self.records / f"foreign-{number}.ndjson")],
            log=self.directory / f"foreign-{number}.log",
            name=f"{kind}-{number}",
        )  # fmt: skip
        self.foreign.append(child)
        child.start()
        await child.wait_for_line(lambda line: line.startswith("assigned"), 60.0)
        return child

    async def java_member(self) -> Child:
        """Kafka's own client, of the broker's version."""
        jars = kafka_jars(self.broker.release)
        classes = self.directory / "classes"
        classes.mkdir(exist_ok=True)
        source = Path(__file__).with_name("java") / "KafkaMember.java"
        await asyncio.to_thread(compile_java, self.java, [source], jars, classes)
        number = len(self.foreign)
        settings = [
            f"session.timeout.ms={int(SESSION_TIMEOUT * 1000)}",
            "heartbeat.interval.ms=500",
            "max.poll.records=50",
            "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor",
        ]
        command = java_command(
            self.java, [classes, *jars], self.directory, "KafkaMember", self.address, GROUP, TOPIC, *settings
        )
        child = Child(command, log=self.directory / f"foreign-{number}.log", name=f"java-{number}", pipe=True)
        self.foreign.append(child)
        child.start()
        await child.wait_for_line(lambda line: line.startswith("ASSIGNED"), 60.0)
        return child

    async def leave(self, child: Child) -> None:
        """A member of another project leaves in order."""
        if child.name.startswith("java"):
            child.close_stdin()
            await child.wait_for_line("DONE".__eq__, 30.0)
            await child.wait(10.0)
        else:
            await child.stop(15.0)

    # -- what happened

    def all_records(self) -> Iterator[Record]:
        """What everybody was given and handed, in the order of time."""
        ours = merge_records(sorted(self.records.glob("*.ndjson")))
        return heapq.merge(ours, *map(said_by_java, self.foreign), key=attrgetter("at"))

    def share(self, daemon: DaemonProcess) -> list[str]:
        """What a daemon was last given."""
        told = [event["partitions"] for event in daemon.events() if event["event"] == "rebalanced"]
        return sorted(told[-1]) if told else []

    async def until(self, condition: Callable[[], bool], limit: float = 40.0) -> float:
        """Processes are watched from outside: their logs and records are polled."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > limit:
                told = "\n".join(f"{each.name}: {self.share(each)}" for each in self.daemons)
                pytest.fail(f"not within {limit} s: {self.handed()}\n{told}\nlogs in {self.directory}")
            await asyncio.sleep(0.1)
        return time.monotonic() - start

    def fair(self, *daemons: DaemonProcess, others: int = 0) -> bool:
        """The daemons have all partitions but `others`, in shares that differ by one at most."""
        shares = [self.share(daemon) for daemon in daemons]
        held = [partition for share in shares for partition in share]
        sizes = [len(share) for share in shares]
        return len(held) == len(set(held)) == PARTITIONS - others and max(sizes) - min(sizes) <= 1

    def handed(self) -> dict[int, int]:
        """For each partition, how many different messages were handed over."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for record in self.all_records():
            found[record.partition.partition].update(offset for offset, _, _ in record.messages)
        return {number: len(offsets) for number, offsets in found.items() if offsets}

    async def account(self, limit: float = 40.0) -> int:
        """Everything was handed over, in order, by its owners. How many came again."""
        total = {number: len(payloads) for number, payloads in self.sent.items()}
        await self.until(lambda: self.handed() == total, limit)
        owner: dict[int, str] = {}
        last: dict[int, int] = {}
        seen: defaultdict[int, set[int]] = defaultdict(set)
        again = 0
        for record in self.all_records():
            number = record.partition.partition
            if record.claim:
                owner[number] = record.member
                last[number] = -1
                continue
            assert owner[number] == record.member, f"{record.member} handles {number}, which {owner[number]} has"
            for offset, _, checksum in record.messages:
                assert checksum == digest(self.sent[number][offset])
                assert offset > last[number]
                if last[number] >= 0:
                    assert offset == last[number] + 1
                else:  # an owner begins at or before what its predecessors handled: nothing is passed over
                    assert offset <= len(seen[number])
                last[number] = offset
                again += offset in seen[number]
                seen[number].add(offset)
        return again


@pytest_asyncio.fixture
async def group(
    request: pytest.FixtureRequest, kafka: Any, cluster_client: Any, java: JavaRuntime, tmp_path: Path
) -> AsyncIterator[Group]:
    """A group without members on a broker of the version that the test is parametrised with."""
    broker = await kafka(request.param, partitions=PARTITIONS)
    async with cluster_client(broker) as client:
        made = Group(broker, client, tmp_path, java)
        await made.create()
        try:
            yield made
        finally:
            for daemon in made.daemons:
                daemon.kill()
            for child in made.foreign:
                child.end_now()


@pytest.mark.parametrize("group", VERSIONS, indirect=True)
async def test_members_join_leave_die_and_the_broker_goes_away(group: Group) -> None:
    producer = asyncio.create_task(group.produce_on())
    first = await group.daemon()
    second = await group.daemon()
    await group.until(lambda: group.fair(first, second))
    third = await group.daemon()
    await group.until(lambda: group.fair(first, second, third))

    assert await second.stop() == ExitCode.OK
    took = await group.until(lambda: group.fair(first, third))
    assert took < SESSION_TIMEOUT  # it left, and was not just missed

    third.kill()
    await group.until(lambda: group.fair(first), SESSION_TIMEOUT + 15)
    fourth = await group.daemon()
    await group.until(lambda: group.fair(first, fourth))

    # The coordinator goes away and comes back, with the producer at rest: a batch that is sent again would be two.
    async with group.sending:
        await group.broker.stop()
        await group.broker.start()
        await group.create()
    before = sum(map(len, group.sent.values()))
    await group.until(lambda: sum(map(len, group.sent.values())) > before + 500)
    group.enough.set()
    await producer
    await group.account()
    assert await first.stop() == ExitCode.OK
    assert await fourth.stop() == ExitCode.OK

    # What they gave back is committed: a member that comes now is handed nothing again.
    store = KafkaOffsetStore(group.client, GROUP)
    places = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]
    assert await group.client.retrying("read offsets", lambda: store.load(places)) == {
        place: len(group.sent[place.partition]) for place in places
    }


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("0.10.1.1", "java"),
        ("3.9.1", "kafka-python"),
        ("3.9.1", "aiokafka"),
        pytest.param("0.10.1.1", "kafka-python", marks=pytest.mark.long),
        pytest.param("3.9.1", "java", marks=pytest.mark.long),
        pytest.param("2.8.2", "kafka-python", marks=pytest.mark.long),
        pytest.param("2.8.2", "aiokafka", marks=pytest.mark.long),
        pytest.param("2.8.2", "java", marks=pytest.mark.long),
    ],
    indirect=["group"],
)
async def test_a_group_is_shared_with_members_of_other_projects(
    group: Group, kind: str, missing: Callable[[str], Any]
) -> None:
    module = {"kafka-python": "kafka", "aiokafka": "aiokafka"}.get(kind)
    if module is not None and importlib.util.find_spec(module) is None:
        missing(f"{kind} is not installed: see the dependency groups `dev` and `bench`")
    producer = asyncio.create_task(group.produce_on())
    theirs = await group.stranger(kind)  # which leads, so its leader deals to ours
    ours = await group.daemon()
    await group.until(lambda: len(group.share(ours)) == 3)
    other = await group.daemon()
    await group.until(lambda: group.fair(ours, other, others=2))
    await group.leave(theirs)
    await group.until(lambda: group.fair(ours, other))
    theirs = await group.stranger(kind)  # now one of ours leads, and deals to it
    await group.until(lambda: group.fair(ours, other, others=2))
    theirs.end_now()
    await group.until(lambda: group.fair(ours, other), SESSION_TIMEOUT + 15)
    group.enough.set()
    await producer
    await group.account()


@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_a_static_member_comes_back_to_its_share_and_a_twin_is_refused(group: Group) -> None:
    first = await group.daemon(instance_id="a")
    second = await group.daemon(instance_id="b")
    await group.until(lambda: group.fair(first, second))
    rebalances = sum(event["event"] == "rebalanced" for event in first.events())
    share = group.share(second)
    assert await second.stop() == ExitCode.OK
    await second.start()
    await group.until(lambda: group.share(second) == share)
    assert sum(event["event"] == "rebalanced" for event in first.events()) == rebalances
    twin = DaemonProcess(group.directory, second.config, name="twin")
    group.daemons.append(twin)
    await twin.start()
    assert await second.wait(SESSION_TIMEOUT) == ExitCode.ID_TAKEN
    await group.produce(0, [b"x"])
    await group.account()


@pytest.mark.parametrize("group", ["0.10.1.1", "3.9.1"], indirect=True)
async def test_new_topics_of_a_filter_are_found(group: Group) -> None:
    daemon = await group.daemon(topics=None, whitelist="events|even.*")
    await group.until(lambda: len(group.share(daemon)) == PARTITIONS)
    await group.create("even-more")
    await group.until(lambda: len(group.share(daemon)) == 2 * PARTITIONS)
    assert await daemon.stop() == ExitCode.OK


@pytest.mark.parametrize("group", ["0.8.2.2", "3.9.1"], indirect=True)
async def test_fixed_partitions_go_on_where_they_were(group: Group) -> None:
    for number in range(PARTITIONS):
        await group.produce(number, [b"%d" % number] * 10)
    fixed: dict[str, Any] = {"coordination": "fixed", "topics": None, "partitions": {TOPIC: [1, 4]}}
    daemon = await group.daemon(**fixed)
    await group.until(lambda: group.handed() == {1: 10, 4: 10})
    assert await daemon.stop() == ExitCode.OK
    await group.produce(4, [b"more"] * 5)
    await daemon.start()
    await group.until(lambda: group.handed() == {1: 10, 4: 15})
    assert await daemon.stop() == ExitCode.OK
    group.sent = defaultdict(list, {number: group.sent[number] for number in (1, 4)})
    assert await group.account() == 0


@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_fixed_partitions_that_cannot_be_had_end_the_daemon_with_a_sentence(group: Group) -> None:
    await group.daemon()
    await group.produce(1, [b"x"])
    fixed: dict[str, Any] = {"coordination": "fixed", "topics": None}
    # The group has members, so the coordinator takes no offsets of others.
    intruder = await group.daemon(**fixed, partitions={TOPIC: [1]})
    await group.produce(1, [b"y"])
    assert await intruder.wait(20.0) == ExitCode.REFUSED
    assert "need a group of their own" in intruder.child.output()
    # The same partitions without offsets are nobody's business.
    reader = await group.daemon(**fixed, partitions={TOPIC: [1]}, offsets="none")
    await group.until(lambda: any(event["event"] == "partition_started" for event in reader.events()))
    assert await reader.stop() == ExitCode.OK
    with pytest.raises(ChildError, match=f"has no partition {PARTITIONS}"):
        await group.daemon(**fixed, partitions={TOPIC: [PARTITIONS]})
    assert group.daemons[-1].returncode == ExitCode.NOT_FOUND


async def test_a_cluster_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    config: dict[str, dict[str, Any]] = {
        "group": {"id": GROUP, "coordination": "kafka", "topics": {TOPIC: 1}},
        "kafka": {"bootstrap": [f"127.0.0.1:{free_port()}"], "connection_timeout": 1.0},
        "handler": {"name": "null"},
    }
    daemon = DaemonProcess(tmp_path, config)
    with pytest.raises(ChildError, match=r"check kafka\.bootstrap"):
        await daemon.start()
    assert daemon.returncode == ExitCode.BROKER
