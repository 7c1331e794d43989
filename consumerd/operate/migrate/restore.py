"""Replays an archive of 0.8 and later into a cluster: the topics as they were, and their messages in their partitions.

Strategy: the handler `forward` sends what the archive has, in transactions that hold the position of their partition,
too. So a run that was killed continues where it was, nothing is there twice for readers of committed messages, and no
header has to be added. A partition of the target that holds messages, but no position of a restore, is not written to.
The archive is read between transactions and without threads: nothing else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Final

from consumerd.base.backoff import Backoff
from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.ports import Clock
from consumerd.handlers import Batch, HandlerContext
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import TopicNaming
from consumerd.handlers.forward.settings import ForwardSettings
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.topic_configs import topic_settings
from consumerd.operate.admin.errors import RefusedError
from consumerd.operate.admin.v08.topic_nodes import TopicPlan
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from consumerd.operate.migrate.archived_topics import ArchivedPartition
from consumerd.operate.migrate.restored_log import MessageDigest, is_same, match
from consumerd.operate.migrate.restored_topics import POLICY, RETENTION, created_settings
from consumerd.storage.archives.cluster_metadata import ClusterTopics
from consumerd.storage.archives.errors import InterruptedWorkError
from consumerd.storage.archives.pool import Progress, StopFlag
from consumerd.wire.v08.records import RecordCodec

#: The group under whose name the positions stand on the target, as those of a mirror under its group's.
RESTORE_GROUP: Final = "consumerd-restore"
#: Failures in a row after which a partition is not tried again, and seconds between.
_ATTEMPTS: Final = 5
_SMALLEST, _LARGEST = 0.5, 10.0
_CREATE_TIMEOUT: Final = 30.0
_STAMPS: Final = "message.timestamp.type"


def restore_settings(codec: RecordCodec, *, source: str | None, max_message_bytes: int) -> ForwardSettings:
    """The settings of the handler that replays. `source`: a name of the archive, of which the positions are."""
    return ForwardSettings(
        headers=False,
        keep_headers=True,
        cluster=source,
        codec=codec,
        exactly_once=True,
        max_message_bytes=max_message_bytes,
    )


@dataclass(slots=True)
class RestoredPartition:
    """The result for a partition: `sent` now. `digest`, `difference`: as verified; else "". `note`: a sentence.

    `whole`: of all messages of the partition, where this run sent them from the first one on without a failure.
    """

    archived: ArchivedPartition
    topic: str
    sent: int = 0
    digest: str = ""
    difference: str = ""
    note: str = ""
    whole: MessageDigest | None = None


@dataclass(slots=True)
class RestoreReport:
    """What was replayed. `created`: topics; `notes`: sentences."""

    partitions: list[RestoredPartition] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """Partitions that are not the same on the target."""
        return sum(bool(each.difference) for each in self.partitions)


class Restore:
    """One run. `make_handler`: a `ForwardHandler` with `restore_settings`, which is not started, for a codec.

    `codec`: of the messages on the target; None for that of each partition's first batch. `counts`: the numbers of
    partitions of topics that are created, by the names on the target, where these are more than the archive shows.
    `existing`: the topics by the cluster's metadata, whose partitions and settings created ones get.
    """

    def __init__(
        self,
        archived: Sequence[ArchivedPartition],
        client: ClusterClient,
        make_handler: Callable[[RecordCodec], ForwardHandler],
        naming: TopicNaming,
        *,
        clock: Clock,
        rng: Random,
        codec: RecordCodec | None = None,
        counts: Mapping[str, int] | None = None,
        replicas: int | None = None,
        existing: ClusterTopics | None = None,
    ) -> None:
        self._archived = archived
        self._client = client
        self._changes = TopicsByRequests(client)
        self._make_handler = make_handler
        self._clock = clock
        self._rng = rng
        self._codec = codec
        self._counts = counts or {}
        self._replicas = replicas
        self._existing = {} if existing is None else existing.topics
        self._log = TargetLog(client, read_committed=True)
        self._topics = {each.partition.topic: naming.target(each.partition.topic) for each in archived}

    async def run(self, *, verify: bool, progress: Progress, stop: StopFlag) -> RestoreReport:
        """Raises RefusedError for topics that hold other messages, HandlerFailedError, BrokerError, ReadFailedError,
        InterruptedWorkError.
        """
        report = RestoreReport(notes=[note for each in self._archived for note in each.notes])
        await self._prepare_topics(report)
        progress.begin(sum(each.bytes for each in self._archived), len(self._archived))
        for each in self._archived:
            result = RestoredPartition(each, self._topics[each.partition.topic])
            report.partitions.append(result)
            await self._replay(result, progress, stop, verify=verify)
            report.notes += [result.note] if result.note else []
            progress.segment(result.sent)
        for result in report.partitions if verify else ():
            if stop.requested:
                raise InterruptedWorkError("interrupted: repeat the command to verify")
            await self._verify(result)
        return report

    async def _verify(self, result: RestoredPartition) -> None:
        """Compare a partition; the archive is read again only where that was not all sent at once, or differs."""
        number = result.archived.partition.partition
        if result.whole is not None and await is_same(result.whole, self._log, result.topic, number):
            result.digest = result.whole.text
            return
        found = await match(result.archived, self._log, result.topic)
        result.digest, result.difference = found.digest, found.difference or ""

    # -- topics

    async def _prepare_topics(self, report: RestoreReport) -> None:
        """Create missing topics, and look at the others."""
        counts = self._needed()
        metadata = await self._client.retrying("find the target", lambda: self._client.refresh(None))
        there = {topic: len(metadata.topics[topic].partitions) for topic in counts if topic in metadata.topics}
        for topic, count in sorted(counts.items()):
            has = there.get(topic)
            if has is None:
                report.notes += await self._create(topic, count)
                report.created.append(topic)
            elif has < count:
                raise RefusedError(
                    f"topic {topic!r} of the target has {has} partitions, and the archive {count}: add partitions to "
                    "it, or restore to another name (--rename)"
                )
            elif has > count:
                report.notes.append(
                    f"topic {topic!r} of the target has {has} partitions, and the archive {count}: new messages of a "
                    "key may go to another partition than its old ones"
                )
        if report.created:
            await self._changes.wait_until_known(report.created)  # the clients of the handlers ask any broker
            report.notes.append(
                f"created with retention.ms=-1 and retention.bytes=-1, so that old messages stay: "
                f"{', '.join(report.created)}; set what they had when the groups have caught up"
            )
        if there:
            report.notes += await self._look_at_settings(sorted(there))

    async def _create(self, topic: str, count: int) -> list[str]:
        """Create a topic with `count` partitions at least; returns what has to be done later."""
        had = [self._existing[old] for old, new in self._topics.items() if new == topic and old in self._existing]
        settings = created_settings(had[0].configuration if had else {}, self._replicas)
        count = max(count, self._counts.get(topic, 0), *(max(each.partitions, default=-1) + 1 for each in had))
        plan = TopicPlan(topic, count, self._replicas, config=settings.now)
        await self._changes.create(plan, timeout=_CREATE_TIMEOUT)
        return [settings.sentence(topic)] if had and had[0].configuration else []

    def _needed(self) -> dict[str, int]:
        """The least number of partitions of each topic of the target."""
        counts: dict[str, int] = {}
        for each in self._archived:
            topic = self._topics[each.partition.topic]
            counts[topic] = max(counts.get(topic, 0), each.partition.partition + 1)
        return counts

    async def _look_at_settings(self, topics: Sequence[str]) -> list[str]:
        """Sentences about settings by which messages would change, or go again."""
        keys = (_STAMPS, RETENTION, POLICY)
        found = await self._client.retrying("settings", lambda: topic_settings(self._client, topics, keys))
        notes, now = [], self._clock.wall() * 1000
        for topic, settings in sorted(found.items()):
            if settings.get(_STAMPS) == "LogAppendTime":
                notes.append(
                    f"topic {topic!r} of the target has message.timestamp.type=LogAppendTime: its brokers replace the "
                    "timestamps; set CreateTime while messages are replayed to keep them"
                )
            times = [
                each.first_time
                for each in self._archived
                if self._topics[each.partition.topic] == topic and each.first_time is not None
            ]
            text = settings.get(RETENTION) or "-1"
            deletes = "delete" in (settings.get(POLICY) or "delete") and text.isdecimal()
            if deletes and times and min(times) < now - int(text):
                notes.append(
                    f"topic {topic!r} of the target has retention.ms={text}: its brokers delete the older messages "
                    "soon; set -1 until the groups have caught up"
                )
        return notes

    # -- messages

    async def _replay(self, result: RestoredPartition, progress: Progress, stop: StopFlag, *, verify: bool) -> None:
        """Send what the target does not have yet of a partition; a failure that may pass is tried again."""
        result.whole = MessageDigest() if verify else None
        backoff = Backoff(_SMALLEST, _LARGEST, self._rng)
        handler = self._make_handler(result.archived.codec if self._codec is None else self._codec)
        while True:
            before = result.sent
            try:
                await self._replay_once(result, handler, progress, stop)
                return
            except BrokerError as error:
                result.whole = None  # what of the last chunk is there is not known
                if result.sent > before:
                    backoff.reset()
                if backoff.attempts == _ATTEMPTS:
                    raise BrokerError(
                        f"{result.archived.partition} cannot be replayed: {reason_of(error)}; repeat the command to "
                        "continue"
                    ) from error
            await self._clock.sleep(backoff.next())

    async def _replay_once(
        self, result: RestoredPartition, handler: ForwardHandler, progress: Progress, stop: StopFlag
    ) -> None:
        partition = result.archived.partition
        await handler.start(HandlerContext(RESTORE_GROUP, RESTORE_GROUP, self._clock))
        try:
            position = await handler.position(partition)
            if position is None:
                await self._require_empty(result)
            else:
                result.whole = None
                if position < (start := result.archived.log_start) and not result.sent:
                    result.note = (
                        f"{partition}: the former run ended at offset {position}, and the archive begins at {start} by "
                        "now: what was between is not replayed"
                    )
            with closing(result.archived.read(position or 0, on_bytes=progress.advance)) as chunks:  # type: ignore[type-var]  # a generator
                for chunk in chunks:
                    if stop.requested:
                        raise InterruptedWorkError("interrupted: repeat the command to continue")
                    await handler.handle(Batch(partition, SparseContent(chunk, contiguous=True)))
                    result.sent += len(chunk)
                    if result.whole is not None:
                        result.whole.add_all(chunk)
        finally:
            await handler.stop()

    async def _require_empty(self, result: RestoredPartition) -> None:
        """Raise RefusedError where the target has messages of which no restore has noted the position."""
        number = result.archived.partition.partition
        bounds = await self._log.bounds(result.topic, number)
        async for records in self._log.read(result.topic, number, *bounds):
            raise RefusedError(
                f"{result.topic}/{number} of the target holds messages (from offset {records[0].offset} on) that no "
                "restore has written: nothing was replayed to it; delete the topic, or restore to another name "
                "(--rename)"
            )
