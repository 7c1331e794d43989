"""LeaveGroup (API key 13): end a membership. Version 3 and later end several at once, also those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    array,
    error_code,
    group_instance_id,
    optional_string,
    throttle_time,
)
from consumerd.wire.v08.schema import STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import LeaveGroupRequest, LeaveGroupResponse

LEAVE_GROUP: Api[LeaveGroupRequest, LeaveGroupResponse] = Api(
    key=13,
    name="LeaveGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        GROUP_ID,
        Field("member_id", STRING, "Id that the coordinator gave.", until=2),
        array(
            "members",
            "Who leaves.",
            Field("member_id", STRING, "Id that the coordinator gave; may be empty with a `group_instance_id`."),
            group_instance_id(since=3),
            optional_string("reason", "Why, for the broker's log, or null.", since=5),
            since=3,
        ),
    ),
    response=(
        throttle_time(since=1),
        error_code(),
        array(
            "members",
            "The result for each member.",
            Field("member_id", STRING, "Id of the member."),
            group_instance_id(since=3),
            error_code(),
            since=3,
            default=(),
        ),
    ),
)
