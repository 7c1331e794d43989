"""A group under test: brokers, members of ours and of other projects, and the account of delivered messages.

Strategy: members are whole processes that record each delivery; records are merged in the order of time and read once.
Invariants: every message of the log was delivered; within one ownership in order and without a gap; an owner begins at
or before the end of its predecessors; and a member of ours delivers messages only as the latest owner, except for the
one batch that it may have been delivering when it was stopped (`tests.support.awakenings.Caught`).
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord, merge_records
from consumerd.demo.children import Child
from consumerd.demo.ledger import digest
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest
from consumerd.wire.v08.records import encode_message_set, encode_record_batch
from tests.support.awakenings import Caught, PausableDaemon
from tests.support.jafka import java_command
from tests.support.jafka_clients import compile_java
from tests.support.kafka import KafkaBroker, KafkaRelease, kafka_jars
from tests.support.topics import create_and_lead

TOPIC, GROUP, PARTITIONS = "events", "group", 6
SESSION_TIMEOUT = 6.0
#: For members that are expected to leave: a slow machine must not end the session first.
LONG_SESSION = 30.0
#: Seconds for whatever has to come, on a machine that has other work.
PATIENCE = 120.0
_OF_JAVA = {"range": "RangeAssignor", "roundrobin": "RoundRobinAssignor"}


def said_by_java(child: Child) -> Iterator[AuditRecord]:
    """The lines of `KafkaMember` as records; nothing of a member of another kind, which writes a file."""
    for line in child.output().splitlines():
        kind, *fields = line.split(" ")
        if kind not in ("CLAIM", "MSG"):
            continue
        place = TopicPartition.numbered(TOPIC, int(fields[1]))
        messages = [(int(fields[2]), 0, digest(fields[3].encode("latin-1")))] if kind == "MSG" else []
        yield AuditRecord(int(fields[0]) / 1e9, child.name, 0, place, kind == "CLAIM", messages)


class Group:
    """Brokers, a client of theirs, a topic; members that record the messages that they get."""

    def __init__(
        self, brokers: Mapping[int, KafkaBroker], client: ClusterClient, directory: Path, java: JavaRuntime
    ) -> None:
        self.java = java
        self.brokers = brokers
        self.client = client
        self.directory = directory
        self.records = directory / "records"
        self.records.mkdir()
        self.sent: defaultdict[int, list[bytes]] = defaultdict(list)
        self.daemons: list[PausableDaemon] = []
        self.foreign: list[Child] = []
        #: Held while a batch is being sent; a test that holds it pauses the producer.
        self.sending = asyncio.Lock()
        self._enough = asyncio.Event()
        self._producer: asyncio.Task[None] | None = None

    @property
    def bootstrap(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    @property
    def release(self) -> KafkaRelease:
        return next(iter(self.brokers.values())).release

    # -- input

    async def create(self, topic: str = TOPIC) -> None:
        await create_and_lead(self.client, topic, PARTITIONS)

    async def close(self) -> None:
        """End all that runs, also after a test that was skipped or failed on the way."""
        for daemon in self.daemons:
            daemon.kill()
        for child in self.foreign:
            child.end_now()
        if self._producer is not None:
            self._producer.cancel()
            await asyncio.gather(self._producer, return_exceptions=True)

    def begin_producing(self) -> None:
        """Send small batches round the partitions until `end_producing`."""
        self._producer = asyncio.create_task(self._produce_on())

    async def end_producing(self) -> None:
        """Return when the last batch was sent. Raises what ended it before."""
        assert self._producer is not None
        self._enough.set()
        await self._producer

    async def _produce_on(self) -> None:
        number = 0
        while not self._enough.is_set():
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
        leader = await self.client.leader(TOPIC, partition)
        channel = await self.client.node_channel(leader.id)
        version = channel.versions.pick(PRODUCE, at_most=9)
        now = int(time.time() * 1000)  # what is old is deleted: retention goes by it
        data = (
            encode_record_batch(payloads, timestamps=now)
            if version >= 3
            else encode_message_set(payloads, magic=int(version >= 2), timestamps=now if version >= 2 else -1)
        )
        body: ProduceRequest = {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": TOPIC, "partition_data": [{"index": partition, "records": data}]}],
        }
        answer = await channel.call(PRODUCE, body, version=version)
        error = error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce")
        if error is not None and not error.retriable:
            raise error
        return error is None

    # -- members

    async def daemon(
        self, *, pause: float = 0.01, fetch: Any = None, zookeeper: str | None = None, **group: Any
    ) -> PausableDaemon:
        """A member of ours. `pause`: seconds of its handler for a batch; `fetch`, `group`: keys of these tables.

        `zookeeper`: where the group is coordinated, if not by a broker.
        """
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
            "fetch": dict(fetch or {}),
            "kafka": {"bootstrap": self.bootstrap},
            "rebalance": {"reconcile_interval": 2.0},
            "commit": {"interval": 0.5},
            "health": {"listen": "127.0.0.1:0", "metrics": True},
            "metrics": {"lag_interval": 0.5},
            "handler": {
                "name": "consumerd.demo.recorder:RecordHandler",
                "options": {"directory": str(self.records), "pause": pause},
            },
        }
        if zookeeper is not None:
            config["group"] = {"id": GROUP, "topics": {TOPIC: 1}, **group}
            config |= {"kafka": {}, "zookeeper": {"connect": zookeeper}}
        config["group"] = {key: value for key, value in config["group"].items() if value is not None}
        daemon = PausableDaemon(self.directory, config, name=f"member-{len(self.daemons)}")
        self.daemons.append(daemon)
        await daemon.start(60.0)
        return daemon

    async def stranger(self, kind: str, assignor: str = "range") -> Child:
        """A member of another project, when it has been given its share."""
        if kind == "java":
            return await self.java_member(assignor)
        number = len(self.foreign)
        script = Path(__file__).with_name("clients") / "group_member.py"
        child = Child(
            [sys.executable, "-W", "ignore", str(script), kind, ",".join(self.bootstrap), GROUP, TOPIC, assignor,
             str(self.records / f"foreign-{number}.ndjson")],
            log=self.directory / f"foreign-{number}.log",
            name=f"{kind}-{number}",
        )  # fmt: skip
        self.foreign.append(child)
        child.start()
        await child.wait_for_line(lambda line: line.startswith("assigned"), 60.0)
        return child

    async def java_member(
        self, assignor: str, group: str = GROUP, *, topics: str = TOPIC, isolation: str = "read_uncommitted"
    ) -> Child:
        """Kafka's own client, of the broker's version. `assignor`: "consumer" for the consumer protocol.

        `topics`: names with commas between.
        """
        jars = kafka_jars(self.release)
        classes = self.directory / "classes"
        classes.mkdir(exist_ok=True)
        source = Path(__file__).with_name("java") / "KafkaMember.java"
        await asyncio.to_thread(compile_java, self.java, [source], jars, classes)
        number = len(self.foreign)
        settings = ["max.poll.records=50", f"isolation.level={isolation}"]
        if assignor == "consumer":
            settings.append("group.protocol=consumer")
        else:
            settings += [
                f"session.timeout.ms={int(SESSION_TIMEOUT * 1000)}",
                "heartbeat.interval.ms=500",
                f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{_OF_JAVA[assignor]}",
            ]
        command = java_command(
            self.java,
            [classes, *jars],
            self.directory,
            "KafkaMember",
            ",".join(self.bootstrap),
            group,
            topics,
            *settings,
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
            await child.wait_for_line("DONE".__eq__, 120.0)
            await child.wait(60.0)
        else:
            await child.stop(60.0)

    # -- what happened

    def all_records(self) -> Iterator[AuditRecord]:
        """The assignments and messages that all members got, sorted by time."""
        ours = merge_records(sorted(self.records.glob("*.ndjson")))
        return heapq.merge(ours, *map(said_by_java, self.foreign), key=attrgetter("at"))

    def share(self, daemon: PausableDaemon) -> list[str]:
        """The partitions that a daemon was assigned last."""
        told = [event["partitions"] for event in daemon.events() if event["event"] == "rebalanced"]
        return sorted(told[-1]) if told else []

    async def until(self, condition: Callable[[], bool], limit: float = PATIENCE) -> float:
        """Processes are watched from outside: their logs and records are polled."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > limit:
                told = "\n".join(f"{each.name}: {self.share(each)}" for each in self.daemons)
                pytest.fail(f"not within {limit} s: {self.handed()}\n{told}\nlogs in {self.directory}")
            await asyncio.sleep(0.1)
        return time.monotonic() - start

    def fair(self, *daemons: PausableDaemon, others: int = 0) -> bool:
        """The daemons have all partitions but `others`, in shares that differ by one at most."""
        shares = [self.share(daemon) for daemon in daemons]
        held = [partition for share in shares for partition in share]
        sizes = [len(share) for share in shares]
        return len(held) == len(set(held)) == PARTITIONS - others and max(sizes) - min(sizes) <= 1

    def handed(self) -> dict[int, int]:
        """The number of different messages of each partition that were delivered."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for record in self.all_records():
            found[record.partition.partition].update(offset for offset, _, _ in record.messages)
        return {number: len(offsets) for number, offsets in found.items() if offsets}

    async def account(self, limit: float = PATIENCE, *, late: bool = False) -> int:
        """All messages were delivered, in order, by the owners. Returns the number of repetitions.

        `late`: members of other projects may continue for a while after a partition was assigned to another member;
        most have no lease. Of ours, only a batch that a stop caught on its way into the handler may be late.
        """
        total = {number: len(payloads) for number, payloads in self.sent.items()}
        await self.until(lambda: self.handed() == total, limit)
        owner: dict[int, str] = {}
        last: dict[int, int] = {}
        seen: defaultdict[int, set[int]] = defaultdict(set)
        again = 0
        caught = Caught(each for daemon in self.daemons for each in daemon.awakenings)
        for record in self.all_records():
            number = record.partition.partition
            excused = caught.excuses(record) or (late and not self._is_ours(record.member))
            if record.claim:
                owner[number] = record.member
                last[number] = -1
                continue
            if owner[number] != record.member and excused:
                seen[number].update(offset for offset, _, _ in record.messages)
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

    @staticmethod
    def _is_ours(member: str) -> bool:
        return not member.startswith(("foreign", "java"))
