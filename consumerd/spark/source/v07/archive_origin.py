"""Partitions in directories and at URLs of segment files.

Strategy: every snapshot lists the files again, so that growth, rolls and new partitions are seen. A segment reaches
from the offset in its name to the length of its file; only in the last one of a partition, which may still be written,
the end is that of the last whole message, searched for from where it was last. Two files that hold the same offsets are
an error, since it is unknown which one is right.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import NotFoundError
from consumerd.spark.source.choice import PartitionChoice
from consumerd.spark.source.errors import FileReadError
from consumerd.spark.source.logs import PartitionLog, WithoutEpochs
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.option_values import PathLocation
from consumerd.spark.source.options import SourceOptions
from consumerd.spark.source.split import FileRange, broker_partition
from consumerd.spark.source.v07.boundaries import Boundaries
from consumerd.spark.source.v07.segment_file import open_file, open_segment, unpacked_size
from consumerd.spark.source.v07.segment_log import SegmentLog, SourceSegment
from consumerd.storage.archives.copies import without_other_copies
from consumerd.storage.archives.errors import NoSourceError
from consumerd.storage.archives.opening import abandoned, refused, stamp_of
from consumerd.storage.archives.sources import Packing, SegmentSource, find_sources
from consumerd.storage.log.archive_names import LOG_SUFFIX, ArchiveLayout

if TYPE_CHECKING:
    from consumerd.spark.source.v07.boundaries import Fetch
    from consumerd.spark.source.v08.stored import StoredPartitionLog

log = logging.getLogger(__name__)


#: Times that files are listed while a running broker deletes the last segment of a partition.
_LISTINGS: Final = 5


class DeletedSegmentError(NotFoundError):
    """A file was deleted after it was listed."""


class OverlapError(FileReadError):
    """Two files hold the same offsets of one partition."""


class ArchiveOrigin(WithoutEpochs):
    """The chosen partitions below some paths. Looks raise ReadFailedError, MisnamedSegmentError and FileReadError."""

    def __init__(self, location: PathLocation, options: SourceOptions) -> None:
        self._paths = location.paths
        self._layout = ArchiveLayout(location.layout, location.broker)
        self._choice = PartitionChoice(options.topics)
        self._limits = options.limits
        self._known: set[Key] = set()
        #: Of packed files: path and stamp -> unpacked size.
        self._sizes: dict[tuple[str, str], int] = {}
        #: Of last segments: path -> (size, end of the last whole message).
        self._ends: dict[str, tuple[int, int]] = {}
        #: Of last segments of 0.8 and later: path -> (stamp, offset after the last whole batch).
        self._stored_ends: dict[str, tuple[str, int]] = {}
        self._times: dict[str, int] = {}
        self._reported: set[str] = set()

    def snapshot(self) -> Mapping[Key, PartitionLog]:
        for _ in range(_LISTINGS - 1):
            with contextlib.suppress(DeletedSegmentError):  # by a running broker: what it has now is listed
                return self._listed()
        return self._listed()

    def _listed(self) -> Mapping[Key, PartitionLog]:
        partitions: dict[tuple[str, int | None, int], list[tuple[int, SegmentSource]]] = {}
        self._known.clear()
        self._times.clear()
        for source in self._sources():
            if abandoned(source.name) is not None:
                continue
            named = self._layout.name(source.name)
            key = named.topic, broker_partition(named.broker, named.partition)
            self._known.add(key)
            if not source.is_remote:
                self._times[source.path] = int(source.stamp.removeprefix("mtime ")) // 1_000_000
            if self._choice.wants(key):
                partition = (named.topic, named.broker, named.partition)
                partitions.setdefault(partition, []).append((named.start, _readable(source)))
        logs = [self._log(*partition, found) for partition, found in partitions.items()]
        return {log.key: log for log in logs}

    def missing(self, found: Mapping[Key, object]) -> str | None:
        return self._choice.missing(found, {topic for topic, _ in self._known}, self._known)

    def _sources(self) -> list[SegmentSource]:
        """Every file once. A directory may still be empty."""
        found: dict[str, SegmentSource] = {}
        for path in self._paths:
            try:
                found |= {source.name: source for source in find_sources([path])}
            except NoSourceError:
                if not Path(path).is_dir():
                    raise
        sources, copies = without_other_copies(list(found.values()), self._layout)
        for each in copies:
            if each.problem not in self._reported:
                self._reported.add(each.problem)
                log.warning("%s", each.problem)
        return sources

    def _log(
        self, topic: str, broker: int | None, partition: int, files: list[tuple[int, SegmentSource]]
    ) -> PartitionLog:
        files.sort(key=lambda each: (each[0], each[1].path))
        if LOG_SUFFIX in files[0][1].name.rpartition("/")[2]:
            return self._stored_log(topic, broker, partition, files)
        following = [start for start, _ in files[1:]]
        segments = [
            self._segment(start, source, next_start)
            for (start, source), next_start in zip(files, [*following, None], strict=True)
        ]
        for left, right in pairwise(segments):
            if right.start < left.end or left.start == right.start:
                raise _overlap(left.location, right.location, right.start, topic, broker, partition)
        segments[-1] = self._ended(segments[-1], topic, partition)
        return SegmentLog(topic, broker, partition, tuple(segments), _open, self._before, self._limits)

    def _stored_log(
        self, topic: str, broker: int | None, partition: int, files: list[tuple[int, SegmentSource]]
    ) -> StoredPartitionLog:
        """A partition of 0.8 or later. The last segment is read to find its end, when it has changed."""
        from consumerd.spark.source.v08.stored import StoredPartitionLog, segment_end  # noqa: PLC0415 - and a client

        for (start, left), (following, right) in pairwise(files):
            if start == following:
                raise _overlap(left.name, right.name, start, topic, broker, partition)
        segments = tuple(FileRange(source.path, start) for start, source in files)
        last, state = segments[-1], files[-1][1]
        if self._stored_ends.get(last.path, ("", 0))[0] != (stamp := stamp_of(state)):
            with _present(last):
                self._stored_ends[last.path] = stamp, segment_end(last, topic, partition, self._limits)
        return StoredPartitionLog(topic, broker, partition, segments, self._stored_ends[last.path][1], self._limits)

    def _segment(self, start: int, source: SegmentSource, next_start: int | None) -> SourceSegment:
        """One file. A packed one is believed to reach up to the next one; the last one is unpacked to count."""
        location = FileRange(source.path, start)
        if source.packing is Packing.NONE:
            return SourceSegment(start, start + (source.size or 0), location)
        if next_start is not None:
            return SourceSegment(start, next_start, location, whole=True)
        state = (source.path, source.stamp)
        if state not in self._sizes:
            with _present(location), open_file(source.path, 0) as packed:
                self._sizes[state] = unpacked_size(packed, source.path)
        return SourceSegment(start, start + self._sizes[state], location, whole=True)

    def _ended(self, last: SourceSegment, topic: str, partition: int) -> SourceSegment:
        """The last segment, up to its last whole message."""
        path = str(last.location)
        size, end = self._ends.get(path, (0, last.start))
        if size != last.end - last.start:
            if size > last.end - last.start:
                end = last.start
            with _present(last.location), open_segment(last.location, topic, partition) as reader:
                boundaries = Boundaries(reader.fetch, last.end, max_payload=self._limits.max_message_bytes)
                end = boundaries.last(end)
            self._ends[path] = (last.end - last.start, end)
        return last._replace(end=end)

    def _before(self, log: SegmentLog, time_ms: int) -> int:
        """As a broker answers (golden notes, 3): the last of the segments that were not written to since."""
        if time_ms >= time.time() * 1000:
            return log.end
        old = [segment.start for segment in log.segments if self._modified(str(segment.location)) <= time_ms]
        return old[-1] if old else log.start

    def _modified(self, path: str) -> int:
        if path not in self._times:
            raise FileReadError(f"the modification time of {path} is unknown; remove startingTimestamp")
        return self._times[path]


def _overlap(left: object, right: object, offset: int, topic: str, broker: int | None, partition: int) -> OverlapError:
    return OverlapError(
        f"{left} and {right} both hold offset {offset} of {topic}/{broker_partition(broker, partition)}; read only "
        "one, or name the broker in the layout"
    )


@contextlib.contextmanager
def _open(log: SegmentLog, segment: SourceSegment) -> Iterator[Fetch]:
    with _present(segment.location), open_segment(segment.location, log.topic, log.partition) as reader:
        yield reader.fetch


@contextlib.contextmanager
def _present(location: object) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DeletedSegmentError(
            f"{location} was deleted while the query was planned; start the query again"
        ) from None


def _readable(source: SegmentSource) -> SegmentSource:
    """The source, if a task can read it. Raises FileReadError."""
    if (problem := refused(source)) is not None:
        raise FileReadError(problem)
    in_tar = source.is_tar or source.part is not None
    if in_tar or (source.size is None and source.packing is Packing.NONE):
        raise FileReadError(
            f"{source.name} cannot be read in its packed form (only plain, .gz and .zst segments can); unpack it, or "
            "read the output of `consumerd log export`"
        )
    return source
