"""Batches to their brokers: routed, encoded, delivered, retried. The core of both producers of 0.7.

Strategy: `send` works on a list of pending data and removes those that are done, broker by broker; a retry
routes the rest again, so that a broker that died is left out as soon as that is known. Everything is routed and encoded
before the first byte goes out: an error about a message (its size, its partition) means that nothing was sent.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import structlog

from consumerd.base.errors import reason_of
from consumerd.base.native import codec as native_codec
from consumerd.base.ports import Clock
from consumerd.net.connect import Connector
from consumerd.net.errors import ConnectError
from consumerd.net.zk.errors import ConnectionLost, NotConnected
from consumerd.producer.errors import NoBrokerError, UncertainError
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v07.encoding import encode_sets, entry_overhead
from consumerd.producer.v07.links import Address, BrokerLinks
from consumerd.producer.v07.routing import Route, Router
from consumerd.producer.v07.settings import ProducerSettings
from consumerd.wire.compression import Codec
from consumerd.wire.v07 import EncodedProduceRequest, ProduceRequest, validate_topic

log = structlog.get_logger(__name__)

#: Nothing was sent: trying again is always safe.
_UNSENT = (ConnectError, NoBrokerError, NotConnected, ConnectionLost)


class Sender:
    """Sends payloads (bytes) over `links` to the partitions that `router` chooses; owns and closes both."""

    def __init__(
        self, router: Router, *, connect: Connector, clock: Clock, rng: random.Random, settings: ProducerSettings
    ) -> None:
        self._router = router
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self.links = BrokerLinks(connect, settings, clock=clock, rng=rng)

    async def send(self, pending: list[ProducerData], *, merge: bool = False, multi: bool = False) -> None:
        """Send all of `pending` (payloads are bytes), removing each item from the list as it is done.

        `merge` joins what goes to one partition into one entry, and has data with the same topic, key and partition
        share one route; `multi` sends even one entry as a MULTIPRODUCE. Raises as `Producer.send`.
        """
        for item in pending:
            validate_topic(item.topic)
        pending[:] = [item for item in pending if item.payloads]
        if not pending:
            return
        attempt = sendings = 0
        while True:
            attempt += 1
            try:
                await self._attempt(pending, merge, multi)
            except UncertainError as error:
                sendings += 1
                if sendings > self._settings.resends:
                    raise
                log.warning("send_retried", attempt=attempt, reason=reason_of(error))
            except _UNSENT as error:
                if attempt - sendings > self._settings.retries:
                    if not sendings:
                        raise
                    raise UncertainError(
                        f"{error}; an earlier attempt may have stored some or all of the messages."
                    ) from error
                log.warning("send_retried", attempt=attempt, reason=reason_of(error))
            else:
                return
            await self._clock.sleep(self._pause(attempt))

    async def check(self, item: ProducerData) -> None:
        """Raise the errors that `send` would raise for `item` itself. Nothing is sent."""
        validate_topic(item.topic)
        route = await self._router.route(item.topic, item.key, item.partition)
        self._encode([(item, route.partition)], merge=False)

    async def close(self) -> None:
        """Close connections and router, without a flush."""
        try:
            await self.links.close()
        finally:
            await self._router.close()

    # One attempt.

    async def _attempt(self, pending: list[ProducerData], merge: bool, multi: bool) -> None:
        if len(pending) == 1 and not multi and await self._send_alone(pending[0]):
            pending.clear()
            return
        by_broker: defaultdict[Address, list[tuple[ProducerData, int]]] = defaultdict(list)
        routes: dict[tuple[str, Any, int | None], Route] = {}
        for item in pending:
            wanted = item.topic, item.key, item.partition
            if merge and wanted in routes:
                route = routes[wanted]
            else:
                route = routes[wanted] = await self._router.route(*wanted)
            by_broker[route.host, route.port].append((item, route.partition))
        encoded = {address: self._encode(items, merge) for address, items in by_broker.items()}
        for address, entries in encoded.items():
            await self.links.deliver(address, entries, multi=multi)
            done = {id(item) for item, _ in by_broker[address]}
            pending[:] = [item for item in pending if id(item) not in done]

    async def _send_alone(self, item: ProducerData) -> bool:
        """Send one plain batch, from its payloads to the request in one buffer. False: `_attempt` has to."""
        settings = self._settings
        if native_codec() is None or settings.magic != 1 or settings.verify:
            return False
        if settings.codec_for(item.topic) is not Codec.NONE:
            return False
        largest, most = settings.max_message_bytes, settings.max_request_bytes - entry_overhead(item.topic)
        route = await self._router.route(item.topic, item.key, item.partition)
        request = EncodedProduceRequest.of(item.topic, route.partition, item.payloads, largest, most)
        if request is None:
            return False
        await self.links.deliver_encoded((route.host, route.port), request)
        return True

    def _encode(self, items: Sequence[tuple[ProducerData, int]], merge: bool) -> list[ProduceRequest]:
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
                codec=settings.codec_for(topic),
                max_message_bytes=settings.max_message_bytes,
                max_set_bytes=settings.max_request_bytes - entry_overhead(topic),
            )
        ]

    def _pause(self, attempt: int) -> float:
        bound = self._settings.initial_backoff * 2.0 ** min(attempt - 1, 64)
        return self._rng.uniform(0.0, min(bound, self._settings.max_backoff))
