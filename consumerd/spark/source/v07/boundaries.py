"""Boundaries of the outer message set inside a segment, found with bounded reads.

Strategy: from a known boundary nearby, messages are followed by their lengths; that cannot be wrong. Far from one, a
chain of intact messages is searched for just before the wanted position. A chain alone proves nothing: snappy stores
short messages unchanged, and a payload may be a recorded log, so an inner chain looks the same. So every position
before it, back to the size of a large message, is tried for an intact message that encloses the chain; if there is one,
its end is the candidate, and the search is repeated. A position that nothing encloses is a boundary. The reader of a
split still asserts it (`consumerd.spark.source.v07.reading`); where no boundary is found, nothing is cut.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from consumerd.storage.log.archive_resync import BoundarySearch
from consumerd.wire.v07 import MessageSetTail, OuterMessage, read_outer
from consumerd.wire.v07.walk import LAYOUTS, verify

#: (offset, size) -> at least one and at most `size` bytes; b"" where the segment ends.
Fetch = Callable[[int, int], bytes]


#: Bytes per read on the way through a segment.
STRIDE: Final = 1 << 20
#: Bytes read beyond the place in question, for the message that is there.
MARGIN: Final = 16 << 10
#: Messages up to this size are found around a place: four times the default of max.message.size (golden notes, 8).
REACH: Final = 4 << 20
#: Bytes before the wanted place in which a chain is looked for.
LOOK: Final = 1 << 20
#: Places tried and bytes of CRC spent on one question. Beyond that nothing is known.
MAX_PLACES: Final = 200_000
MAX_WORK: Final = 256 << 20
#: A length below 32 MiB and a magic byte of 0.6 or 0.7.
_PLACE: Final = re.compile(rb"(?=[\x00\x01]...[\x00\x01])", re.DOTALL)
_LENGTH: Final = struct.Struct(">i")


class MessageSpan(NamedTuple):
    """The outer message that holds a byte. `start`: None where only the end is sure; both equal at a boundary."""

    start: int | None
    end: int


class _Stop(NamedTuple):
    """The stop of a walk: `at` is a boundary; `end` that of the message there, None where none can be read."""

    at: int
    end: int | None
    torn: bool = False


class Boundaries:
    """Finds boundaries in one segment, whose last byte is before offset `end`.

    `max_payload`: the largest payload that counts as a message; `reach`: the largest message that is looked for around
    a place; `look`: bytes before the place in which a chain is looked for. `fetch` may raise; nothing else does.
    """

    def __init__(self, fetch: Fetch, end: int, *, max_payload: int, reach: int = REACH, look: int = LOOK) -> None:
        self._fetch = fetch
        self._end = end
        self._max_payload = max_payload
        self._reach = reach
        self._window = look

    def around(self, known: int, wanted: int, *, thorough: bool = False) -> MessageSpan | None:
        """The message that holds the byte at `wanted`, from the boundary `known` on; None where that is not sure.

        `thorough`: believe the lengths of messages with a wrong CRC, too, and read everything from `known` on where
        nothing else helps.
        """
        start = known
        if wanted - known > self._reach + self._window:
            found = self._searched(known, wanted)
            if isinstance(found, int):
                start = found
            elif not thorough:
                return found
        stop = self._follow(start, wanted, bad_too=thorough)
        if stop.at == wanted:
            return MessageSpan(wanted, wanted)
        return None if stop.end is None else MessageSpan(stop.at, stop.end)

    def intact(self, offset: int) -> bool:
        """Whether an intact message begins at `offset`; one within another message looks the same."""
        size = MARGIN
        while True:
            data = self._filled(offset, min(size, self._end - offset))
            item = read_outer(data, 0, offset, self._max_payload)
            if isinstance(item, OuterMessage):
                return item.valid
            if item.needed is None or not len(data) < item.needed <= self._end - offset:
                return False
            size = item.needed

    def last(self, known: int) -> int:
        """Return the end of the last whole message, from the boundary `known` on.

        A message that is only cut off is not whole yet. Bytes that are not a message belong to the segment, so that
        a reader reports them: then its end counts.
        """
        start = known
        # Not too near the end: whether a truncated message encloses another is unknown.
        early = self._end - self._reach
        if early - known > self._reach + self._window:
            found = self._searched(known, early)
            if isinstance(found, int):
                start = found
            elif isinstance(found, MessageSpan):
                start = found.end
        stop = self._follow(start, self._end, bad_too=True)
        return stop.at if stop.torn else self._end

    def _follow(self, position: int, wanted: int, *, bad_too: bool) -> _Stop:
        """Walk from the boundary `position` to `wanted`, or to the message around it."""
        size, magic = 0, 1
        while position < wanted:
            asked = min(max(size, min(STRIDE, wanted - position + MARGIN)), self._end - position)
            data = self._filled(position, asked)
            before = data[: wanted - position] if wanted - position < len(data) else data
            size, at = 0, 0
            item: OuterMessage | MessageSetTail | None
            while position + at < wanted:
                at, _ = verify(before, at, self._max_payload, LAYOUTS[magic])
                item = read_outer(data, at, position + at, self._max_payload)
                if isinstance(item, MessageSetTail):
                    break
                if not item.valid and not bad_too:
                    return _Stop(item.offset, None)
                if item.next_offset > wanted:
                    return _Stop(item.offset, item.next_offset)
                magic, at = min(item.magic, 1), item.next_offset - position
            else:
                item = None
            position += at
            if item is None:
                break
            if item.problem is not None:
                return _Stop(position, None)
            needed = item.needed or 4
            if needed > self._end - position or len(data) < asked:
                return _Stop(position, None, torn=True)
            size = needed
        return _Stop(position, None)

    def _searched(self, known: int, wanted: int) -> int | MessageSpan | None:
        """A boundary not far before `wanted`, or the message around it; None where none is found."""
        for look in (self._window, max(self._window, self._reach)):  # further back where messages are large
            first = max(known, wanted - look - self._reach)
            data = self._filled(first, min(wanted + self._reach, self._end) - first)
            goal = wanted - first
            found = BoundarySearch(self._max_payload).find(
                data, max(0, goal - look), min(goal, len(data)), at_end=False
            )
            if found is not None:
                outside = self._outside(data, found)
                if outside is None:
                    return None
                return first + outside if outside <= goal else MessageSpan(None, first + outside)
        return None

    def _outside(self, data: bytes, position: int) -> int | None:
        """`position`, or the end of the message around it; None where that is unknown.

        Nothing that counts begins within a message that ends before: two intact messages do not overlap by chance.
        """
        work, places = MAX_WORK, MAX_PLACES
        low, before, boundary = max(0, position - self._reach), data[:position], position
        while (match := _PLACE.search(data, low, position + 4)) is not None and match.start() < position:
            low = match.start()
            (size,) = _LENGTH.unpack_from(data, low)
            end = low + 4 + size
            fits = size <= self._reach and end <= len(data)
            places -= 1
            work -= size if fits else 0
            if work < 0 or places < 0:
                return None
            item = read_outer(data, low, low, self._max_payload) if fits else None
            if not isinstance(item, OuterMessage) or not item.valid:
                low += 1
            elif end > position:
                boundary = end
                break
            else:
                low, _ = verify(before, end, self._max_payload, LAYOUTS[item.magic])
        here = read_outer(data, boundary, boundary, self._max_payload)
        return boundary if boundary == len(data) or (isinstance(here, OuterMessage) and here.valid) else None

    def _filled(self, offset: int, size: int) -> bytes:
        """`size` bytes, fewer only where the segment ends."""
        pieces: list[bytes] = []
        while size > 0 and (piece := self._fetch(offset, size)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
