"""OffsetFetch (API key 9): how far a group got.

Version 0 reads ZooKeeper, later ones Kafka. Version 8 and later ask for several groups at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    PARTITION_INDEX,
    TOPIC_NAME,
    array,
    error_code,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import OffsetFetchRequest, OffsetFetchResponse

_PARTITION_RESPONSE = (
    PARTITION_INDEX,
    Field("committed_offset", INT64, "Offset of the next message to handle, -1 for none."),
    Field("committed_leader_epoch", INT32, "Epoch committed with it, or -1.", since=5, default=-1, ignorable=True),
    Field("metadata", STRING, "Text that was kept with it.", nullable=0, default=None),
    error_code(),
)
_NAME = Field("name", STRING, "Name of the topic.", until=9, default="", ignorable=True)
_PARTITIONS = Field("partition_indexes", ARRAY, "Numbers of the partitions.", of=INT32)

OFFSET_FETCH: Api[OffsetFetchRequest, OffsetFetchResponse] = Api(
    key=9,
    name="OffsetFetch",
    versions=(0, 10),
    flexible=6,
    request=(
        Field("group_id", STRING, "Name of the group.", until=7),
        array(
            "topics",
            "What is asked, by topic; null (v2+): all that the group committed.",
            TOPIC_NAME,
            _PARTITIONS,
            until=7,
            nullable=2,
        ),
        array(
            "groups",
            "What is asked, by group.",
            GROUP_ID,
            optional_string("member_id", "Id of the member that asks, or null.", since=9),
            Field("member_epoch", INT32, "Its epoch, -1 outside of KIP-848.", since=9, default=-1, ignorable=True),
            array(
                "topics",
                "What is asked, by topic, or null for all.",
                _NAME,
                topic_id(since=10),
                _PARTITIONS,
                nullable=8,
            ),
            since=8,
        ),
        Field(
            "require_stable",
            BOOLEAN,
            "Whether offsets of undecided transactions are an error (that can be retried).",
            since=7,
            default=False,
        ),
    ),
    response=(
        throttle_time(since=3),
        array(
            "topics",
            "The offsets, by topic.",
            TOPIC_NAME,
            array("partitions", "The offsets, by partition.", *_PARTITION_RESPONSE),
            until=7,
        ),
        error_code("The error of the whole request, 0 for none.", since=2, until=7),
        array(
            "groups",
            "The offsets, by group.",
            GROUP_ID,
            array(
                "topics",
                "The offsets, by topic.",
                _NAME,
                topic_id(since=10),
                array("partitions", "The offsets, by partition.", *_PARTITION_RESPONSE),
            ),
            error_code("The error of this group, 0 for none."),
            since=8,
        ),
    ),
)
