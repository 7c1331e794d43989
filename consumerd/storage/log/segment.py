"""One segment: a file of whole message sets that starts at a known offset of the log (spec 003, 5.5).

Strategy: a segment has three numbers: its start offset, the bytes written, and the bytes of those that are
flushed. Readers see the flushed ones only (golden notes, 3). It counts the readers that hold its file, so that
retention may drop a segment from the log while a slow consumer still gets its last bytes from it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from consumerd.storage.log.files import OsSegmentFile

#: Segment files are named by their start offset, 20 digits and this.
SUFFIX = ".kafka"


def segment_name(start: int) -> str:
    """Return the file name of the segment that starts at offset `start`."""
    return f"{start:020d}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the start offset in a segment's file name; None for another file (fewer digits than 20 are read, too)."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or not (stem.isascii() and stem.isdigit()) or int(stem) >= 1 << 63:
        return None
    return int(stem)


class Segment:
    """A segment file with its written and flushed sizes. One writer at a time; readers come from any thread."""

    __slots__ = ("_doomed", "_lock", "_readers", "file", "first_append", "flushed", "path", "size", "start")

    def __init__(self, path: Path, file: OsSegmentFile, start: int, size: int) -> None:
        self.path = path
        self.file = file
        self.start = start
        #: Bytes written.
        self.size = size
        #: Bytes that are flushed and so visible. Bytes from before the file was opened count as flushed.
        self.flushed = size
        #: Time of the first append since the opening, in monotonic seconds: log.roll.hours counts from here.
        self.first_append: float | None = None
        self._readers = 0
        self._doomed = False
        self._lock = threading.Lock()

    @property
    def end(self) -> int:
        """The offset after the last byte written."""
        return self.start + self.size

    def append(self, data: bytes, now: float) -> int:
        """Write a message set at the end; returns its offset in the log. Not visible until flushed."""
        size = self.size
        if data:
            self.file.write_at(size, data)
            self.size = size + len(data)
            if self.first_append is None:
                self.first_append = now
        return self.start + size

    def retain(self) -> bool:
        """Keep the file open for one reader; False when it is closed already. Raises StorageError."""
        with self._lock:
            if self._doomed:
                return False
            self.file.fileno()  # opens it now, if it rests: later its name may be gone
            self._readers += 1
            return True

    def release(self) -> None:
        """Release the file for one reader."""
        with self._lock:
            self._readers -= 1
            close = self._doomed and not self._readers
        if close:
            self.file.close()

    def rest(self, *, at_once: bool = False) -> None:
        """Close the file until it is used again, if it has not been since the last call (`at_once`: in any case).

        Does nothing while a reader holds it or bytes of it are not flushed. Not during an append or a flush.
        """
        with self._lock:
            if not (self._doomed or self._readers) and self.flushed == self.size:
                self.file.rest(at_once=at_once)

    def close(self) -> None:
        """Close the file as soon as its last reader is done. May be called twice."""
        with self._lock:
            close = not self._doomed and not self._readers
            self._doomed = True
        if close:
            self.file.close()


class SegmentSlice(NamedTuple):
    """The part of a file that answers a fetch: `length` bytes from `position` of one segment's file.

    `length` is negative only where the caller asked for a negative size: 0.7.2 answers that with a broken frame, and
    a broker that imitates it needs the number (golden notes, 1).
    """

    segment: Segment
    position: int
    length: int
