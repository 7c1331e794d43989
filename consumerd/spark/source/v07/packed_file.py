"""Segment files that were packed with gzip, read without unpacking them anywhere.

Strategy: bytes come front to back; whoever asks for an earlier byte starts from the beginning. So a packed file is
worth reading in one split only. Its size is not written anywhere that could be trusted: `unpacked_size` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from consumerd.storage.archive_packed import UnpackedStream

if TYPE_CHECKING:
    from types import TracebackType

    from consumerd.spark.source.v07.segment_file import SegmentReader

#: The end of a packed file's name.
SUFFIX: Final = ".gz"
#: Bytes skipped at once.
_STEP: Final = 1 << 20


class PackedFile:
    """What is in a packed segment file. `packed` has the file's own bytes by their position in it.

    `fetch` raises DamagedArchiveError for gzip data that is damaged or cut short.
    """

    window = 1 << 20

    def __init__(self, packed: SegmentReader, segment_start: int) -> None:
        self._packed = packed
        self._start = segment_start
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

    def next_available(self, offset: int) -> int | None:
        return None

    def _rewind(self) -> None:
        self._stream = UnpackedStream(_FrontToBack(self._packed))
        self._offset = self._start

    def __enter__(self) -> Self:
        self._packed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._packed.__exit__(kind, error, trace)


class _FrontToBack:
    """The packed bytes as a stream."""

    def __init__(self, packed: SegmentReader) -> None:
        self._packed = packed
        self._position = 0

    def read(self, size: int, /) -> bytes:
        data = self._packed.fetch(self._position, size)
        self._position += len(data)
        return data


def unpacked_size(packed: SegmentReader) -> int:
    """How many bytes come out of a packed file; reads all of it. Raises DamagedArchiveError, FileReadError."""
    stream, size = UnpackedStream(_FrontToBack(packed)), 0
    while data := stream.read(_STEP):
        size += len(data)
    return size
