"""Reading segment files one outer message at a time, for dumps and archives: no broker, no whole file in memory.

Strategy: a window of the file slides over the messages; it holds at least one message, so that memory follows the
largest message and not the file. Entries tile the file exactly: a rest that cannot be read as messages is one last
entry that is not valid. A wrong CRC, magic or set does not end the reading, because the
length still gives the start of the next message; a torn tail or an impossible length does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from consumerd.storage.log.archive_items import ByteStream
from consumerd.storage.log.errors import DamagedArchiveError, StorageError
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07 import (
    DEFAULT_LIMITS,
    Codec,
    DecodeLimits,
    MessageSetTail,
    OuterMessage,
    leaf_payloads,
    read_outer,
)

#: Bytes of a file read at once.
WINDOW = 1 << 20


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
    data, position, offset, wanted = b"", 0, start, window
    damage: str | None = None
    while True:
        try:
            fresh = file.read(wanted)
        except DamagedArchiveError as error:
            fresh, damage = b"", str(error)
        data, offset, position = data[position:] + fresh, offset + position, 0
        while isinstance(item := read_outer(data, position, offset + position, limits.max_message_bytes), OuterMessage):
            yield _open(item, limits)
            position += 4 + item.size
        if item.problem is not None or not fresh:
            break
        wanted = max(window, (item.needed or 0) - (len(data) - position))
    if damage is not None:
        problem = f"the segment is truncated at offset {offset + position}: {damage}"
        yield LogEntry(offset + position, offset + len(data), False, None, None, None, [], problem)
    elif position < len(data):
        rest = len(data) - position + _unread(file)
        size = int.from_bytes(data[position : position + 4], signed=True) if len(data) - position >= 4 else None
        yield _rest(item, size, rest)


def _open(message: OuterMessage, limits: DecodeLimits) -> LogEntry:
    payloads: list[bytes] = []
    problem = None
    if message.valid:
        try:
            payloads = leaf_payloads(message, limits=limits)
        except CorruptMessageError as error:
            problem = f"the message at offset {message.offset} cannot be decompressed: {error}"
    else:
        problem = f"the message at offset {message.offset} has {message.problem}"
    return LogEntry(
        message.offset,
        message.next_offset,
        problem is None,
        message.magic,
        message.codec,
        message.size,
        payloads,
        problem,
    )


def _rest(tail: MessageSetTail, size: int | None, rest: int) -> LogEntry:
    """The last `rest` bytes of a file, at which the messages end."""
    if tail.problem is not None:
        problem = f"at offset {tail.offset} stands {tail.problem}; the last {rest} bytes of the file are unreadable"
    elif tail.needed is not None:
        problem = f"the message at offset {tail.offset} is torn: the file has {rest} of its {tail.needed} bytes"
    else:
        problem = f"the file ends {rest} bytes into a length field, at offset {tail.offset}"
    return LogEntry(tail.offset, tail.offset + rest, False, None, None, size, [], problem)


def _unread(file: ByteStream) -> int:
    count = 0
    with contextlib.suppress(DamagedArchiveError):
        while fresh := file.read(WINDOW):
            count += len(fresh)
    return count
