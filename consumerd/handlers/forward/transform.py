"""A base class for handlers that consume, transform and produce: what a batch makes counts once, with its position.

Strategy: as `forward` with `exactly_once`: a transactional producer for each source partition, whose transactions have
the position, too. The messages may go to any topics of the target.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from ssl import SSLContext
from typing import Any, Final, NamedTuple

from consumerd.base.address import parse_addresses
from consumerd.base.errors import BrokerError, HandlerFailedError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock, SaslMechanism
from consumerd.handlers import Batch, Handler, HandlerContext, PartitionTakenError
from consumerd.handlers.forward.errors import stop_if_hopeless
from consumerd.handlers.forward.positions import PartitionTransactions, forward_name, require_positions
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.factory import make_client
from consumerd.net.connection import ConnectionSettings
from consumerd.producer import ProducerFencedError, ProducerTransaction, V08Producer, V08ProducerSettings

_DEFAULTS: Final = V08ProducerSettings()


class TransactionBatch(Batch):
    """A batch whose position is committed with its `transaction`, which its parts share."""

    __slots__ = ("produce", "transaction")

    def __init__(self, *args: Any, transaction: ProducerTransaction, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Sends with `send_many` what `produce` sends one by one.
        self.transaction = transaction
        #: As `V08Producer.send`: `await batch.produce(topic, value, key)`.
        self.produce = transaction.send

    def part(self, first: int, length: int) -> TransactionBatch:
        """As `Batch.part`, in the same transaction."""
        return _in_transaction(super().part(first, length), self.transaction)

    def rest(self, count: int) -> TransactionBatch:
        """As `Batch.rest`, in the same transaction."""
        return self.part(count, len(self) - count) if count else self


def _in_transaction(batch: Batch, transaction: ProducerTransaction) -> TransactionBatch:
    return batch.made_by(partial(TransactionBatch, transaction=transaction))


class _Partition(NamedTuple):
    """What is open of a source partition."""

    producer: V08Producer
    transactions: PartitionTransactions


class TransactionalHandler(Handler):
    """A handler whose `transform` produces to a cluster (2.5 and later) in a transaction for each batch.

    `bootstrap`: servers of the cluster, `host:port` each. `positions`: a topic there under which the positions stand;
    by default that of the messages, which is there where source and target are the same cluster. `source`: a name of
    the source cluster, if several are consumed by groups of one name. `settings`: of the producers, whose transactional
    id is chosen here. `tls`, `sasl`: as in `consumerd.ProducerConfig`.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        positions: str | None = None,
        source: str | None = None,
        settings: V08ProducerSettings = _DEFAULTS,
        client_id: str = "consumerd-transform",
        tls: SSLContext | None = None,
        sasl: Callable[[], SaslMechanism] | None = None,
    ) -> None:
        self._addresses = parse_addresses(bootstrap, "bootstrap")
        self._positions = positions
        self._source = source
        self._settings = settings
        self._client_id = client_id
        self._tls = tls
        self._sasl = sasl
        self._rng = random.SystemRandom()
        self._client: ClusterClient
        self._context: HandlerContext
        self._open: dict[TopicPartition, _Partition] = {}

    @abstractmethod
    async def transform(self, batch: TransactionBatch) -> None:
        """Send what follows from `batch` with its `produce`. Returning commits it, with the position after the batch.

        Any error aborts it, and the retry policy decides; the batch comes again, or what of it was not committed.
        """

    def make_client(self, clock: Clock) -> ClusterClient:
        """Return a client of the target, which `stop` closes."""
        return make_client(
            self._addresses,
            ConnectionSettings(),
            client_id=self._client_id,
            tls=self._tls,
            sasl=self._sasl,
            clock=clock,
            rng=self._rng,
        )

    async def start(self, context: HandlerContext) -> None:
        """Connect to the target. Raises HandlerFailedError where it is unavailable or older than 2.5."""
        self._context = context
        self._client = self.make_client(context.clock)
        try:
            await self._client.retrying("find the target", self._client.refresh)
            require_positions(await self._client.any_channel())
        except BrokerError as error:
            raise HandlerFailedError(f"cannot begin transactions: {error}") from error

    async def stop(self) -> None:
        """Close the producers and the client."""
        for partition in list(self._open):
            await self._close(partition)
        await self._client.close()

    async def position(self, partition: TopicPartition) -> int | None:
        """Return the position on the target, once former owners of the partition are fenced. Raises as `handle`."""
        await self._close(partition)
        try:
            return (await self._opened(partition)).transactions.begin()
        except Exception as error:
            stop_if_hopeless(error, f"cannot begin transactions of {partition}")
            raise

    async def handle(self, batch: Batch) -> None:
        """Return when all of `batch` is committed. Raises PartitionTakenError, HandlerFailedError, BrokerError, and
        what `transform` raises.
        """
        partition = batch.partition
        opened = self._open.get(partition)
        try:
            opened = opened or await self._opened(partition)
            opened.transactions.skip(batch)
            if batch.handled < len(batch):
                async with opened.transactions.transaction(batch) as transaction:
                    # A batch of its own: marks of one that is aborted have no effect.
                    await self.transform(_in_transaction(batch.rest(batch.handled), transaction))
            batch.mark(len(batch))
        except BaseException as error:
            await self._close(partition)
            what = f"cannot handle {partition} from {batch.prefix(batch.handled)}"
            if opened is not None and isinstance(error, ProducerFencedError):
                raise PartitionTakenError(
                    f"{what}: another member has the partition, or the transaction took longer than "
                    f"{self._settings.transaction_timeout:g} s (transaction_timeout): {reason_of(error)}"
                ) from error
            stop_if_hopeless(error, what)
            raise

    async def _opened(self, partition: TopicPartition) -> _Partition:
        name = forward_name(self._context.group, self._source, partition)
        producer = V08Producer(
            self._client,
            replace(self._settings, transactional_id=name),
            clock=self._context.clock,
            rng=self._rng,
        )
        topic = self._positions or partition.topic
        opened = _Partition(producer, PartitionTransactions(producer, self._client, name, partition, topic))
        await opened.transactions.open()
        self._open[partition] = opened
        return opened

    async def _close(self, partition: TopicPartition) -> None:
        opened = self._open.pop(partition, None)
        if opened is not None:
            await opened.producer.abort()
