"""Heartbeat (API key 12): stay a member, and learn of rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import GROUP_ID, error_code, group_instance_id, throttle_time
from consumerd.wire.v08.schema import INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import HeartbeatRequest, HeartbeatResponse

HEARTBEAT: Api[HeartbeatRequest, HeartbeatResponse] = Api(
    key=12,
    name="Heartbeat",
    versions=(0, 4),
    flexible=4,
    request=(
        GROUP_ID,
        Field("generation_id", INT32, "The group's generation as the member knows it."),
        Field("member_id", STRING, "Id that the coordinator gave."),
        group_instance_id(since=3),
    ),
    response=(throttle_time(since=1), error_code("0, REBALANCE_IN_PROGRESS (27), or why it is not a member any more.")),
)
