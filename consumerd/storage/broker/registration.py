"""The broker's registration in ZooKeeper: its address, and its partition count for each topic (golden notes, 4).

Strategy: a set of topics that should be registered and a note of what this session has registered; one task registers
the missing ones whenever a topic is new, the session is new, or one of our nodes was deleted. A node that ZooKeeper
refuses affects its own topic alone: the others are served and registered, and it is tried again. The nodes of topics
are read and made several at a time. All are ephemeral and made by `create_ephemeral`, which never adopts: a broker that
restarts within its own session timeout waits until the node of its former process is gone, where 0.7.2 fails; an id
that is still held after that belongs to a live broker. A node with our own address is certainly that of a former
process, because we listen there: it is waited for longer, as its session may have had a longer timeout.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from consumerd.base.backoff import Backoff, sleep_unless
from consumerd.base.calls import read_all
from consumerd.base.errors import IdTakenError, reason_of
from consumerd.base.ports import Clock, SessionEvent, ZooKeeper
from consumerd.net.zk.errors import (
    ConnectionLost,
    NodeError,
    NodeExists,
    NoNode,
    NotConnected,
    SessionChanged,
    Throttled,
)
from consumerd.wire.registry.errors import NameRefusedError, RegistryError
from consumerd.wire.registry.paths import broker_path, topic_broker_path
from consumerd.wire.registry.values import (
    RegisteredBroker,
    format_broker,
    format_partition_count,
    make_creator_id,
    parse_broker,
)

logger = structlog.get_logger(__name__)

#: Seconds after its timeout within which the server removes a dead session: a tick or two.
_MARGIN = 2.0
#: Seconds to wait for our own former sessions: servers grant at most 20 ticks, by default 40 seconds.
_OWN_PATIENCE = 60.0
#: Pauses after failed attempts: the first, and the longest.
_RETRY, _LONGEST = 1.0, 60.0


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
        rng: random.Random,
    ) -> None:
        self._zookeeper = zookeeper
        self._id = broker_id
        self._host = host
        self._port = port
        self._partitions_of = partitions_of
        self._clock = clock
        #: The node of each topic; and the topics whose name no node can have.
        self._topics: dict[str, str] = {}
        self._unnameable: set[str] = set()
        self._registered: set[str] = set()
        #: Topic nodes that belong to another session.
        self._foreign: set[str] = set()
        #: Topics whose node may have changed since it was read; and the watches on all that were read.
        self._unread: set[str] = set()
        self._watching: dict[str, Callable[[], None]] = {}
        #: Topics whose node ZooKeeper refused, with the reason; tried again at `_retry_at`.
        self._refused: dict[str, str] = {}
        self._retry_at = 0.0
        self._retries = Backoff(_RETRY, _LONGEST, rng)
        self._pauses = Backoff(_RETRY, _LONGEST, rng)
        self._session = 0
        self._wake = asyncio.Event()
        #: Time of the last registration of the address, in seconds since 1970; None: not yet.
        self.registered_at: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the address is registered, as far as we know: its node is ours, and the session has not ended."""
        return (
            broker_path(self._id) in self._registered
            and self._zookeeper.session_id == self._session
            and self._zookeeper.lease_left() > 0
        )

    @property
    def topics_not_registered(self) -> int:
        """The number of topics that are not registered, because ZooKeeper refuses their nodes."""
        return len(self._unnameable) + len(self._refused)

    def add_topic(self, topic: str) -> None:
        """Register `topic` soon; returns at once, as 0.7.2 does this in the background, too."""
        if topic in self._topics or topic in self._unnameable:
            return
        try:
            self._topics[topic] = topic_broker_path(topic, self._id)
        except NameRefusedError as error:  # producers and consumers that name this broker can use it all the same
            self._unnameable.add(topic)
            logger.error("topic_not_registered", topic=topic, broker=self._id, reason=reason_of(error))
        self._wake.set()

    async def register(self, topics: Iterable[str]) -> None:
        """Register the broker and the topics that it holds already.

        A connection that is lost on the way is waited for, as long as the session waits for one. Requests that are
        dropped by an overloaded server are repeated. Topics whose nodes ZooKeeper refuses are left to `run`.

        Raises IdTakenError when another live broker holds the id, RegistryError when the address cannot be written,
        NotConnected when the connection does not come back, and other ZooKeeperErrors.
        """
        for topic in topics:
            self.add_topic(topic)
        while True:
            try:
                return await self._bring_up_to_date()
            except (ConnectionLost, SessionChanged, Throttled) as error:
                await self._pause_after(error)

    async def run(self) -> None:
        """Keep the registration until cancelled. Raises IdTakenError when the id was lost to another broker."""
        forget = [
            self._zookeeper.subscribe(self._on_event),
            self._zookeeper.watch(broker_path(self._id), self._wake.set),
        ]
        try:
            self._wake.set()
            while True:
                if self._refused:
                    await sleep_unless(self._clock, self._retry_at - self._clock.monotonic(), self._wake)
                else:
                    await self._wake.wait()
                self._wake.clear()
                try:
                    await self._check_address()
                    await self._check_topics()
                    await self._bring_up_to_date()
                    self._pauses.reset()
                except (NotConnected, ConnectionLost, SessionChanged, NodeError) as error:
                    self._wake.set()
                    await self._pause_after(error)
        finally:
            for unsubscribe in (*forget, *self._watching.values()):
                unsubscribe()
            self._watching.clear()

    async def _pause_after(self, error: Exception) -> None:
        logger.warning("registration_delayed", broker=self._id, reason=reason_of(error))
        await self._clock.sleep(self._pauses.next())

    async def withdraw(self) -> None:
        """Delete the nodes of this session, the address first. Raises ZooKeeperError."""
        address = broker_path(self._id)
        if address in self._registered:
            await self._zookeeper.delete_owned(address)
        await read_all(sorted(self._registered - {address}), self._zookeeper.delete_owned)
        self._registered.clear()

    def _on_event(self, event: SessionEvent, session_id: int) -> None:
        if event is SessionEvent.NEW:
            self._wake.set()

    async def _check_address(self) -> None:
        """Read the broker's address node, which arms its watch; forget it if another session owns it."""
        address = broker_path(self._id)
        found = await self._zookeeper.exists(address, watch=True)
        if found is None or found.ephemeral_owner != self._session:
            self._registered.discard(address)

    async def _check_topics(self) -> None:
        """Read the nodes of topics that may have changed, which arms their watches; forget those that are not ours."""
        await read_all(sorted(self._unread), self._check_topic)

    async def _check_topic(self, topic: str) -> None:
        path = self._topics[topic]
        if topic not in self._watching:
            self._watching[topic] = self._zookeeper.watch(path, partial(self._on_change, topic))
        self._unread.discard(topic)  # before the request: its watch may fire before the response is here
        try:
            found = await self._zookeeper.exists(path, watch=True)
        except NodeError as error:
            self._registered.discard(path)
            self._refuse(topic, error)
            return
        except BaseException:
            self._unread.add(topic)
            raise
        if found is None or found.ephemeral_owner != self._session:
            self._registered.discard(path)
        if found is None:
            self._foreign.discard(path)

    def _on_change(self, topic: str) -> None:
        self._unread.add(topic)
        self._wake.set()

    async def _bring_up_to_date(self) -> None:
        if self._zookeeper.session_id != self._session:
            self._session = self._zookeeper.session_id
            self._registered.clear()
            self._foreign.clear()
            self._retry_at = 0.0
        address = broker_path(self._id)
        if address not in self._registered:
            await self._register_address(address)
        due = self._clock.monotonic() >= self._retry_at
        missing = [
            topic
            for topic, path in sorted(self._topics.items())
            if path not in self._registered and path not in self._foreign and (due or topic not in self._refused)
        ]
        await read_all(missing, self._register_topic)
        if not self._refused:
            self._retries.reset()
        elif due:
            self._retry_at = self._clock.monotonic() + self._retries.next()

    async def _register_topic(self, topic: str) -> None:
        path = self._topics[topic]
        count = format_partition_count(self._partitions_of(topic))
        try:
            await self._create(path, count, self._patience)
        except NodeExists:
            # The id is ours, so no live broker holds it: an operator created it by hand, on purpose.
            self._foreign.add(path)
            logger.error("topic_node_conflict", topic=topic, broker=self._id, path=path)
        except NodeError as error:
            self._refuse(topic, error)
            return
        else:
            logger.info("topic_registered", topic=topic, broker=self._id, partitions=count)
        self._refused.pop(topic, None)
        self._on_change(topic)  # to watch it

    def _refuse(self, topic: str, error: NodeError) -> None:
        """Note that ZooKeeper refuses a topic's node: it is tried again."""
        reason = reason_of(error)
        if self._refused.get(topic) != reason:
            logger.error("topic_not_registered", topic=topic, broker=self._id, reason=reason)
        self._refused[topic] = reason

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
        """Return the seconds to wait for the owner of the id. Raises IdTakenError if waiting cannot help."""
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
