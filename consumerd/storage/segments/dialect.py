"""Which broker wrote a segment, by its first bytes, whatever its name says.

Strategy: a message of 0.7 begins with its length and a magic of 0 or 1; one of 0.8 and later with its offset, its
length and a magic of 0 to 2 at byte 16. Where the first message is whole, its CRC decides; where it is not, lengths
and magics must be possible in one format and impossible in the other. Everything else is unknown, and said to be.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from consumerd.storage.segments.batches import batch_size
from consumerd.wire.v07 import DEFAULT_LIMITS, OuterMessage, read_outer
from consumerd.wire.v08.records import BatchEnd, decode_records

#: Bytes of a file's beginning that are enough for most: a larger first message is recognised without its CRC.
HEAD_BYTES: Final = 1 << 20


class SegmentDialect(StrEnum):
    """The format of a segment. The values are what sentences call it."""

    V07 = "Kafka 0.7 and before"
    V08 = "Kafka 0.8 and later"


def recognise(head: bytes) -> SegmentDialect | None:
    """The dialect of the segment that begins with `head`; None for no bytes, and for bytes of neither."""
    old, new = _old_score(head), _new_score(head)
    if old == new:
        return None
    return SegmentDialect.V07 if old > new else SegmentDialect.V08


def _old_score(head: bytes) -> int:
    """2: a first message with its CRC; 1: one that is possible; 0: none."""
    message = read_outer(head, 0, 0, DEFAULT_LIMITS.max_message_bytes)
    if isinstance(message, OuterMessage):
        return 2 if message.valid else int(message.magic in (0, 1))
    return int(message.needed is not None and len(head) > 4 and head[4] in (0, 1))


def _new_score(head: bytes) -> int:
    if (size := batch_size(head)) is None:
        return 0
    whole = len(head) >= size
    return 2 if whole and decode_records(head[:size], 0).end is BatchEnd.COMPLETE else 1
