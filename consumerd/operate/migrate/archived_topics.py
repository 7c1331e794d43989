"""The topics of an archive of brokers since 0.8, as they are replayed: the messages that readers of committed ones get.

Strategy: each partition is read once before anything is written anywhere, which finds damage, counts what is to be
replayed, and learns which transactions were aborted: a control batch says so only behind their messages. A transaction
that is open at the end of the archive counts as aborted, since its producer cannot end it any more. Of several copies
of a partition that is done with the one which `consumerd.storage.segments.copies` chooses. Where they have no
checkpoints of leader epochs, or where the chosen one is damaged, all are read, so that it knows each epoch and hole.

All of this blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.messages import KeyedMessage
from consumerd.storage.archives.cluster_metadata import ClusterTopics
from consumerd.storage.archives.copies import copy_of, list_folder
from consumerd.storage.archives.errors import CorruptSegmentError, MissingTopicsError, NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.opening import abandoned, open_segments, told_apart
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import DEFAULT_LAYOUT, ArchiveLayout, MisnamedSegmentError, SegmentName
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.storage.segments.cluster_metadata import METADATA_TOPIC
from consumerd.storage.segments.copies import CopyChoice, CopyDifference, EpochStart, PartitionCopy, choose_copy
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.transactions import OPEN_END, UncommittedRanges
from consumerd.wire.registry.v08.topic import INTERNAL_TOPICS
from consumerd.wire.v08.records import RecordCodec

#: What brokers keep for themselves: its content is of the cluster that was.
_INTERNAL: Final = INTERNAL_TOPICS | {METADATA_TOPIC, "__share_group_state"}
#: Messages, and bytes of their keys and values, that are read at once, at least one message.
_COUNT: Final = 10_000
_BYTES: Final = 4 << 20


class ArchivedSegment(NamedTuple):
    """A segment of a copy, and the offset by which its file is named."""

    start: int
    source: SegmentSource


@dataclass(slots=True)
class ArchivedPartition:
    """One partition. `folder`: where its copy is. `segments`: in order.

    `messages`: those that are replayed; `aborted` and `unfinished`: those of transactions that were aborted, and of
    those that are open at the end. `start`: the offset of the first message; `end`: the offset after the last batch.
    `first_time`: the least time of a batch's end, in ms. `codec`: that of the first batch. `findings`: damage. `notes`:
    sentences about the copies that are not read. `holes`: ranges of offsets without a batch
    between segments, and at damage; `compacted`: whether offsets are missing elsewhere, too.
    """

    partition: TopicPartition
    folder: str
    segments: list[ArchivedSegment]
    messages: int = 0
    aborted: int = 0
    unfinished: int = 0
    start: int | None = None
    end: int = 0
    first_time: int | None = None
    #: Leader epochs, where they begin.
    epochs: list[EpochStart] = field(default_factory=list)
    codec: RecordCodec = RecordCodec.NONE
    findings: list[ArchiveFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    compacted: bool = False
    _left_out: UncommittedRanges = field(default_factory=UncommittedRanges)

    @property
    def bytes(self) -> int:
        """The size of its segments as they are stored."""
        return sum(each.source.size or 0 for each in self.segments)

    @property
    def log_start(self) -> int:
        """The offset by which the first segment is named."""
        return self.segments[0].start

    @property
    def log_end(self) -> int:
        """The offset after what was scanned; that by which the first segment is named before."""
        return max(self.end, self.log_start)

    @property
    def damage(self) -> list[ArchiveFinding]:
        """What cannot be read, other than a torn end, which a broker cuts off when it starts."""
        return [each for each in self.findings if each.kind is not FlawKind.TORN]

    def as_copy(self) -> PartitionCopy:
        """What a choice between several copies goes by. It was scanned."""
        starts = {each.start for each in self.segments}
        gaps = () if self.compacted else tuple(hole for hole in self.holes if hole[1] in starts)
        listed = list_folder(self.segments[0].source)
        look = None if listed is None else copy_of(listed)
        made = PartitionCopy(self.folder, self.log_start, self.log_end, tuple(self.epochs), gaps=gaps)
        return made if look is None else replace(made, topic_id=look.topic_id, time=look.time, tiered=look.tiered)

    def at_a_glance(self) -> PartitionCopy | None:
        """The same without a scan, where a checkpoint of leader epochs makes it as good; else None."""
        listed = list_folder(self.segments[0].source)
        return None if listed is None or not listed.exact_epochs else copy_of(listed)

    def note_difference(self, difference: CopyDifference, folder: str, *, replaced: bool) -> None:
        """Note a copy in `folder` that is not read, or, not `replaced`, what the one that is read lacks: damage."""
        problem = f"{folder}: {difference.problem}"
        if replaced:
            self.notes.append(f"a copy is not used: {problem}")
        else:
            kind, offset, end = difference.kind, difference.offset, difference.end
            self.findings.append(ArchiveFinding(kind, folder, problem, str(self.partition), offset, end))

    def scan(self) -> None:
        """Read all of it once, and fill the fields. Raises ConfigError for segments of 0.7, ReadFailedError.

        The first segments may be gone since they were found: a running broker deletes them by retention. Where it has
        deleted one, those before it, which were read in time, are gone as well.
        """
        found = self.log_start
        while (deleted := self._scan_segments()) is not None:
            rest = ArchivedPartition(self.partition, self.folder, self.segments[deleted + 1 :], notes=self.notes)
            for each in fields(self):
                setattr(self, each.name, getattr(rest, each.name))
        if found < self.log_start:
            self.notes.append(
                f"{self.partition}: the segments from offset {found} to {self.log_start - 1} were deleted since they "
                "were found, as a running broker does"
            )

    def _scan_segments(self) -> int | None:
        """The number of a segment that is gone, with one behind it; None where all were read."""
        begun: dict[int, tuple[int, int]] = {}  # producer -> where its open transaction begins, and its messages
        for number, segment in enumerate(self.segments):
            try:
                self._scan_segment(segment, begun)
            except ReadFailedError as error:
                if segment is self.segments[-1] or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return number
        for producer, (first, count) in begun.items():
            self._left_out.add(producer, first, OPEN_END)
            self.unfinished += count
        return None

    def _scan_segment(self, segment: ArchivedSegment, begun: dict[int, tuple[int, int]]) -> None:
        contiguous = False
        for item in self._items(segment, lambda _: None):
            if not isinstance(item, SegmentFlaw):
                self._look_for_hole(item, contiguous=contiguous)
            contiguous = not isinstance(item, SegmentFlaw)
            if isinstance(item, SegmentFlaw):
                torn = item.kind is FlawKind.TORN and segment is not self.segments[-1]
                kind = ArchiveFindingKind.LOST if torn else item.kind
                problem = f"{segment.source.name}: {item.problem}"
                self.findings.append(ArchiveFinding(kind, segment.source.name, problem, offset=item.offset))
            elif item.control is not None:
                self._see_marker(item, begun)
            else:
                self._see(item, begun)

    def _look_for_hole(self, item: StoredBatch, *, contiguous: bool) -> None:
        """`contiguous`: the batch before stands in front of it in the same segment."""
        if item.offset > self.log_end and not contiguous:
            self.holes.append((self.log_end, item.offset))
        elif item.offset > self.log_end or len(item.records.offsets) <= item.last_offset - item.offset:
            self.compacted = True

    def _see(self, item: StoredBatch, begun: dict[int, tuple[int, int]]) -> None:
        offsets = item.records.offsets
        count = len(offsets) - bisect_left(offsets, self.end)
        if self.start is None and offsets:
            self.start, self.codec = offsets[0], item.codec
        if item.max_timestamp is not None:
            known = item.max_timestamp if self.first_time is None else self.first_time
            self.first_time = min(item.max_timestamp, known)
        self._advance(item)
        if item.transactional and item.producer is not None:
            first, before = begun.get(item.producer.id, (item.offset, 0))
            begun[item.producer.id] = first, before + count
        else:
            self.messages += count

    def _see_marker(self, item: StoredBatch, begun: dict[int, tuple[int, int]]) -> None:
        self._advance(item)
        if item.producer is None or item.producer.id not in begun or item.control not in {"commit", "abort"}:
            return
        first, count = begun.pop(item.producer.id)
        if item.control == "commit":
            self.messages += count
        else:
            self.aborted += count
            self._left_out.add(item.producer.id, first, item.offset)

    def _advance(self, item: StoredBatch) -> None:
        self.end = max(self.end, item.next_offset)
        epoch = -1 if item.leader_epoch is None else item.leader_epoch
        if epoch > (self.epochs[-1].epoch if self.epochs else -1):
            self.epochs.append(EpochStart(epoch, item.offset))

    def _items(
        self, segment: ArchivedSegment, on_bytes: Callable[[int], object]
    ) -> Iterator[StoredBatch | SegmentFlaw]:
        with closing(open_segments(segment.source, on_bytes=on_bytes)) as opened:  # type: ignore[type-var]  # a generator
            for each in opened:
                if isinstance(each, ArchiveFinding):
                    yield SegmentFlaw(FlawKind.ARCHIVE, 0, 0, segment.start, each.problem)
                    continue
                dialect, stream = told_apart(each)
                if dialect is SegmentDialect.V07 and each.size != 0:
                    raise ConfigError(
                        f"{each.name} is a segment of {dialect}, which is not replayed: serve a copy of its directory "
                        "with `consumerd broker`, and forward that with `consumerd mirror`"
                    )
                yield from read_batches(stream, segment.start)

    def read(
        self,
        start: int = 0,
        end: int = OPEN_END,
        *,
        committed: bool = True,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> Iterator[list[KeyedMessage]]:
        """The messages in [start, end), in order, some at a time, without damaged ones.

        `committed`: those that are replayed; else also those of transactions that were not committed. `scan` was
        called. Raises ReadFailedError.
        """
        following = [*(each.start for each in self.segments[1:]), OPEN_END]
        found: list[KeyedMessage] = []
        size = 0
        for segment, next_start in zip(self.segments, following, strict=True):
            if next_start <= start or segment.start >= end:
                on_bytes(segment.source.size or 0)
                continue
            for item in self._items(segment, on_bytes):
                if isinstance(item, SegmentFlaw) or item.next_offset <= start:
                    continue
                if item.offset >= end:
                    break
                least, start = start, item.next_offset
                if item.control is not None or (committed and self._left_out.has(item)):
                    continue
                for record in item.records.messages():
                    if not least <= record.offset < end:
                        continue
                    found.append(KeyedMessage(self.partition, *record))
                    size += len(record.payload or b"") + len(record.key or b"")
                    if len(found) == _COUNT or size >= _BYTES:
                        yield found
                        found, size = [], 0
        if found:
            yield found


def find_archived(
    sources: Sequence[SegmentSource],
    topics: Collection[str] = (),
    *,
    layout: str = DEFAULT_LAYOUT,
    all_there: bool = True,
    existing: ClusterTopics | None = None,
    scanned: Callable[[ArchivedPartition], None] = lambda _: None,
) -> list[ArchivedPartition]:
    """The partitions of `topics` (all without any, but those that brokers keep for themselves), each read once.

    `all_there`: the archive must have each of `topics`, and one at all. `existing`: by the cluster's metadata.
    `scanned` is called with each copy. Raises NoSourceError, ConfigError, ReadFailedError.
    """
    naming = ArchiveLayout(layout)
    named = {each: name for each in sources if (name := _named(each, naming)) is not None}
    wanted = {name.topic for name in named.values()} - _INTERNAL
    wanted &= set(topics or wanted)
    folders: defaultdict[TopicPartition, defaultdict[str, list[ArchivedSegment]]]
    folders = defaultdict(lambda: defaultdict(list))
    for source, name in named.items():
        if name.topic in wanted:
            partition = TopicPartition.numbered(name.topic, name.partition)
            folders[partition][source.name.rpartition("/")[0]].append(ArchivedSegment(name.start, source))
    if all_there and (missing := set(topics) - {partition.topic for partition in folders}):
        raise MissingTopicsError(missing)
    if all_there and not folders:
        raise NoSourceError("the archive has no segments of a topic to replay; see `consumerd log ls`")
    return [_chosen(partition, copies, existing, scanned) for partition, copies in sorted(folders.items())]


def _named(source: SegmentSource, naming: ArchiveLayout) -> SegmentName | None:
    """The segment by its path; None for a file of no log. Raises ConfigError for a tar that is not read in order."""
    if source.is_tar and source.part is None:
        raise ConfigError(f"{source.name} is a compressed tar, which cannot be read in order: decompress it first")
    try:
        return None if abandoned(source.name) is not None else naming.name(source.name)
    except MisnamedSegmentError:
        return None


def _chosen(
    partition: TopicPartition,
    folders: dict[str, list[ArchivedSegment]],
    existing: ClusterTopics | None,
    scanned: Callable[[ArchivedPartition], None],
) -> ArchivedPartition:
    """The copy to replay: of one folder, or of several whose segments follow each other."""
    copies = [
        ArchivedPartition(partition, folder, sorted(segments, key=lambda each: each.start))
        for folder, segments in sorted(folders.items())
    ]
    topic = None if existing is None else existing.topics.get(partition.topic)
    topic_id = None if topic is None else topic.topic_id
    chosen, choice = _scanned(copies, topic_id)
    for copy in copies:
        scanned(copy)
    for each in choice.differences:
        chosen.note_difference(each, copies[each.copy].folder, replaced=each.copy not in choice.read)
    if existing is not None and partition.topic not in existing.topics:
        chosen.notes.append(
            f"{chosen.folder}: the topic {partition.topic} was deleted, by the cluster's metadata: to leave it out, "
            "choose others with --topic"
        )
    return chosen


def _scanned(copies: Sequence[ArchivedPartition], topic_id: str | None) -> tuple[ArchivedPartition, CopyChoice]:
    """The copy to replay, which was scanned, and the choice; the others were scanned only if they had to be."""
    looks = [copy.at_a_glance() for copy in copies] if len(copies) > 1 else []
    known = [each for each in looks if each is not None]
    chosen = None
    if len(known) == len(copies):
        choice = choose_copy(known, topic_id)
        chosen = _joined(copies, choice)
        chosen.scan()
        if not chosen.damage:  # else another copy may be intact where this one is not
            return chosen, choice
    for copy in copies:
        if copy is not chosen:
            copy.scan()
    if len(copies) == 1:
        return copies[0], CopyChoice((0,), ())
    choice = choose_copy([each.as_copy() for each in copies], topic_id)
    chosen = _joined(copies, choice)
    if len(choice.read) > 1:
        chosen.scan()
    return chosen, choice


def _joined(copies: Sequence[ArchivedPartition], choice: CopyChoice) -> ArchivedPartition:
    """The copy that is read, or the several ones that follow each other as one, which has to be scanned."""
    parts = [copies[index] for index in choice.read]
    if len(parts) == 1:
        return parts[0]
    together = ", ".join(each.folder for each in parts)
    ends = [*(each.log_start for each in parts[1:]), OPEN_END]
    segments = [
        segment for each, end in zip(parts, ends, strict=True) for segment in each.segments if segment.start < end
    ]
    return ArchivedPartition(parts[0].partition, together, segments)


def require_sound(partitions: Sequence[ArchivedPartition]) -> None:
    """Raise CorruptSegmentError for damage, before anything is replayed."""
    for each in partitions:
        if each.damage:
            more = sum(len(other.damage) for other in partitions) - 1
            raise CorruptSegmentError(
                f"{each.damage[0].problem}{f' ({more} further findings)' if more else ''}; nothing was replayed: see "
                "`consumerd log verify`, and add --on-corrupt skip to replay the rest"
            )
