"""The committed offsets of groups, and the transactions, at the end of an archive or at a time.

Strategy: only segments of `__consumer_offsets`, or `__transaction_state`, are read, in the order in which they are
found, since their readers need none (`consumerd.storage.segments`). What cannot be read is a finding, and the rest
still counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.storage.archives.copies import without_other_copies
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.opening import open_logs
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.log.archive_names import ArchiveLayout, MisnamedSegmentError
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.storage.segments.group_offsets import OFFSETS_TOPIC, ArchivedOffset, GroupOffsetsReader, OffsetKey
from consumerd.storage.segments.transaction_log import TRANSACTIONS_TOPIC, ArchivedTransaction, TransactionsReader

#: What is in the topics, and since which version.
_KEPT: Final = {
    OFFSETS_TOPIC: "the offsets of groups since 0.8.2",
    TRANSACTIONS_TOPIC: "transactions since 0.11",
}


@dataclass(slots=True)
class ArchivedOffsets:
    """What the groups had committed. `unreadable`: records of the topic that no known broker writes."""

    offsets: Mapping[OffsetKey, ArchivedOffset]
    findings: list[ArchiveFinding] = field(default_factory=list)
    unreadable: int = 0


@dataclass(slots=True)
class ArchivedTransactions:
    """The last transactions by transactional id. `unreadable`: as for offsets."""

    transactions: Mapping[str, ArchivedTransaction]
    findings: list[ArchiveFinding] = field(default_factory=list)
    unreadable: int = 0


def committed_offsets(
    sources: Sequence[SegmentSource],
    *,
    layout: str,
    until: int | None = None,
) -> ArchivedOffsets:
    """Read the offsets' topic in all sources. Blocks. `until`: milliseconds since 1970; None: the end of the archive.

    Raises NoSourceError where no segment of the topic is found, MissingExtraError, ConfigError (layout).
    """
    reader = GroupOffsetsReader(until)
    findings = _read_topic(sources, OFFSETS_TOPIC, reader, ArchiveLayout(layout))
    return ArchivedOffsets(reader.offsets(), findings, reader.unreadable)


def archived_transactions(
    sources: Sequence[SegmentSource],
    *,
    layout: str,
    until: int | None = None,
) -> ArchivedTransactions:
    """Read the transactions' topic in all sources. Blocks. `until` and errors as for `committed_offsets`."""
    reader = TransactionsReader(until)
    findings = _read_topic(sources, TRANSACTIONS_TOPIC, reader, ArchiveLayout(layout))
    return ArchivedTransactions(reader.transactions(), findings, reader.unreadable)


class _Reader(Protocol):
    def take(self, partition: int, batch: StoredBatch, /) -> None: ...


def _read_topic(
    sources: Sequence[SegmentSource], topic: str, reader: _Reader, naming: ArchiveLayout
) -> list[ArchiveFinding]:
    """Have `reader` take the batches of a topic of the brokers' own. Returns what cannot be read."""
    wanted = [each for each in sources if each.is_tar or _is_of(naming, topic, each.name)]
    wanted, findings = without_other_copies(wanted, naming)
    segments = 0
    for source in wanted:
        try:
            for found in open_logs(source, naming):
                if isinstance(found, ArchiveFinding):
                    findings.append(found)
                    continue
                name, opened = found
                if name.topic != topic:
                    continue
                segments += 1
                for item in read_batches(opened.stream, 0):
                    if isinstance(item, SegmentFlaw):
                        findings.append(ArchiveFinding(item.kind, opened.name, item.problem, None, item.offset))
                    else:
                        reader.take(name.partition, item)
        except ReadFailedError as error:
            findings.append(ArchiveFinding(ArchiveFindingKind.UNREADABLE, source.name, str(error)))
    if not segments:
        raise NoSourceError(
            f"the archive holds no segments of {topic}, in which brokers keep {_KEPT[topic]}; name the data "
            "directories of all brokers"
        )
    return findings


def _is_of(layout: ArchiveLayout, topic: str, name: str) -> bool:
    try:
        return layout.name(name).topic == topic
    except MisnamedSegmentError:
        return False
