"""The positions of source partitions on the target, which are written in the transactions that have the messages.

Strategy: each source partition has a transactional id and a group of its own on the target. The group is a name for one
offset of the topic that is written to: it has no members. That offset is the source's, and its text names the log. A
producer that has begun its transactions has fenced every former one, and what that left open has ended: the offset that
is read then is final until this producer commits the next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import Batch, SinkPosition
from consumerd.handlers.forward.errors import OtherLogError
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.producer import ProducerTransaction, TransactionOffset, V08Producer
from consumerd.wire.v08.apis import OFFSET_FETCH

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import OffsetFetchRequest

log = structlog.get_logger(__name__)

#: The version of OFFSET_FETCH that waits for the end of transactions, the last one for a single group.
_STABLE: Final = 7
_NO_OFFSET: Final = -1
#: Before the topic id and leader epoch in the text of an offset.
_MARK: Final = "consumerd"


class ForwardPosition(NamedTuple):
    """The source offset of the next message to forward, and the log that it is of."""

    offset: int
    log: LogId = UNKNOWN_LOG

    def as_offset(self) -> TransactionOffset:
        """The offset to commit."""
        topic_id, epoch = self.log.topic_id_text, self.log.leader_epoch
        return TransactionOffset(self.offset, metadata=f"{_MARK} {topic_id or '-'} {'-' if epoch is None else epoch}")

    @classmethod
    def of(cls, offset: int, metadata: str | None) -> ForwardPosition:
        """Read a committed offset. A text that we did not write counts as an unknown log."""
        match (metadata or "").split(" "):
            case [mark, topic_id, epoch] if mark == _MARK:
                known = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else None
                return cls(offset, LogId.from_text(topic_id, known))
        return cls(offset)


class PartitionTransactions:
    """The transactions of `source`, by a producer that has its `forward_name` as transactional id.

    `topic`: of the target, where the position stands.
    """

    def __init__(
        self, producer: V08Producer, client: ClusterClient, name: str, source: TopicPartition, topic: str
    ) -> None:
        self._producer = producer
        self._client = client
        self._name = name
        self._source = source
        self._place = position_place(topic)
        #: The position on the target, until the first batch was compared with it.
        self._resumes: ForwardPosition | None = None
        self._began: int | None = None

    async def open(self) -> None:
        """Start the producer, fence former ones of the partition, and read the position. Raises as `read_position`."""
        await self._producer.start()
        try:
            await self._producer.init_transactions()
            self._resumes = await read_position(self._client, self._name, self._place.topic)
        except BaseException:
            await self._producer.abort()
            raise

    def begin(self) -> SinkPosition | None:
        """Return the position at which the partition begins: no batch is before it. None for the committed offset."""
        resumes = self._resumes
        log.info(
            "forward_position_found",
            partition=str(self._source),
            target=self._place.topic,
            position=None if resumes is None else resumes.offset,
        )
        if resumes is None:
            return None
        self._began = resumes.offset
        return SinkPosition(resumes.offset, resumes.log.topic_id_text, resumes.log.leader_epoch)

    def skip(self, batch: Batch) -> None:
        """Mark the messages from the front of the batch that are before the position on the target.

        Raises OtherLogError if the log begins again before it, and nothing tells that it is another one.
        """
        (resumes, began), self._resumes, self._began = (self._resumes, self._began), None, None
        if resumes is None or resumes.log.replaced_by(batch.log):
            return
        if began is not None and batch.start_offset < began:
            raise OtherLogError(
                f"{self._source} restarts at offset {batch.start_offset}, and the target has its messages up to offset "
                f"{began} already: the source topic was recreated or its log was truncated; forward it to another "
                "topic, or set another `source`."
            )
        if resumes.offset <= batch.start_offset:
            return
        skipped = next((count for count in range(len(batch)) if batch.prefix(count) >= resumes.offset), len(batch))
        if skipped > batch.handled:
            log.info("forwarded_messages_skipped", partition=str(self._source), messages=skipped - batch.handled)
            batch.mark(skipped)

    @asynccontextmanager
    async def transaction(self, batch: Batch) -> AsyncIterator[ProducerTransaction]:
        """A transaction that has the position after `batch`, too. Raises as `V08Producer.transaction`."""
        position = ForwardPosition(batch.next_offset, batch.log)
        async with self._producer.transaction() as transaction:
            yield transaction
            await transaction.send_offsets(self._name, {self._place: position.as_offset()})


def forward_name(group: str, cluster: str | None, source: TopicPartition) -> str:
    """The transactional id of a source partition, and the name of the group that holds its position."""
    return f"{group}{'' if cluster is None else f'@{cluster}'}/{source}"


def is_position(group: str, metadata: str) -> bool:
    """Whether an offset of `group` with this text is the position of a source partition, not one of a consumer."""
    return group.count("/") >= 2 and metadata.startswith(f"{_MARK} ")


def position_place(topic: str) -> TopicPartition:
    """The partition of which the offset is the position: the first one, which a topic on the target always has."""
    return TopicPartition.numbered(topic, 0)


def require_positions(channel: Channel) -> None:
    """Raise HandlerFailedError if the target's broker cannot wait for the end of transactions with a position."""
    if not channel.versions.has(OFFSET_FETCH, _STABLE):
        raise HandlerFailedError(
            f"the target's broker {channel.address} is older than 2.5, and positions in transactions (exactly_once, "
            "--exactly-once) need 2.5 or later."
        )


async def read_position(client: ClusterClient, name: str, topic: str) -> ForwardPosition | None:
    """The position on the target's `topic` of the source partition with this `forward_name`; None before the first.

    Raises HandlerFailedError for a target before 2.5, BrokerError.
    """
    what = f"cannot read the position of {name!r}"
    body: OffsetFetchRequest = {
        "group_id": name,
        "topics": [{"name": topic, "partition_indexes": [position_place(topic).partition]}],
        "require_stable": True,
    }

    async def attempt() -> ForwardPosition | None:
        channel = await client.coordinator_channel(name)
        require_positions(channel)
        answer = await client.call_coordinator(name, OFFSET_FETCH, body, version=_STABLE)
        codes = [answer["error_code"]]
        found: ForwardPosition | None = None
        for topic in answer["topics"]:
            for part in topic["partitions"]:
                codes.append(part["error_code"])
                if part["committed_offset"] != _NO_OFFSET:
                    found = ForwardPosition.of(part["committed_offset"], part["metadata"])
        if refusal := error_of(next(filter(None, codes), 0), what):
            client.forget_coordinator(name)
            raise refusal
        return found

    return await client.retrying(what, attempt)
