"""The handler `forward`: each batch goes to a cluster of 0.8 or later, and returns acknowledged by all its replicas.

Strategy: nothing is kept here but the position of the target. A batch is delivered again until the target has taken it,
so messages committed on the source are on the target, and others may be there twice: at least once. With
`ForwardResume.TARGET` a partition that is begun, or whose feed has failed, is looked up on the target first, and
continues after the last message there: then nothing is there twice, as long as one process at a time has the partition,
and messages sent by a killed one are appended before the next one looks. That message tells its log, too, which the
fetcher compares with the source's: all of a topic that was created again is new to the target.

With `exactly_once` a batch and the position after it are one transaction (`positions`): nothing is there twice for
readers of committed messages, whatever ends or stands still. A partition that is begun, or whose feed has failed,
fences former processes first, and continues at that position.

An error that no retry can resolve is final at once: a message that is too large, a topic whose name is invalid or that
may not be written to, a cluster that is too old for the options.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import structlog

from consumerd.base.errors import BrokerError, HandlerFailedError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Batch, Handler, HandlerContext, PartitionTakenError, SinkPosition
from consumerd.handlers.counts import TargetCounts
from consumerd.handlers.forward.errors import stop_if_hopeless
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.identity import SourceIdentity, read_identity
from consumerd.handlers.forward.mapping import SourceNumbering, TopicNaming
from consumerd.handlers.forward.positions import forward_name, require_positions
from consumerd.handlers.forward.settings import ForwardResume, ForwardSettings
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.handlers.forward.topics import ForwardTopics
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer import ProducerFencedError

log = structlog.get_logger(__name__)

#: Offsets of the target that are searched for the last message of a source partition, at most.
LOOK_BACK: Final = 500_000
_FIRST_WINDOW: Final = 2_000


class _Target(NamedTuple):
    """The target, once the handler is started."""

    client: ClusterClient
    topics: ForwardTopics
    log: TargetLog
    clock: Clock
    #: The group of the member.
    group: str


class ForwardHandler(Handler):
    """Forwards to the cluster that `make_client` gives a client of, which it owns and closes."""

    def __init__(
        self,
        make_client: Callable[[Clock, Random], ClusterClient],
        naming: TopicNaming,
        numbering: SourceNumbering,
        settings: ForwardSettings,
        *,
        rng: Random,
    ) -> None:
        self._make_client = make_client
        self._naming = naming
        self._numbering = numbering
        self._settings = settings
        self._rng = rng
        self._target: _Target | None = None
        self._feeds: dict[TopicPartition, PartitionFeed] = {}
        #: The counts of messages sent to the target, and acknowledged by it.
        self.counts = TargetCounts()

    @property
    def sent(self) -> int:
        """Messages that the target has acknowledged."""
        return self.counts.confirmed.total()

    async def start(self, context: HandlerContext) -> None:
        """Connect to the target. Raises HandlerFailedError where it is unavailable or does not support the settings."""
        client = self._make_client(context.clock, self._rng)
        topics = ForwardTopics(
            client, partitions=self._settings.partitions, replication_factor=self._settings.replication_factor
        )
        self._target = _Target(client, topics, TargetLog(client), context.clock, context.group)
        try:
            await client.retrying("find the target", client.refresh)
            if self._settings.headers:
                await topics.require_headers()
            if self._settings.exactly_once:
                require_positions(await client.any_channel())
        except BrokerError as error:
            raise HandlerFailedError(f"cannot forward: {error}") from error

    async def stop(self) -> None:
        """Close the producers and the client."""
        for partition in list(self._feeds):
            await self._close(partition)
        if self._target is not None:
            await self._target.client.close()
        log.info("forward_stopped", sent=self.sent)

    async def position(self, partition: TopicPartition) -> int | None:
        """Return the source offset of the last message that the target has, with `ForwardResume.TARGET`; else None.

        Raises as `handle`.
        """
        await self._close(partition)
        if self._settings.resume is not ForwardResume.TARGET and not self._settings.exactly_once:
            return None
        try:
            feed = await self._opened(partition)
        except Exception as error:
            stop_if_hopeless(error, f"cannot forward {partition}")
            raise
        if feed.transactions is not None:
            return feed.transactions.begin()
        known = feed.known
        log.info("forward_position_found", partition=str(partition), target=feed.topic, position=known and known.offset)
        if known is None:
            return None
        feed.began = known.offset
        return SinkPosition(known.offset, known.log.topic_id_text, known.log.leader_epoch)

    async def handle(self, batch: Batch) -> None:
        """Return when the target has all of `batch`. Raises HandlerFailedError for permanent failures."""
        partition = batch.partition
        feed = self._feeds.get(partition)
        try:
            feed = feed or await self._opened(partition)
            await feed.forward(batch)
        except BaseException as error:
            await self._close(partition)
            what = f"cannot forward {partition} from {batch.prefix(batch.handled)}"
            if feed is not None and isinstance(error, ProducerFencedError):
                raise PartitionTakenError(
                    f"{what}: another member forwards the partition, or the transaction took longer than "
                    f"{self._settings.delivery_timeout:g} s (delivery_timeout): {reason_of(error)}"
                ) from error
            stop_if_hopeless(error, what)
            raise

    async def _close(self, partition: TopicPartition) -> None:
        feed = self._feeds.pop(partition, None)
        if feed is not None:
            await feed.abort()

    async def _opened(self, partition: TopicPartition) -> PartitionFeed:
        """A new feed; with `ForwardResume.TARGET` it starts after the last message on the target."""
        target, settings = self._target, self._settings
        assert target is not None  # the handler is started
        try:
            topic = self._naming.target(partition.topic)
        except ValueError as error:
            raise HandlerFailedError(f"cannot forward {partition}: {error}.") from error
        place = await self._numbering.number(partition) % await target.topics.count(topic)
        name = forward_name(target.group, settings.cluster, partition) if settings.exactly_once else None
        feed = PartitionFeed(
            partition, topic, place, settings, target.client, clock=target.clock, rng=self._rng, counts=self.counts,
            name=name,
        )  # fmt: skip
        if settings.resume is ForwardResume.TARGET:
            feed.known = await last_forwarded(target.log, topic, place, partition, settings.cluster)
        await feed.open()
        self._feeds[partition] = feed
        return feed


async def last_forwarded(
    target: TargetLog, topic: str, place: int, source: TopicPartition, cluster: str | None
) -> SourceIdentity | None:
    """The last identity of `source` among the last messages of `topic`/`place`. Raises BrokerError.

    With the placing `keep` one partition of the target holds all of a source partition, in order, and each chunk was
    acknowledged before the next one was sent: so everything before that identity is there, too. The log is read
    backwards in growing windows. Where the last `LOOK_BACK` offsets hold none of the partition, the committed offset
    counts, and at worst messages are sent again.
    """
    start, end = await target.bounds(topic, place)
    least = max(start, end - LOOK_BACK)
    high, window = end, _FIRST_WINDOW
    while high > least:
        low = max(least, high - window)
        found: SourceIdentity | None = None
        async for records in target.read(topic, place, low, high):
            for record in records:
                identity = read_identity(record.headers)
                if identity is not None and identity.partition == source and identity.cluster == cluster:
                    found = identity
        if found is not None:
            return found
        high, window = low, 4 * window
    if least > start:
        log.warning(
            "target_position_not_found", partition=str(source), target=f"{topic}/{place}", searched_offsets=end - least,
            reason=f"no message of {source} was found; resuming from the committed offset",
        )  # fmt: skip
    return None
