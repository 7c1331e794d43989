"""When the messages at some positions were made, by their timestamps (0.10 and later): FETCH requests to the leaders.

Strategy: a few KiB at each position tell of most messages, and one request to a leader asks about many positions. Where
the first batch is larger, brokers return nothing of it, and more is asked for. What is read from a leader in one look
is bounded: beyond that, and where a broker or a permission is missing, the timestamp is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.fetching import fetch_partitions
from consumerd.operate.admin.logs import Position
from consumerd.wire.errors import WireError
from consumerd.wire.v08.fetch_session import PartitionFetch
from consumerd.wire.v08.records import decode_records

#: Bytes that are asked for at a position, one attempt after the other: the last is the default of the largest batch.
_SIZES: Final = (4 << 10, 64 << 10, (1 << 20) + 4096)
#: Bytes that are read from a leader in one look, about.
_MOST_BYTES: Final = 32 << 20


async def next_timestamps(client: ClusterClient, positions: Iterable[Position]) -> dict[Position, int]:
    """The timestamp of the first message at or after each position, in milliseconds since 1970, as far as it is known.

    By the metadata that the client has. Raises nothing for brokers that do not answer or refuse.
    """
    led: defaultdict[int, list[Position]] = defaultdict(list)
    for position in positions:
        partition, _ = position
        if (node := client.metadata.leader(partition.topic, partition.partition)) is not None:
            led[node.id].append(position)
    found = await read_all(led, lambda node_id: _LeaderLook(client, node_id, led[node_id]).read())
    return {position: timestamp for each in found.values() for position, timestamp in each.items()}


class _LeaderLook:
    """One look at the messages at positions of which `node_id` is the leader."""

    def __init__(self, client: ClusterClient, node_id: int, positions: Sequence[Position]) -> None:
        self._client = client
        self._node_id = node_id
        #: Where to read for what is not known yet: markers of transactions, for example, are not messages.
        self._reading = {position: position[1] for position in positions}
        self._found: dict[Position, int] = {}
        self._budget = _MOST_BYTES

    async def read(self) -> dict[Position, int]:
        try:
            for size in _SIZES:
                for asked in list(_by_request(self._reading)):
                    await self._ask(asked[: self._budget // size], size)
        except (BrokerError, WireError):
            pass  # what it told before is known; the ends of the logs are the place to report a broker
        return self._found

    async def _ask(self, asked: Sequence[Position], size: int) -> None:
        if not asked:
            return
        ids = self._client.metadata.topic_id
        entries = [
            PartitionFetch(
                partition.topic, partition.partition, self._reading[partition, at], size, topic_id=ids(partition.topic)
            )
            for partition, at in asked
        ]
        channel = await self._client.node_channel(self._node_id)
        fetched = await fetch_partitions(channel, entries, max_bytes=size * len(asked))
        for position in asked:
            partition, _ = position
            part = fetched.partitions.get((partition.topic, partition.partition))
            if part is None:
                continue
            self._budget = max(0, self._budget - len(part.data))
            if part.error:
                del self._reading[position]
            else:
                self._note(position, bytes(part.data))

    def _note(self, position: Position, data: bytes) -> None:
        found = decode_records(data, self._reading[position])
        if not len(found):
            self._reading[position] = found.next_offset
            return
        del self._reading[position]
        if (timestamp := found.timestamp_at(0)) is not None:
            self._found[position] = timestamp


def _by_request(positions: Iterable[Position]) -> Iterator[list[Position]]:
    """Groups of positions in which each partition is there once, as a request may name it."""
    requests: list[dict[TopicPartition, Position]] = []
    times: defaultdict[TopicPartition, int] = defaultdict(int)
    for position in positions:
        partition, _ = position
        if times[partition] == len(requests):
            requests.append({})
        requests[times[partition]][partition] = position
        times[partition] += 1
    return (list(each.values()) for each in requests)
