"""Real brokers of Kafka 0.8 and later: with groups in ZooKeeper, or with groups that the broker coordinates.

Strategy: brokers listen on 127.0.0.2 and advertise 127.0.0.1, where their proxies listen on the same ports: members,
the producer and the brokers themselves come through those. The watch and the account have a client whose connections go
past the proxies. A JVM that is killed leaves what it confirmed in the page cache, so all that was confirmed must be in
the log, with one replica as with three.

Where the broker coordinates the group, each member has listeners of its own on every broker (0.10.2 and later), because
brokers advertise one address for each listener. Its bytes pass two proxies, one that is the member's link and one that
belongs to the broker's, so that a fault of the one never ends a fault of the other:

    member ── 127.0.0.1:p (Member.links) ── gate ── 127.0.0.1:q (Stage.broker_links) ── 127.0.0.2:p, listener MEMBERn

The gate between them speaks TLS and wants a password (`tests.support.secure_gate`): to members the broker does.

The producer stays open for the whole run, unlike that of 0.7: a failed batch must not spoil the ones that follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.java import find_java
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import LOOPBACK, free_ports
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.factory import make_client
from consumerd.net.client.fetching import fetch_partitions
from consumerd.net.connect import Connection, connect
from consumerd.net.connection import ConnectionSettings
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.testing.fault_proxy import FaultProxy
from consumerd.wire.v08.fetch_session import PartitionFetch
from consumerd.wire.v08.records import BatchEnd, RecordCodec, decode_records
from tests.kill.mirrors import TOPIC
from tests.support.errors import KafkaStartError
from tests.support.kafka import SHORT_SESSION, KafkaBroker, KafkaRelease, kafka_jars
from tests.support.kafka_cluster import KafkaCluster
from tests.support.secure_gate import Lock, SecureGate
from tests.torture.groups import BrokerGroup, ZooKeeperGroup
from tests.torture.stage import (
    BROKER_HOST,
    CHROOT,
    GROUP,
    PATIENCE,
    PRODUCER_BACKOFF,
    PRODUCER_PAUSE,
    SESSION_TIMEOUT,
    BrokerServer,
    Companion,
    Link,
    LinkBundle,
    Log,
    Member,
    Stage,
    lines_of,
)

#: The exit status of a JVM that has ended in order after SIGTERM.
_JVM_TERMINATED: Final = 128 + 15
#: Attempts to start a broker: one whose ZooKeeper is unavailable at that moment ends.
_STARTS: Final = 3
#: Seconds after which a request of the producer has failed, and a batch for good.
_REQUEST_SECONDS: Final = 2.0
_DELIVERY_SECONDS: Final = 6.0
_CODECS: Final = (RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY)
#: Bytes of one fetch when the log is read.
_FETCH_BYTES: Final = 4 << 20
_CLOCK: Final = SystemClock()
#: Of the members' heartbeats where the broker coordinates, and how long a rebalance waits for a member, in seconds.
HEARTBEAT_INTERVAL: Final = 0.5
REBALANCE_TIMEOUT: Final = 15.0
#: The first release whose brokers recognise a repeated batch.
_IDEMPOTENT_SINCE: Final = (0, 11)
#: The first release whose listeners may have any names.
_LISTENERS_SINCE: Final = (0, 10, 2)
_SETTINGS: Final[Mapping[str, str | int]] = {
    **SHORT_SESSION,
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 30_000,
    "log.segment.bytes": 1 << 20,  # so that logs roll within a run
}


class ProxiedKafkaBroker(KafkaBroker):
    """A broker on 127.0.0.2 that advertises 127.0.0.1 with the same ports; one more listener for each of `slots`."""

    def __init__(self, *arguments: Any, slots: int, **options: Any) -> None:
        super().__init__(*arguments, host=BROKER_HOST, **options)
        self.slot_ports = free_ports(slots)

    def _settings(self) -> dict[str, str | int]:
        settings = super()._settings()
        if not self.slot_ports:
            return settings
        ports = {f"MEMBER{number}": port for number, port in enumerate(self.slot_ports)}
        for key, host in (("listeners", BROKER_HOST), ("advertised.listeners", LOOPBACK)):
            settings[key] = ",".join([str(settings[key]), *(f"{name}://{host}:{port}" for name, port in ports.items())])
        names = ["PLAINTEXT", "CONTROLLER", *ports]
        return settings | {"listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names)}

    @property
    def pid(self) -> int:
        """The pid of the present (or last) process."""
        return self.child.pid

    @property
    def returncode(self) -> int | None:
        """The exit status of the last process; None while it runs."""
        return self.child.returncode

    async def start(self, timeout: float = PATIENCE) -> None:
        """Start and wait until it answers; a broker that was killed waits for the end of its former session."""
        for attempt in range(_STARTS):
            if not self.running and self.zookeeper is not None:
                await self._until_forgotten(self.zookeeper, timeout)
            try:
                await super().start(timeout)
            except KafkaStartError:
                if attempt == _STARTS - 1:
                    raise
            else:
                return

    async def _until_forgotten(self, zookeeper: str, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            while True:
                with contextlib.suppress(ConsumerdError):  # ZooKeeper may suffer, too
                    if not await self._is_registered(zookeeper):
                        return
                await asyncio.sleep(0.1)

    async def stop(self, grace: float | None = None) -> int | None:
        """As of every server, with 0 for the orderly end of a JVM."""
        status = await super().stop(grace)
        return 0 if status == _JVM_TERMINATED else status


class KafkaStage(Stage):
    """Real brokers of `release`, `count` of them. Subclasses say who coordinates.

    `slots`: how many members may have links of their own to the brokers at a time.
    """

    brokers_may_end = True
    #: Where the group is coordinated, for the title.
    coordinator: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        release: KafkaRelease,
        *,
        partitions: int,
        servers: int,
        disk: Path,
        count: int = 1,
        slots: int = 0,
    ) -> None:
        names = [TopicPartition.numbered(TOPIC, number) for number in range(partitions)]
        super().__init__(directory, names, disk, servers=servers)
        several = f"{count} brokers of " if count > 1 else ""
        self.title = f"{several}Kafka {release.version}, coordination {self.coordinator}"
        self.release = release
        self.stores_once = release.number >= _IDEMPOTENT_SINCE
        self._count = count
        self._slots = slots
        #: The links of each slot to all brokers, in their order.
        self._slot_links: list[list[FaultProxy]] = [[] for _ in range(slots)]
        if slots:
            self.lock = Lock(directory)

    # -- life

    async def _start(self, stack: AsyncExitStack) -> None:
        java = await asyncio.to_thread(find_java, minimum=25 if self.release.number >= (4, 1) else 17)
        jars = await asyncio.to_thread(kafka_jars, self.release)
        zookeeper = None
        if self.ensemble is not None:
            self._session = await self._open_session(stack)
            await self._session.ensure("/")
            zookeeper = f"{self.ensemble.connect}{CHROOT}"
        self._cluster = KafkaCluster(
            self.directory, self.release, zookeeper, java=java, jars=jars, count=self._count,
            partitions=len(self.partitions), config=_SETTINGS, make=partial(ProxiedKafkaBroker, slots=self._slots),
        )  # fmt: skip
        for broker in self._cluster.brokers.values():
            assert isinstance(broker, ProxiedKafkaBroker)
            self.brokers.append(broker)
            self.broker_links.append(await self._link(broker, stack))
        stack.callback(self._cluster.kill)
        await self._cluster.start(PATIENCE)
        settings = ConnectionSettings(connect_timeout=1.0, socket_timeout=_REQUEST_SECONDS)
        addresses = [(BROKER_HOST, port) for _, port in self._bootstrap]
        self._direct = await stack.enter_async_context(
            _client(addresses, settings, "watch", partial(_past_the_proxy, settings))
        )
        self.group = self._group()

    async def _link(self, broker: ProxiedKafkaBroker, stack: AsyncExitStack) -> LinkBundle:
        """Start the proxies of a broker and those of the slots to it."""
        own = [FaultProxy(BROKER_HOST, broker.port, port=broker.port)]
        for port, links in zip(broker.slot_ports, self._slot_links, strict=True):
            own.append(FaultProxy(BROKER_HOST, port))
            assert self.lock is not None
            gate = await stack.enter_async_context(SecureGate(self.lock, LOOPBACK, own[-1].port))
            self.gates.append(gate)
            links.append(await stack.enter_async_context(FaultProxy(LOOPBACK, gate.port, port=port)))
        for proxy in own:
            await stack.enter_async_context(proxy)
        return LinkBundle(own)

    @property
    def _bootstrap(self) -> list[tuple[str, int]]:
        return [(LOOPBACK, broker.port) for broker in self._cluster.brokers.values()]

    async def leading_broker(self, number: int) -> BrokerServer | None:
        try:
            node_id = await self._leader_of(number)
        except ConsumerdError:
            return None
        return self.brokers[list(self._cluster.brokers).index(node_id)]

    async def _leader_of(self, number: int) -> int:
        self._direct.stale([TOPIC])
        return (await self._direct.leader(TOPIC, number % len(self.partitions))).id

    @abstractmethod
    def _group(self) -> ZooKeeperGroup | BrokerGroup:
        """The group, of a stage whose servers run."""

    # -- messages

    async def produce(self, stop: asyncio.Event) -> None:
        settings = ConnectionSettings(connect_timeout=1.0, socket_timeout=_REQUEST_SECONDS)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(_client(self._bootstrap, settings, "producer"))
            producers = [
                V08Producer(
                    client,
                    V08ProducerSettings(
                        codec=codec, request_timeout=_REQUEST_SECONDS, delivery_timeout=_DELIVERY_SECONDS, linger=0.0
                    ),
                    clock=_CLOCK,
                    rng=random.Random(),
                )
                for codec in _CODECS
            ]
            for producer in producers:
                await stack.enter_async_context(producer)
            number = 0
            while not stop.is_set():
                try:
                    await self._send(producers, number)
                except ConsumerdError:
                    self.producer_errors += 1
                    await asyncio.sleep(PRODUCER_BACKOFF)
                number += 1
                await asyncio.sleep(PRODUCER_PAUSE)

    async def _send(self, producers: Sequence[V08Producer], number: int) -> None:
        """Send one batch; what the broker confirmed is noted message by message. Raises ConsumerdError."""
        turn, place = divmod(number, len(self.partitions))
        # Each partition gets every codec, whatever the number of partitions.
        producer = producers[(turn + place) % len(producers)]
        deliveries = []
        for line in lines_of(number):
            delivery = await producer.send(TOPIC, line, partition=self.partitions[place].partition)
            self.sent.add(line)
            deliveries.append((line, delivery))
        for line, delivery in deliveries:
            await delivery
            self.acknowledged.add(line)

    async def read_log(self) -> Log:
        return {partition: await self._read_partition(partition) for partition in self.partitions}

    async def _read_partition(self, partition: TopicPartition) -> list[tuple[int, list[bytes]]]:
        found: list[tuple[int, list[bytes]]] = []
        place = (partition.topic, partition.partition)
        offset = 0
        while True:

            async def fetch(offset: int = offset) -> bytes:
                leader = await self._direct.leader(*place)
                channel = await self._direct.node_channel(leader.id)
                request = PartitionFetch(*place, offset, _FETCH_BYTES)
                answer = (await fetch_partitions(channel, [request], max_bytes=_FETCH_BYTES)).partitions[place]
                if error := error_of(answer.error, f"{partition} cannot be read from {offset}"):
                    self._direct.stale([partition.topic])
                    raise error
                return bytes(answer.data)

            records = decode_records(await self._direct.retrying(f"read {partition}", fetch), offset)
            if records.end is BatchEnd.CORRUPT:
                raise AssertionError(f"{partition} is corrupt at {records.next_offset}: {records.problem}")
            offsets = records.offsets
            found += [(each, [value or b""]) for each, value in zip(offsets, records.payloads, strict=True)]
            if records.next_offset == offset:
                return found
            offset = records.next_offset


class ZooKeeperKafkaStage(KafkaStage):
    """Members coordinate themselves in ZooKeeper, in the dialect of 0.8, and commit there."""

    coordinator = "in ZooKeeper"

    def _group(self) -> ZooKeeperGroup:
        return ZooKeeperGroup(self._session, self.partitions)

    async def _new_member(self, name: str, pause: float) -> Member:
        return await self._zookeeper_member(name, pause)

    def member_config(self, name: str, connect: str, pause: float) -> dict[str, Any]:
        return {
            "group": {"id": GROUP, "topics": {TOPIC: 1}, "coordination": "zookeeper", "dialect": "0.8"},
            "zookeeper": {"connect": connect, "session_timeout": SESSION_TIMEOUT},
            **self._common_config(name, pause),
        }


class CoordinatedStage(KafkaStage):
    """The broker coordinates the group and keeps its offsets; members do not know ZooKeeper."""

    coordinator = "by the broker"

    def __init__(self, directory: Path, release: KafkaRelease, *, members: int, **options: Any) -> None:
        # One that stops may still run when the next one joins.
        slots = 2 * members if release.number >= _LISTENERS_SINCE else 0
        super().__init__(directory, release, slots=slots, **options)
        self._in_slots: dict[int, Member] = {}

    @property
    def zookeeper_faults(self) -> int:
        """None, although brokers before 4.0 may have a ZooKeeper."""
        return 0

    @property
    def member_links(self) -> bool:
        """Only where brokers have listeners with names of our choice."""
        return self._slots > 0

    async def _leader_of(self, number: int) -> int:
        if number % (len(self.partitions) + 1) == len(self.partitions):
            return await self._coordinator()
        return await super()._leader_of(number)

    async def coordinator_links(self, member: Member) -> list[Link]:
        """The link to the coordinator alone: the member still gets messages from the other brokers of a cluster."""
        try:
            node_id = await self._coordinator()
        except ConsumerdError:
            return member.links
        return [member.links[list(self._cluster.brokers).index(node_id)]]

    async def _coordinator(self) -> int:
        self._direct.forget_coordinator(GROUP)
        return await self._direct.coordinator(GROUP)

    def _group(self) -> BrokerGroup:
        return BrokerGroup(self._direct, self.partitions)

    async def _new_member(self, name: str, pause: float) -> Member:
        if not self.member_links:
            connect = ",".join(f"{host}:{port}" for host, port in self._bootstrap)
            return self._with_companions(name, connect, pause, [])
        slot = self._free_slot()
        links = self._slot_links[slot]
        connect = ",".join(link.connect for link in links)
        self._in_slots[slot] = member = self._with_companions(name, connect, pause, links)
        return member

    def _with_companions(self, name: str, connect: str, pause: float, links: Sequence[FaultProxy]) -> Member:
        """The member, with a daemon for each sink on the same links: a broker's groups are one to a daemon."""
        config = self.member_config(name, connect, pause)
        member = Member(self.directory, config, name, links)
        for group, handler in {} if self.sinks is None else self.sinks.handlers.items():
            table = {**config["group"], "id": group}
            kafka = {**config["kafka"], "client_id": f"{name}-{group}"}
            tables = {**config, "group": table, "kafka": kafka, "handler": handler}
            member.companions.append(Companion(self.directory, tables, name=f"{name}-{group}"))
        return member

    def _free_slot(self) -> int:
        for slot in range(self._slots):
            last = self._in_slots.get(slot)
            if last is None or (last.ended_at is not None and not last.running):
                return slot
        raise AssertionError(f"more than {self._slots} members at a time")

    def member_config(self, name: str, connect: str, pause: float) -> dict[str, Any]:
        return {
            "group": {
                "id": GROUP,
                "topics": {TOPIC: 1},
                "coordination": "kafka",
                "session_timeout": SESSION_TIMEOUT,
                "heartbeat_interval": HEARTBEAT_INTERVAL,
                "rebalance_timeout": REBALANCE_TIMEOUT,
            },
            "kafka": {
                "bootstrap": connect.split(","),
                "client_id": name,
                **({} if self.lock is None else self.lock.client_tables()),
            },
            **self._common_config(name, pause),
        }


def _client(
    bootstrap: Sequence[tuple[str, int]], settings: ConnectionSettings, name: str, connector: Any = None
) -> ClusterClient:
    return make_client(
        bootstrap, settings, client_id=name, tls=None, sasl=None, clock=_CLOCK, rng=random.Random(), connector=connector
    )


async def _past_the_proxy(settings: ConnectionSettings, host: str, port: int) -> Connection:
    """Connect to the broker itself, whatever host metadata name."""
    del host
    return await connect(BROKER_HOST, port, settings=settings)
