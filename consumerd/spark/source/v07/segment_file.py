"""The bytes of a stretch of a segment file, as `consumerd.storage.archive.read_runs` wants them.

Strategy: a reader is open for the time of one split and gives bytes by their offsets, those behind the split's end
too: what stands there tells a segment that ends within a message from a split that does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from consumerd.spark.source.errors import FileReadError
from consumerd.spark.source.request import DEFAULT_FETCH_SIZE, DEFAULT_TIMEOUT
from consumerd.spark.source.v07.client import BrokerLog
from consumerd.spark.source.v07.packed_file import SUFFIX, PackedFile
from consumerd.spark.source.v07.remote_file import RemoteFile, is_remote
from consumerd.spark.source.v07.split import BrokerRange, FileRange

if TYPE_CHECKING:
    from types import TracebackType


class SegmentReader(Protocol):
    """Bytes of one segment by their log offsets. A context manager; errors are declared ones."""

    @property
    def window(self) -> int:
        """How many bytes at once are worth their while."""
        ...

    def fetch(self, offset: int, size: int) -> bytes:
        """At least one and at most `size` bytes of the segment from `offset` on; b"" where it has ended.

        Raises a ConsumerdError where the segment cannot be read.
        """
        ...

    def next_available(self, offset: int) -> int | None:
        """Of an `offset` with nothing there: the next one with something; None where nothing follows."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalFile:
    """A plain local segment file. Raises FileReadError, and FileNotFoundError if there is no such file."""

    window = 1 << 20

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

    def next_available(self, offset: int) -> int | None:
        return None

    def _failure(self, error: OSError) -> FileReadError:
        return FileReadError(f"cannot read {self._path}: {error.strerror or error}; make it readable for the executors")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    if not location.path.endswith(SUFFIX):
        return open_file(location.path, location.segment_start)
    return PackedFile(open_file(location.path, 0), location.segment_start)


def open_file(path: str, start: int) -> SegmentReader:
    """A file as it lies there, its first byte at offset `start`. Raises FileNotFoundError, FileReadError."""
    return RemoteFile(path, start) if is_remote(path) else LocalFile(path, start)
