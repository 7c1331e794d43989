"""One PRODUCE request: batches of partitions that a broker leads -> the outcome of each.

Strategy: the format of a batch on the wire follows from the version that the broker serves: magic 0 up to version 1,
magic 1 in version 2, record batches from 3 on. Temporary and permanent errors are distinguished. A request with one
batch, as most are, is written by a template of its partition: the batch goes into it in one step.

Idempotence: a producer id is requested before the first batch, and each partition counts its messages. A batch that is
sent again has the same numbers, so the broker knows it; "duplicate" means that it is there. When a batch fails for good
the partition forgets its id and takes a newer one: whether the broker took the batch is unknown, and with an id that
the partition never had, the next ones do not depend on it. The others keep theirs. It does so, too, when the broker has
forgotten the producer, with its messages (before 2.4), or the batches before: a batch that no broker can have then gets
numbers of another id.

A transactional producer (`transactions`) has one id and epoch for all partitions, which begin to count again with each
epoch. A batch that fails for good fails the transaction.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError, RequestTooLargeError, error_of
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer.errors import MessageSizeTooLargeError, ProducerFencedError, TransactionAbortedError
from consumerd.producer.v08.batches import PartitionQueue, ProducerBatch
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.transactions import ProducerIdentity, Transactions
from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.apis import INIT_PRODUCER_ID, PRODUCE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.produce_template import FIRST_VERSION as RECORD_BATCHES
from consumerd.wire.v08.produce_template import LAST_WITH_NAMES, AcceptedBatch, ProduceTemplate
from consumerd.wire.v08.records import RecordCodec
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.types import Data

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies

log = structlog.get_logger(__name__)

#: The version with magic 1; record batches follow.
_MAGIC_1: Final = 2
#: The first version in which a broker takes zstd.
_ZSTD: Final = 7
_MAX_SEQUENCE: Final = (1 << 31) - 1
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: Refusals of a batch that is in no log: a broker looks at the size before it appends anything, and of a topic that is
#: deleted there is none.
_NOT_STORED: Final = TOO_LARGE | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
_NUMBERS_REFUSED: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
#: Bytes from which on compressing is left to a thread: about a millisecond of work. For less, handing over costs more.
_THREAD_BYTES: Final = {
    RecordCodec.GZIP: 256 << 10,
    RecordCodec.SNAPPY: 1 << 20,
    RecordCodec.LZ4: 1 << 20,
    RecordCodec.ZSTD: 256 << 10,
}


def is_too_large(error: BaseException) -> bool:
    """Whether a producer or a broker refused a message, or a batch, for its size."""
    return isinstance(error, MessageSizeTooLargeError) or (
        isinstance(error, BrokerRefusedError) and error.code in TOO_LARGE
    )


class DeliveryError(BrokerError):
    """A batch that cannot be delivered by another attempt."""


class BatchOutcome(NamedTuple):
    """The outcome of a batch. `retry`: whether `error` may be temporary. `base_offset`: None if it is not known."""

    error: BrokerError | None
    retry: bool = False
    base_offset: int | None = None
    timestamp: int = -1


Outcomes: TypeAlias = dict["TopicPartition", BatchOutcome]


class BatchRequest:
    """The body of a request with one batch, which is encoded when the request is sent."""

    __slots__ = ("_batch", "_template", "decode")

    def __init__(self, batch: ProducerBatch, template: ProduceTemplate) -> None:
        self._batch = batch
        self._template = template
        #: Reads a `AcceptedBatch` where the response is as usual, in place of the fields.
        self.decode: Callable[[Data], Any] = template.decode

    def encode(self, correlation_id: int, client_id: str | None) -> bytes:
        """The whole frame. Raises EncodeError."""
        return self._batch.encode(2, RecordCodec.NONE, self._template.around(correlation_id, client_id))


class ProduceRequests:
    """Sends the first sealed batch of queues to their leader. `transactions`: of a transactional producer."""

    def __init__(
        self, client: ClusterClient, settings: V08ProducerSettings, transactions: Transactions | None = None
    ) -> None:
        self._client = client
        self._settings = settings
        self._transactions = transactions
        #: Seconds for which a broker may wait for replicas: no longer than a batch is tried at all.
        self._held_back = min(settings.request_timeout, settings.delivery_timeout)
        #: Seconds to wait for a response: those, and the time for the response itself.
        self._patience = self._held_back + client.settings.connection.socket_timeout
        self._identities: dict[TopicPartition, ProducerIdentity] = {}
        #: The newest, for partitions that have none; None if one of them has forgotten it.
        self._newest: ProducerIdentity | None = None
        self._templates: dict[TopicPartition, ProduceTemplate] = {}
        #: With acks 0: the channel over which a broker was sent something last.
        self._unconfirmed: dict[int, Channel] = {}
        #: We may have no producer ids.
        self._forbidden = False

    def failed(self, queue: PartitionQueue, error: BrokerError) -> None:
        """A batch of the queue failed for good: its transaction fails, or else later ones get another producer id."""
        if self._transactions is not None:
            self._transactions.failed(error)
        else:
            self.forget(queue)

    def forget(self, queue: PartitionQueue) -> None:
        """Give the later batches of the queue another producer id."""
        if self._identities.pop(queue.partition, None) is self._newest:
            self._newest = None
        queue.sequence = 0

    async def produce(self, node_id: int, queues: Mapping[TopicPartition, PartitionQueue]) -> Outcomes:
        """One request with the first batch of every queue. Raises BrokerError where nothing is known of any."""
        if self._settings.acks == 0:
            self._see_refusal(node_id)
        channel = await self._client.node_channel(node_id)
        if self._transactions is not None:
            try:
                await self._transactions.add(queues)
            except (TransactionAbortedError, ProducerFencedError) as error:
                return dict.fromkeys(queues, BatchOutcome(error))
        version, ids = self._version(channel, {partition.topic for partition in queues})
        outcomes: Outcomes = {}
        body = await self._body(channel, version, ids, queues, outcomes)
        if body is None:
            return outcomes
        rest = [partition for partition in queues if partition not in outcomes]
        # No broker can have those that are sent for the first time, should this one refuse them.
        fresh = {partition for partition in rest if not queues[partition].sealed[0].sent}
        for partition in fresh:
            queues[partition].sealed[0].sent = True
        try:
            if self._settings.acks == 0:
                self._unconfirmed[node_id] = channel
                await channel.send(PRODUCE, body, version=version)
                return outcomes | dict.fromkeys(rest, BatchOutcome(None))
            answer = await channel.call(PRODUCE, body, version=version, timeout=self._patience)
        except (RequestTooLargeError, UnsupportedApiError) as error:
            failed = DeliveryError(str(error))
            return outcomes | dict.fromkeys(rest, BatchOutcome(failed))
        except EncodeError as error:
            return outcomes | {partition: _unsendable(partition, error) for partition in rest}
        return outcomes | self._read(node_id, answer, ids, [queues[partition] for partition in rest], fresh)

    def post(self, node_id: int, queue: PartitionQueue, settle: Callable[[Outcomes | Exception], object]) -> bool:
        """As `produce` for one queue, at once; return False, and send nothing, if that has to wait for something.

        `settle` is called once with the outcome, or the error that `produce` would raise, by the reader of the
        connection: it must not raise. What cannot be sent at all is left to `produce`, too.
        """
        batch, settings = queue.sealed[0], self._settings
        if settings.acks == 0 or settings.codec is not RecordCodec.NONE:
            return False
        if self._transactions is not None and not self._transactions.ready_for(queue.partition):
            return False
        fresh = () if batch.sent else (queue.partition,)
        ids: Mapping[str, bytes] = {}

        def read(answer: bodies.ProduceResponse | AcceptedBatch | Exception) -> None:
            outcomes: Outcomes | Exception
            try:
                outcomes = answer if isinstance(answer, Exception) else self._read(node_id, answer, ids, [queue], fresh)
            except Exception as error:
                outcomes = error
            settle(outcomes)

        try:
            channel = self._client.open_node_channel(node_id)
            if channel is None:
                return False
            version, ids = self._version(channel, (queue.partition.topic,))
            if version < RECORD_BATCHES:
                return False
            if not (self._numbered(queue) if self._is_idempotent(channel) else not settings.idempotent):
                return False
            body = BatchRequest(batch, self._template(version, ids, queue.partition))
            posted = channel.post(PRODUCE, body, read, version=version, timeout=self._patience)
        except (BrokerError, EncodeError):
            return False
        batch.sent = batch.sent or posted
        return posted

    def _read(
        self,
        node_id: int,
        answer: bodies.ProduceResponse | AcceptedBatch,
        ids: Mapping[str, bytes],
        queues: Sequence[PartitionQueue],
        fresh: Container[TopicPartition],
    ) -> Outcomes:
        """The outcomes of the first batches of `queues` by a response. `fresh`: no broker can have had these before.

        `ids`: those of the topics, if the request had them in place of names.
        """
        if isinstance(answer, AcceptedBatch):
            (queue,) = queues
            return {queue.partition: _stored(answer.base_offset, answer.timestamp)}
        parts = {
            (topic["topic_id"] if ids else topic["name"], part["index"]): part
            for topic in answer["responses"]
            for part in topic["partition_responses"]
        }
        outcomes: Outcomes = {}
        for queue in queues:
            partition = queue.partition
            part = parts.get((ids.get(partition.topic, partition.topic), partition.partition))
            if part is None:
                missing = BrokerError(f"broker {node_id} sent a PRODUCE response without {partition}")
                outcomes[partition] = BatchOutcome(missing, retry=True)
            elif partition in fresh and part["error_code"] in _NUMBERS_REFUSED and self._transactions is None:
                outcomes[partition] = BatchOutcome(self._renumber(queue, part["error_code"]), retry=True)
            else:
                outcomes[partition] = self._outcome(partition, part)
                if partition in fresh and part["error_code"] in _NOT_STORED:
                    queue.sealed[0].sent = False
        return outcomes

    async def _body(
        self,
        channel: Channel,
        version: int,
        ids: Mapping[str, bytes],
        queues: Mapping[TopicPartition, PartitionQueue],
        outcomes: Outcomes,
    ) -> bodies.ProduceRequest | BatchRequest | None:
        """The body of a request; None if no batch can be sent. The outcomes of those that cannot be are added."""
        alone = len(queues) == 1 and version >= RECORD_BATCHES and self._settings.codec is RecordCodec.NONE
        by_topic: defaultdict[str, list[bodies.ProduceRequestPartitionData]] = defaultdict(list)
        for partition, queue in queues.items():
            try:
                magic = await self._prepare(channel, version, queue)
                if alone:
                    return BatchRequest(queue.sealed[0], self._template(version, ids, partition))
                data = await self._encoded(queue.sealed[0], magic)
            except (EncodeError, DeliveryError) as error:
                outcomes[partition] = _unsendable(partition, error)
                continue
            by_topic[partition.topic].append({"index": partition.partition, "records": data})
        if not by_topic:
            return None
        return {
            "transactional_id": self._settings.transactional_id,
            "acks": self._settings.acks,
            "timeout_ms": int(self._held_back * 1000),
            "topic_data": [
                {"name": topic, "topic_id": ids.get(topic, NO_UUID), "partition_data": parts}
                for topic, parts in by_topic.items()
            ],
        }

    def _version(self, channel: Channel, topics: Iterable[str]) -> tuple[int, Mapping[str, bytes]]:
        """The version of a request, and the ids of its topics; none where it has names. Raises UnsupportedApiError."""
        ids = {topic: self._client.known_topic_id(topic) for topic in topics}
        at_most = LAST_WITH_NAMES if NO_UUID in ids.values() else None
        if self._transactions is None:
            version = channel.versions.pick(PRODUCE, at_most=at_most)
        else:
            first, last = self._transactions.produce_versions
            version = channel.versions.pick(PRODUCE, at_least=first, at_most=last or at_most)
        return version, ids if version > LAST_WITH_NAMES else {}

    def _template(self, version: int, ids: Mapping[str, bytes], partition: TopicPartition) -> ProduceTemplate:
        template, topic_id = self._templates.get(partition), ids.get(partition.topic, NO_UUID)
        if template is None or template.version != version or template.topic_id != topic_id:
            timeout = int(self._held_back * 1000)
            template = self._templates[partition] = ProduceTemplate(
                version,
                self._settings.acks,
                timeout,
                partition.topic,
                partition.partition,
                topic_id,
                self._settings.transactional_id,
            )
        return template

    def _see_refusal(self, node_id: int) -> None:
        """Raise ConnectionClosedError if the broker closed the connection: with acks 0 it has no other way to refuse.

        As a rule it does not lead a partition any more; batches sent there before new metadata are read, are lost.
        """
        channel = self._unconfirmed.get(node_id)
        if channel is not None and channel.closed:
            del self._unconfirmed[node_id]
            self._client.stale()  # which of its partitions it was, is not known
            raise ConnectionClosedError(
                f"broker {channel.address} closed the connection; messages sent with acks = 0 may be lost"
            )

    def _outcome(self, partition: TopicPartition, part: bodies.ProduceResponsePartitionResponse) -> BatchOutcome:
        code = part["error_code"]
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return BatchOutcome(None)
        error = error_of(code, f"the broker refused a batch for {partition}", part.get("error_message"))
        if error is None:
            return _stored(part["base_offset"], part.get("log_append_time_ms", -1))
        return BatchOutcome(error, retry=error.retriable)

    def _renumber(self, queue: PartitionQueue, code: int) -> BrokerRefusedError:
        """Have the first batch sent with sequence numbers of a new producer id; returns the reason."""
        batch = queue.sealed[0]
        batch.sent, batch.sequence = False, -1
        self.forget(queue)
        error = error_of(code, f"the broker refused a batch for {queue.partition}")
        assert error is not None
        return error

    async def _prepare(self, channel: Channel, version: int, queue: PartitionQueue) -> int:
        """Number the first batch if it has to be; return its magic. Raises EncodeError, DeliveryError, BrokerError."""
        if self._settings.codec is RecordCodec.ZSTD and version < _ZSTD:
            raise EncodeError(f"broker {channel.address} does not support zstd; use gzip, snappy or lz4")
        magic = 2 if version >= RECORD_BATCHES else 1 if version == _MAGIC_1 else 0
        if magic == 2 and self._is_idempotent(channel):
            await self._number(queue, channel)
        elif self._settings.idempotent:
            raise EncodeError(f"broker {channel.address} does not support idempotent producers (idempotent = true)")
        return magic

    async def _encoded(self, batch: ProducerBatch, magic: int) -> bytes:
        codec = self._settings.codec
        if codec is not RecordCodec.NONE and batch.size > _THREAD_BYTES[codec]:
            return await asyncio.to_thread(batch.encode, magic, codec)
        return batch.encode(magic, codec)

    def _is_idempotent(self, channel: Channel) -> bool:
        settings = self._settings
        if self._transactions is not None:
            return True
        if settings.idempotent is None:
            return settings.acks == -1 and not self._forbidden and channel.versions.has(INIT_PRODUCER_ID)
        return settings.idempotent and channel.versions.has(INIT_PRODUCER_ID)

    async def _number(self, queue: PartitionQueue, channel: Channel) -> None:
        """As `_numbered`, with a new id if none is known. Raises BrokerError, DeliveryError if there will be none."""
        if not self._numbered(queue):
            if self._transactions is not None:
                raise DeliveryError(str(self._transactions.state.refusal()))
            self._newest = await self._new_identity(channel)
            self._numbered(queue)

    def _numbered(self, queue: PartitionQueue) -> bool:
        """Give the first batch its numbers, once; return False if no producer id is known."""
        batch = queue.sealed[0]
        if batch.sequence >= 0:
            return True
        if self._transactions is not None:
            identity = self._transactions.state.identity
        else:
            if queue.sequence + len(batch.values) > _MAX_SEQUENCE:
                self.forget(queue)
            identity = self._identities.get(queue.partition) or self._newest
        if identity is None:
            return False
        if self._identities.get(queue.partition) is not identity:
            self._identities[queue.partition] = identity
            queue.sequence = 0
        batch.transactional = self._transactions is not None
        batch.producer_id, batch.producer_epoch = identity.producer_id, identity.epoch
        batch.sequence = queue.sequence
        queue.sequence = (queue.sequence + len(batch.values)) & _MAX_SEQUENCE  # the number after the last one is 0
        return True

    async def _new_identity(self, channel: Channel) -> ProducerIdentity | None:
        """None if it is not authorized (before 2.8 IdempotentWrite on the cluster is required) and not required."""
        body: bodies.InitProducerIdRequest = {"transactional_id": None, "transaction_timeout_ms": _MAX_SEQUENCE}
        answer = await channel.call(INIT_PRODUCER_ID, body)
        error = error_of(answer["error_code"], f"broker {channel.address} gave no producer id")
        if error is None:
            return ProducerIdentity(answer["producer_id"], answer["producer_epoch"])
        if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and self._settings.idempotent is None:
            self._forbidden = True
            log.warning("idempotence_unavailable", reason=reason_of(error))
            return None
        raise error if error.retriable else DeliveryError(str(error))


def _stored(base_offset: int, timestamp: int) -> BatchOutcome:
    return BatchOutcome(None, base_offset=None if base_offset < 0 else base_offset, timestamp=timestamp)


def _unsendable(partition: TopicPartition, error: Exception) -> BatchOutcome:
    return BatchOutcome(DeliveryError(f"a batch of {partition} cannot be sent: {error}"))
