"""The synchronous producer: batches go out when they are sent, and `send` returns when the broker has them.

Strategy. Kafka 0.7 acknowledges nothing, and the only sign of a refusal is a FIN (golden notes, 1). But a broker works
through the requests of a connection one after the other, so an *answer* to a later request proves that it took the
earlier ones. That is the confirmation here: behind each batch goes a FETCH of zero bytes, and `send` waits for
its answer. What is promised then:

- `send` returned: the broker has appended the batch to its log. It is on the broker's disk after the next flush there.
- `send` raised UncertainError, after the tries that the settings allow: all, some or nothing of it was stored.
- any other error: nothing of it was stored, or (from `send_all`) only what went to other brokers.
- Between, a connection that ended before the answer has the batch sent again, so it may be stored twice, never lost:
  at least once. `resends=0` gives at most once.
- The order of two batches for one partition is kept if the second is sent after the first `send` returned.

With `confirm=False`, as in 0.7.2, `send` returns when the bytes are on their way, a lost batch is noticed by a later
send or not at all, and only `flush` (which `close` and `async with` do) asks for the confirmation.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from consumerd.net import ConnectError, ConnectionClosedError
from consumerd.producer.encoding import encode_sets
from consumerd.producer.errors import NoBrokerError, UncertainError
from consumerd.producer.requests import entry_overhead, frames
from consumerd.producer.settings import ProducerSettings
from consumerd.wire.v07 import FetchRequest, ProduceRequest, validate_topic
from consumerd.zk.errors import ConnectionLost, NotConnected

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from types import TracebackType

    from consumerd.net import Connection, Connector
    from consumerd.ports import Clock
    from consumerd.producer.keys import Key
    from consumerd.producer.routing import Router

log = structlog.get_logger(__name__)

Address = tuple[str, int]

#: Nothing was sent: trying again is always safe.
_UNSENT = (ConnectError, NoBrokerError, NotConnected, ConnectionLost)
#: Body of the answer to a FETCH of zero bytes: an error code (and room for a broker that is not so exact).
_PROBE_ANSWER_BYTES = 1024
DEFAULT_SETTINGS = ProducerSettings()


@dataclass(frozen=True, slots=True)
class ProducerData:
    """Messages that go to one partition of a topic: the one given, or the key's, or one at random."""

    topic: str
    payloads: Sequence[bytes]
    key: Key | None = None
    partition: int | None = None


@dataclass(slots=True)
class _Link:
    """What is known of the connection to one broker."""

    connection: Connection | None = None
    #: One task connects, the others wait for it.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: A topic that was sent to without confirmation since the last one.
    unconfirmed: str | None = None


class Producer:
    """Sends messages; made with a router (`StaticRouter`, `ZooKeeperRouter`) that it owns and closes.

    The module's text says what is promised. Use as `async with Producer(...) as producer:`.
    """

    def __init__(
        self,
        router: Router,
        *,
        connect: Connector,
        clock: Clock,
        rng: random.Random,
        settings: ProducerSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._router = router
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._links: defaultdict[Address, _Link] = defaultdict(_Link)
        self._lost: UncertainError | None = None

    async def send(
        self, topic: str, payloads: Sequence[bytes], *, key: Key | None = None, partition: int | None = None
    ) -> None:
        """Send `payloads` as one batch, to one partition. An empty batch sends nothing.

        Raises InvalidTopicError, MessageSizeTooLargeError, NoPartitionError before anything is sent; ConnectError,
        NoBrokerError, UncertainError, ZooKeeperError after the tries that the settings allow.
        """
        await self.send_all([ProducerData(topic, payloads, key, partition)])

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = False) -> None:
        """Send several batches; those for one broker travel together, as a MULTIPRODUCE.

        Each is an entry of its own, unless `merge` joins those of one partition: then a compressed batch compresses
        better, and keyed messages need not be grouped by the caller. Raises as `send`.
        """
        for item in data:
            validate_topic(item.topic)
        pending = [item for item in data if item.payloads]
        if not pending:
            return
        sendings = 0

        def exhausted(state: RetryCallState) -> bool:
            assert state.outcome is not None
            nonlocal sendings
            if isinstance(state.outcome.exception(), UncertainError):
                sendings += 1
                return sendings > self._settings.resends
            return state.attempt_number - sendings > self._settings.retries

        attempts = AsyncRetrying(
            sleep=self._clock.sleep,
            stop=exhausted,
            wait=self._pause,
            retry=retry_if_exception_type((UncertainError, *_UNSENT)),
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            await attempts(self._send_pending, pending, merge)
        except _UNSENT as error:
            if sendings:
                raise UncertainError(
                    f"{error}; an earlier try may have stored the messages or a part of them."
                ) from error
            raise

    async def flush(self) -> None:
        """Return when the brokers have confirmed everything that was sent.

        Raises UncertainError when a connection ended since the last flush with something unconfirmed on it.
        """
        for address, link in list(self._links.items()):
            if link.unconfirmed is not None:
                try:
                    await self._confirm(address, link, link.unconfirmed)
                except UncertainError as error:
                    self._lost = error
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost

    async def close(self) -> None:
        """Flush, then close all connections and the router. Raises as `flush`, after everything is closed."""
        try:
            await self.flush()
        finally:
            await self._disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:  # the error tells more than the flush could
            await self._disconnect()

    # One attempt.

    async def _send_pending(self, pending: list[ProducerData], merge: bool) -> None:
        """Send what is in `pending`, removing what is done."""
        by_broker: defaultdict[Address, list[tuple[ProducerData, int]]] = defaultdict(list)
        for item in pending:
            host, port, partition = await self._router.route(item.topic, item.key, item.partition)
            by_broker[host, port].append((item, partition))
        encoded = {address: self._encode(items, merge) for address, items in by_broker.items()}
        for address, entries in encoded.items():
            await self._deliver(address, entries)
            done = {id(item) for item, _ in by_broker[address]}
            pending[:] = [item for item in pending if id(item) not in done]

    def _encode(self, items: list[tuple[ProducerData, int]], merge: bool) -> list[ProduceRequest]:
        groups: list[tuple[str, int, list[bytes]]] = []
        positions: dict[tuple[str, int], list[bytes]] = {}
        for item, partition in items:
            if merge and (payloads := positions.get((item.topic, partition))) is not None:
                payloads.extend(item.payloads)
                continue
            payloads = positions[item.topic, partition] = list(item.payloads)
            groups.append((item.topic, partition, payloads))
        settings = self._settings
        return [
            ProduceRequest(topic, partition, messages)
            for topic, partition, payloads in groups
            for messages in encode_sets(
                topic,
                payloads,
                magic=settings.magic,
                codec=settings.codec,
                max_message_bytes=settings.max_message_bytes,
                max_set_bytes=settings.max_request_bytes - entry_overhead(topic),
            )
        ]

    async def _deliver(self, address: Address, entries: list[ProduceRequest]) -> None:
        link = self._links[address]
        connection = await self._connected(address, link)
        topic = entries[-1].topic
        link.unconfirmed = topic
        try:
            for frame in frames(entries, self._settings.max_request_bytes):
                await connection.send(frame)
        except ConnectionClosedError as error:
            link.unconfirmed = None
            raise _uncertain(error) from error
        if self._settings.confirm:
            await self._confirm(address, link, topic)

    async def _confirm(self, address: Address, link: _Link, topic: str) -> None:
        """Wait until the broker has worked through everything that was sent on the connection."""
        assert link.connection is not None
        # Partition 0 is there on every broker, and a fetch neither creates the topic nor can be refused by a FIN.
        probe = FetchRequest(topic, 0, 0, 0).encode()
        try:
            await link.connection.request(probe, max_response=_PROBE_ANSWER_BYTES)
        except ConnectionClosedError as error:
            link.unconfirmed = None
            raise _uncertain(error) from error
        link.unconfirmed = None

    # Connections.

    async def _connected(self, address: Address, link: _Link) -> Connection:
        """The open connection to a broker, made anew where the last one has ended."""
        async with link.turn:
            await asyncio.sleep(0)  # lets the loop see a FIN that has already come
            if link.connection is not None and link.connection.closed:
                if link.unconfirmed is not None:
                    self._lost = UncertainError(
                        f"broker {address[0]}:{address[1]} closed the connection before it confirmed what was sent to "
                        f"topic {link.unconfirmed!r}; messages may be missing there."
                    )
                    log.warning("unconfirmed_messages", broker=f"{address[0]}:{address[1]}", topic=link.unconfirmed)
                    link.unconfirmed = None
                link.connection = None
            if link.connection is None:
                link.connection = await self._connect(*address)
            return link.connection

    async def _disconnect(self) -> None:
        try:
            for link in self._links.values():
                if link.connection is not None:
                    await link.connection.close()
        finally:
            self._links.clear()
            await self._router.close()

    # Retries.

    def _pause(self, state: RetryCallState) -> float:
        bound = self._settings.initial_backoff * 2.0 ** min(state.attempt_number - 1, 64)
        return self._rng.uniform(0.0, min(bound, self._settings.max_backoff))

    def _log_retry(self, state: RetryCallState) -> None:
        assert state.outcome is not None
        log.warning("send_retried", attempt=state.attempt_number, error=str(state.outcome.exception()))


def _uncertain(error: ConnectionClosedError) -> UncertainError:
    return UncertainError(f"{error}; whether it stored the messages is unknown: sending them again may double them.")
