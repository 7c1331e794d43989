"""A cluster of real Kafka brokers on loopback: for tests of what happens when one of them dies.

Strategy: brokers are started together, because a quorum of controllers needs most of its voters, and the cluster is
ready when each broker names all of them. KRaft servers are broker and controller in one and all vote. Everything is
replicated everywhere and most must have it (`min.insync.replicas`), so any one broker can be lost; timeouts that
detect a dead broker are shorter than in real clusters.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.java import JavaRuntime
from consumerd.demo.ports import LOOPBACK, free_ports
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from tests.support.errors import KafkaStartError
from tests.support.kafka import KafkaBroker, KafkaRelease, kafka_jars
from tests.support.kafka_storage import new_kraft_id

#: Of all releases; a broker ignores keys that it does not know.
_REPLICATION: Final[Mapping[str, str | int]] = {
    "unclean.leader.election.enable": "false",  # the default before 0.11 loses messages
    "controlled.shutdown.enable": "true",
    "auto.leader.rebalance.enable": "false",  # leaders stay where a test has them
    "zookeeper.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 10_000,
    "broker.session.timeout.ms": 4000,
    "broker.heartbeat.interval.ms": 500,
}
_POLL_SECONDS: Final = 0.1
_CLOCK: Final = SystemClock()


class KafkaCluster:
    """`count` brokers of one release, with ids from 1 on, in folders of `directory`. `async with` starts and stops it.

    `zookeeper`: a connect string whose chroot exists, None for KRaft. `config`: more keys for each server.properties.
    `make`: a subclass of `KafkaBroker`, or what makes one from its arguments.
    """

    def __init__(
        self,
        directory: Path,
        release: KafkaRelease,
        zookeeper: str | None,
        *,
        java: JavaRuntime,
        jars: Sequence[Path] | None = None,
        count: int = 3,
        partitions: int = 6,
        config: Mapping[str, str | int] | None = None,
        make: Callable[..., KafkaBroker] = KafkaBroker,
    ) -> None:
        ids = range(1, count + 1)
        ports = free_ports(2 * count)
        replicas = {
            "default.replication.factor": count,
            "offsets.topic.replication.factor": count,
            "transaction.state.log.replication.factor": count,
            "min.insync.replicas": count // 2 + 1,
        }
        cluster_id = new_kraft_id()
        jars = kafka_jars(release) if jars is None else jars
        self.brokers = {
            id_: make(
                directory / f"broker-{id_}",
                release,
                zookeeper,
                java=java,
                jars=jars,
                broker_id=id_,
                partitions=partitions,
                port=ports[id_ - 1],
                config={**_REPLICATION, **replicas, **(config or {})},
                voters=dict(zip(ids, ports[count:], strict=True)),
                cluster_id=cluster_id,
            )
            for id_ in ids
        }

    @property
    def bootstrap(self) -> list[str]:
        """`host:port` of every broker."""
        return [broker.address for broker in self.brokers.values()]

    async def start(self, timeout: float = 90.0) -> None:
        """Start all that do not run; returns when each names all. Raises KafkaStartError."""
        await asyncio.gather(*(asyncio.to_thread(broker.prepare) for broker in self.brokers.values()))
        await asyncio.gather(*(broker.start(timeout) for broker in self.brokers.values()))
        await self.wait_until_whole(timeout)

    async def wait_until_whole(self, timeout: float = 60.0) -> None:
        """Return when each broker names all of them. Raises KafkaStartError."""
        if len(self.brokers) == 1:  # one of 0.8 names nobody, not even itself, before there is a topic
            return
        try:
            async with asyncio.timeout(timeout):
                for broker in self.brokers.values():
                    while await self._named_by(broker) < len(self.brokers):  # nothing tells when it has found them
                        await _CLOCK.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise KafkaStartError(f"the {len(self.brokers)} brokers did not find each other in {timeout:g} s") from None

    async def _named_by(self, broker: KafkaBroker) -> int:
        settings = ClientSettings()
        opener = ChannelOpener(functools.partial(connect, settings=settings.connection), settings, _CLOCK)
        address = (LOOPBACK, broker.port)
        async with ClusterClient([address], opener, settings, clock=_CLOCK, rng=random.Random()) as client:
            try:
                return len((await client.refresh()).nodes)
            except BrokerError:
                return 0

    def kill(self) -> None:
        """SIGKILL to all: stopped in turn, the last would wait in vain for others to take over what they lead."""
        for broker in self.brokers.values():
            broker.kill()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
