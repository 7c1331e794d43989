"""The topics of a cluster from a folder `__cluster_metadata-0`: KRaft's log and its snapshots (`*.checkpoint`).

Strategy: the log is read from its beginning, for the names of deleted topics. Where it has a hole, the least snapshot
that covers it continues; one that ends behind the log counts last. The last records may not have been committed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.folders import LOCAL_FILES, ArchiveFiles
from consumerd.storage.archives.listing import ListedPartition
from consumerd.storage.archives.opening import unpacked
from consumerd.storage.archives.sources import packing_of, printable, unpacked_name
from consumerd.storage.log.archive_items import ByteStream
from consumerd.storage.log.archive_names import parse_segment_file
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.cluster_metadata import ClusterMetadataReader, ExistingTopic

_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_FOOTER: Final = "snapshot-footer"
#: Numbers that a sentence lists at most.
_LISTED: Final = 10


@dataclass(slots=True)
class ClusterTopics:
    """The topics that exist, by name; of those that are known to be deleted, topic id -> name; and what is missing."""

    topics: dict[str, ExistingTopic]
    deleted: dict[str, str]
    findings: list[ArchiveFinding] = field(default_factory=list)

    @property
    def ids(self) -> dict[str, str]:
        """Topic -> id."""
        return {name: topic.topic_id for name, topic in self.topics.items()}


def read_cluster_metadata(folder: str, files: ArchiveFiles = LOCAL_FILES) -> ClusterTopics:
    """Read the metadata log in a folder. Blocks. What cannot be read is a finding."""
    return _Reader(folder, files).read()


def compare_topics(partitions: Sequence[ListedPartition], cluster: ClusterTopics) -> list[ArchiveFinding]:
    """Note folders that are not of an existing topic as findings of each; return which partitions have no folder."""
    found: dict[str, set[int]] = defaultdict(set)
    for each in partitions:
        if each.topic is None or each.partition is None or each.state:
            continue
        problem = _stale(each, cluster)
        if problem is None:
            found[each.topic].add(each.partition)
        else:
            each.note(ArchiveFindingKind.STALE, "", f"{each.folder}: {problem}")
    return [
        ArchiveFinding(
            ArchiveFindingKind.ABSENT,
            topic.name,
            f"the archive has no folder of {topic.name}/{_listing(absent)}, which the cluster has",
            topic.name,
            count=len(absent),
        )
        for topic in cluster.topics.values()
        if (absent := sorted(set(topic.partitions) - found[topic.name]))
    ]


def _stale(listed: ListedPartition, cluster: ClusterTopics) -> str | None:
    """Why a folder is not one of an existing partition's; None if it is."""
    assert listed.topic is not None
    topic = cluster.topics.get(listed.topic)
    if topic is None:
        deleted = listed.topic_id in cluster.deleted or listed.topic in cluster.deleted.values()
        what = "was deleted" if deleted else "does not exist"
        return f"the topic {listed.topic} {what}, by the cluster's metadata"
    if listed.topic_id not in (None, topic.topic_id):
        return (
            f"it is stale: its topic id is {listed.topic_id}, and the existing topic {topic.name} has {topic.topic_id}"
        )
    replicas = topic.partitions.get(listed.partition or 0)
    if replicas is None:
        return f"it is stale: the existing topic {topic.name} does not have the partition {listed.partition}"
    if listed.broker is not None and listed.broker not in replicas:
        return f"it is stale: the brokers {_listing(replicas)} have the replicas, and not {listed.broker}"
    return None


def _listing(numbers: Sequence[int]) -> str:
    more = f", and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return ", ".join(map(str, numbers[:_LISTED])) + more


class _Reader:
    """One reading of a folder. `next` is the offset that has to follow in the log."""

    def __init__(self, folder: str, files: ArchiveFiles) -> None:
        self._folder = folder
        self._files = files
        self._records = ClusterMetadataReader()
        self._next = 0
        self._findings: list[ArchiveFinding] = []
        self._snapshots: list[tuple[int, int, str]] = []

    def read(self) -> ClusterTopics:
        segments: list[tuple[int, str]] = []
        try:
            for name in self._files.names(self._folder):
                if (parsed := parse_segment_file(unpacked_name(name))) is not None and not parsed.state:
                    segments.append((parsed.start, name))
                elif (match := _SNAPSHOT.fullmatch(name)) is not None:
                    self._snapshots.append((int(match[1]), int(match[2]), name))
        except OSError as error:
            self._report(f"cannot be read: {error.strerror or error}")
        self._snapshots.sort()
        for start, name in sorted(segments):
            self._take_segment(start, name)
        self._take_snapshot(self._next + 1, last=True)
        if self._records.unreadable:
            self._report(f"has {self._records.unreadable} records that no known broker writes")
        return ClusterTopics(self._records.topics(), self._records.deleted, self._findings)

    def _take_segment(self, start: int, name: str) -> None:
        try:
            with self._files.open(f"{self._folder}/{name}") as file:
                for item in read_batches(unpacked(file, packing_of(name)), start):
                    if isinstance(item, StoredBatch):
                        if item.offset > self._next and not self._take_snapshot(item.offset):
                            self._report(f"has no offsets {self._next} to {item.offset - 1}, and no snapshot of them")
                        self._records.take(item, self._next)
                        self._next = max(self._next, item.next_offset)
        except OSError as error:
            self._report(f"has a segment {name} that cannot be read: {error.strerror or error}")

    def _take_snapshot(self, offset: int, *, last: bool = False) -> bool:
        """Continue with the least intact snapshot of at least the records before `offset`, or with the last one."""
        usable = [each for each in self._snapshots if each[0] >= offset]
        for end, _, name in reversed(usable) if last else usable:
            try:
                with self._files.open(f"{self._folder}/{name}") as file:
                    records = _snapshot(file)
            except OSError as error:
                self._report(f"has a snapshot {name} that cannot be read: {error.strerror or error}")
                continue
            if records is None:
                self._report(f"has a snapshot {name} that is not complete")
                continue
            records.forget(self._records)
            self._records, self._next = records, end
            return True
        return False

    def _report(self, problem: str) -> None:
        folder = printable(self._folder)
        problem = f"{folder} {problem}: which topics exist is a guess"
        self._findings.append(ArchiveFinding(ArchiveFindingKind.METADATA, folder, problem))


def _snapshot(file: ByteStream) -> ClusterMetadataReader | None:
    """The topics of a snapshot; None if it is not complete."""
    records, last = ClusterMetadataReader(), None
    for item in read_batches(file, 0):
        if not isinstance(item, StoredBatch):
            return None
        records.take(item)
        last = item.control
    return records if last == _FOOTER else None
