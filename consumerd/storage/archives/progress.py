"""The progress of the work: events of workers, and the protocol of what shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

#: A worker reports after this number of bytes.
_STEP = 8 << 20


class BytesRead(NamedTuple):
    """Event: this number of bytes of the sources was processed."""

    size: int


class Progress(Protocol):
    """Shows progress. Bytes are those of the sources, before decompression."""

    def begin(self, total_bytes: int, segments: int | None) -> None:
        """The work begins. `segments` is None where it is known only after tars have been read."""
        ...

    def advance(self, count: int) -> None:
        """Add processed bytes."""
        ...

    def segment(self, rows: int) -> None:
        """One segment was processed, with this number of messages or rows."""
        ...


class NoProgress:
    """Shows nothing."""

    def begin(self, total_bytes: int, segments: int | None) -> None: ...

    def advance(self, count: int) -> None: ...

    def segment(self, rows: int) -> None: ...


class ReadMeter:
    """Counts the bytes read of one source and emits them in steps."""

    def __init__(self, emit: Callable[[object], None]) -> None:
        self._emit = emit
        self._unreported = 0
        self._reported = 0

    def add(self, count: int) -> None:
        """Add bytes that were read."""
        self._unreported += count
        if self._unreported >= _STEP:
            self._tell()

    def finish(self, size: int | None) -> None:
        """The source was processed; emits its unread rest, too."""
        if size is not None:
            self._unreported = max(self._unreported, size - self._reported)
        self._tell()

    def _tell(self) -> None:
        self._reported += self._unreported
        self._emit(BytesRead(self._unreported))
        self._unreported = 0
