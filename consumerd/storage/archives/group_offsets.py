"""The committed offsets of groups at the end of an archive, or at a time.

Strategy: only segments of `__consumer_offsets` are read, in the order in which they are found, since the reader needs
none (`consumerd.storage.segments.group_offsets`). What cannot be read is a finding, and the rest still counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from consumerd.storage.archives.copies import without_other_copies
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.opening import abandoned, open_segments, told_apart
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive import DEFAULT_EXPANSION
from consumerd.storage.log.archive_names import ArchiveLayout, MisnamedSegmentError
from consumerd.storage.segments.batches import SegmentFlaw, read_batches
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.group_offsets import OFFSETS_TOPIC, ArchivedOffset, GroupOffsetsReader, OffsetKey


@dataclass(slots=True)
class ArchivedOffsets:
    """What the groups had committed. `unreadable`: records of the topic that no known broker writes."""

    offsets: Mapping[OffsetKey, ArchivedOffset]
    findings: list[ArchiveFinding] = field(default_factory=list)
    unreadable: int = 0


def committed_offsets(
    sources: Sequence[SegmentSource],
    *,
    layout: str,
    broker: int | None = None,
    until: int | None = None,
    expansion: int = DEFAULT_EXPANSION,
) -> ArchivedOffsets:
    """Read the offsets' topic in all sources. Blocks. `until`: milliseconds since 1970; None: the end of the archive.

    Raises NoSourceError where no segment of the topic is found, MissingExtraError, ConfigError (layout).
    """
    naming = ArchiveLayout(layout, broker)
    reader = GroupOffsetsReader(until)
    sources, findings = without_other_copies([each for each in sources if _may_hold(naming, each)], naming)
    segments = 0
    for source in sources:
        try:
            for opened in open_segments(source, expansion=expansion, on_bytes=lambda _: None):
                if isinstance(opened, ArchiveFinding):
                    findings.append(opened)
                    continue
                partition = _partition(naming, opened.name)
                if partition is None or abandoned(opened.name) is not None:
                    continue
                dialect, stream = told_apart(opened)
                if dialect is SegmentDialect.V07:
                    continue
                segments += 1
                for item in read_batches(stream, 0):
                    if isinstance(item, SegmentFlaw):
                        findings.append(ArchiveFinding(item.kind, opened.name, item.problem, None, item.offset))
                    else:
                        reader.take(partition, item)
        except ReadFailedError as error:
            findings.append(ArchiveFinding(ArchiveFindingKind.UNREADABLE, source.name, str(error)))
    if not segments:
        raise NoSourceError(
            f"the archive holds no segments of {OFFSETS_TOPIC}, in which brokers since 0.8.2 keep the offsets of "
            "groups; name the data directories of all brokers"
        )
    return ArchivedOffsets(reader.offsets(), findings, reader.unreadable)


def _may_hold(layout: ArchiveLayout, source: SegmentSource) -> bool:
    return source.is_tar or _partition(layout, source.name) is not None


def _partition(layout: ArchiveLayout, name: str) -> int | None:
    try:
        found = layout.name(name)
    except MisnamedSegmentError:
        return None
    return found.partition if found.topic == OFFSETS_TOPIC else None
