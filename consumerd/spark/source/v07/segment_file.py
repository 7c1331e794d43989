"""The bytes of a stretch of a segment file, as `consumerd.storage.archive.read_runs` wants them.

Strategy: a *place* is open for the time of one split and gives bytes by their offsets, those behind the split's end
too: what stands there tells a segment that ends within a message from a split that does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from consumerd.spark.source.errors import PlaceError
from consumerd.spark.source.request import DEFAULT_FETCH_SIZE, DEFAULT_TIMEOUT
from consumerd.spark.source.v07.client import BrokerLog
from consumerd.spark.source.v07.packed_file import SUFFIX, PackedFile
from consumerd.spark.source.v07.remote_file import RemoteFile, is_remote
from consumerd.spark.source.v07.split import BrokerRange, FileRange

if TYPE_CHECKING:
    from types import TracebackType


class Place(Protocol):
    """Bytes of one segment by their log offsets. A context manager; errors are declared ones."""

    @property
    def window(self) -> int:
        """How many bytes at once are worth their while."""
        ...

    def fetch(self, offset: int, size: int) -> bytes:
        """At least one and at most `size` bytes of the segment from `offset` on; b"" where it has ended.

        Raises a ConsumerdError where the place cannot be read.
        """
        ...

    def goes_on_at(self, offset: int) -> int | None:
        """Of an `offset` with nothing there: the next one with something; None where nothing follows."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalFile:
    """A plain segment file of this machine. Raises PlaceError; FileNotFoundError only where there is no such file."""

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

    def goes_on_at(self, offset: int) -> int | None:
        return None

    def _failure(self, error: OSError) -> PlaceError:
        return PlaceError(
            f"{self._path} cannot be read: {error.strerror or error}; see to it that executors can read it"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class SplitStream:
    """Bytes of a place in order, each once. `position`: the offset up to which they were handed out.

    It ends where the place does, at the latest at offset `end`.
    """

    def __init__(self, place: Place, start: int, end: int) -> None:
        self._place = place
        self.position = start
        self._end = end

    def read(self, size: int, /) -> bytes:
        wanted = min(size, self._end - self.position)
        if wanted <= 0:
            return b""
        data = self._place.fetch(self.position, wanted)
        self.position += len(data)
        return data


def open_place(
    place: FileRange | BrokerRange,
    topic: str,
    partition: int,
    *,
    fetch_size: int = DEFAULT_FETCH_SIZE,
    timeout: float = DEFAULT_TIMEOUT,
) -> Place:
    """The open place, to be used as a context manager.

    Raises FileNotFoundError for a file that is not there, PlaceError, BrokerReadError.
    """
    if isinstance(place, BrokerRange):
        return BrokerLog(place, topic, partition, fetch_size=fetch_size, timeout=timeout)
    if not place.path.endswith(SUFFIX):
        return open_file(place.path, place.segment_start)
    return PackedFile(open_file(place.path, 0), place.segment_start)


def open_file(path: str, start: int) -> Place:
    """A file as it lies there, its first byte at offset `start`. Raises FileNotFoundError, PlaceError."""
    return RemoteFile(path, start) if is_remote(path) else LocalFile(path, start)
