"""Reading sent messages back: the proof that Kafka 0.7 does not give.

Strategy: note where each partition's readable end is before sending; afterwards read from there on until every set that
was sent has been found, digest by digest, in one piece and in order, since a broker appends a set whole. Brokers let
consumers read flushed messages only, so those found are also on the broker's disk. A partition that was left to
the broker's choice could not be looked into: the choice is made here instead, among as many as the broker has.

Limit: equal messages of another producer, sent into the same range, cannot be distinguished from ours.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from consumerd.base.ports import Clock
from consumerd.net.connect import Connection
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer.errors import Missing, NoPartitionError, NotArrivedError
from consumerd.producer.v07.routing import ANY_PARTITION
from consumerd.wire.errors import FrameError, WireError
from consumerd.wire.v07 import (
    LATEST,
    BatchEnd,
    ErrorCode,
    FetchRequest,
    OffsetsRequest,
    ProduceRequest,
    decode_batch,
    decode_fetch_response,
    decode_offsets_response,
)

#: Bytes of one fetch; more where a message is larger, up to the limit of a request (golden notes, 8).
_FETCH_BYTES, _MAX_FETCH_BYTES = 1 << 20, 100 << 20
#: Pauses between reads of a log without new messages, in seconds: the first, and the longest.
_PAUSE, _MAX_PAUSE = 0.02, 0.5
_MOST_PARTITIONS = 1 << 20


def _digests(payloads: Sequence[bytes]) -> list[bytes]:
    return [hashlib.blake2b(payload, digest_size=16).digest() for payload in payloads]


@dataclass(slots=True)
class _Range:
    """One partition: the offset to read at, the expected digests (one list per set), the digests that were read."""

    position: int
    expected: list[list[bytes]] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    fetch_bytes: int = _FETCH_BYTES
    #: The log cannot be read on: it is corrupt there, or begins later by now.
    stuck: bool = False

    def missing(self) -> int:
        """Messages of the sets that were not found."""
        count = begin = 0
        for wanted in self.expected:
            at = _find(self.read, wanted, begin)
            if at is None:
                count += len(wanted)
            else:
                begin = at + len(wanted)
        return count


def _find(read: list[bytes], wanted: list[bytes], begin: int) -> int | None:
    """Return the index of `wanted` in `read`, in one piece, from `begin` on; None if it is not there."""
    while wanted:
        try:
            begin = read.index(wanted[0], begin)
        except ValueError:
            return None
        if read[begin : begin + len(wanted)] == wanted:
            break
        begin += 1
    return begin


class Verification:
    """The verification of one request: its partitions before and after. Made by `begin`."""

    def __init__(self, connection: Connection, broker: str, entries: list[ProduceRequest]) -> None:
        self._connection = connection
        self._broker = broker
        #: The entries to send: those that were given, each with a partition of its own.
        self.entries = entries
        self._ranges: dict[tuple[str, int], _Range] = {}

    @classmethod
    async def begin(
        cls, connection: Connection, address: tuple[str, int], entries: Sequence[ProduceRequest], *, rng: random.Random
    ) -> Self:
        """Note the ends. Raises ConnectError when the connection ends (nothing was sent yet), NoPartitionError."""
        broker = f"{address[0]}:{address[1]}"
        try:
            chosen = {e.topic: -1 for e in entries if e.partition == ANY_PARTITION}
            for topic in chosen:
                chosen[topic] = rng.randrange(await count_partitions(connection, topic))
            placed = [replace(e, partition=chosen[e.topic]) if e.partition == ANY_PARTITION else e for e in entries]
            made = cls(connection, broker, placed)
            for entry in placed:
                await made._expect(entry)
        except (ConnectionClosedError, WireError) as error:
            raise ConnectError(f"{error} (while reading the end offset; nothing was sent)") from error
        return made

    async def _expect(self, entry: ProduceRequest) -> None:
        place = entry.topic, entry.partition
        if place not in self._ranges:
            if not await _has_partition(self._connection, *place):  # OFFSETS would cost the connection
                raise NoPartitionError(f"broker {self._broker} has no partition {entry.partition} of {entry.topic!r}.")
            request = OffsetsRequest(*place, LATEST, 1)
            answer = decode_offsets_response(await self._connection.request(request.encode()))
            self._ranges[place] = _Range(answer.offsets[0] if answer.offsets else 0)
        self._ranges[place].expected.append(_digests(decode_batch(entry.messages, 0).payloads))

    async def finish(self, clock: Clock, timeout: float) -> None:
        """Read until everything is found. Raises NotArrivedError after `timeout` seconds, ConnectionClosedError."""
        deadline = clock.monotonic() + timeout
        pause = _PAUSE
        waiting = dict(self._ranges)
        while True:
            news = False
            for place, expected in list(waiting.items()):
                news |= await self._read_on(place, expected)
                if not expected.missing():
                    del waiting[place]
            if not waiting:
                return
            if clock.monotonic() >= deadline or all(each.stuck for each in waiting.values()):
                missing = [Missing(*place, each.missing()) for place, each in waiting.items()]
                raise NotArrivedError(self._broker, missing, timeout)
            if news:
                pause = _PAUSE
            else:
                await clock.sleep(min(pause, max(0.0, deadline - clock.monotonic())))
                pause = min(2 * pause, _MAX_PAUSE)

    async def _read_on(self, place: tuple[str, int], expected: _Range) -> bool:
        """Read one fetch of a partition; whether there was anything."""
        if expected.stuck:
            return False
        request = FetchRequest(*place, expected.position, expected.fetch_bytes)
        try:
            answer = decode_fetch_response(await self._connection.request(request.encode()))
        except WireError as error:
            raise ConnectionClosedError(f"broker {self._broker} sent an invalid response: {error}") from error
        if answer.error != ErrorCode.NONE:
            expected.stuck = True
            return False
        batch = decode_batch(answer.data, expected.position)
        expected.read += _digests(batch.payloads)
        if batch.next_offset > expected.position:
            expected.position = batch.next_offset
        elif batch.end is BatchEnd.CORRUPT and batch.resume_offset is not None:
            expected.position = batch.resume_offset  # of another producer: the broker has checked ours
        elif batch.end is BatchEnd.PARTIAL and expected.fetch_bytes < _MAX_FETCH_BYTES:
            expected.fetch_bytes = min(max(2 * expected.fetch_bytes, batch.needed or 0), _MAX_FETCH_BYTES)
        else:
            expected.stuck = batch.end is not BatchEnd.COMPLETE
            return False
        return True


async def count_partitions(connection: Connection, topic: str) -> int:
    """Return the number of partitions that the broker has, or would create, of `topic`, at least 1.

    The broker refuses fetches beyond them.

    Raises ConnectionClosedError, WireError.
    """
    low, high = 0, 1  # it has `low`, and perhaps `high`
    while await _has_partition(connection, topic, high):
        low, high = high, 2 * high
        if high > _MOST_PARTITIONS:
            raise FrameError(
                f"the broker claims to have {low} partitions of topic {topic!r}: is it a Kafka 0.7 broker?"
            )
    while high - low > 1:
        middle = (low + high) // 2
        if await _has_partition(connection, topic, middle):
            low = middle
        else:
            high = middle
    return high


async def _has_partition(connection: Connection, topic: str, partition: int) -> bool:
    probe = FetchRequest(topic, partition, 0, 0).encode()
    answer = decode_fetch_response(await connection.request(probe))
    # Offset 0 may be gone: that is another error than no such partition.
    return answer.error in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
