"""SyncGroup (API key 14): the leader gives everybody's assignment, each member gets its own."""

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
from consumerd.wire.v08.schema import BYTES, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import SyncGroupRequest, SyncGroupResponse


SYNC_GROUP: Api[SyncGroupRequest, SyncGroupResponse] = Api(
    key=14,
    name="SyncGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        GROUP_ID,
        Field("generation_id", INT32, "The group's generation."),
        Field("member_id", STRING, "Id that the coordinator gave."),
        group_instance_id(since=3),
        optional_string("protocol_type", "Kind of group, or null.", since=5),
        optional_string("protocol_name", "The way of assigning that was picked, or null.", since=5),
        array(
            "assignments",
            "From the leader: who gets what; empty from others.",
            Field("member_id", STRING, "Id of the member."),
            Field("assignment", BYTES, "What it gets."),
        ),
    ),
    response=(
        throttle_time(since=1),
        error_code(),
        optional_string("protocol_type", "Kind of group, or null.", since=5),
        optional_string("protocol_name", "The way of assigning that was picked, or null.", since=5),
        Field("assignment", BYTES, "What this member gets."),
    ),
)
