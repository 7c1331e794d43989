"""Asking the broker that leads partitions where a leader epoch ends in its log (OffsetForLeaderEpoch). One attempt.

Strategy: one request for all partitions, in every version. A reader that knows the epoch of the last message that it
read learns whether the log still has that message: it has not if the epoch ends before it, or is not in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.net.client.channel import Channel
from consumerd.wire.errors import FrameError
from consumerd.wire.v08.apis import OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.fetch_session import Place

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochRequestPartition,
        OffsetForLeaderEpochResponsePartition,
    )

#: The value of an unknown offset or epoch.
_UNKNOWN: Final = -1
#: Brokers before 2.3 that have ACLs tell other brokers alone.
_DENIED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


class EpochEnd(NamedTuple):
    """A broker's answer for one partition. `error`: its code, 0 for none.

    `leader_epoch`: the largest epoch in the log that is not above the one asked for; the latter where the log begins
    after it; -1 where it ends before it, and from brokers before 2.0, which do not tell. `end_offset`: the offset after
    the last message of that epoch, or -1.
    """

    error: int
    leader_epoch: int
    end_offset: int

    @property
    def withheld(self) -> bool:
        """Whether the broker does not tell this client where epochs end."""
        return self.error in _DENIED


async def epoch_ends(channel: Channel, partitions: Iterable[tuple[str, int, int, int]]) -> dict[Place, EpochEnd]:
    """Return the broker's answer for each partition in its response, with an error where it does not lead.

    `partitions`: topic, number, the leader's epoch as the reader knows it (-1 for unknown; brokers since 2.1 answer
    with FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if it is not theirs), and the epoch whose end is asked for. Raises
    as `Channel.call`, UnsupportedApiError for brokers before 0.11, and FrameError for an invalid epoch or offset.
    """
    version = channel.versions.pick(OFFSET_FOR_LEADER_EPOCH)
    by_topic: dict[str, list[OffsetForLeaderEpochRequestPartition]] = {}
    for topic, number, current, epoch in partitions:
        by_topic.setdefault(topic, []).append(
            {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
        )
    body: OffsetForLeaderEpochRequest = {
        "topics": [{"topic": topic, "partitions": asked} for topic, asked in by_topic.items()]
    }
    answer = await channel.call(OFFSET_FOR_LEADER_EPOCH, body, version=version)
    return {
        (topic["topic"], part["partition"]): _end(part, channel.address, topic["topic"])
        for topic in answer["topics"]
        for part in topic["partitions"]
    }


def _end(part: OffsetForLeaderEpochResponsePartition, broker: object, topic: str) -> EpochEnd:
    end = EpochEnd(part["error_code"], part.get("leader_epoch", _UNKNOWN), part["end_offset"])
    if not end.error and min(end.leader_epoch, end.end_offset) < _UNKNOWN:
        raise FrameError(
            f"broker {broker} answered with epoch {end.leader_epoch} that ends at offset {end.end_offset} "
            f"of {topic}/{part['partition']}"
        )
    return end
