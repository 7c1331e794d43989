"""TxnOffsetCommit (API key 28): offsets of a group that count once a transaction is committed.

Version 3 and later name the member, and are refused for one that is not in the group any more (KIP-447).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, group_instance_id, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT16, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import TxnOffsetCommitRequest, TxnOffsetCommitResponse

TXN_OFFSET_COMMIT: Api[TxnOffsetCommitRequest, TxnOffsetCommitResponse] = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 5),
    flexible=3,
    request=(
        Field("transactional_id", STRING, "The producer's transactional id."),
        Field("group_id", STRING, "Name of the group."),
        Field("producer_id", INT64, "The producer's id."),
        Field("producer_epoch", INT16, "The producer's epoch."),
        Field("generation_id", INT32, "The group's generation, -1 for none.", since=3, default=-1),
        Field("member_id", STRING, "Id that the coordinator gave to the member.", since=3, default=""),
        group_instance_id(since=3),
        Field(
            "topics",
            ARRAY,
            "The offsets, by topic.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field(
                    "partitions",
                    ARRAY,
                    "The offsets, by partition.",
                    of=(
                        Field("partition_index", INT32, "Number of the partition."),
                        Field("committed_offset", INT64, "Offset of the next message to handle."),
                        Field(
                            "committed_leader_epoch",
                            INT32,
                            "Epoch of the last message handled, -1 for unknown.",
                            since=2,
                            default=-1,
                            ignorable=True,
                        ),
                        Field(
                            "committed_metadata", STRING, "Any text to keep with it, or null.", nullable=0, default=None
                        ),
                    ),
                ),
            ),
        ),
    ),
    response=(
        throttle_time(since=0),
        Field(
            "topics",
            ARRAY,
            "The results, by topic.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field(
                    "partitions",
                    ARRAY,
                    "The results, by partition.",
                    of=(Field("partition_index", INT32, "Number of the partition."), error_code()),
                ),
            ),
        ),
    ),
)
