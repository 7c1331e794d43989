"""Listing the offsets of partitions at the broker that leads them (OFFSETS, later ListOffsets). One attempt.

Strategy: one request for all partitions, in every version. Brokers before 0.10.1 have times of whole segments only and
answer with a list; later ones have those of messages and answer with one offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.wire.errors import FrameError
from consumerd.wire.v08.apis import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.net.client.channel import Channel
    from consumerd.wire.v08.fetch_session import Place
    from consumerd.wire.v08.message_types import (
        OffsetsRequest,
        OffsetsRequestPartition,
        OffsetsResponsePartitionResponse,
    )

#: The first version with transactions.
_ISOLATION_SINCE: Final = 2
_NO_OFFSET: Final = -1


class ListedOffsets(NamedTuple):
    """A broker's answer for one partition. `error`: its code, 0 for none.

    `offsets`: descending; at most one since 0.10.1, none if no message is of that time or later. `by_segment`: whether
    they are starts of segments (brokers before 0.10.1).
    """

    error: int
    offsets: tuple[int, ...]
    by_segment: bool


async def list_offsets(
    channel: Channel,
    partitions: Iterable[Place],
    time: int,
    *,
    read_committed: bool = False,
    max_number: int = 1,
) -> dict[Place, ListedOffsets]:
    """Return the broker's answer for each partition in its response, with an error where it does not lead.

    `time`: EARLIEST, LATEST or milliseconds since 1970; the first message at it or later, or segments from before.
    `read_committed`: LATEST is the start of the first open transaction. `max_number`: largest number of starts of
    segments. Raises as `Channel.call`, and FrameError for an invalid offset.
    """
    version = channel.versions.pick(OFFSETS)
    by_topic: dict[str, list[OffsetsRequestPartition]] = {}
    for topic, number in partitions:
        entry: OffsetsRequestPartition = {"partition": number, "timestamp": time}
        if version == 0:
            entry["max_num_offsets"] = max_number
        by_topic.setdefault(topic, []).append(entry)
    body: OffsetsRequest = {"topics": [{"topic": topic, "partitions": asked} for topic, asked in by_topic.items()]}
    if version >= _ISOLATION_SINCE:
        body["isolation_level"] = int(read_committed)
    answer = await channel.call(OFFSETS, body, version=version)
    return {
        (topic["topic"], part["partition"]): _listed(part, version, f"broker {channel.address}", topic["topic"])
        for topic in answer["responses"]
        for part in topic["partition_responses"]
    }


def _listed(part: OffsetsResponsePartitionResponse, version: int, broker: str, topic: str) -> ListedOffsets:
    listed = part["offsets"] if version == 0 else [part["offset"]]
    offsets = () if listed == [_NO_OFFSET] else tuple(listed)
    if not part["error_code"] and any(offset < 0 for offset in offsets):
        raise FrameError(f"{broker} answered with offset {min(offsets)} of {topic}/{part['partition']}")
    return ListedOffsets(part["error_code"], offsets, version == 0)
