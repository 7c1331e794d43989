"""Listing the offsets of partitions at the broker that leads them (LIST_OFFSETS). One attempt.

Strategy: one request for all partitions, in every version. Brokers before 0.10.1 have times of whole segments only and
answer with a list; later ones have those of messages and answer with one offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.net.client.channel import Channel
from consumerd.wire.errors import FrameError
from consumerd.wire.v08.apis import LIST_OFFSETS
from consumerd.wire.v08.fetch_session import Place

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        ListOffsetsRequest,
        ListOffsetsRequestPartition,
        ListOffsetsResponsePartition,
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
    version = channel.versions.pick(LIST_OFFSETS)
    by_topic: dict[str, list[ListOffsetsRequestPartition]] = {}
    for topic, number in partitions:
        entry: ListOffsetsRequestPartition = {"partition_index": number, "timestamp": time}
        if version == 0:
            entry["max_num_offsets"] = max_number
        by_topic.setdefault(topic, []).append(entry)
    body: ListOffsetsRequest = {"topics": [{"name": topic, "partitions": asked} for topic, asked in by_topic.items()]}
    if version >= _ISOLATION_SINCE:
        body["isolation_level"] = int(read_committed)
    answer = await channel.call(LIST_OFFSETS, body, version=version)
    return {
        (topic["name"], part["partition_index"]): _listed(part, version, f"broker {channel.address}", topic["name"])
        for topic in answer["topics"]
        for part in topic["partitions"]
    }


def _listed(part: ListOffsetsResponsePartition, version: int, broker: str, topic: str) -> ListedOffsets:
    listed = part["old_style_offsets"] if version == 0 else [part["offset"]]
    offsets = () if listed == [_NO_OFFSET] else tuple(listed)
    if not part["error_code"] and any(offset < 0 for offset in offsets):
        raise FrameError(f"{broker} answered with offset {min(offsets)} of {topic}/{part['partition_index']}")
    return ListedOffsets(part["error_code"], offsets, version == 0)
