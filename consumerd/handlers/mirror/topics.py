"""Creates a topic on the target before the first message is sent to it.

Strategy: in 0.7 the first produce request creates a topic, and until the topic is registered producers know only its
partition 0. Messages of all source partitions would go there first and to other partitions later, so their order would
change. A topic that no live broker has is therefore created on all of them with an empty message set, which a broker
accepts like any other (golden notes, 1), and the mirror waits for its registration.
"""

from __future__ import annotations

import asyncio

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import Connector
from consumerd.wire.v07 import FetchRequest, ProduceRequest

log = structlog.get_logger(__name__)

#: Registration is asynchronous (golden notes, 4), but takes no longer than a look at ZooKeeper.
_PAUSE, _PATIENCE = 0.05, 10.0


class MirrorTopics:
    """The topics of the target, by its ZooKeeper."""

    def __init__(self, zk: ZooKeeper, *, connect: Connector, clock: Clock) -> None:
        self._view = ClusterView(zk)
        self._connect = connect
        self._clock = clock
        self._there: set[str] = set()
        self._turn = asyncio.Lock()

    async def ensure(self, topic: str) -> None:
        """Return when all live brokers have `topic`; once they have it, it is not looked for again.

        Raises ZooKeeperError, BrokerError; a topic that is not registered in time is left to itself, with a warning.
        """
        if topic in self._there:
            return
        async with self._turn:
            if topic in self._there:
                return
            brokers, having = await self._view.read_brokers(), await self._brokers(topic)
            for number, broker in brokers.items():
                if number not in having:
                    await self._make(topic, *broker.address)
            deadline = self._clock.monotonic() + _PATIENCE
            while brokers and not brokers.keys() <= await self._brokers(topic):
                if self._clock.monotonic() > deadline:
                    log.warning(
                        "topic_registration_timed_out",
                        topic=topic,
                        reason="messages may move to other partitions once it is registered",
                    )
                    break
                await self._clock.sleep(_PAUSE)
            if brokers:
                self._there.add(topic)

    async def _brokers(self, topic: str) -> set[int]:
        found = await self._view.read_topics([topic])
        return set(found.get(topic, ()))

    async def _make(self, topic: str, host: str, port: int) -> None:
        connection = await self._connect(host, port)
        try:
            await connection.send(ProduceRequest(topic, 0, b"").encode())
            await connection.request(FetchRequest(topic, 0, 0, 0).encode())  # it has worked through the one before
        except BrokerError as error:
            log.warning("topic_create_failed", topic=topic, broker=f"{host}:{port}", reason=reason_of(error))
        finally:
            await connection.close()
