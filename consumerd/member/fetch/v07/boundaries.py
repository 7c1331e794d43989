"""Checks that an offset is the start of a message, and finds the message that contains it.

Strategy: 0.7 offsets are byte positions, and a broker serves bytes from any of them; a consumer that starts
inside a message reads garbage (golden notes, 1 and 2). That something with a right CRC stands at an offset proves
nothing: snappy keeps short messages as they are, so the inner ones can be read in the middle of their wrapper. So the
messages are followed from the start of the segment on, by their lengths.

A segment may be large. Far from its start the question is turned round: is there, before the offset, a message with a
right CRC that reaches beyond it? Every place where one could begin is tried, back to the size of a large message.
"""

from __future__ import annotations

import re
import struct
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import BrokerAnswerError, NoBoundaryError
from consumerd.net.connect import Connection
from consumerd.wire.v07 import (
    DEFAULT_LIMITS,
    ErrorCode,
    FetchRequest,
    MessageSetTail,
    OuterMessage,
    decode_fetch_response,
    iter_outer,
    read_outer,
)

#: Segments of one partition whose start offsets are requested.
MAX_SEGMENTS = 100_000
#: Bytes of the first look at an offset; more where the message there is larger.
FIRST_LOOK = 64 << 10
#: Bytes per fetch on the way through a segment.
STRIDE = 1 << 20
#: Places that are tried before following the segment is the better way.
MAX_PLACES = 2000
_LENGTH = struct.Struct(">i")
#: A length below 16 MiB and a magic byte of 0.6 or 0.7.
_PLACE = re.compile(rb"(?=\x00...[\x00\x01])", re.DOTALL)
_PLACE_BYTES = 5


class SearchReach(NamedTuple):
    """The limits of a search, in bytes: a segment is followed up to `walk` from its start; then `back` is searched."""

    walk: int = 32 << 20
    #: Four times the default of max.message.size.
    back: int = 4 << 20


DEFAULT_REACH = SearchReach()


class LogAccess(Protocol):
    """The logs of brokers."""

    def connection(self, broker: int) -> AbstractAsyncContextManager[Connection]:
        """A connection to a broker, closed at the end. Raises BrokerError."""
        ...

    async def segment_starts(self, partition: TopicPartition) -> tuple[int, ...]:
        """The offsets at which the segments of a partition begin, and its end. Raises BrokerError, WireError."""
        ...


async def begins_message(
    logs: LogAccess, partition: TopicPartition, offset: int, *, reach: SearchReach = DEFAULT_REACH
) -> bool:
    """Whether a whole message begins at `offset`, or the log ends there. Raises BrokerError, WireError.

    False also for a message that is corrupt or cut off: a consumer could not read on from there.
    """
    async with logs.connection(partition.broker) as connection:
        found = await _look(connection, partition, offset)
    if found is None:
        return True
    if not (isinstance(found, OuterMessage) and found.valid):
        return False
    return await boundary_before(logs, partition, offset, reach=reach) == offset


async def boundary_before(
    logs: LogAccess, partition: TopicPartition, offset: int, *, reach: SearchReach = DEFAULT_REACH
) -> int:
    """The start of the message that holds the byte at `offset`; `offset` itself where one begins or the log ends.

    `offset` must be within the log's range. Raises NoBoundaryError where the log has other bytes
    in between, BrokerError, WireError.
    """
    start = await _segment_start(logs, partition, offset)
    async with logs.connection(partition.broker) as connection:
        if offset - start > max(reach.walk, reach.back):
            found = await _search(connection, partition, offset, reach.back)
            if found is not None:
                return found
        return await _walk(connection, partition, start, offset)


async def _look(connection: Connection, partition: TopicPartition, offset: int) -> OuterMessage | MessageSetTail | None:
    """The message at `offset`; None at the end of the log."""
    size = FIRST_LOOK
    while True:
        data = await _fetch(connection, partition, offset, size)
        if not data:
            return None
        found = read_outer(data, 0, offset, DEFAULT_LIMITS.max_message_bytes)
        if isinstance(found, OuterMessage) or found.needed is None or len(data) < size:
            return found
        size = found.needed


async def _search(connection: Connection, partition: TopicPartition, offset: int, back: int) -> int | None:
    """The outermost message around `offset`, or `offset` if there is none and one begins there; None: cannot tell."""
    first = offset - back
    data = await _fetch(connection, partition, first, 2 * back)
    places = 0
    for match in _PLACE.finditer(data, 0, back + _PLACE_BYTES):
        position = match.start()
        (size,) = _LENGTH.unpack_from(data, position)
        if not back < position + 4 + size <= len(data):
            continue
        places += 1
        if places > MAX_PLACES:
            return None
        found = read_outer(data, position, first + position, DEFAULT_LIMITS.max_message_bytes)
        if isinstance(found, OuterMessage) and found.valid:
            return found.offset
    return None


async def _walk(connection: Connection, partition: TopicPartition, position: int, offset: int) -> int:
    while position < offset:
        data = await _fetch(connection, partition, position, STRIDE)
        if not data:
            break
        start = position
        for message in iter_outer(data, position):
            if message.next_offset > offset:
                return message.offset
            position = message.next_offset
        if position > start:
            continue
        tail = read_outer(data, 0, position, DEFAULT_LIMITS.max_message_bytes)
        if isinstance(tail, OuterMessage) or tail.needed is None:
            raise NoBoundaryError(
                f"the log of {partition} holds no message at {position}, so no boundary after it can be found; "
                "give an offset that is known to be a boundary"
            )
        if position + tail.needed > offset:
            break
        position += tail.needed
    return position


async def _segment_start(logs: LogAccess, partition: TopicPartition, offset: int) -> int:
    return max((start for start in await logs.segment_starts(partition) if start <= offset), default=offset)


async def _fetch(connection: Connection, partition: TopicPartition, offset: int, size: int) -> bytes:
    request = FetchRequest(partition.topic, partition.partition, offset, size)
    answer = decode_fetch_response(await connection.request(request.encode(), max_response=request.longest_response))
    if answer.error is not ErrorCode.NONE:
        raise BrokerAnswerError(
            f"broker {partition.broker} cannot serve {partition} from {offset}: {answer.error.name}"
        )
    return answer.data
