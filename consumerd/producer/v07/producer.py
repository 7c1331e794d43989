"""The synchronous producer: batches go out when they are sent, and `send` returns when the broker has them.

Strategy. Kafka 0.7 acknowledges nothing, and the only sign of a refusal is a FIN (golden notes, 1). But a broker works
through the requests of a connection one after the other, so an *answer* to a later request proves that it took the
earlier ones. That is the confirmation here: behind each batch goes a FETCH of zero bytes, and `send` waits for
its answer. The guarantees:

- `send` returned: the broker has appended the batch to its log. It is on the broker's disk after the next flush there.
- `send` raised UncertainError, after the tries that the settings allow: all, some or nothing of it was stored.
- any other error: nothing of it was stored, or (from `send_all`) only messages to other brokers.
- Between, a connection that ended before the answer has the batch sent again, so it may be stored twice, never lost:
  at least once. `resends=0` gives at most once.
- The order of two batches for one partition is kept if the second is sent after the first `send` returned.

With `verify=True`, `send` also reads its messages back: they are on the broker's disk and consumers can read them, or
NotArrivedError names the missing ones.

With `confirm=False`, as in 0.7.2, `send` returns when the bytes are on their way, a lost batch is noticed by a later
send or not at all, and only `flush` (which `close` and `async with` do) asks for the confirmation.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Self

from consumerd.base.ports import Clock
from consumerd.net.connect import Connector
from consumerd.producer.encoders import DefaultEncoder, Encoder, encode_all
from consumerd.producer.v07.data import ProducerData, require_plain
from consumerd.producer.v07.routing import Router
from consumerd.producer.v07.sending import Sender
from consumerd.producer.v07.settings import ProducerSettings
from consumerd.wire.v08.records import Headers

DEFAULT_SETTINGS = ProducerSettings()
DEFAULT_ENCODER = DefaultEncoder()


class Producer:
    """Sends messages; made with a router (`StaticRouter`, `ZooKeeperRouter`) that it owns and closes.

    The module's docstring has the guarantees. Use as `async with Producer(...) as producer:`; `open_producer` makes one
    with everything that it needs.
    """

    def __init__(
        self,
        router: Router,
        *,
        connect: Connector,
        clock: Clock,
        rng: random.Random,
        settings: ProducerSettings = DEFAULT_SETTINGS,
        encoder: Encoder = DEFAULT_ENCODER,
    ) -> None:
        self.encoder = encoder
        #: The layer below: for event handlers, which have payloads already.
        self.sender = Sender(router, connect=connect, clock=clock, rng=rng, settings=settings)

    async def send(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        key: Hashable = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Send `payloads` as one batch, to one partition. An empty batch sends nothing.

        Brokers of 0.7 keep neither `headers` nor `timestamp`: EncodingError.

        Raises InvalidTopicError, EncodingError, MessageSizeTooLargeError, NoPartitionError, PartitionerError before
        anything is sent; ConnectError, NoBrokerError, UncertainError, ZooKeeperError after the tries that the settings
        allow; NotArrivedError.
        """
        await self.send_all([ProducerData(topic, payloads, key, partition, headers, timestamp)])

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = False) -> None:
        """Send several batches; those for one broker travel together, as a MULTIPRODUCE.

        Each is an entry of its own, unless `merge` joins those of one partition: then a compressed batch compresses
        better, and keyed messages need not be grouped by the caller. Raises as `send`.
        """
        for item in data:
            require_plain(item)
        pending = [
            ProducerData(item.topic, encode_all(self.encoder, item.payloads), item.key, item.partition) for item in data
        ]
        await self.sender.send(pending, merge=merge)

    async def flush(self) -> None:
        """Return when the brokers have confirmed everything that was sent.

        Raises UncertainError when a connection ended since the last flush with something unconfirmed on it.
        """
        await self.sender.links.flush()

    async def close(self) -> None:
        """Flush, then close all connections and the router. Raises as `flush`, after everything is closed."""
        try:
            await self.flush()
        finally:
            await self.sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:  # this error matters more than one of the flush
            await self.sender.close()
