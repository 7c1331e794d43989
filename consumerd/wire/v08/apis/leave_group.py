"""LeaveGroup (API key 13): end a membership. Version 3 and later end several at once, also those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, group_instance_id, throttle_time
from consumerd.wire.v08.schema import ARRAY, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import LeaveGroupRequest, LeaveGroupResponse

LEAVE_GROUP: Api[LeaveGroupRequest, LeaveGroupResponse] = Api(
    key=13,
    name="LeaveGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        Field("group_id", STRING, "Name of the group."),
        Field("member_id", STRING, "Id that the coordinator gave.", until=2),
        Field(
            "members",
            ARRAY,
            "Who leaves.",
            of=(
                Field("member_id", STRING, "Id that the coordinator gave; may be empty with a `group_instance_id`."),
                group_instance_id(since=3),
                Field(
                    "reason",
                    STRING,
                    "Why, for the broker's log, or null.",
                    since=5,
                    nullable=5,
                    default=None,
                    ignorable=True,
                ),
            ),
            since=3,
        ),
    ),
    response=(
        throttle_time(since=1),
        error_code(),
        Field(
            "members",
            ARRAY,
            "The result for each member.",
            of=(
                Field("member_id", STRING, "Id of the member."),
                group_instance_id(since=3),
                error_code(),
            ),
            since=3,
            default=(),
        ),
    ),
)
