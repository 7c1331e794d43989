"""The broker's place in ZooKeeper: its address, and its partition count for every topic it holds (golden notes, 4).

Strategy: a set of topics that should be registered and a note of what this session has registered; one task brings the
second up to the first whenever a topic is new, the session is new, or our address was deleted. The nodes are ephemeral
and made by `create_ephemeral`, which never adopts: a broker that restarts within its own session timeout waits until
the node of its former life is gone, where 0.7.2 dies; an id that is still held after that belongs to a live broker.
A node with our very address is a former life for certain, because we are the one that listens there: it is waited
for longer, as its session may have had a longer timeout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumerd.errors import IdTakenError, reason_of
from consumerd.ports import SessionEvent
from consumerd.registry.errors import RegistryError
from consumerd.registry.paths import broker_path, topic_broker_path
from consumerd.registry.values import (
    RegisteredBroker,
    format_broker,
    format_partition_count,
    make_creator_id,
    parse_broker,
)
from consumerd.zk.errors import ConnectionLost, NodeExists, NoNode, NotConnected, SessionChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consumerd.ports import Clock, ZooKeeper

logger = structlog.get_logger(__name__)

#: A dead session is buried by the server up to a tick or two after its timeout.
_MARGIN = 2.0
#: No server gives a session more than 20 ticks, by default 40 seconds; for our own former ones.
_OWN_PATIENCE = 60.0
#: Pause after a failed attempt.
_RETRY = 1.0


class BrokerRegistration:
    """Registers one broker. `partitions_of` gives the configured number of a topic's partitions."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        broker_id: int,
        host: str,
        port: int,
        partitions_of: Callable[[str], int],
        clock: Clock,
    ) -> None:
        self._zookeeper = zookeeper
        self._id = broker_id
        self._host = host
        self._port = port
        self._partitions_of = partitions_of
        self._clock = clock
        self._topics: set[str] = set()
        self._registered: set[str] = set()
        #: Topic nodes that belong to another session.
        self._foreign: set[str] = set()
        self._session = 0
        self._wake = asyncio.Event()
        #: When the address was registered last, in seconds since 1970; None: not yet.
        self.registered_at: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the address is registered, as far as we know: its node is ours, and the session has not ended."""
        return (
            broker_path(self._id) in self._registered
            and self._zookeeper.session_id == self._session
            and self._zookeeper.lease_left() > 0
        )

    def add_topic(self, topic: str) -> None:
        """Register `topic` soon; returns at once, as 0.7.2 does this in the background, too."""
        self._topics.add(topic)
        self._wake.set()

    async def register(self, topics: Iterable[str]) -> None:
        """Register the broker and the topics that it holds already.

        Raises IdTakenError when another live broker holds the id, RegistryError when the address cannot be written,
        and ZooKeeperError.
        """
        self._topics.update(topics)
        await self._bring_up_to_date()

    async def run(self) -> None:
        """Keep the registration until cancelled. Raises IdTakenError when the id was lost to another broker."""
        forget = [
            self._zookeeper.subscribe(self._on_event),
            self._zookeeper.watch(broker_path(self._id), self._wake.set),
        ]
        try:
            self._wake.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._check_address()
                    await self._bring_up_to_date()
                except (NotConnected, ConnectionLost, SessionChanged) as error:
                    logger.warning("registration_delayed", broker=self._id, reason=reason_of(error))
                    self._wake.set()
                    await self._clock.sleep(_RETRY)
        finally:
            for unsubscribe in forget:
                unsubscribe()

    async def withdraw(self) -> None:
        """Delete what this session registered, the address first. Raises ZooKeeperError."""
        address = broker_path(self._id)
        for path in sorted(self._registered, key=lambda path: path != address):
            await self._zookeeper.delete_owned(path)
        self._registered.clear()

    def _on_event(self, event: SessionEvent, session_id: int) -> None:
        if event is SessionEvent.NEW:
            self._wake.set()

    async def _check_address(self) -> None:
        """Read the broker's address node, which arms the watch on it; forget it if another session owns it."""
        address = broker_path(self._id)
        found = await self._zookeeper.exists(address, watch=True)
        if found is None or found.ephemeral_owner != self._session:
            self._registered.discard(address)

    async def _bring_up_to_date(self) -> None:
        if self._zookeeper.session_id != self._session:
            self._session = self._zookeeper.session_id
            self._registered.clear()
            self._foreign.clear()
        address = broker_path(self._id)
        if address not in self._registered:
            await self._register_address(address)
        for topic in sorted(self._topics):
            path = topic_broker_path(topic, self._id)
            if path not in self._registered and path not in self._foreign:
                await self._register_topic(topic, path)

    async def _register_topic(self, topic: str, path: str) -> None:
        count = format_partition_count(self._partitions_of(topic))
        try:
            await self._create(path, count, self._patience)
        except NodeExists:
            # The id is ours, so no live broker holds it: an operator created it by hand, on purpose.
            self._foreign.add(path)
            logger.error("topic_node_conflict", topic=topic, broker=self._id, path=path)
        else:
            logger.info("topic_registered", topic=topic, broker=self._id, partitions=count)

    async def _register_address(self, address: str) -> None:
        creator = make_creator_id(self._host, int(self._clock.wall() * 1000))
        value = format_broker(RegisteredBroker(self._id, creator, self._host, self._port))
        patience = await self._patience_for(address)
        try:
            await self._create(address, value, patience)
        except NodeExists:
            raise IdTakenError(
                f"broker id {self._id} is already registered in ZooKeeper by another live broker ({address}); "
                "stop that broker or choose another --broker-id"
            ) from None
        self.registered_at = self._clock.wall()
        logger.info("broker_registered", broker=self._id, address=value)

    async def _patience_for(self, address: str) -> float:
        """How long to wait for the owner of the id, in seconds. Raises IdTakenError where waiting cannot help."""
        try:
            data, stat = await self._zookeeper.get(address)
        except NoNode:
            return self._patience
        if stat.ephemeral_owner == self._session:
            return self._patience
        if not stat.ephemeral_owner:
            raise IdTakenError(
                f"broker id {self._id} is already registered in ZooKeeper by a persistent node ({address}), which does "
                "not expire; delete it or choose another --broker-id"
            )
        patience = self._patience
        try:
            holder = parse_broker(self._id, data)
            if (holder.host, holder.port) == (self._host, self._port):
                patience = max(patience, _OWN_PATIENCE)
        except RegistryError as error:
            logger.warning("broker_node_unreadable", path=address, reason=reason_of(error))
        logger.warning("waiting_for_broker_id", broker=self._id, seconds=patience)
        return patience

    async def _create(self, path: str, text: str, patience: float) -> None:
        session = self._session
        await self._zookeeper.create_ephemeral(path, text.encode(), wait=patience)
        if self._zookeeper.session_id != session:
            raise SessionChanged(session, self._zookeeper.session_id)
        self._registered.add(path)

    @property
    def _patience(self) -> float:
        return self._zookeeper.session_timeout + _MARGIN
