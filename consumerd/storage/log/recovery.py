"""Finding the end of the trusted part of a segment file after a crash (spec 003, 5.5 "Guarantees"; golden notes, 3).

Strategy: walk the messages in windows of about a megabyte, checking sizes and CRCs, and stop at the first that cannot
have been written whole. The rest is cut off: a lost block (zeros, or nothing) and a nonsense block both
end the walk, because no CRC fits them. A torn tail is gone for good. Where the cut may destroy more than that, the
bytes are kept beside the segment: when intact messages follow the damage (0.7.2 drops them), and at an unknown magic
byte (0.7.2 refuses to start), which damage looks like, and a newer format, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from consumerd.storage.log.archive_resync import RESYNC_WINDOW, BoundarySearch
from consumerd.storage.log.files import OsFiles, OsSegmentFile
from consumerd.wire.crc import crc32
from consumerd.wire.v07.walk import ANY_LENGTH, LAYOUTS, verify

_WINDOW = 1 << 20
_HEADER = struct.Struct(">iB")  # size of what follows the size itself; magic
_MIN_SIZE = (5, 6)  # magic, (attributes,) crc: by magic 0 and 1


class TailDamage(Enum):
    """The reason why a walk ended before the end of the file."""

    PARTIAL = "a partial message"
    BAD_SIZE = "an impossible message size"
    BAD_CRC = "a message whose CRC does not match"
    UNKNOWN_MAGIC = "a message of unknown magic"


class IntactExtent(NamedTuple):
    """The result of a walk: `valid` bytes of whole, intact messages, then `damage` (None: the file ends there)."""

    valid: int
    damage: TailDamage | None


class TailCut(NamedTuple):
    """The result of a recovery: it cut the last `dropped` bytes of the segment's file, beginning with `damage`.

    `aside` is the file that keeps them, None if nothing among them could be a message.
    """

    damage: TailDamage
    dropped: int
    aside: Path | None


def walk(file: OsSegmentFile, size: int, start: int = 0) -> IntactExtent:
    """Check every message of `file` from `start` up to `size`. Reads the whole range; raises StorageError."""
    position = start
    need = _WINDOW
    while position < size:
        window = file.read_at(position, min(max(need, _WINDOW), size - position))
        used, damage, need = _walk_window(window, size - position)
        position += used
        if damage is not None:
            return IntactExtent(position, damage)
    return IntactExtent(position, None)


def _walk_window(window: bytes, left: int) -> tuple[int, TailDamage | None, int]:
    """Check the whole messages in `window`, which begins a range of `left` bytes.

    Returns the bytes they take, the damage that ended the walk (None: more window is needed, or the range is done),
    and how many bytes the next window must have.
    """
    at, have = 0, len(window)
    unpack = _HEADER.unpack_from
    while at < left:
        # The wire's loop is the fastest reader of plain messages; messages that stop it are checked here.
        # It never takes the last one of the window.
        at, _ = verify(window, at, ANY_LENGTH, LAYOUTS[1])
        if left - at < _HEADER.size:
            return at, TailDamage.PARTIAL, 0
        if have - at < _HEADER.size:
            return at, None, _HEADER.size
        length, magic = unpack(window, at)
        if length < _MIN_SIZE[0]:
            return at, TailDamage.BAD_SIZE, 0
        end = at + 4 + length
        if end > left:
            return at, TailDamage.PARTIAL, 0
        if magic > 1:
            return at, TailDamage.UNKNOWN_MAGIC, 0
        if length < _MIN_SIZE[magic]:
            return at, TailDamage.BAD_SIZE, 0
        if end > have:
            return at, None, end - at
        body = at + 9 + magic
        if crc32(window[body:end]) != int.from_bytes(window[body - 4 : body], "big"):
            return at, TailDamage.BAD_CRC, 0
        at = end
    return at, None, 0


def recover(files: OsFiles, path: Path, file: OsSegmentFile) -> TailCut | None:
    """Cut `file` after its last message that can be trusted, durably; None if there was nothing to cut.

    Raises StorageError.
    """
    size = file.size()
    position, damage = walk(file, size)
    if damage is None:
        return None
    aside = None
    if damage is TailDamage.UNKNOWN_MAGIC or _intact_after(file, position, size):
        aside = _free_name(files, path, position)
        files.replace(aside, _pieces(file, position, size))
    file.truncate(position)
    return TailCut(damage, size - position, aside)


def _free_name(files: OsFiles, path: Path, position: int) -> Path:
    """Return a file name beside the segment that no earlier cut at the same place has."""
    taken = {entry.name for entry in files.entries(path.parent)}
    name = base = f"{path.name}.cut-{position}"
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return path.with_name(name)


def _pieces(file: OsSegmentFile, position: int, size: int) -> Iterator[bytes]:
    for start in range(position, size, _WINDOW):
        yield file.read_at(start, min(_WINDOW, size - start))


def _intact_after(file: OsSegmentFile, position: int, size: int) -> bool:
    """Whether intact messages follow the damage at `position`: then this is not a torn tail.

    They are searched where the damaged message's length points to, and anywhere in the next few megabytes.
    """
    if _intact_next(file, position, size):
        return True
    data = file.read_at(position, min(RESYNC_WINDOW, size - position))
    return BoundarySearch(ANY_LENGTH).find(data, 1, len(data), at_end=position + len(data) == size) is not None


def _intact_next(file: OsSegmentFile, position: int, size: int) -> bool:
    """Whether the message after the damaged one at `position` is intact."""
    header = file.read_at(position, _HEADER.size)
    if len(header) < _HEADER.size:
        return False
    length, _ = _HEADER.unpack(header)
    after = position + 4 + length
    if length < _MIN_SIZE[0] or after >= size:
        return False
    window = file.read_at(after, min(_WINDOW, size - after))
    used, _, need = _walk_window(window, size - after)
    if need > len(window):
        used, _, _ = _walk_window(file.read_at(after, need), size - after)
    return bool(used)
