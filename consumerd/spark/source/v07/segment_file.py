"""The bytes of a segment, for `consumerd.storage.log.archive.read_runs`: from a file, packed or not, a URL or a broker.

Strategy: a reader is open for the time of one split and returns bytes by their offsets, including those after the
split's end: they distinguish a segment that ends within a message from a split that does.

The bytes of a compressed file (`.gz`, `.zst`, a tiered segment) come front to back; a request for an earlier byte
starts from the beginning. So such a file is worth reading in one split only. Its size is not stored
anywhere trustworthy: `unpacked_size` counts.

URLs are read by position with fsspec, which is imported when the first one is read: no file object that reads ahead or
caches. One range is one request to the store, so ranges are large. Each file system has errors of its own; all become
one declared error.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.spark.source.errors import FileReadError, OffsetUnavailableError
from consumerd.spark.source.request import DEFAULT_FETCH_SIZE, DEFAULT_TIMEOUT
from consumerd.spark.source.split import BrokerRange, FileRange
from consumerd.spark.source.v07.client import BrokerClient
from consumerd.storage.log.archive_packed import UnpackedStream
from consumerd.storage.log.archive_tiered import ZSTD_MAGIC, tiered_start
from consumerd.wire.v07 import EARLIEST


class SegmentReader(ABC):
    """Bytes of one segment by their log offsets. A context manager; errors are declared ones."""

    #: The number of bytes to read at once.
    window = 1 << 20

    @abstractmethod
    def fetch(self, offset: int, size: int) -> bytes:
        """At least one and at most `size` bytes of the segment from `offset` on; b"" where it has ended.

        Raises a ConsumerdError where the segment cannot be read.
        """

    def fetch_all(self, offset: int, size: int) -> bytes:
        """`size` bytes, fewer only where the segment ends."""
        data = b""
        while len(data) < size and (fresh := self.fetch(offset + len(data), size - len(data))):
            data += fresh
        return data

    def next_available(self, offset: int) -> int | None:
        """The next offset that exists after one that does not; None at the end, and where the file has all."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - nothing is open between ranges of a URL
        pass


class LocalFile(SegmentReader):
    """A plain local segment file. Raises FileReadError, and FileNotFoundError if there is no such file."""

    def __init__(self, path: str, segment_start: int) -> None:
        self._path = path
        self._start = segment_start
        try:
            self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failure(error) from error

    def fetch(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), size, offset - self._start)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> FileReadError:
        return FileReadError(f"cannot read {self._path}: {error.strerror or error}; make it readable for the executors")

    def __exit__(self, *_: object) -> None:
        self._file.close()


class SplitStream:
    """Bytes of a segment in order, each once. `position`: the offset up to which they were handed out.

    It ends where the segment does, at the latest at offset `end`.
    """

    def __init__(self, reader: SegmentReader, start: int, end: int) -> None:
        self._reader = reader
        self.position = start
        self._end = end

    def read(self, size: int, /) -> bytes:
        wanted = min(size, self._end - self.position)
        if wanted <= 0:
            return b""
        data = self._reader.fetch(self.position, wanted)
        self.position += len(data)
        return data


#: The largest fetch, also for larger requests: its bytes are in memory several times.
_LARGEST_FETCH: Final = 8 << 20


class BrokerLog(SegmentReader):
    """One partition's log, over one connection, which is made at once. Raises BrokerReadError."""

    def __init__(self, broker: BrokerRange, topic: str, partition: int, *, fetch_size: int, timeout: float) -> None:
        self._client = BrokerClient(broker.host, broker.port, timeout)
        self._topic = topic
        self._partition = partition
        self.window = min(fetch_size, _LARGEST_FETCH)

    def fetch(self, offset: int, size: int) -> bytes:
        try:
            return self._client.fetch(self._topic, self._partition, offset, min(size, self.window))
        except OffsetUnavailableError:
            return b""

    def next_available(self, offset: int) -> int | None:
        found = self._client.offsets(self._topic, self._partition, EARLIEST, 1)
        return found[0] if found and found[0] > offset else None

    def __exit__(self, *_: object) -> None:
        self._client.close()


def open_segment(
    location: FileRange | BrokerRange,
    topic: str,
    partition: int,
    *,
    fetch_size: int = DEFAULT_FETCH_SIZE,
    timeout: float = DEFAULT_TIMEOUT,
) -> SegmentReader:
    """The open segment, to be used as a context manager.

    Raises FileNotFoundError for a file that is not there, FileReadError, BrokerReadError.
    """
    if isinstance(location, BrokerRange):
        return BrokerLog(location, topic, partition, fetch_size=fetch_size, timeout=timeout)
    if not _is_packed(location.path):
        return open_file(location.path, location.segment_start)
    return PackedFile(open_file(location.path, 0), location.segment_start, location.path)


def _is_packed(path: str) -> bool:
    """Whether a file is compressed: a tiered segment (its name has an id) by its first bytes."""
    if tiered_start(path.rpartition("/")[2]) is None:
        return path.endswith((SUFFIX, _ZSTD_SUFFIX))
    with open_file(path, 0) as file:
        return file.fetch(0, len(ZSTD_MAGIC)) == ZSTD_MAGIC


def open_file(path: str, start: int) -> SegmentReader:
    """A file without decompression, its first byte at offset `start`. Raises FileNotFoundError, FileReadError."""
    return RemoteFile(path, start) if is_remote(path) else LocalFile(path, start)


#: The ends of packed files' names.
SUFFIX: Final = ".gz"
_ZSTD_SUFFIX: Final = ".zst"
#: Bytes skipped at once.
_STEP: Final = 1 << 20


class PackedFile(SegmentReader):
    """The content of a packed segment file. `packed` has the file's own bytes by their position in it.

    `fetch` raises DamagedArchiveError for data that are damaged or cut short.
    """

    def __init__(self, packed: SegmentReader, segment_start: int, path: str) -> None:
        self._packed = packed
        self._start = segment_start
        self._path = path
        self._rewind()

    def fetch(self, offset: int, size: int) -> bytes:
        if offset < self._offset:
            self._rewind()
        while self._offset < offset:
            skipped = self._stream.read(min(_STEP, offset - self._offset))
            if not skipped:
                return b""
            self._offset += len(skipped)
        data = self._stream.read(size)
        self._offset += len(data)
        return data

    def _rewind(self) -> None:
        self._stream = _unpacked(self._packed, self._path)
        self._offset = self._start

    def __enter__(self) -> Self:
        self._packed.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._packed.__exit__(*error)


def _unpacked(packed: SegmentReader, path: str) -> UnpackedStream:
    """The content of a packed file. Raises MissingExtraError for zstd without its package."""
    if path.endswith(SUFFIX):
        return UnpackedStream(SplitStream(packed, 0, sys.maxsize))
    from consumerd.storage.archives.zstd import ZstdDecoder  # noqa: PLC0415 - few files need it

    return UnpackedStream(SplitStream(packed, 0, sys.maxsize), ZstdDecoder, what="zstd")


def unpacked_size(packed: SegmentReader, path: str) -> int:
    """The unpacked size of the packed file at `path`; reads all of it. Raises DamagedArchiveError, FileReadError."""
    stream, size = _unpacked(packed, path), 0
    while data := stream.read(_STEP):
        size += len(data)
    return size


#: Marks a path as one for fsspec: `s3://bucket/...`, `zip://...::https://...`.
_MARKS: Final = ("://", "::")


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return any(mark in path for mark in _MARKS)


class RemoteFile(SegmentReader):
    """A plain segment file behind a URL. Raises FileReadError; FileNotFoundError only where there is no such file."""

    window = 8 << 20

    def __init__(self, url: str, segment_start: int) -> None:
        self._url = url
        self._start = segment_start
        try:
            core: Any = importlib.import_module("fsspec.core")
        except ImportError as error:
            raise FileReadError(f"reading {url} requires the package fsspec; install it on every executor") from error
        with _declared(url):
            self._files, self._path = core.url_to_fs(url)
            #: None if the store does not report it.
            self._size: int | None = self._files.info(self._path).get("size")

    def fetch(self, offset: int, size: int) -> bytes:
        position = offset - self._start
        if self._size is not None:
            # Some stores refuse ranges beyond the end.
            size = min(size, self._size - position)
        if size <= 0:
            return b""
        with _declared(self._url):
            data: bytes = self._files.cat_file(self._path, start=position, end=position + size)
        if len(data) > size:
            raise FileReadError(
                f"cannot read ranges of {self._url}: its server ignores range requests; copy the file elsewhere"
            )
        return data


@contextmanager
def _declared(url: str) -> Iterator[None]:
    """Raise each error of a file system as FileReadError; FileNotFoundError stays."""
    try:
        yield
    except (FileNotFoundError, ConsumerdError):
        raise
    except Exception as error:
        raise FileReadError(f"cannot read {url}: {reason_of(error)}; make it readable for the executors") from error
