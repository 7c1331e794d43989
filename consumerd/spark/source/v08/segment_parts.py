"""The parts in which tasks read a large segment of 0.8 or later, planned by its index.

Strategy: an entry of the index (int32 offset, relative to the segment's first one, int32 position) names a position at
which the broker appended. A part begins there only if an intact batch of magic 2 stands there, of an offset that is
possible: an index may be missing, old, or of another segment. What is not certain is read in one part.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from consumerd.spark.source.errors import FileReadError
from consumerd.spark.source.split import SegmentPart
from consumerd.spark.source.v07.segment_file import SUFFIX, SegmentReader, open_file
from consumerd.storage.log.archive_names import LOG_SUFFIX
from consumerd.storage.segments.batches import batch_size, is_intact
from consumerd.wire.v08.records.record_batch import HEADER, MAGIC, read_header

if TYPE_CHECKING:
    from consumerd.spark.source.split import FileRange

_ENTRY: Final = struct.Struct(">ii")
#: The most of an index that is read: one of a segment of 2 GiB with an entry for each KiB.
_LARGEST_INDEX: Final = 16 << 20


def parts_of(segment: FileRange, max_bytes: int) -> list[SegmentPart]:
    """Where the parts of a segment begin, about `max_bytes` apart; one for the whole segment for 0, and in doubt."""
    parts = [SegmentPart(0, segment.segment_start)]
    if max_bytes <= 0 or segment.path.endswith(SUFFIX) or not segment.path.endswith(LOG_SUFFIX):
        return parts
    try:
        entries = _index(segment.path.removesuffix(LOG_SUFFIX) + ".index")
        if not entries or entries[-1][1] < max_bytes:
            return parts
        with open_file(segment.path, 0) as reader:
            for relative, position in entries:
                if position - parts[-1].position < max_bytes:
                    continue
                offset = _batch_at(reader, position)
                if offset is not None and parts[-1].offset < offset <= segment.segment_start + relative:
                    parts.append(SegmentPart(position, offset))
    except (FileNotFoundError, FileReadError):
        return parts[:1]
    return parts


def _index(path: str) -> list[tuple[int, int]]:
    """The entries of an index up to the first that cannot be one: reserved space is zeros."""
    with open_file(path, 0) as reader:
        data = reader.fetch_all(0, _LARGEST_INDEX)
    found: list[tuple[int, int]] = []
    last = (-1, -1)
    for relative, position in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if relative <= last[0] or position <= last[1]:
            break
        last = (relative, position)
        found.append(last)
    return found


def _batch_at(reader: SegmentReader, position: int) -> int | None:
    """The first offset of the intact batch of magic 2 at a position; None if there is none."""
    head = reader.fetch_all(position, HEADER.size)
    size = batch_size(head)
    if size is None or len(head) < HEADER.size or read_header(head, 0).magic != MAGIC:
        return None
    data = reader.fetch_all(position, size)
    return read_header(head, 0).base_offset if len(data) == size and is_intact(data) else None
