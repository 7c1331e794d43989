"""Offsets: those that partitions have, and those that groups have committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    PARTITION_INDEX,
    TOPIC_NAME,
    array,
    by_topic,
    commit_results,
    current_leader_epoch,
    error_code,
    group_instance_id,
    ignorable,
    offsets_to_commit,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT8, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies


#: ListOffsets (API key 2; in the guide Offsets): which offsets a partition has, at a time, at its ends.
#:
#: Times are ms since 1970, or: -1 the end, -2 the oldest, -3 (v7+) the record of the latest time, -4 (v8+) the oldest
#: kept on the broker itself, -5 (v9+) the last one in remote storage, -6 (v11+) the oldest not yet there. Version 0
#: gives offsets of segments, later ones that of the first message at the time or after.
LIST_OFFSETS: Api[bodies.ListOffsetsRequest, bodies.ListOffsetsResponse] = Api(
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
        by_topic(
            "What is asked",
            PARTITION_INDEX,
            current_leader_epoch(since=4),
            Field("timestamp", INT64, "The time (see above)."),
            Field("max_num_offsets", INT32, "Most offsets to give.", until=0, default=1),
        ),
        ignorable("timeout_ms", INT32, "How long the broker may look in remote storage, ms.", since=10, default=30_000),
    ),
    response=(
        throttle_time(since=2, obeyed=3),
        by_topic(
            "The offsets",
            PARTITION_INDEX,
            error_code(),
            Field("old_style_offsets", ARRAY, "The offsets, newest first.", of=INT64, until=0, default=()),
            Field("timestamp", INT64, "The time of the message at `offset`, -1 for none.", since=1, default=-1),
            Field("offset", INT64, "The offset, -1 where no message is of that time.", since=1, default=-1),
            ignorable("leader_epoch", INT32, "Epoch of the leader that wrote it, -1 for unknown.", since=4, default=-1),
        ),
    ),
)


#: OffsetForLeaderEpoch (API key 23): where the messages of a leader's epoch end, as the present leader has them.
#:
#: The answer is the largest epoch that the leader's log has and that is not above the one asked for, with the offset
#: after its last message: that of the log for the newest epoch. An epoch before all that the log has is answered with
#: itself and the log's first offset (by early brokers with -1), one after all of them with -1 and -1.
OFFSET_FOR_LEADER_EPOCH: Api[bodies.OffsetForLeaderEpochRequest, bodies.OffsetForLeaderEpochResponse] = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    versions=(0, 4),
    flexible=4,
    request=(
        ignorable(
            "replica_id",
            INT32,
            "Broker id of a follower; -1 from consumers, who get no offset above the high watermark; -2 to debug.",
            since=3,
            default=-1,
        ),
        by_topic(
            "What is asked",
            Field("partition", INT32, "Number of the partition."),
            current_leader_epoch(since=2),
            Field("leader_epoch", INT32, "The epoch whose end is asked for."),
            topic=(Field("topic", STRING, "Name of the topic."),),
        ),
    ),
    response=(
        throttle_time(since=2, obeyed=2),
        by_topic(
            "The ends",
            error_code(),
            Field("partition", INT32, "Number of the partition."),
            ignorable(
                "leader_epoch",
                INT32,
                "The largest epoch that is not above the one asked for, -1 for none.",
                since=1,
                default=-1,
            ),
            Field("end_offset", INT64, "The offset after its last message, -1 for unknown."),
            topic=(Field("topic", STRING, "Name of the topic."),),
        ),
    ),
)


_TOPIC = (ignorable("name", STRING, "Name of the topic.", until=9, default=""), topic_id(since=10))

#: OffsetCommit (API key 8): store how far a group got.
#:
#: Version 0 stores in ZooKeeper, later ones in Kafka. Outside of a group that the broker coordinates, the generation is
#: -1 and the member id empty.
OFFSET_COMMIT: Api[bodies.OffsetCommitRequest, bodies.OffsetCommitResponse] = Api(
    key=8,
    name="OffsetCommit",
    versions=(0, 10),
    flexible=8,
    request=(
        GROUP_ID,
        ignorable(
            "generation_id_or_member_epoch",
            INT32,
            "The group's generation, or the member's epoch in groups of KIP-848: the broker refuses an older one.",
            since=1,
            default=-1,
        ),
        ignorable("member_id", STRING, "Id that the coordinator gave.", since=1, default=""),
        group_instance_id(since=7),
        ignorable(
            "retention_time_ms",
            INT64,
            "How long the offsets are kept, ms; -1 leaves it to the broker.",
            since=2,
            until=4,
            default=-1,
        ),
        offsets_to_commit(
            *_TOPIC,
            epoch_since=6,
            timestamp=(
                ignorable(
                    "commit_timestamp",
                    INT64,
                    "Time of the commit, ms since 1970; -1: the broker's.",
                    since=1,
                    until=1,
                    default=-1,
                ),
            ),
        ),
    ),
    response=(throttle_time(since=3, obeyed=4), commit_results(*_TOPIC)),
)


_PARTITION_RESPONSE = (
    PARTITION_INDEX,
    Field("committed_offset", INT64, "Offset of the next message to handle, -1 for none."),
    ignorable("committed_leader_epoch", INT32, "Epoch committed with it, or -1.", since=5, default=-1),
    Field("metadata", STRING, "Text that was kept with it.", nullable=0, default=None),
    error_code(),
)
_PARTITIONS = Field("partition_indexes", ARRAY, "Numbers of the partitions.", of=INT32)

#: OffsetFetch (API key 9): how far a group got.
#:
#: Version 0 reads ZooKeeper, later ones Kafka. Version 8 and later ask for several groups at once.
OFFSET_FETCH: Api[bodies.OffsetFetchRequest, bodies.OffsetFetchResponse] = Api(
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
            ignorable("member_epoch", INT32, "Its epoch, -1 outside of KIP-848.", since=9, default=-1),
            array(
                "topics",
                "What is asked, by topic, or null for all.",
                *_TOPIC,
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
        throttle_time(since=3, obeyed=4),
        by_topic("The offsets", *_PARTITION_RESPONSE, until=7),
        error_code("The error of the whole request, 0 for none.", since=2, until=7),
        array(
            "groups",
            "The offsets, by group.",
            GROUP_ID,
            by_topic("The offsets", *_PARTITION_RESPONSE, topic=_TOPIC),
            error_code("The error of this group, 0 for none."),
            since=8,
        ),
    ),
)
