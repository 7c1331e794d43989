"""Copies of one partition of 0.8 and later, in several data directories or on several brokers' disks: which is read.

Strategy: a folder is judged by what `log ls` reads of it, and `consumerd.storage.segments.copies` decides. Copies in
tars, in compressed files and at URLs are not compared: what holds the same offsets there is an error of those who read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from consumerd.storage.archives.cluster_metadata import ClusterTopics, compare_topics, read_cluster_metadata
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.listing import ListedPartition, list_partition
from consumerd.storage.archives.sources import Packing, SegmentSource
from consumerd.storage.log.archive_names import LOG_SUFFIX, ArchiveLayout, MisnamedSegmentError, segment_start
from consumerd.storage.log.archive_tiered import tiered_start
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.cluster_metadata import METADATA_TOPIC
from consumerd.storage.segments.copies import CopyChoice, PartitionCopy, choose_copy


def compare_all(partitions: Sequence[ListedPartition]) -> ClusterTopics | None:
    """Note how copies differ, and which folders are stale; the existing topics, if their log is there. Blocks."""
    metadata = [each for each in partitions if each.topic == METADATA_TOPIC]
    others = [each for each in partitions if each.topic != METADATA_TOPIC]
    compare_listed(metadata)
    if (folder := _metadata_folder(metadata)) is None:
        compare_listed(others)
        return None
    cluster = read_cluster_metadata(folder)
    compare_listed(others, cluster.ids)
    cluster.findings += compare_topics(others, cluster)
    return cluster


def compare_listed(partitions: Sequence[ListedPartition], topic_ids: Mapping[str, str] | None = None) -> None:
    """Note the differences of copies as findings of each, and set `read`. `topic_ids`: those of existing topics."""
    copies: dict[tuple[str, int], list[ListedPartition]] = defaultdict(list)
    for each in partitions:
        if each.topic is not None and each.partition is not None and not each.state and _is_copy(each):
            copies[each.topic, each.partition].append(each)
    for (topic, _), listed in copies.items():
        if len(listed) > 1:
            choice = _chosen(listed, (topic_ids or {}).get(topic))
            for index, each in enumerate(listed):
                each.read = index in choice.read
            for found in choice.differences:
                listed[found.copy].note(found.kind, "", f"{listed[found.copy].folder}: {found.problem}")


def _metadata_folder(partitions: Sequence[ListedPartition]) -> str | None:
    """Of the copies of the cluster's metadata log, the folder of the one that is read; None without one."""
    read = (each.last_file for each in partitions if each.partition == 0 and not each.state and each.read)
    return next((file.rpartition("/")[0] for file in read if file), None)


def without_other_copies(
    sources: Sequence[SegmentSource], layout: ArchiveLayout
) -> tuple[list[SegmentSource], list[ArchiveFinding]]:
    """The sources without copies that are not read, and how the copies differ. Blocks."""
    folders: dict[tuple[str, int | None, int], dict[str, list[str]]] = defaultdict(dict)
    apart: set[str] = set()
    for source in sources:
        folder, _, file = source.path.rpartition("/")
        is_log = file.endswith(LOG_SUFFIX) and tiered_start(file) is None
        if source.is_remote or source.is_tar or source.part is not None or not is_log:
            if source.part is None:
                apart.add(folder)
            continue
        try:
            name = layout.name(source.name)
        except MisnamedSegmentError:
            continue
        folders[name.topic, name.broker, name.partition].setdefault(folder, []).append(file)
    left_out: set[str] = set()
    findings: list[ArchiveFinding] = []
    topic_ids: Mapping[str, str] | None = None
    for (topic, _, partition), found in folders.items():
        listed = _listed(found) if len(found) > 1 and apart.isdisjoint(found) else []
        if len(listed) < 2:
            continue
        if topic_ids is None and len({each.topic_id for each in listed} - {None}) > 1:
            cluster = existing_topics(sources, layout)
            topic_ids = {} if cluster is None else cluster.ids
        choice = _chosen(listed, (topic_ids or {}).get(topic))
        left_out.update(folder for index, folder in enumerate(found) if index not in choice.read)
        for each in choice.differences:
            folder = listed[each.copy].folder
            problem, place = f"{folder}: {each.problem}", f"{topic}/{partition}"
            replaced = each.copy not in choice.read
            findings.append(ArchiveFinding(each.kind, folder, problem, place, each.offset, each.end, replaced=replaced))
    if not left_out:
        return list(sources), findings
    kept = [
        each
        for each in sources
        if each.part is not None or each.packing is not Packing.NONE or each.path.rpartition("/")[0] not in left_out
    ]
    return kept, findings


def existing_topics(sources: Sequence[SegmentSource], layout: ArchiveLayout) -> ClusterTopics | None:
    """The topics by the cluster's metadata log, where the sources have it in a plain local folder. Blocks."""
    folders: dict[str, None] = {}
    for source in sources:
        with suppress(MisnamedSegmentError):
            if _is_plain(source) and layout.name(source.name).topic == METADATA_TOPIC:
                folders[source.path.rpartition("/")[0]] = None
    found = _listed(folders)
    compare_listed(found)
    folder = _metadata_folder(found)
    return None if folder is None else read_cluster_metadata(folder)


def list_folder(source: SegmentSource) -> ListedPartition | None:
    """What `log ls` shows of a segment's folder, if that is plain and local. Blocks."""
    return next(iter(_listed([source.path.rpartition("/")[0]])), None) if _is_plain(source) else None


def _is_plain(source: SegmentSource) -> bool:
    return not source.is_remote and not source.is_tar and source.part is None and source.packing is Packing.NONE


def _listed(folders: Iterable[str]) -> list[ListedPartition]:
    """What `log ls` shows of each folder; nothing if one of them cannot be compared."""
    found = []
    for folder in folders:
        try:
            listed = list_partition(folder, os.listdir(folder))  # noqa: PTH208 - names, as they are
        except OSError:
            return []
        if listed is None or not _is_copy(listed):
            return []
        found.append(listed)
    return found


def _is_copy(listed: ListedPartition) -> bool:
    """Whether a folder is a partition's whole log of 0.8 and later; one of 0.7 may be a part of it."""
    return listed.start is not None and "0.7" not in listed.formats


def _chosen(listed: Sequence[ListedPartition], topic_id: str | None) -> CopyChoice:
    return choose_copy([_copy(each) for each in listed], topic_id)


def _copy(listed: ListedPartition) -> PartitionCopy:
    assert listed.start is not None
    end = _read_end(listed.last_file) if listed.end is None else listed.end
    return PartitionCopy(
        listed.folder,
        listed.start,
        max(listed.start, end),
        listed.epochs,
        listed.exact_epochs,
        tuple(listed.gaps),
        listed.topic_id,
        listed.last_time,
    )


def _read_end(path: str) -> int:
    """The offset after the last whole batch of a segment to whose end its index does not lead."""
    end = segment_start(path.rpartition("/")[2]) or 0
    with suppress(OSError), Path(path).open("rb", buffering=0) as file:
        for item in read_batches(file, end):
            if isinstance(item, StoredBatch):
                end = max(end, item.next_offset)
    return end
