"""The handler of `consumerd mirror`: each batch goes to the same topic on another cluster, and returns confirmed.

Strategy: nothing is kept here. A batch is delivered again until the target has taken it, so messages committed on the
source are on the target, and others may be there twice. A large batch is sent in pieces, so that neither
memory nor the loop pays for a compressed message that unpacks to millions. An error that no retry can resolve is final
at once: a message that is too large, or, where it is verified, one that the target does not store.
"""

from __future__ import annotations

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.counts import TargetCounts
from consumerd.handlers.mirror.placing import SourceCounts
from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.producer import (
    EncodingError,
    MessageSizeTooLargeError,
    NoPartitionError,
    NotArrivedError,
    PartitionerError,
    Producer,
)
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.registry.errors import DialectError

log = structlog.get_logger(__name__)

_HOPELESS = (
    MessageSizeTooLargeError,
    InvalidTopicError,
    NoPartitionError,
    PartitionerError,
    EncodingError,
    DialectError,
)
#: The number of times that an incomplete batch is sent: each time the rest of it is stored once more.
ARRIVAL_TRIES = 3
#: Messages, and bytes of their payloads, that are sent at once.
MESSAGES, BYTES = 20_000, 2 << 20


class MirrorHandler(Handler):
    """Sends batches through `producer`, which it owns and closes.

    `counts` is None where any partition will do, `topics` where the target has no ZooKeeper to look into.
    """

    def __init__(self, producer: Producer, counts: SourceCounts | None, topics: MirrorTopics | None = None) -> None:
        self._producer = producer
        self._counts = counts
        self._topics = topics
        self._not_arrived: dict[TopicPartition, int] = {}
        #: The counts of messages sent to the target, and confirmed by it.
        self.counts = TargetCounts()

    @property
    def sent(self) -> int:
        """Messages that the target has taken."""
        return self.counts.confirmed.total()

    async def handle(self, batch: Batch) -> None:
        """Send the rest of `batch`, marking it as the target confirms it.

        Raises HandlerFailedError for an error that no retry can resolve, else what the producer raises.
        """
        key = None if self._counts is None else await self._counts.source(batch.partition)
        try:
            if self._topics is not None:
                await self._topics.ensure(batch.topic)
            for piece in in_chunks(batch.rest(batch.handled), MESSAGES, BYTES, len):
                self.counts.sent[batch.topic] += len(piece)
                await self._producer.send(batch.topic, piece, key=key)
                batch.mark(batch.handled + len(piece))
                self.counts.confirmed[batch.topic] += len(piece)
                self._not_arrived.pop(batch.partition, None)
        except _HOPELESS as error:
            raise HandlerFailedError(
                f"cannot mirror {batch.partition} from offset {batch.prefix(batch.handled)}: {error}"
            ) from error
        except NotArrivedError as error:
            tries = self._not_arrived[batch.partition] = self._not_arrived.get(batch.partition, 0) + 1
            if tries >= ARRIVAL_TRIES:
                raise HandlerFailedError(
                    f"cannot mirror {batch.partition} from offset {batch.prefix(batch.handled)}: {error}"
                ) from error
            raise

    async def stop(self) -> None:
        """Close the producer."""
        await self._producer.close()
        log.info("mirror_stopped", sent=self.sent)
