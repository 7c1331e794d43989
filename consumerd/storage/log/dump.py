"""Reading segment files one outer message at a time, for dumps: no broker, no whole file in memory.

Strategy: the runs and flaws of `consumerd.storage.log.archive`, one entry for each message. Entries tile the file: a
rest that cannot be read as messages is one last entry that is not valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from consumerd.storage.log.archive import WINDOW, read_runs
from consumerd.storage.log.archive_items import MESSAGE_FLAWS, ArchivedRun, ByteStream, Flaw
from consumerd.storage.log.errors import StorageError
from consumerd.wire.v07 import DEFAULT_LIMITS, Codec, DecodeLimits

#: Bytes of a length field.
_LENGTH = 4


class LogEntry(NamedTuple):
    """One outer message of a segment file, opened, or the unreadable rest of the file.

    `size` is the length field, without its own 4 bytes. `payloads` are the flattened leaves, none when not `valid`.
    `magic`, `codec` and `size` are None where they are unknown. `problem` is a sentence when not `valid`.
    """

    offset: int
    next_offset: int
    valid: bool
    magic: int | None
    codec: Codec | None
    size: int | None
    payloads: list[bytes]
    problem: str | None


def read_segment(
    path: Path, start: int, *, limits: DecodeLimits = DEFAULT_LIMITS, window: int = WINDOW
) -> Iterator[LogEntry]:
    """Read the entries of the file at `path`, whose first byte has offset `start`. Raises StorageError."""
    try:
        with path.open("rb", buffering=0) as file:
            yield from read_entries(file, start, limits=limits, window=window)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def read_entries(
    file: ByteStream, start: int, *, limits: DecodeLimits = DEFAULT_LIMITS, window: int = WINDOW
) -> Iterator[LogEntry]:
    """Read the entries of a stream from its present position on, which has offset `start`."""
    for item in read_runs(file, start, limits=limits, window=window):
        if isinstance(item, Flaw):
            size = item.next_offset - item.offset - _LENGTH if item.kind in MESSAGE_FLAWS else item.length
            yield LogEntry(item.offset, item.next_offset, False, item.magic, item.codec, size, [], item.problem)
        elif item.codec:
            yield _entry(item, item.offset, item.next_offset, item.payloads)
        else:
            for payload, (offset, after) in zip(item.payloads, pairwise(item.boundaries()), strict=True):
                yield _entry(item, offset, after, [payload])


def _entry(run: ArchivedRun, offset: int, after: int, payloads: list[bytes]) -> LogEntry:
    return LogEntry(offset, after, True, run.magic, run.codec, after - offset - _LENGTH, payloads, None)
