"""Reading partitions of the target from the front to the end, for comparisons and for resuming.

Strategy: plain FETCH requests over the connections that the client has, one after the other, without waiting time.
The messages are decoded with their offsets and headers; a message that is larger than the fetch is fetched again in its
size. The range is fixed before: a log that grows meanwhile is read no further.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from consumerd.base.errors import BrokerError, CorruptDataError
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.fetching import FetchedPartition, fetch_partitions
from consumerd.net.client.offsets import list_offsets
from consumerd.net.errors import BadFrameError
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.fetch_session import PartitionFetch
from consumerd.wire.v08.records import BatchEnd, Record, RecordSet, decode_records

_FETCH_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 256 << 20
#: Partitions that the log names where the bounds of several are asked again.
_NAMED: Final = 5


class LogBounds(NamedTuple):
    """The first offset that is kept, and the offset of the next message."""

    start: int
    end: int


class TargetLog:
    """The partitions of the cluster behind `client`.

    What transactions have not committed is read like the rest, unless `read_committed`: then a log ends where the first
    open transaction begins, and messages of aborted ones are left out.
    """

    def __init__(self, client: ClusterClient, *, fetch_bytes: int = _FETCH_BYTES, read_committed: bool = False) -> None:
        self._client = client
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed

    async def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, none where it does not exist. Raises BrokerError."""
        await self._client.retrying(f"find {topic}", partial(self._client.refresh, [topic]))
        known = self._client.metadata.topics.get(topic)
        return [] if known is None else sorted(known.partitions)

    async def bounds(self, topic: str, partition: int) -> LogBounds:
        """Raises BrokerError if they are unavailable for longer than the client retries."""
        return (await self.all_bounds(topic, [partition]))[partition]

    async def all_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, LogBounds]:
        """The bounds of several partitions, by two requests to each leader. Raises as `bounds`."""
        what = f"offsets of {topic}/{','.join(map(str, partitions[:_NAMED]))}"

        async def ask(time: int) -> dict[int, int]:
            return await self._client.retrying(what, lambda: self._offsets(topic, partitions, time))

        starts, ends = await ask(EARLIEST), await ask(LATEST)
        return {number: LogBounds(starts[number], ends[number]) for number in partitions}

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
        """The records from `start` up to `end`, piece by piece.

        Raises CorruptDataError for bytes that are not records, and BrokerError (BrokerRefusedError for offsets that are
        gone).
        """
        size, what = self._fetch_bytes, f"read {topic}/{partition}"
        while start < end:
            part = await self._client.retrying(what, partial(self._fetch, topic, partition, start, size))
            if part is None:
                continue
            found = decode_records(bytes(part.data), start, aborted=part.aborted)
            records = [record for record in found.messages() if record.offset < end]
            if records:
                yield records
            if found.next_offset > start:
                start, size = found.next_offset, self._fetch_bytes
                continue
            size = self._larger(found, size, f"{topic}/{partition} offset {start}")

    def _larger(self, found: RecordSet, size: int, where: str) -> int:
        """The size to request after a response without records."""
        if found.end is BatchEnd.CORRUPT:
            raise CorruptDataError(f"the target has no records at {where}: {found.problem}")
        if size >= _MOST_BYTES:
            raise CorruptDataError(f"the target returned no records at {where}, although its log has some")
        return min(_MOST_BYTES, max(2 * size, found.needed or size))

    async def _fetch(self, topic: str, partition: int, offset: int, size: int) -> FetchedPartition | None:
        """Return what a response has; None because of a quota, which the next request waits out."""
        channel = await self._leader(topic, partition)
        entry = PartitionFetch(topic, partition, offset, size, topic_id=self._client.metadata.topic_id(topic))
        fetched = await fetch_partitions(channel, [entry], max_bytes=size, read_committed=self._read_committed)
        part = fetched.partitions.get((topic, partition))
        self._raise_for(fetched.error or (part.error if part else 0), channel, topic, partition)
        if part is None and fetched.throttled:
            return None
        if part is None:
            raise BadFrameError(f"broker {channel.address} left {topic}/{partition} out of its FETCH response")
        return part

    async def _offsets(self, topic: str, partitions: Iterable[int], time: int) -> dict[int, int]:
        led: defaultdict[int, list[int]] = defaultdict(list)
        for partition in partitions:
            led[(await self._client.leader(topic, partition)).id].append(partition)
        offsets: dict[int, int] = {}
        for node_id, numbers in led.items():
            channel = await self._client.node_channel(node_id)
            places = [(topic, number) for number in numbers]
            listed = await list_offsets(channel, places, time, read_committed=self._read_committed)
            for number in numbers:
                found = listed.get((topic, number))
                if found is not None:
                    self._raise_for(found.error, channel, topic, number)
                if found is None or not found.offsets:
                    raise BrokerError(f"the target returned no offset of {topic}/{number}")
                offsets[number] = found.offsets[0]
        return offsets

    async def _leader(self, topic: str, partition: int) -> Channel:
        node = await self._client.leader(topic, partition)
        return await self._client.node_channel(node.id)

    def _raise_for(self, code: int, channel: Channel, topic: str, partition: int) -> None:
        """Raise BrokerRefusedError for an error code; marks the metadata as stale then."""
        if error := error_of(code, f"broker {channel.address} refuses to tell of {topic}/{partition}"):
            self._client.stale([topic])
            raise error
