"""From a source to the segments in it, as streams.

Strategy: a source is read once, front to back. The innermost stream counts for the progress and turns each error of the
file system into `ReadFailedError`; around it come the unpacking, the tar, and the unpacking of its members. A file
that is not a readable segment is yielded as a finding in its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from consumerd.base.errors import CorruptDataError
from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.errors import ReadFailedError
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.sources import Packing, SegmentSource, is_segment, packing_of, reading
from consumerd.storage.archives.zstd import ZstdDecoder
from consumerd.storage.log.archive_items import DEFAULT_EXPANSION, ByteStream, FlawKind, unread
from consumerd.storage.log.archive_names import (
    INSIDE,
    LOG_SUFFIX,
    ArchiveLayout,
    MisnamedSegmentError,
    SegmentName,
    parse_partition_folder,
    segment_start,
)
from consumerd.storage.log.archive_packed import UnpackedStream
from consumerd.storage.log.archive_tar import TarKind, read_members
from consumerd.storage.log.archive_tiered import (
    MANIFEST_BYTES,
    ZSTD_MAGIC,
    manifest_of,
    parse_manifest,
    tiered_start,
)
from consumerd.storage.segments.dialect import SegmentDialect, recognise

#: Bytes by which a segment's dialect is recognised.
_HEAD_BYTES = 1 << 16
#: Of a source that was found, and is not there when it is opened.
_DELETED = "it was deleted since it was found, as a running broker does: run the command again, or read a copy"


class OpenSegment(NamedTuple):
    """A segment to be read now: the stream ends with the turn of the iterator it came from.

    `size` counts the segment's own bytes, None where only reading tells.
    """

    name: str
    stamp: str
    size: int | None
    stream: ByteStream


def open_segments(
    source: SegmentSource, *, expansion: int = DEFAULT_EXPANSION, on_bytes: Callable[[int], object] = lambda _: None
) -> Iterator[OpenSegment | ArchiveFinding]:
    """The segments in a source, in order. `on_bytes` is called with the number of bytes of the source as they are read.

    Raises MissingExtraError, and ReadFailedError where the file system gives up.
    """
    name, stamp = source.name, stamp_of(source)
    if source.is_special:
        yield ArchiveFinding(ArchiveFindingKind.NO_FILE, name, f"{name} is not a regular file; it was not read")
        return
    if (problem := refused(source)) is not None:
        yield ArchiveFinding(ArchiveFindingKind.ENCRYPTED, name, problem)
        return
    with _raw(source, on_bytes) as raw:
        if not source.is_tar:
            yield OpenSegment(name, stamp, *_unpacked(name, source.size, source.packing, raw, expansion))
            return
        seen: set[str] = set()
        try:
            for member, data in read_members(unpacked(raw, source.packing, expansion)):
                if not is_segment(member.name) or source.leaves_out(member.name):
                    continue
                inside = f"{name}{INSIDE}{member.name}"
                if member.is_unsafe:
                    problem = f"{inside} points outside of its archive; it was not read"
                    yield ArchiveFinding(ArchiveFindingKind.UNSAFE, inside, problem)
                elif member.kind is not TarKind.FILE:
                    problem = f"{inside} is a {member.kind.value} in its archive; archive it again as a regular file"
                    yield ArchiveFinding(ArchiveFindingKind.NO_FILE, inside, problem)
                elif member.name in seen:
                    problem = f"{inside} is in its archive more than once; only the first one was read"
                    yield ArchiveFinding(ArchiveFindingKind.DUPLICATE, inside, problem)
                else:
                    seen.add(member.name)
                    packing = packing_of(member.name)
                    yield OpenSegment(inside, stamp, *_unpacked(inside, member.size, packing, data, expansion))
        except DamagedArchiveError as error:
            problem = f"{name} is damaged, and what follows is missing: {error}"
            yield ArchiveFinding(FlawKind.ARCHIVE, name, problem)


def _unpacked(
    name: str, size: int | None, packing: Packing, stream: ByteStream, expansion: int
) -> tuple[int | None, ByteStream]:
    """The bytes of a segment, of which there are `size` as it is stored, and how many these are."""
    stream = unpacked(stream, packing, expansion)
    if tiered_start(name.rpartition("/")[2]) is not None:
        return None, unframed(stream, expansion)
    return size if packing is Packing.NONE else None, stream


def unread_source(source: SegmentSource, error: ReadFailedError) -> ArchiveFinding:
    """The finding for a source that could not be read, or that a running broker has deleted."""
    if not isinstance(error.__cause__, FileNotFoundError):
        return ArchiveFinding(ArchiveFindingKind.UNREADABLE, source.name, str(error))
    start = segment_start(source.name.rpartition("/")[2])
    return ArchiveFinding(ArchiveFindingKind.DELETED, source.name, str(error), offset=start)


def open_logs(
    source: SegmentSource, layout: ArchiveLayout, *, expansion: int = DEFAULT_EXPANSION
) -> Iterator[tuple[SegmentName, OpenSegment] | ArchiveFinding]:
    """The segments of 0.8 and later in a source that are parts of logs by their names; others are passed over.

    Raises as `open_segments`.
    """
    for opened in open_segments(source, expansion=expansion):
        if isinstance(opened, ArchiveFinding):
            yield opened
            continue
        try:
            name = layout.name(opened.name)
        except MisnamedSegmentError:
            continue
        dialect, stream = told_apart(opened)
        if dialect is SegmentDialect.V08 and abandoned(opened.name) is None:
            yield name, opened._replace(stream=stream)


def refused(source: SegmentSource) -> str | None:
    """Why a tiered segment is not read: its manifest says that it is encrypted. None if it is read. Blocks."""
    if tiered_start(source.name.rpartition("/")[2]) is None:
        return None
    data = b""
    path = manifest_of(source.path)
    with contextlib.suppress(Exception), opened_file(replace(source, path=path)) as file:  # often there is none
        data = file.read(MANIFEST_BYTES + 1)
    try:
        encrypted = bool(data) and parse_manifest(data).encrypted
    except CorruptDataError:
        return None
    if not encrypted:
        return None
    return (
        f"{source.name} is encrypted, by its manifest {path.rpartition('/')[2]}; it was not read: have the plugin's "
        "key decrypt it first"
    )


def unframed(stream: ByteStream, expansion: int = DEFAULT_EXPANSION) -> ByteStream:
    """A tiered segment as it was: it may be frames of zstd, one for each chunk."""
    replayed = _Replayed(stream, len(ZSTD_MAGIC))
    return unpacked(replayed, Packing.ZSTD, expansion) if replayed.head == ZSTD_MAGIC else replayed


def told_apart(opened: OpenSegment) -> tuple[SegmentDialect, ByteStream]:
    """The dialect of a segment, by its first bytes and else by its name, and the stream from its beginning on."""
    replayed = _Replayed(opened.stream, _HEAD_BYTES)
    dialect = recognise(replayed.head)
    if dialect is None:
        dialect = SegmentDialect.V08 if LOG_SUFFIX in opened.name.rpartition("/")[2] else SegmentDialect.V07
    return dialect, replayed


def abandoned(name: str) -> ArchiveFinding | None:
    """The finding for a segment of 0.8 and later in a folder that was not, or no longer, the partition's log."""
    folder = name.replace(INSIDE, "/").rpartition("/")[0].rpartition("/")[2]
    partition = parse_partition_folder(folder)
    if partition is None or not partition.state:
        return None
    what = {
        "delete": "the broker was about to delete it",
        "stray": "the broker had found that it belongs to another one",
        "future": "the broker was filling it, to move the log to another disk",
    }[partition.state]
    problem = f"{name} was not read: {what}; to read it, copy it to a folder {partition.topic}-{partition.partition}"
    return ArchiveFinding(ArchiveFindingKind.ABANDONED, name, problem)


class _Replayed:
    """A stream whose first `count` bytes, as far as there are as many, are read, and given again: `head`."""

    def __init__(self, stream: ByteStream, count: int) -> None:
        self.head = b""
        self._damage: DamagedArchiveError | None = None
        self._stream = stream
        try:
            while len(self.head) < count and (fresh := stream.read(count - len(self.head))):
                self.head += fresh
        except DamagedArchiveError as error:
            self._damage = error

    def read(self, size: int, /) -> bytes:
        if self.head:
            data, self.head = self.head[:size], self.head[size:]
            return data
        if self._damage is not None:
            raise self._damage
        return self._stream.read(size)

    def unread(self, count: int, /) -> bool:
        """As `consumerd.storage.log.archive_items.unread`: the beginning came from the same stream."""
        return not self.head and self._damage is None and unread(self._stream, count)


def stamp_of(source: SegmentSource) -> str:
    """Return a stamp that changes when a segment changes, as far as its source shows it."""
    return f"{source.stamp}, {source.size} bytes"


def unpacked(stream: ByteStream, packing: Packing, expansion: int = DEFAULT_EXPANSION) -> ByteStream:
    """The stream itself, or its decompressed content."""
    if packing is Packing.GZIP:
        return UnpackedStream(stream, expansion=expansion)
    if packing is Packing.ZSTD:
        return UnpackedStream(stream, ZstdDecoder, what="zstd", expansion=expansion)
    return stream


@contextlib.contextmanager
def _raw(source: SegmentSource, on_bytes: Callable[[int], object]) -> Iterator[_RawStream]:
    with contextlib.ExitStack() as stack:
        with reading(source.name):
            try:
                file = stack.enter_context(opened_file(source))
            except FileNotFoundError as error:
                raise FileNotFoundError(error.errno, _DELETED) from None
            if source.part is not None:
                file.seek(source.part.position)
        yield _RawStream(file, source, on_bytes)


@contextlib.contextmanager
def unpacked_bytes(source: SegmentSource) -> Iterator[ByteStream]:
    """The bytes of a source, decompressed. Raises as `open_segments`."""
    with _raw(source, lambda _: None) as raw:
        yield unpacked(raw, source.packing)


def opened_file(source: SegmentSource) -> contextlib.AbstractContextManager[Any]:
    """The file of a source, which can seek. Raises the errors of its file system, MissingExtraError."""
    if not source.is_remote:
        return Path(source.path).open("rb", buffering=0)
    opened: contextlib.AbstractContextManager[Any] = extra("fsspec", f"reading {source.path}").open(source.path, "rb")
    return opened


class _RawStream:
    """The bytes of the source as it was when it was found: bytes appended since are left for the next run."""

    def __init__(self, file: Any, source: SegmentSource, on_bytes: Callable[[int], object]) -> None:
        self._file = file
        self._source = source
        self._on_bytes = on_bytes
        self._left = source.size

    def read(self, size: int, /) -> bytes:
        if self._left is not None:
            size = min(size, self._left)
        with reading(self._source.name):
            data: bytes = self._file.read(size)
        if self._left is not None:
            if size and not data:
                raise DamagedArchiveError(f"the file was truncated by {self._left} bytes since it was found")
            self._left -= len(data)
        self._on_bytes(len(data))
        return data

    def unread(self, count: int, /) -> bool:
        """As `consumerd.storage.log.archive_items.unread`: local files alone are cheap to read again."""
        if self._source.is_remote:
            return False
        with reading(self._source.name):
            self._file.seek(-count, os.SEEK_CUR)
        if self._left is not None:
            self._left += count
        self._on_bytes(-count)
        return True
