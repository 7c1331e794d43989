"""How far the work has come: what workers say, and what a console is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

#: A worker speaks up after so many bytes.
_STEP = 8 << 20


class BytesRead(NamedTuple):
    """Event: so many more bytes of the sources are done with."""

    size: int


class Progress(Protocol):
    """Whoever shows it. Bytes are those of the sources as they lie there."""

    def begin(self, total_bytes: int, segments: int | None) -> None:
        """The work begins; the number of segments is None where tars keep it to themselves."""
        ...

    def advance(self, count: int) -> None:
        """So many more bytes are done with."""
        ...

    def segment(self, rows: int) -> None:
        """One more segment is done, with so many messages or rows."""
        ...


class Quiet:
    """Shows nothing."""

    def begin(self, total_bytes: int, segments: int | None) -> None: ...

    def advance(self, count: int) -> None: ...

    def segment(self, rows: int) -> None: ...


class Meter:
    """Counts what is read of one source and tells it in steps."""

    def __init__(self, emit: Callable[[object], None]) -> None:
        self._emit = emit
        self._untold = 0
        self._told = 0

    def add(self, count: int) -> None:
        """So many bytes were read."""
        self._untold += count
        if self._untold >= _STEP:
            self._tell()

    def finish(self, size: int | None) -> None:
        """The source is done with, its unread rest included."""
        if size is not None:
            self._untold = max(self._untold, size - self._told)
        self._tell()

    def _tell(self) -> None:
        self._told += self._untold
        self._emit(BytesRead(self._untold))
        self._untold = 0
