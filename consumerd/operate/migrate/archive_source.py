"""An archive of segment files as the source of a comparison: folders, plain or packed segments, plain tars.

Strategy: segments since 0.8 are read as they are replayed (`archived_topics`). Of 0.7 a partition is its segments in
the order of their start offsets, and a read opens those that it needs. Reading is done by the caller, without threads:
nothing else waits. Packed tars would have to be unpacked for every partition again, and are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter

from consumerd.base.errors import ConfigError, CorruptDataError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.operate.migrate.archived_topics import ArchivedPartition, ArchivedSegment, find_archived
from consumerd.operate.migrate.message_source import MessageSource, SourceMessage, UnreadableStretch
from consumerd.storage.archives.copies import existing_topics
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.opening import open_segments
from consumerd.storage.archives.sources import SegmentSource, find_sources, unpacked_name
from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import MAX_SEGMENT_BYTES, ArchivedRun, Flaw, FlawKind, IndexedMessages
from consumerd.storage.log.archive_names import DEFAULT_LAYOUT, LOG_SUFFIX, ArchiveLayout
from consumerd.storage.log.segment import SUFFIX


def archive_source(
    paths: Sequence[str],
    topics: Sequence[str] = (),
    *,
    layout: str = DEFAULT_LAYOUT,
    broker: int | None = None,
    committed: bool = False,
) -> MessageSource:
    """The archive below `paths`, of 0.7 or of 0.8 and later. Blocks.

    `committed`: of 0.8 and later, without the messages of transactions that were not committed. Raises ConfigError
    for an archive of both, NoSourceError, ReadFailedError.
    """
    sources = find_sources(paths)
    names = [unpacked_name(source.name) for source in sources]
    if not any(name.endswith(LOG_SUFFIX) for name in names):
        return ArchiveSource(sources, topics, layout=layout, broker=broker)
    if old := next((name for name in names if name.endswith(SUFFIX)), None):
        raise ConfigError(
            f"{old} is a segment of 0.7, and others are of 0.8 and later: compare one of the two at a time."
        )
    if broker is not None:
        raise ConfigError("--broker-id is for segments of 0.7: since 0.8 a partition is the same on all brokers.")
    return StoredArchiveSource(sources, topics, layout=layout, committed=committed)


class StoredArchiveSource:
    """Of 0.8 and later, the topics named (all without any) of `sources`."""

    def __init__(
        self, sources: Sequence[SegmentSource], topics: Sequence[str], *, layout: str, committed: bool
    ) -> None:
        self._sources = sources
        self._topics = topics
        self._layout = layout
        self._committed = committed
        self._archived: dict[TopicPartition, ArchivedPartition] = {}

    @property
    def notes(self) -> list[str]:
        """Sentences about the copies that are not read."""
        return [note for each in self._archived.values() for note in each.notes]

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Reads everything once. Raises NoSourceError, ConfigError, ReadFailedError."""
        existing = existing_topics(self._sources, ArchiveLayout(self._layout))
        found = find_archived(self._sources, self._topics, layout=self._layout, existing=existing)
        self._archived = {each.partition: each for each in found}
        return {partition: (each.log_start, each.log_end) for partition, each in self._archived.items()}

    async def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        """Raises ReadFailedError."""
        archived = self._archived[partition]
        for finding in archived.damage:
            if finding.offset is None or start <= finding.offset < end:
                yield UnreadableStretch(start if finding.offset is None else finding.offset, finding.problem)
        for messages in archived.read(start, end, committed=self._committed):
            yield [SourceMessage(message.offset, 0, message.payload) for message in messages]


class ArchiveSource:
    """Of 0.7, the topics named (all without any) of `sources`. Raises ConfigError for a wrong layout."""

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        topics: Sequence[str] = (),
        *,
        layout: str = DEFAULT_LAYOUT,
        broker: int | None = None,
    ) -> None:
        self._sources = sources
        self._topics = topics
        self._layout = ArchiveLayout(layout, broker)
        self._segments: dict[TopicPartition, list[ArchivedSegment]] = {}

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Raises ConfigError where names do not tell which partition a segment is of, NotFoundError."""
        segments: defaultdict[TopicPartition, list[ArchivedSegment]] = defaultdict(list)
        for source in self._sources:
            if source.is_tar and source.part is None:
                raise ConfigError(
                    f"{source.name} is a compressed tar, "
                    "which would be read as a whole for every range: decompress it first."
                )
            name = self._layout.name(source.name)
            if name.broker is None:
                raise ConfigError(
                    f"{source.name} has no broker: give --broker-id, or a --layout with {{broker}}; "
                    "it is part of a message's identity."
                )
            if not self._topics or name.topic in self._topics:
                partition = TopicPartition(name.topic, name.broker, name.partition)
                segments[partition].append(ArchivedSegment(name.start, source))
        for topic in self._topics:
            if not any(partition.topic == topic for partition in segments):
                raise NotFoundError(f"the archive has no segments of the topic {topic!r}.")
        self._segments = {
            partition: sorted(found, key=_by_start) for partition, found in sorted(segments.items(), key=_by_partition)
        }
        bounds = {}
        for partition, found in self._segments.items():
            for one, other in pairwise(found):
                if one.start == other.start:
                    raise ConfigError(f"{one.source.name} and {other.source.name} are the same segment: leave one out.")
            bounds[partition] = found[0].start, self._end(found[-1])
        return bounds

    def _end(self, segment: ArchivedSegment) -> int:
        """The end of the last whole message of a segment."""
        end = segment.start
        for item in self._items(segment, None):
            if not isinstance(item, Flaw) or item.kind is not FlawKind.TORN:
                end = item.next_offset
        return end

    def _items(self, segment: ArchivedSegment, stop: int | None) -> Iterator[ArchivedRun | Flaw]:
        for each in open_segments(segment.source):
            if isinstance(each, ArchiveFinding):
                raise CorruptDataError(each.problem)
            for item in read_indexed(each.stream, segment.start, resync=True, stop=stop):
                if isinstance(item, IndexedMessages):
                    yield from item.as_runs()
                else:
                    yield item

    async def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        """Raises CorruptDataError, ReadFailedError."""
        segments = self._segments[partition]
        ends = [segment.start for segment in segments[1:]] + [start + MAX_SEGMENT_BYTES + 1 + end]
        for segment, following in zip(segments, ends, strict=True):
            if following <= start or segment.start >= end:
                continue
            for item in self._items(segment, end):
                if not isinstance(item, Flaw):
                    if found := [SourceMessage(*each) for each in _places(item) if start <= each[0] < end]:
                        yield found
                elif start <= item.offset < end:
                    yield UnreadableStretch(item.offset, item.problem)


_by_start = attrgetter("start")
_by_partition = itemgetter(0)


def _places(run: ArchivedRun) -> Iterator[tuple[int, int, bytes]]:
    """Offset, index and payload of every message of a run."""
    if run.codec:
        for index, payload in enumerate(run.payloads, run.first):
            yield run.offset, index, payload
    else:
        for offset, payload in zip(run.boundaries(), run.payloads, strict=False):
            yield offset, 0, payload
