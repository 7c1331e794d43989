"""What `latency` and `idle` have in common: brokers with a topic, members of a group in processes of their own, a load.

Brokers are Kafka 3.9.1, and for the protocol of 0.7 Jafka, which is the one that Maven has (real brokers of 0.7.2
differ in nothing that takes part here: neither holds a FETCH back until there is something). With `Tree` the daemon or
producer of another checkout is one more subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks import latency_clients
from benchmarks.jvm import jafka_is_there, latency_consumer
from benchmarks.latency_clients import REPORT, message
from benchmarks.race import OURS
from consumerd.base.clock import SystemClock
from consumerd.base.java import find_java
from consumerd.demo.children import Child
from consumerd.demo.processes import clean_environment, format_toml
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.operate.admin.v08.topic_nodes import TopicPlan
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest, encode_message_set
from consumerd.wire.v08 import message_types as m
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.records import encode_record_batch
from tests.support.jafka import JafkaBroker, jafka_jars
from tests.support.kafka import RELEASES, KafkaBroker

if TYPE_CHECKING:
    import argparse

RELEASE = "3.9.1"
V07, V08 = "0.7", "0.8+"
PEERS = ("aiokafka", "confluent-kafka")
JAFKA = "Jafka's consumer"
#: Seconds: for a start, for the first round of probes (each is given longer), for a run beyond its own time.
PATIENCE, PROBE, MORE = 120.0, 0.5, 60.0
#: No error; of partitions that were just created: no such partition, no leader, not the leader.
NOT_YET = {0, 3, 5, 6}
#: At most so many requests a second: higher rates send several messages in each.
REQUESTS = 500
#: The topic of a member, and the number of its run.
Reader: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout with its own `.venv`, as a subject."""

    path: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.path / ".venv" / "bin" / "python")

    @property
    def name(self) -> str:
        """The subject."""
        return f"{OURS} of {self.path.absolute().parent.name}/{self.path.name}"


def add_options(parser: argparse.ArgumentParser, *, rounds: int, seconds: float) -> None:
    """The options of both benchmarks."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"the median of so many counts (default: {rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of one (default: {seconds:g})")
    parser.add_argument(
        "--tree", type=Path, action="append", default=[], metavar="PATH", help="another checkout, as one more subject"
    )
    parser.add_argument("--subjects", type=lambda text: text.split(","), help="only those whose names begin so")


def subjects(options: argparse.Namespace, protocol: str) -> dict[str, str | None]:
    """The names of those that take turns, each with the interpreter of ours, or None for a peer."""
    found: dict[str, str | None] = {OURS: sys.executable}
    for path in options.tree:
        tree = Tree(path.absolute())
        if not Path(tree.python).exists():
            raise SystemExit(f"{path} has no .venv/bin/python: run `make setup` there")
        found[tree.name] = tree.python
    if protocol == V08:
        for name in PEERS:
            if find_spec(name.replace("-", "_")) is None:
                print(f"{name} is left out: it is not installed", file=sys.stderr)
            else:
                found[name] = None
    elif jafka_is_there():
        found[JAFKA] = None
    wanted = options.subjects
    return {name: python for name, python in found.items() if not wanted or name.startswith(tuple(wanted))}


class Stage:
    """A broker with topics, and how messages get there."""

    protocol: str

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self._numbers = count()

    def new_name(self, prefix: str) -> str:
        """One that nothing else has."""
        return f"{prefix}-{next(self._numbers)}"

    async def topic(self, partitions: int) -> str:
        """A new topic."""
        raise NotImplementedError

    async def produce(self, topic: str, messages: Mapping[int, Sequence[bytes]]) -> None:
        """Messages by partition, in one request."""
        raise NotImplementedError

    def config(self, topic: str, group: str) -> dict[str, dict[str, Any]]:
        """Of a daemon that reads a topic."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def member(self, name: str, python: str | None, topic: str, verb: str = "consume") -> AsyncIterator[Member]:
        """The subject `name` as the only member of a new group, from its start to its end."""
        member = Member(self, topic, self.folder / self.new_name("member"))
        member.folder.mkdir()
        group = member.folder.name
        if python is not None:
            # The handler alone, so that the interpreter finds its own checkout's consumerd.
            shutil.copy(latency_clients.__file__, member.folder)
            config = member.folder / "daemon.toml"
            config.write_text(format_toml({**self.config(topic, group), "handler": handler("each")}), "utf-8")
            command = [python, "-P", "-m", "consumerd", "run", "-c", str(config)]
            member.start(command, {"PYTHONPATH": str(member.folder)})
        elif name == JAFKA:
            classes = self.folder / "classes"
            member.child = latency_consumer(member.folder, classes, self.address, group, topic, member.report)
            member.child.start()
        else:
            member.start(client_command(verb, name, self.address, group, topic), {})
        try:
            yield member
        finally:
            await member.child.stop(5)

    async def send(self, name: str, python: str | None, topic: str, messages: int, *acks: str) -> dict[str, Any]:
        """Let the producer of a subject send so many messages, one after the other; what it said of them.

        `acks`: if it is not the default.
        """
        sender = Member(self, topic, self.folder / self.new_name("sender"))
        sender.folder.mkdir()
        client = name if python is None else OURS
        command = client_command("send", client, self.address, topic, str(messages), *acks, python=python)
        sender.start(command, {})
        try:
            status = await sender.child.wait(PATIENCE)
        finally:
            sender.child.end_now()
        found = None if status else await sender.reported(0, PROBE)
        if found is None:
            raise SystemExit(f"{name} failed to send: {sender.child.tail()}")
        return found


def handler(name: str) -> dict[str, str]:
    """The daemon's table for a handler of `latency_clients`."""
    return {"name": f"{latency_clients.__name__.rpartition('.')[2]}:{name}"}


def client_command(*arguments: str, python: str | None = None) -> list[str]:
    """That of `latency_clients` with an interpreter, by default this one."""
    return [python or sys.executable, "-P", latency_clients.__file__, *arguments]


class Member:
    """A consumer in a process of its own, and what it has reported."""

    child: Child

    def __init__(self, stage: Stage, topic: str, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report"
        self._stage = stage
        self._topic = topic
        self._runs = 0

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it."""
        environ = {**clean_environment(), **environ, REPORT: str(self.report)}
        self.child = Child(command, log=self.folder / "log", name=self.folder.name, env=environ)
        self.child.start()

    async def reported(self, run: int, timeout: float) -> dict[str, Any] | None:
        """What it said about a run; None if that takes too long. Raises SystemExit if it has ended."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(FileNotFoundError):
                for line in self.report.read_text("ascii").splitlines():
                    found: dict[str, Any] = json.loads(line)
                    if found["run"] == run:
                        return found
            if self.child.returncode is not None:
                raise SystemExit(f"{self.child.argv} ended: {self.child.tail()}")
            if time.monotonic() > end:
                return None
            await asyncio.sleep(0.02)

    async def ready(self, partitions: int) -> None:
        """Return when a message to each partition has arrived in time, twice."""
        end, arrived, patience = time.monotonic() + PATIENCE, 0, PROBE
        while arrived < 2:
            self._runs = self._runs % 200 + 1
            now = time.monotonic_ns()
            probes = {number: [message(self._runs, partitions, now)] for number in range(partitions)}
            await self._stage.produce(self._topic, probes)
            arrived = 0 if await self.reported(self._runs, patience) is None else arrived + 1
            patience = min(1.3 * patience, 10.0)
            if time.monotonic() > end:
                raise SystemExit(f"{self.child.argv} reads nothing: {self.child.tail()}")

    def begin(self) -> Reader:
        """Begin a run; return its topic and number."""
        self._runs = self._runs % 200 + 1
        return self._topic, self._runs

    async def found(self, total: int) -> dict[str, Any]:
        """What it said of the run of so many messages that was begun last. Raises SystemExit."""
        found = await self.reported(self._runs, MORE)
        if found is None:
            raise SystemExit(f"{self.child.argv} has not got all of {total} messages: {self.child.tail()}")
        return found


async def run(
    stage: Stage, members: Sequence[Member], partitions: int, rate: float, seconds: float
) -> list[dict[str, Any]]:
    """So many messages a second for all members together, spread over partitions at random times; what each said."""
    total = max(int(rate * seconds), LEAST)
    began = time.monotonic()
    await load(stage, [member.begin() for member in members], partitions, rate, total)
    lasted, messages = time.monotonic() - began, total * len(members)
    if lasted > 1.2 * messages / rate + 1:
        print(f"{rate:g} messages a second were {messages / lasted:.0f}: the machine is busy", file=sys.stderr)
    return [await member.found(total) for member in members]


#: Messages of a run at least, so that its quantiles mean something.
LEAST = 50


async def load(stage: Stage, readers: Sequence[Reader], partitions: int, rate: float, total: int) -> None:
    """Send `total` messages to each reader at random times, in random order; the same ones for everybody."""
    rng, order = random.Random(total), random.Random(total)
    mean = max(1.0, rate / REQUESTS)
    due = time.monotonic()
    left = [total] * len(readers)
    async with asyncio.TaskGroup() as group:
        while any(left):
            due += rng.expovariate(rate / mean)
            if (rest := due - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            (reader,) = order.choices(range(len(readers)), left)
            topic, number = readers[reader]
            together: dict[int, list[bytes]] = {}
            now = time.monotonic_ns()
            for _ in range(min(round(mean), left[reader])):
                together.setdefault(rng.randrange(partitions), []).append(message(number, total, now))
                left[reader] -= 1
            group.create_task(stage.produce(topic, together))


class KafkaStage(Stage):
    """A broker of 3.9.1."""

    protocol = V08

    def __init__(self, folder: Path, broker: KafkaBroker, client: ClusterClient) -> None:
        super().__init__(folder, broker.address)
        self._broker = broker
        self._client = client

    async def topic(self, partitions: int) -> str:
        name = self.new_name("topic")
        await TopicsByRequests(self._client).create(TopicPlan(name, partitions, 1), timeout=60)

        async def led() -> None:
            await self._client.refresh([name])
            for number in range(partitions):
                await self._client.leader(name, number)

        await self._client.retrying("create a topic", led)
        return name

    async def produce(self, topic: str, messages: Mapping[int, Sequence[bytes]]) -> None:
        channel = await self._client.node_channel(self._broker.broker_id)
        version = channel.versions.pick(PRODUCE, at_most=9)
        now = int(time.time() * 1000)
        parts: list[m.ProduceRequestPartitionData] = [
            {"index": number, "records": encode_record_batch(values, timestamps=now)}
            for number, values in messages.items()
        ]
        end = time.monotonic() + PATIENCE
        while parts:
            body: m.ProduceRequest = {
                "transactional_id": None,
                "acks": 1,
                "timeout_ms": 30_000,
                "topic_data": [{"name": topic, "partition_data": parts}],
            }
            answer = await channel.call(PRODUCE, body, version=version)
            codes = {
                part["index"]: part["error_code"]
                for each in answer["responses"]
                for part in each["partition_responses"]
            }
            parts = [part for part in parts if codes[part["index"]]]
            if not set(codes.values()) <= NOT_YET or time.monotonic() > end:
                raise SystemExit(f"the broker refuses what is written, with errors {sorted(set(codes.values()))}")
            if parts:
                await asyncio.sleep(0.1)

    def config(self, topic: str, group: str) -> dict[str, dict[str, Any]]:
        return {
            "group": {"id": group, "coordination": "kafka", "topics": {topic: 1}},
            "kafka": {"bootstrap": [self.address]},
            "fetch": {"initial": "latest"},
        }


class JafkaStage(Stage):
    """A broker of Jafka with its ZooKeeper: all its topics have as many partitions."""

    protocol = V07

    def __init__(self, folder: Path, zookeeper: str, writer: asyncio.StreamWriter) -> None:
        super().__init__(folder, zookeeper)
        self._writer = writer

    async def topic(self, partitions: int) -> str:
        del partitions
        name = self.new_name("topic")
        await self.produce(name, {0: [message(0, 0, 0)]})  # what creates it
        return name

    async def produce(self, topic: str, messages: Mapping[int, Sequence[bytes]]) -> None:
        requests = [ProduceRequest(topic, number, encode_message_set(values)) for number, values in messages.items()]
        for first in range(0, len(requests), 500):
            part = tuple(requests[first : first + 500])
            self._writer.write((part[0] if len(part) == 1 else MultiProduceRequest(part)).encode())
        await self._writer.drain()

    def config(self, topic: str, group: str) -> dict[str, dict[str, Any]]:
        return {
            "group": {"id": group, "topics": {topic: 1}},
            "zookeeper": {"connect": self.address},
            "fetch": {"initial": "latest"},
        }


@contextlib.asynccontextmanager
async def kafka_stage() -> AsyncIterator[KafkaStage]:
    """Start the broker."""
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as name:
        folder, settings, clock = Path(name), ClientSettings(), SystemClock()
        config = {"log.segment.bytes": 64 << 20, "file.delete.delay.ms": 0}
        broker = KafkaBroker(
            folder / "broker", RELEASES[RELEASE], None, java=find_java(), config=config,
            jvm=["-Xms512m", "-Xmx512m", "-Xmn256m", "-XX:TieredStopAtLevel=4"],
        )  # fmt: skip
        await broker.start()
        try:
            opener = ChannelOpener(functools.partial(connect, settings=settings.connection), settings, clock)
            host, _, port = broker.address.rpartition(":")
            async with ClusterClient([(host, int(port))], opener, settings, clock=clock, rng=random.Random()) as client:
                yield KafkaStage(folder, broker, client)
        finally:
            broker.kill()


@contextlib.asynccontextmanager
async def jafka_stage(partitions: int) -> AsyncIterator[JafkaStage]:
    """Start ZooKeeper and the broker, whose topics have so many partitions.

    Brokers of 0.7 serve what is flushed: its logs are in memory, where Linux has that, so that no disk is measured.
    """
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="consumerd-bench-") as name,
        tempfile.TemporaryDirectory(prefix="consumerd-bench-", dir=memory) as logs,
    ):
        folder = Path(name)
        async with ZooKeeperServer(folder / "zookeeper") as zookeeper:
            broker = JafkaBroker(
                folder / "broker", zookeeper.connect, java=find_java(), jars=jafka_jars(), partitions=partitions,
                config={"log.dir": logs},
            )  # fmt: skip
            await broker.start()
            writer = None
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                yield JafkaStage(folder, zookeeper.connect, writer)
            finally:
                if writer is not None:
                    writer.close()
                broker.kill()
