"""OffsetForLeaderEpoch (API key 23): where the messages of a leader's epoch end, as the present leader has them.

The answer is the largest epoch that the leader's log has and that is not above the one asked for, with the offset after
its last message: that of the log for the newest epoch. An epoch before all that the log has is answered with itself and
the log's first offset (by early brokers with -1), one after all of them with -1 and -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, current_leader_epoch, error_code, throttle_time
from consumerd.wire.v08.schema import INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

OFFSET_FOR_LEADER_EPOCH: Api[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse] = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    versions=(0, 4),
    flexible=4,
    request=(
        Field(
            "replica_id",
            INT32,
            "Broker id of a follower; -1 from consumers, who get no offset above the high watermark; -2 to debug.",
            since=3,
            default=-1,
            ignorable=True,
        ),
        array(
            "topics",
            "What is asked, by topic.",
            Field("topic", STRING, "Name of the topic."),
            array(
                "partitions",
                "What is asked, by partition.",
                Field("partition", INT32, "Number of the partition."),
                current_leader_epoch(since=2),
                Field("leader_epoch", INT32, "The epoch whose end is asked for."),
            ),
        ),
    ),
    response=(
        throttle_time(since=2),
        array(
            "topics",
            "The ends, by topic.",
            Field("topic", STRING, "Name of the topic."),
            array(
                "partitions",
                "The ends, by partition.",
                error_code(),
                Field("partition", INT32, "Number of the partition."),
                Field(
                    "leader_epoch",
                    INT32,
                    "The largest epoch that is not above the one asked for, -1 for none.",
                    since=1,
                    default=-1,
                    ignorable=True,
                ),
                Field("end_offset", INT64, "The offset after its last message, -1 for unknown."),
            ),
        ),
    ),
)
