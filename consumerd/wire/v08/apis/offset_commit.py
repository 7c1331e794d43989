"""OffsetCommit (API key 8): store how far a group got.

Version 0 stores in ZooKeeper, later ones in Kafka. Outside of a group that the broker coordinates, the generation is -1
and the member id empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    commit_results,
    group_instance_id,
    offsets_to_commit,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import OffsetCommitRequest, OffsetCommitResponse

_TOPIC = (Field("name", STRING, "Name of the topic.", until=9, default="", ignorable=True), topic_id(since=10))

OFFSET_COMMIT: Api[OffsetCommitRequest, OffsetCommitResponse] = Api(
    key=8,
    name="OffsetCommit",
    versions=(0, 10),
    flexible=8,
    request=(
        GROUP_ID,
        Field(
            "generation_id_or_member_epoch",
            INT32,
            "The group's generation, or the member's epoch in groups of KIP-848: the broker refuses an older one.",
            since=1,
            default=-1,
            ignorable=True,
        ),
        Field("member_id", STRING, "Id that the coordinator gave.", since=1, default="", ignorable=True),
        group_instance_id(since=7),
        Field(
            "retention_time_ms",
            INT64,
            "How long the offsets are kept, ms; -1 leaves it to the broker.",
            since=2,
            until=4,
            default=-1,
            ignorable=True,
        ),
        offsets_to_commit(
            *_TOPIC,
            epoch_since=6,
            timestamp=(
                Field(
                    "commit_timestamp",
                    INT64,
                    "Time of the commit, ms since 1970; -1: the broker's.",
                    since=1,
                    until=1,
                    default=-1,
                    ignorable=True,
                ),
            ),
        ),
    ),
    response=(throttle_time(since=3), commit_results(*_TOPIC)),
)
