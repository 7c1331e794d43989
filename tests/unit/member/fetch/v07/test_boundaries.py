"""The message around an offset of a log in memory: which is found, and which fetches find it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import BrokerAnswerError, NoBoundaryError
from consumerd.member.fetch.v07 import boundaries
from consumerd.member.fetch.v07.boundaries import FIRST_LOOK, STRIDE, SearchReach, begins_message, boundary_before
from consumerd.wire.v07 import ErrorCode, FetchRequest, FetchResponse, decode_request, encode_message

P = TopicPartition("t", 3, 1)
SMALL = [encode_message(b"m" * size) for size in (40, 0, 90, 11)]  # of 50, 10, 100 and 21 bytes
FOLLOWED, SEARCHED = SearchReach(), SearchReach(walk=0, back=200)
HUGE = bytes(STRIDE + 500)


class MemoryLog:
    """One partition: `data` from `base` on, with segments that begin at `starts`."""

    def __init__(self, *messages: bytes, base: int = 1000, starts: tuple[int, ...] = ()) -> None:
        self.base = base
        self.data = b"".join(messages)
        self.end = base + len(self.data)
        self.starts = (self.end, *starts, base)
        #: Offset and size of each fetch.
        self.fetched: list[tuple[int, int]] = []
        self.open = 0

    @contextlib.asynccontextmanager
    async def connection(self, broker: int) -> AsyncIterator[Any]:
        assert broker == P.broker
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def segment_starts(self, partition: TopicPartition) -> tuple[int, ...]:
        assert partition == P
        return self.starts

    async def request(self, frame: bytes, *, max_response: int) -> bytes:
        request = decode_request(frame[4:])
        assert isinstance(request, FetchRequest)
        offset, size = request.offset, request.max_size
        assert (request.topic, request.partition, max_response) == ("t", 1, size + 2)
        self.fetched.append((offset, size))
        if not self.base <= offset <= self.end:
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"").encode()[4:]
        return FetchResponse(ErrorCode.NONE, self.data[offset - self.base :][:size]).encode()[4:]


@pytest.mark.parametrize("reach", [FOLLOWED, SEARCHED])
async def test_finds_the_message_around_every_offset(reach: SearchReach) -> None:
    log = MemoryLog(*SMALL * 4)
    begins = [log.base]
    for message in SMALL * 4:
        begins.append(begins[-1] + len(message))
    for offset in range(log.base, log.end + 1):
        expected = max(each for each in begins if each <= offset)
        log.fetched.clear()
        assert await boundary_before(log, P, offset, reach=reach) == expected
        if reach is SEARCHED and log.base + reach.back < offset < log.end:
            assert log.fetched == [(offset - 200, 400)]  # which is enough
        assert await begins_message(log, P, offset, reach=reach) == (offset == expected)
    assert log.open == 0


async def test_follows_the_segment_that_holds_the_offset() -> None:
    log = MemoryLog(*SMALL, *SMALL, starts=(1181, 1050))
    assert await boundary_before(log, P, 1200) == 1181
    assert await boundary_before(log, P, 1181) == 1181
    assert await boundary_before(log, P, 1180) == 1160
    assert log.fetched == [(1181, STRIDE), (1050, STRIDE)]


@pytest.mark.parametrize(("distance", "fetches"), [(200, [(1000, STRIDE)]), (231, [(1031, 400)])])
async def test_searches_backwards_far_from_the_start_of_the_segment(
    distance: int, fetches: list[tuple[int, int]]
) -> None:
    log = MemoryLog(*SMALL * 4)
    for reach in (SearchReach(walk=0, back=200), SearchReach(walk=200, back=200)):
        log.fetched.clear()
        await boundary_before(log, P, 1000 + distance, reach=reach)
        assert log.fetched == fetches


async def test_does_not_search_within_the_way_that_is_followed() -> None:
    log = MemoryLog(*SMALL * 4)
    assert await boundary_before(log, P, 1300, reach=SearchReach(walk=300, back=100)) == 1241
    assert log.fetched == [(1000, STRIDE)]
    assert await boundary_before(log, P, 1301, reach=SearchReach(walk=300, back=100)) == 1241
    assert log.fetched[1:] == [(1201, 200)]


async def test_looks_at_as_much_as_the_message_needs() -> None:
    large = encode_message(bytes(FIRST_LOOK))
    log = MemoryLog(large, *SMALL)
    assert await begins_message(log, P, 1000)
    assert log.fetched == [(1000, FIRST_LOOK), (1000, len(large))]
    log = MemoryLog(*SMALL, large[: FIRST_LOOK + 5])
    assert not await begins_message(log, P, 1181)  # cut off: it is not there as a whole
    assert log.fetched == [(1181, FIRST_LOOK), (1181, len(large))]
    log = MemoryLog(*SMALL, SMALL[0][:20])
    assert not await begins_message(log, P, 1181)
    assert log.fetched == [(1181, FIRST_LOOK)]
    exact = encode_message(bytes(FIRST_LOOK - 10))
    log = MemoryLog(exact, *SMALL)
    assert await begins_message(log, P, 1000)
    assert log.fetched == [(1000, FIRST_LOOK)]


async def test_neither_damage_nor_noise_begins_a_message() -> None:
    damaged = bytearray(SMALL[0])
    damaged[-1] ^= 1
    for found in (bytes(damaged), b"\xff" * 50, b"\0"):
        log = MemoryLog(*SMALL, found, SMALL[1])
        assert not await begins_message(log, P, 1181)
    log = MemoryLog(*SMALL)
    assert await begins_message(log, P, log.end)


async def test_passes_over_messages_larger_than_one_fetch() -> None:
    huge = encode_message(HUGE)
    log = MemoryLog(SMALL[0], huge, *SMALL)
    behind = 1050 + len(huge)
    for offset, expected in ((1060, 1050), (behind - 1, 1050), (behind, behind), (behind + 5, behind)):
        log.fetched.clear()
        assert await boundary_before(log, P, offset) == expected
        assert log.fetched[:2] == [(1000, STRIDE), (1050, STRIDE)]
        assert log.fetched[2:] == [(behind, STRIDE)] * (offset > behind)


async def test_follows_many_fetches_of_messages() -> None:
    message = encode_message(bytes(STRIDE // 3))
    log = MemoryLog(*[message] * 7)
    assert await boundary_before(log, P, 1000 + 6 * len(message) + 5) == 1000 + 6 * len(message)
    assert [offset for offset, _ in log.fetched] == [1000 + number * len(message) for number in (0, 2, 4, 6)]


async def test_offset_outside_of_the_log() -> None:
    log = MemoryLog(*SMALL)
    for starts, found in (((log.base,), log.end), ((2000,), log.end + 5)):
        log.starts = starts
        assert await boundary_before(log, P, log.end + 5) == found
    with pytest.raises(BrokerAnswerError, match=r"^broker 3 cannot serve t/3-1 from 1182: OFFSET_OUT_OF_RANGE$"):
        await begins_message(log, P, log.end + 1)


async def test_says_where_the_log_holds_no_message() -> None:
    log = MemoryLog(*SMALL, b"\xff" * 50, *SMALL)
    sentence = (
        r"^the log of t/3-1 holds no message at 1181, so no boundary after it can be found; give an offset that is"
        r" known to be a boundary$"
    )
    for offset in (1182, 1231, 1300):
        with pytest.raises(NoBoundaryError, match=sentence):
            await boundary_before(log, P, offset)
    assert await boundary_before(log, P, 1181) == 1181


async def test_searches_for_messages_that_fill_what_is_searched() -> None:
    message = encode_message(bytes(110))  # of 120 bytes
    log = MemoryLog(SMALL[1], message, *SMALL)
    assert await boundary_before(log, P, 1070, reach=SearchReach(walk=0, back=60)) == 1010
    assert log.fetched == [(1010, 120)]


@pytest.mark.parametrize(("places", "magic", "fetches"), [(2, 1, 1), (3, 1, 2), (3, 0, 2), (9, 2, 1)])
async def test_follows_the_segment_where_too_many_places_look_like_messages(
    monkeypatch: pytest.MonkeyPatch, places: int, magic: int, fetches: int
) -> None:
    monkeypatch.setattr(boundaries, "MAX_PLACES", 3)
    place = struct.pack(">ib", 150, magic) + b"\xff" * 10  # its end would be in the message behind, but it is not one
    log = MemoryLog(*SMALL, encode_message(b"\xff" * 10 + place * places), encode_message(b"\xff" * 150))
    begins = log.end - 160
    assert await boundary_before(log, P, begins + 30, reach=SEARCHED) == begins
    assert [offset for offset, _ in log.fetched] == [begins + 30 - 200, 1000][:fetches]


async def test_search_that_cannot_tell_follows_the_segment() -> None:
    damaged = bytearray(SMALL[2])
    damaged[-1] ^= 1
    log = MemoryLog(*SMALL * 2, bytes(damaged), *SMALL)
    inside = 1362 + 30
    assert await boundary_before(log, P, inside, reach=SEARCHED) == 1362
    assert log.fetched == [(inside - 200, 400), (1000, STRIDE)]
