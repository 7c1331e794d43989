"""ListOffsets (API key 2; in the guide Offsets): which offsets a partition has, at a time, at its ends.

Times are ms since 1970, or: -1 the end, -2 the oldest, -3 (v7+) the record of the latest time, -4 (v8+) the oldest kept
on the broker itself, -5 (v9+) the last one in remote storage, -6 (v11+) the oldest not yet there. Version 0 gives
offsets of segments, later ones that of the first message at the time or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    PARTITION_INDEX,
    TOPIC_NAME,
    array,
    current_leader_epoch,
    error_code,
    throttle_time,
)
from consumerd.wire.v08.schema import ARRAY, INT8, INT32, INT64, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ListOffsetsRequest, ListOffsetsResponse

LIST_OFFSETS: Api[ListOffsetsRequest, ListOffsetsResponse] = Api(
    key=2,
    name="ListOffsets",
    alias="Offsets",
    versions=(0, 11),
    flexible=6,
    request=(
        Field("replica_id", INT32, "Broker id of a follower; -1 from consumers.", default=-1),
        Field(
            "isolation_level", INT8, "0: the end is the high watermark; 1: the last stable offset.", since=2, default=0
        ),
        array(
            "topics",
            "What is asked, by topic.",
            TOPIC_NAME,
            array(
                "partitions",
                "What is asked, by partition.",
                PARTITION_INDEX,
                current_leader_epoch(since=4),
                Field("timestamp", INT64, "The time (see above)."),
                Field("max_num_offsets", INT32, "Most offsets to give.", until=0, default=1),
            ),
        ),
        Field(
            "timeout_ms",
            INT32,
            "How long the broker may look in remote storage, ms.",
            since=10,
            default=30_000,
            ignorable=True,
        ),
    ),
    response=(
        throttle_time(since=2),
        array(
            "topics",
            "The offsets, by topic.",
            TOPIC_NAME,
            array(
                "partitions",
                "The offsets, by partition.",
                PARTITION_INDEX,
                error_code(),
                Field("old_style_offsets", ARRAY, "The offsets, newest first.", of=INT64, until=0, default=()),
                Field("timestamp", INT64, "The time of the message at `offset`, -1 for none.", since=1, default=-1),
                Field("offset", INT64, "The offset, -1 where no message is of that time.", since=1, default=-1),
                Field(
                    "leader_epoch",
                    INT32,
                    "Epoch of the leader that wrote it, -1 for unknown.",
                    since=4,
                    default=-1,
                    ignorable=True,
                ),
            ),
        ),
    ),
)
