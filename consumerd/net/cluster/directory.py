"""The live brokers and their addresses, followed by their registrations in ZooKeeper, in either dialect.

In 0.7 every connection asks for its broker's address. Clients of 0.8 and later learn addresses from the brokers
themselves, and need only bootstrap addresses from here.

Strategy: level-triggered. Watches on the list of brokers and on every broker's node only say "look again"; then all of
them are read again, which re-arms the watches. A burst of changes costs one look after a short pause, and a slow poll
makes up for watches that got lost. While ZooKeeper is unavailable the last knowledge serves: a broker may well
continue when we cannot see it. Brokers are tens, not thousands, so nothing more is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.reading import read_broker_ids
from consumerd.net.cluster.watched import WatchedNodes
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.paths import broker_ids_path, broker_path
from consumerd.wire.registry.v08.broker import BrokerNode, parse_broker_node
from consumerd.wire.registry.values import RegisteredBroker, parse_broker

log = structlog.get_logger(__name__)

#: Seconds between the first sign of a change and the next reading: a restarting broker makes several at once.
SETTLE = 0.02
#: Seconds after which the brokers are read without a sign.
POLL = 60.0
#: Seconds until the next attempt after an error of ZooKeeper.
RETRY = 0.5


class Located(Protocol):
    """A broker's node as it was read."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


Address = tuple[str, int]
_B = TypeVar("_B", bound=Located)


class RegisteredBrokers(Generic[_B]):
    """The live brokers. `run` must be running for it to learn anything; times in seconds."""

    #: Reads the node of a broker; raises DialectError for one of the other dialect, else RegistryError.
    _parse_node: Callable[[int, bytes], _B]

    def __init__(
        self,
        zk: ZooKeeper,
        *,
        clock: Clock,
        settle: float = SETTLE,
        poll: float = POLL,
        retry: float = RETRY,
    ) -> None:
        self._zk = zk
        self._clock = clock
        self._settle = settle
        self._poll = poll
        self._retry = retry
        self._brokers: dict[int, _B] = {}
        self._read_once = False
        #: Whether a broker of our dialect has been seen.
        self._found = False
        self._stale = asyncio.Event()
        self._listeners: dict[object, Callable[[Mapping[int, _B]], None]] = {}
        self._nodes = WatchedNodes(zk, clock, lambda _: self._stale.set())
        self._unreadable: dict[int, bytes] = {}

    # -- asking

    @property
    def brokers(self) -> Mapping[int, _B]:
        """The brokers as last seen, by id."""
        return MappingProxyType(self._brokers)

    def count(self) -> int | None:
        """Return the number of brokers as last seen; None before the first reading."""
        return len(self._brokers) if self._read_once else None

    def subscribe(self, changed: Callable[[Mapping[int, _B]], None]) -> Callable[[], None]:
        """Call `changed(brokers)` synchronously when a broker came, went or moved; returns the unsubscriber."""
        token = object()
        self._listeners[token] = changed

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    # -- learning

    async def run(self) -> None:
        """Follow the registry until cancelled.

        Raises DialectError if the first brokers, whenever they come, turn out to speak the other dialect. One that
        appears beside some of ours, or after them, is left out with a warning: a member does not end because of it.
        """
        try:
            while True:
                self._stale.clear()
                try:
                    brokers = await self._read()
                except ZooKeeperError as error:
                    log.info("brokers_read_failed", reason=reason_of(error))
                    await self._clock.sleep(self._retry)
                else:
                    self._update(brokers)
                    await self._changed_or_due()
        finally:
            self._nodes.close()

    async def _changed_or_due(self) -> None:
        try:
            async with asyncio.timeout(self._poll):
                await self._stale.wait()
        except TimeoutError:
            return
        await self._clock.sleep(self._settle)

    async def _read(self) -> dict[int, _B]:
        for path in self._nodes.paths():
            self._nodes.refresh(path)  # whether its watch fired or got lost
        ids = await read_broker_ids(self._zk, broker_ids_path(), lambda _, path: self._nodes.children(path))
        for path in self._nodes.paths() - {broker_ids_path(), *map(broker_path, ids)}:
            self._nodes.forget(path)
        nodes = await read_all(ids, lambda broker_id: self._nodes.node_if_there(broker_path(broker_id)))
        return {
            broker_id: broker
            for broker_id, node in nodes.items()
            if node is not None and (broker := self._parse(broker_id, node.data)) is not None
        }

    def _parse(self, broker_id: int, text: bytes) -> _B | None:
        try:
            return self._parse_node(broker_id, text)
        except RegistryError as error:
            if isinstance(error, DialectError) and not self._found:
                raise
            if self._unreadable.get(broker_id) != text:  # logged once, not at every reading
                self._unreadable[broker_id] = text
                log.warning("broker_unreadable", broker=broker_id, reason=reason_of(error))
            return None

    def _update(self, brokers: dict[int, _B]) -> None:
        self._found, self._read_once = self._found or bool(brokers), True
        before, self._brokers = self._brokers, brokers
        if before == brokers:
            return
        for broker_id in sorted(before.keys() | brokers.keys()):
            old, new = before.get(broker_id), brokers.get(broker_id)
            if old != new:
                log.info("broker_changed", broker=broker_id, before=_shown(old), now=_shown(new))
        for listener in list(self._listeners.values()):
            listener(self.brokers)


class BrokerDirectory(RegisteredBrokers[RegisteredBroker]):
    """The live brokers of Kafka 0.7."""

    _parse_node = staticmethod(parse_broker)

    def address(self, broker_id: int) -> Address | None:
        """Return host and port, or None while the broker is not registered."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.address


class V08BrokerDirectory(RegisteredBrokers[BrokerNode]):
    """The live brokers of Kafka 0.8 and later."""

    _parse_node = staticmethod(parse_broker_node)

    def addresses(self, protocol: str) -> list[Address]:
        """Return the listeners for `protocol` (`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`), by broker id."""
        found = (self.brokers[broker_id].address(protocol) for broker_id in sorted(self.brokers))
        return [address for address in found if address is not None]


class TreeName:
    """The name of the cluster whose brokers register in `zk`: the same for all members, and after each restart.

    Since 0.10.1 a cluster has an id, which METADATA tells. Before, what all members share is ZooKeeper's tree: the
    node of the registrations has a transaction and a time of creation, whichever servers a connect string lists. A
    tree that is built again has others. No peer writes data into that node, so the time of its last write is that of
    its creation.
    """

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        #: By the session in which it was read: a tree that is built again does not know the session.
        self._names: dict[int, str] = {}

    async def read(self) -> str | None:
        """Return the name, None where no broker has registered yet. Raises ZooKeeperError."""
        session_id = self._zk.session_id
        if session_id not in self._names:
            stat = await self._zk.exists(broker_ids_path())
            self._names = {} if stat is None else {session_id: f"zk-{stat.created_zxid:x}-{stat.modified_ms:x}"}
        return self._names.get(session_id)


def _shown(broker: Located | None) -> str:
    if broker is None:
        return "gone"
    return f"{broker.host}:{broker.port}" if broker.host else "there, not in plaintext"
