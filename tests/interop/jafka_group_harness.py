"""A group on one broker of the 0.7 kind under test: daemons of ours, and members of Jafka."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord
from consumerd.demo.children import Child
from consumerd.demo.ledger import digest
from consumerd.group.assignment import assign
from consumerd.net.connect import connect
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.storage.log.dump import read_segment
from consumerd.wire.registry.subscription import parse_subscription
from consumerd.wire.registry.values import parse_partition_count
from consumerd.wire.v07 import Codec
from tests.interop.zk_group import GROUP, Handed, ZooKeeperGroup
from tests.interop.zk_group_account import COMMIT_INTERVAL, JafkaAccount
from tests.support.awakenings import PausableDaemon

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from tests.interop.conftest import JafkaConsumerFactory

TOPIC = "events"
#: More than ten: 0-10 is sorted before 0-2, by Jafka as by us.
PARTITIONS = 11
#: Those of 0.7.2; Jafka's own pause is 10 s.
JVM_TIMES = {"zk.sessiontimeout.ms": 6000, "zk.synctime.ms": 2000, "rebalance.backoff.ms": 2000}


class MixedGroup(ZooKeeperGroup):
    """On one broker."""

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
        super().__init__(directory, zookeeper, zk, stack, session_timeout)
        self.sent = {TopicPartition(TOPIC, 0, number): [] for number in range(partitions)}
        self._start_jafka = start_jafka
        self._log_directory = log_directory
        self._port = port
        self._jvm = jvm
        #: The place of each message, by its digest.
        self._places: dict[int, tuple[TopicPartition, int]] = {}

    # -- production

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[Callable[[TopicPartition, list[bytes], bool], Awaitable[None]]]:
        async with AsyncExitStack() as stack:
            plain, packing = [
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

            async def send(place: TopicPartition, payloads: list[bytes], packed: bool) -> None:
                await (packing if packed else plain).send(TOPIC, payloads, partition=place.partition)

            yield send

    def _payload(self, place: TopicPartition, position: int) -> bytes:
        made = b"%d:%d " % (place.partition, position) + b"x" * (position % 8)
        self._places[digest(made)] = place, position
        return made

    # -- members

    async def join_ours(self, name: str, **tables: dict[str, Any]) -> PausableDaemon:
        config: dict[str, dict[str, Any]] = {"group": {"topics": {TOPIC: 1}}, "fetch": {"idle_backoff": 0.1}}
        return await self._start_daemon(name, config, tables)

    async def join_jvm(self, name: str, streams: int = 1) -> Child:
        settings = {"fetcher.backoff.ms": 100, "autocommit.interval.ms": int(1000 * COMMIT_INTERVAL), **self._jvm}
        member = await self._start_jafka(self._zookeeper, GROUP, {TOPIC: streams}, consumer_id=name, settings=settings)
        self.jvms[name] = member.child
        return member.child

    # -- ZooKeeper, as another client sees it

    def _formula(self) -> dict[TopicPartition, tuple[str, int]]:
        brokers = self._read(f"/brokers/topics/{TOPIC}")
        return assign(
            {TOPIC: {int(broker): parse_partition_count(text.encode()) for broker, text in brokers.items()}},
            {member: parse_subscription(text) for member, text in self._ids().items()},
        )

    def _parse(self, topic: str, name: str) -> TopicPartition:
        return TopicPartition.parse(topic, name)

    # -- delivered messages

    def _said(self, line: bytes) -> Iterator[Handed]:
        if line.startswith(b"MSG "):
            _, at, _, _, payload = line.split(b" ")
            yield int(at) / 1e9, *self._places[digest(bytes.fromhex(payload.decode()))]

    def _noted(self, record: AuditRecord) -> Iterator[Handed]:
        for _, _, found in record.messages:
            yield record.at, *self._places[found]

    def _check(self, place: TopicPartition, handed: Mapping[str, list[tuple[float, int | None]]]) -> None:
        entries = [
            entry
            for path in sorted((self._log_directory / f"{TOPIC}-{place.partition}").iterdir())
            for entry in read_segment(path, int(path.stem))
        ]
        assert all(entry.valid for entry in entries)
        assert [payload for entry in entries for payload in entry.payloads] == self.sent[place]
        identities = [(entry.offset, index) for entry in entries for index in range(len(entry.payloads))]
        account = JafkaAccount(set(self.jvms), self.killed[place], identities=identities)
        for name, found in handed.items():
            account.add(name, found)
        account.check()
