"""Finding where the messages of a damaged segment continue.

Strategy: a compiled pattern proposes places where a length and a magic could stand, and a place counts when a *chain*
begins there: an intact message, followed by another intact one or by the very end. The CRCs of two messages do not
match by chance; the payload of one message may of course hold others (a recorded conversation, say), which is why a
search is only made where following lengths has failed, and its result is only used if requested. The
work is bounded for all bytes: this many bytes of CRC per byte searched, and no check beyond that.
"""

from __future__ import annotations

import re

from consumerd.wire.v07 import MessageSetTail, OuterMessage, read_outer
from consumerd.wire.v07.outer import HEADER_SIZE

#: Bytes of one window of a search.
RESYNC_WINDOW = 8 << 20
#: The last bytes of a window, which are searched in the next window, so that a chain of this many bytes is never cut.
CHAIN_ROOM = 4 << 20
#: Bytes of CRC per byte searched, and how many more in all; looking at a place costs as much as this many bytes.
WORK_PER_BYTE = 16
FREE_WORK = 64 << 20
WORK_PER_PLACE = 2048
#: Messages or batches with a wrong CRC in a row, after which the length of the first is believed.
BELIEVED_AFTER = 16


class BoundarySearch:
    """The searches in one segment."""

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        self._most = max_payload + HEADER_SIZE[1]
        self._work = FREE_WORK
        # The first byte of a length that is allowed; not that of one below 5; three more, and magic 0 or 1.
        first = re.escape(bytes([min(self._most >> 24, 0x7F)]))
        self._places = re.compile(rb"[\0-%b](?<!\0(?=\0\0[\0-\4]))(?=[\0-\xff]{3}[\0\1])" % first)

    def find(self, data: bytes, low: int, high: int, *, at_end: bool) -> int | None:
        """Return the first position of `data[low:high]` at which a chain begins; the chain may reach beyond `high`.

        `at_end`: nothing follows `data`.
        """
        self._work += (high - low) * WORK_PER_BYTE
        for match in self._places.finditer(data, low, high + 4):
            position = match.start()
            self._work -= WORK_PER_PLACE
            if self._work < 0:
                break
            size = int.from_bytes(data[position : position + 4])
            if size > min(self._work, self._most) or position + 4 + size > len(data):
                continue
            self._work -= size
            if self._is_chain(data, position, at_end):
                return position
        return None

    def reaches_end(self, data: bytes, position: int) -> bool:
        """Whether intact messages follow each other from `position` to the very end of `data`."""
        while position < len(data):
            message = read_outer(data, position, position, self._max_payload)
            if isinstance(message, MessageSetTail) or not message.valid:
                return False
            self._work -= 4 + message.size
            position = message.next_offset
        return True

    def is_followed(self, data: bytes, position: int) -> bool:
        """Whether lengths can be followed from `position` to an intact message, as far as `data` shows."""
        for _ in range(BELIEVED_AFTER):
            item = read_outer(data, position, position, self._max_payload)
            if isinstance(item, MessageSetTail):
                return item.problem is None
            if item.valid:
                return True
            if item.magic > 1 or item.size < HEADER_SIZE[item.magic]:
                return False
            position = item.next_offset
        return True

    def _is_chain(self, data: bytes, position: int, at_end: bool) -> bool:
        first = read_outer(data, position, position, self._max_payload)
        if isinstance(first, MessageSetTail) or not first.valid:
            return False
        second = read_outer(data, first.next_offset, first.next_offset, self._max_payload)
        if isinstance(second, OuterMessage):
            self._work -= second.size
            return second.valid and bool(first.payload or second.payload)
        return at_end and second.problem is None and bool(first.payload)
