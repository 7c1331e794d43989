"""The log of one partition: an immutable list of segments, appends at the end, reads of flushed bytes only.

Strategy (spec 003, 5.5; golden notes, 3): offsets are byte positions in the concatenation of all segments. The list
of segments is a tuple that is replaced, never changed, so a reader takes it once and searches it in peace during a
roll or a deletion. Two locks: `_writing` orders appends, rolls and deletions and is held for short work only;
`_flushing` is held during a sync, so that appends continue meanwhile and one sync serves all sets written before it.

**Invariant**: every segment but the last is flushed whole, and each begins where the one before it ends.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from consumerd.base.errors import reason_of
from consumerd.storage.log.errors import FlushFailedError, OffsetOutOfLogError, StorageError
from consumerd.storage.log.files import OsFiles
from consumerd.storage.log.loading import create_segment, load_segments
from consumerd.storage.log.recovery import TailCut
from consumerd.storage.log.retention import DeletePolicy, SegmentFacts
from consumerd.storage.log.segment import Segment, SegmentSlice
from consumerd.wire.v07 import EARLIEST, LATEST

_start_of = attrgetter("start")
#: Bytes that are written again at once after a failed sync.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of one log. Defaults are those of 0.7.2 (golden notes, 8)."""

    #: A segment larger than this (strictly) is rolled before the next append. log.file.size
    segment_bytes: int = 1 << 30
    #: A segment whose first append is older than this is rolled before the next append. log.roll.hours
    roll_seconds: float = 168 * 3600.0
    #: Flush when this many messages (leaves of compressed ones counted) are unflushed. log.flush.interval
    flush_messages: int = 500
    #: Flush when the last flush is older than this. log.default.flush.interval.ms, topic.flush.intervals.ms
    flush_seconds: float = 3.0
    #: The policies of deletion, in the order of their calls. 0.7.2 keeps 168 hours by default: too dangerous for a
    #: broker that is started on an archive, so here nothing is deleted unless it is configured.
    delete_policies: tuple[DeletePolicy, ...] = ()


class Log:
    """One partition's log. Appends and rolls come from one writer at a time; reads and flushes from any thread."""

    def __init__(self, directory: Path, files: OsFiles, settings: LogSettings, segments: Sequence[Segment], now: float):
        self.directory = directory
        self.settings = settings
        self._files = files
        self._segments = tuple(segments)
        self._unflushed = 0
        self._last_flush = now
        self._failed: FlushFailedError | None = None
        self._writing = threading.Lock()
        self._flushing = threading.Lock()

    @classmethod
    def open(
        cls, directory: Path, files: OsFiles, settings: LogSettings, *, now: float, trusted_end: int | None = None
    ) -> tuple[Log, TailCut | None]:
        """Load the segments in `directory`, recovering the last one; an empty directory gets its first segment.

        `trusted_end` is the end offset that a clean stop noted: if the log still ends there, nothing is walked.
        Returns the log and the cut. Raises CorruptLogError when a file name is not an offset, when
        segments do not follow each other without gap or overlap; StorageError otherwise.
        """
        segments, cut = load_segments(directory, files, trusted_end)
        return cls(directory, files, settings, segments, now), cut

    @property
    def name(self) -> str:
        """`topic-partition`."""
        return self.directory.name

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    @property
    def start_offset(self) -> int:
        return self._segments[0].start

    @property
    def end_offset(self) -> int:
        """The offset of the next append."""
        return self._segments[-1].end

    @property
    def flushed_offset(self) -> int:
        """The end of the bytes that readers see."""
        last = self._segments[-1]
        return last.start + last.flushed

    def roll_due(self, now: float) -> bool:
        """Whether the next append must go to a new segment (golden notes, 3)."""
        last = self._segments[-1]
        if last.size > self.settings.segment_bytes:
            return True
        return last.first_append is not None and now - last.first_append > self.settings.roll_seconds

    def roll(self, now: float) -> None:
        """Flush, then begin a new, empty segment. Blocks on the disk. Raises StorageError, FlushFailedError."""
        with self._flushing:
            self._roll(now)

    def _roll(self, now: float) -> None:
        self._flush(now)
        with self._writing:
            last = self._segments[-1]
            if not last.size:
                return
            if last.flushed != last.size:
                raise RuntimeError(f"{self.name} was appended to during a roll: a log has one writer at a time")
            self._segments = (*self._segments, create_segment(self.directory, self._files, last.end))

    def append(self, data: bytes, messages: int, now: float) -> int:
        """Write a checked message set of `messages` leaves into the page cache; returns its offset.

        Never syncs: look at `roll_due` before and at `flush_due` after. Raises StorageError, with nothing appended, and
        FlushFailedError once a flush has failed.
        """
        with self._writing:
            if self._failed is not None:
                raise self._failed
            offset = self._segments[-1].append(data, now)
            self._unflushed += messages
            return offset

    def flush_due(self) -> bool:
        """Whether enough messages are unflushed for a flush right after the append."""
        return self._unflushed >= self.settings.flush_messages and self.flushed_offset != self.end_offset

    def flush_overdue(self, now: float) -> bool:
        """Whether there is something to flush and the last flush is too long ago (asked by the scheduler).

        0.7.2 looks at the message count alone, so a wrapper around nothing stays invisible until the next message;
        we look at the bytes.
        """
        return self.flushed_offset != self.end_offset and now - self._last_flush >= self.settings.flush_seconds

    def flush(self, now: float) -> None:
        """Make everything appended before this call durable and visible. Blocks on the disk.

        Raises FlushFailedError, then and ever after: the kernel forgets what it failed to write, so a later sync that
        succeeds would prove nothing.
        """
        with self._flushing:
            self._flush(now)

    def _flush(self, now: float) -> None:
        with self._writing:
            last, size, messages = self._segments[-1], self._segments[-1].size, self._unflushed
            if self._failed is not None:
                raise self._failed
        if last.flushed == size:
            return
        try:
            last.file.sync()
        except StorageError as error:
            self._failed = FlushFailedError(f"{error}; the log {self.name} must be checked: restart the broker")
            self._write_again(last)
            raise self._failed from error
        with self._writing:
            last.flushed = size
            self._unflushed -= messages
            self._last_flush = now

    def _write_again(self, last: Segment) -> None:
        """Write what is not flushed once more, for the sync of the next start.

        The kernel takes it for written and still reads it to that start, whose sync would succeed without it.
        """
        with self._writing, contextlib.suppress(StorageError):
            for start in range(last.flushed, last.size, _PIECE):
                last.file.write_at(start, last.file.read_at(start, min(_PIECE, last.size - start)))

    def clean(self, now: float, now_ms: int) -> list[str]:
        """Delete the segments that retention does not keep; return the file names.

        A log that is deleted whole keeps its end in an empty segment, so this may roll: it counts as the one writer.
        Readers that hold a segment keep reading it. Blocks on the disk. Raises StorageError, also for a policy that
        fails, and FlushFailedError.
        """
        with self._flushing:
            dropped: list[str] = []
            for policy in self.settings.delete_policies:
                dropped += self._drop(_ask(policy, self._segments, now_ms), now)
            return dropped

    def _drop(self, count: int, now: float) -> list[str]:
        if count == len(self._segments):
            self._roll(now)
            count = len(self._segments) - 1  # the last one is empty now: it is the log's memory of its end
        gone = []
        try:
            for segment in self._segments[:count]:  # oldest first, so that a crash in between leaves no hole
                self._files.remove(segment.path)
                gone.append(segment)
        finally:
            with self._writing:
                self._segments = self._segments[len(gone) :]
            for segment in gone:
                segment.close()
        return [segment.path.name for segment in gone]

    def slice(self, offset: int, max_bytes: int) -> SegmentSlice:
        """Return the flushed bytes from `offset`, at most `max_bytes`, never beyond the end of one segment.

        No check that a message starts at `offset` (golden notes, 1). Raises OffsetOutOfLogError.
        """
        segments = self._segments
        last = segments[-1]
        if not segments[0].start <= offset <= last.start + last.flushed:
            raise OffsetOutOfLogError(
                f"offset {offset} of {self.name} is outside {segments[0].start} to {last.start + last.flushed}"
            )
        segment = segments[bisect_right(segments, offset, key=_start_of) - 1]
        position = offset - segment.start
        return SegmentSlice(segment, position, min(max_bytes, segment.flushed - position))

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return the bytes of `slice`. Raises OffsetOutOfLogError, StorageError, ValueError for a negative size."""
        if max_bytes < 0:
            raise ValueError(f"cannot read {max_bytes} bytes")
        segment, position, length = self.slice(offset, max_bytes)
        return segment.file.read_at(position, length)

    def offsets_before(self, time_ms: int, limit: int, now_ms: int) -> tuple[int, ...]:
        """Return at most `limit` segment boundaries, descending, from the last one not younger than `time_ms`.

        The rule of 0.7.2 (golden notes, 3): candidates are the start of every segment with its file's modification
        time, and the flushed end with the present time unless the last segment is empty. LATEST starts at the last
        candidate, EARLIEST at the first. Raises ValueError for a negative limit.
        """
        if limit < 0:
            raise ValueError(f"cannot list {limit} offsets")
        segments = self._segments
        last = segments[-1]
        offsets = [segment.start for segment in segments]
        if last.flushed:
            offsets.append(last.start + last.flushed)
        if time_ms == EARLIEST:
            count = 1
        elif time_ms == LATEST or (last.flushed and now_ms <= time_ms):
            count = len(offsets)
        else:
            count = len(segments)
            while count and segments[count - 1].file.modified_ms() > time_ms:
                count -= 1
        return tuple(offsets[count - 1 :: -1][:limit]) if count else ()

    def rest(self, *, at_once: bool = False) -> None:
        """Close the files that were not used since the last call (`at_once`: all that are flushed) until they are.

        Does nothing while a flush is under way. Like appends and rolls it comes from the one writer.
        """
        if not self._flushing.acquire(blocking=False):
            return
        try:
            with self._writing:
                for segment in self._segments:
                    segment.rest(at_once=at_once)
        finally:
            self._flushing.release()

    def close(self) -> None:
        """Close the files, each as soon as its last reader is done. Waits for a flush under way, does not begin one."""
        with self._flushing, self._writing:
            for segment in self._segments:
                segment.close()


def _ask(policy: DeletePolicy, segments: Sequence[Segment], now_ms: int) -> int:
    """Return the number of leading segments that `policy` deletes. Raises StorageError for any error of custom code."""
    facts = [
        SegmentFacts(segment.path, segment.start, segment.flushed, segment.file.modified_ms()) for segment in segments
    ]
    try:
        return min(max(int(policy.deletable(facts, now_ms)), 0), len(facts))
    except Exception as error:
        raise StorageError(
            f"the delete policy {policy!r} failed with {reason_of(error)}; nothing was deleted by it"
        ) from error
