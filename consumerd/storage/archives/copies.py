"""Copies of one partition of 0.8 and later, in several data directories or on several brokers' disks: which is read.

Strategy: a folder is judged by what `log ls` reads of it, wherever it is, and `consumerd.storage.segments.copies`
decides. Most archives have one copy of each, so what reads and compares folders is imported when there are two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from consumerd.storage import StorageError
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.folders import (
    LOCAL_FILES,
    ArchiveFiles,
    ArchiveFolder,
    PackedTarFiles,
    PlainTarFiles,
    RemoteFiles,
    tar_files,
    whole_tar,
)
from consumerd.storage.archives.opening import unframed, unpacked
from consumerd.storage.archives.sources import (
    SegmentSource,
    is_segment,
    packing_of,
    printable,
    remote_system,
    unpacked_name,
)
from consumerd.storage.log.archive_names import LOG_SUFFIX, ArchiveLayout, MisnamedSegmentError, segment_start
from consumerd.storage.log.archive_tiered import TIERED
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.copies import CopyChoice, PartitionCopy, choose_copy

if TYPE_CHECKING:
    from consumerd.storage.archives.cluster_metadata import ClusterTopics
    from consumerd.storage.archives.listing import ListedPartition


def compare_all(partitions: Sequence[ListedPartition]) -> ClusterTopics | None:
    """Note how copies differ, and which folders are stale; the existing topics, if their log is there. Blocks."""
    from consumerd.storage.archives.cluster_metadata import compare_topics  # noqa: PLC0415
    from consumerd.storage.segments.cluster_metadata import METADATA_TOPIC  # noqa: PLC0415

    metadata = [each for each in partitions if each.topic == METADATA_TOPIC]
    others = [each for each in partitions if each.topic != METADATA_TOPIC]
    compare_listed(metadata)
    if (cluster := _topics(metadata)) is None:
        compare_listed(others)
        return None
    compare_listed(others, cluster.ids)
    cluster.findings += compare_topics(others, cluster)
    return cluster


def compare_listed(partitions: Sequence[ListedPartition], topic_ids: Mapping[str, str] | None = None) -> None:
    """Note the differences of copies as findings of each, and set `read`. `topic_ids`: those of existing topics."""
    copies: dict[tuple[str, int], list[ListedPartition]] = defaultdict(list)
    for each in partitions:
        in_use = each.state in {"", TIERED}
        if each.topic is not None and each.partition is not None and in_use and _is_copy(each):
            copies[each.topic, each.partition].append(each)
    for (topic, _), listed in copies.items():
        if len(listed) > 1:
            choice = _chosen(listed, (topic_ids or {}).get(topic))
            for index, each in enumerate(listed):
                each.read = index in choice.read
            for found in choice.differences:
                listed[found.copy].note(found.kind, "", f"{listed[found.copy].folder}: {found.problem}")


def _topics(partitions: Sequence[ListedPartition]) -> ClusterTopics | None:
    """What the copy of the cluster's metadata log that is read says; None without one."""
    from consumerd.storage.archives.cluster_metadata import read_cluster_metadata  # noqa: PLC0415

    for each in partitions:
        if each.partition == 0 and not each.state and each.read and each.last_file:
            return read_cluster_metadata(each.last_file.rpartition("/")[0], each.files)
    return None


class _Folders:
    """The folders of sources. A compressed tar is read to find its own."""

    def __init__(self) -> None:
        self._files: dict[str, ArchiveFiles] = {}

    def of(self, source: SegmentSource) -> Iterator[ArchiveFolder]:
        """The folder of a segment, or those in a tar; none where they cannot be read."""
        try:
            files = self._files_of(source)
            paths = files.folders() if source.is_tar and isinstance(files, _TARS) else (source.folder,)
            for path in paths:
                yield ArchiveFolder(path, frozenset(files.names(path)), files)
        except (OSError, StorageError):
            return

    def _files_of(self, source: SegmentSource) -> ArchiveFiles:
        if not source.is_tar and source.part is None and not source.is_remote:
            return LOCAL_FILES
        key = source.path if source.is_tar or source.part is not None else source.path.partition("://")[0]
        if key not in self._files:
            if source.is_tar:
                self._files[key] = tar_files(source)
            elif source.part is not None:
                self._files[key] = tar_files(whole_tar(source))
            else:
                self._files[key] = RemoteFiles(remote_system(source.path))
        return self._files[key]


_TARS: Final = (PlainTarFiles, PackedTarFiles)


def without_other_copies(
    sources: Sequence[SegmentSource], layout: ArchiveLayout
) -> tuple[list[SegmentSource], list[ArchiveFinding]]:
    """The sources without copies that are not read, and how the copies differ. Blocks.

    A tar that is the only source is not looked into for copies: it would be read twice.
    """
    folders = _Folders()
    left_out: set[str] = set()
    #: A folder that is read in part -> the offset from which on its segments are not: another one has them.
    limits: dict[str, int] = {}
    findings: list[ArchiveFinding] = []
    topic_ids: Mapping[str, str] | None = None
    for (topic, _, partition), found in _copies_in(sources, layout, folders).items():
        listed = _listed(found.values()) if len(found) > 1 else []
        if len(listed) < 2:
            continue
        if topic_ids is None and len({each.topic_id for each in listed} - {None}) > 1:
            cluster = existing_topics(sources, layout)
            topic_ids = {} if cluster is None else cluster.ids
        choice = _chosen(listed, (topic_ids or {}).get(topic))
        left_out.update(folder for index, folder in enumerate(found) if index not in choice.read)
        paths = list(found)
        limits |= {paths[one]: listed[other].start or 0 for one, other in pairwise(choice.read)}
        for each in choice.differences:
            folder = listed[each.copy].folder
            problem, place = f"{folder}: {each.problem}", f"{topic}/{partition}"
            replaced = each.copy not in choice.read
            findings.append(ArchiveFinding(each.kind, folder, problem, place, each.offset, each.end, replaced=replaced))
    kept = [
        replace(each, left_out=each.left_out | left_out) if each.is_tar else each
        for each in sources
        if each.is_tar or not (each.folder in left_out or _is_behind(each, limits))
    ]
    return kept, findings


def _is_behind(source: SegmentSource, limits: Mapping[str, int]) -> bool:
    """Whether a segment begins where another folder is read."""
    start = segment_start(source.place.rpartition("/")[2])
    return source.folder in limits and start is not None and start >= limits[source.folder]


def _copies_in(
    sources: Sequence[SegmentSource], layout: ArchiveLayout, folders: _Folders
) -> dict[tuple[str, int | None, int], dict[str, ArchiveFolder]]:
    """Partition -> its folders, by their paths, where there are several, and they hold segments since 0.8 alone."""
    places = _places(sources, folders)
    named: defaultdict[tuple[str, int | None, int], list[str]] = defaultdict(list)
    for path, (_, names) in places.items():
        if all(map(_is_log, names)):
            with suppress(MisnamedSegmentError):
                name = layout.name(printable(f"{path}/{min(names)}"))
                named[name.topic, name.broker, name.partition].append(path)
    return {
        key: {path: folder for path in paths for folder in folders.of(places[path][0]) if folder.path == path}
        for key, paths in named.items()
        if len(paths) > 1
    }


def _places(sources: Sequence[SegmentSource], folders: _Folders) -> dict[str, tuple[SegmentSource, set[str]]]:
    """Folder -> a source that leads to it, and the names of the segments in it."""
    found: dict[str, tuple[SegmentSource, set[str]]] = {}
    for source in sources:
        if not source.is_tar:
            found.setdefault(source.folder, (source, set()))[1].add(source.place.rpartition("/")[2])
        elif len(sources) > 1 and not source.is_special:
            found |= {
                folder.path: (source, names)
                for folder in folders.of(source)
                if (names := {name for name in folder.names if is_segment(name)})
            }
    return found


def _is_log(name: str) -> bool:
    """Whether a segment is one since 0.8."""
    return unpacked_name(name).endswith(LOG_SUFFIX)


def existing_topics(sources: Sequence[SegmentSource], layout: ArchiveLayout) -> ClusterTopics | None:
    """The topics by the cluster's metadata log, where the sources have it, not in a compressed tar. Blocks."""
    from consumerd.storage.segments.cluster_metadata import METADATA_TOPIC  # noqa: PLC0415

    folders, found = _Folders(), {}
    for source in sources:
        with suppress(MisnamedSegmentError):
            if not source.is_tar and source.folder not in found and layout.name(source.name).topic == METADATA_TOPIC:
                found[source.folder] = next(folders.of(source), None)
    listed = _listed(each for each in found.values() if each is not None)
    compare_listed(listed)
    return _topics(listed)


def list_folder(source: SegmentSource) -> ListedPartition | None:
    """What `log ls` shows of the folder of a segment, which is not in a compressed tar. Blocks."""
    folder = next(_Folders().of(source), None)
    return None if folder is None else next(iter(_listed([folder])), None)


def _listed(folders: Iterable[ArchiveFolder]) -> list[ListedPartition]:
    """What `log ls` shows of each folder; nothing if one of them cannot be compared."""
    from consumerd.storage.archives.listing import list_partition  # noqa: PLC0415

    found = []
    for folder in folders:
        listed = list_partition(folder)
        if listed is None or not _is_copy(listed):
            return []
        found.append(listed)
    return found


def _is_copy(listed: ListedPartition) -> bool:
    """Whether a folder is a partition's whole log of 0.8 and later; one of 0.7 may be a part of it."""
    return listed.start is not None and "0.7" not in listed.formats


def _chosen(listed: Sequence[ListedPartition], topic_id: str | None) -> CopyChoice:
    return choose_copy([copy_of(each) for each in listed], topic_id)


def copy_of(listed: ListedPartition) -> PartitionCopy:
    """What a choice goes by, of a folder whose start is known. Blocks, where the end is not known yet."""
    assert listed.start is not None
    end = _read_end(listed) if listed.end is None else listed.end
    return PartitionCopy(
        listed.folder,
        listed.start,
        max(listed.start, end),
        listed.epochs,
        listed.exact_epochs,
        tuple(listed.gaps),
        listed.topic_id,
        listed.last_time,
        listed.state == TIERED,
    )


def _read_end(listed: ListedPartition) -> int:
    """The offset after the last whole batch of a segment to whose end its index does not lead."""
    name = listed.last_file.rpartition("/")[2]
    end = segment_start(name) or 0
    with suppress(OSError), listed.files.open(listed.last_file) as file:
        stream = unpacked(file, packing_of(name))
        if listed.state == TIERED:
            stream = unframed(stream)
        for item in read_batches(stream, end):
            if isinstance(item, StoredBatch):
                end = max(end, item.next_offset)
    return end
