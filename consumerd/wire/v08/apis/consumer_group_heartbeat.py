"""ConsumerGroupHeartbeat (API key 68): join a group of KIP-848, stay its member, get partitions, and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import GROUP_ID, array, error_code, error_message, throttle_time, topic_id
from consumerd.wire.v08.schema import ARRAY, INT32, STRING, STRUCT, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_PARTITIONS = (topic_id(since=0), Field("partitions", ARRAY, "Numbers of partitions.", of=INT32))

CONSUMER_GROUP_HEARTBEAT: Api[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse] = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    versions=(0, 1),
    flexible=0,
    request=(
        GROUP_ID,
        Field("member_id", STRING, "Id that the member chose (since v1), or that the coordinator gave."),
        Field("member_epoch", INT32, "The member's epoch; 0 to join, -1 to leave, -2 to leave for a while (static)."),
        Field("instance_id", STRING, "The lasting name of a static member, or null.", nullable=0, default=None),
        Field("rack_id", STRING, "Rack of the member, or null.", nullable=0, default=None),
        Field(
            "rebalance_timeout_ms",
            INT32,
            "For how long the coordinator waits for revoked partitions, ms; -1: as before.",
            default=-1,
        ),
        Field(
            "subscribed_topic_names",
            ARRAY,
            "Topics to consume, by name, or null: as before.",
            of=STRING,
            nullable=0,
            default=None,
        ),
        Field(
            "subscribed_topic_regex",
            STRING,
            "Topics to consume, by a pattern of RE2, or null: as before.",
            since=1,
            nullable=1,
            default=None,
        ),
        Field("server_assignor", STRING, "The coordinator's way of assigning, or null.", nullable=0, default=None),
        array(
            "topic_partitions",
            "What the member owns, by topic, or null: as before.",
            *_PARTITIONS,
            nullable=0,
            default=None,
        ),
    ),
    response=(
        throttle_time(since=0),
        error_code(),
        error_message(since=0),
        Field("member_id", STRING, "Id that the coordinator gave, or null.", nullable=0, default=None),
        Field("member_epoch", INT32, "The member's epoch."),
        Field("heartbeat_interval_ms", INT32, "Time between heartbeats, ms."),
        Field(
            "assignment",
            STRUCT,
            "What the member is to own, or null: as before.",
            of=(array("topic_partitions", "By topics.", *_PARTITIONS),),
            nullable=0,
            default=None,
        ),
    ),
)
