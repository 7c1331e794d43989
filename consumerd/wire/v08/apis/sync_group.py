"""SyncGroup (API key 14): the leader gives everybody's assignment, each member gets its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, group_instance_id, throttle_time
from consumerd.wire.v08.schema import ARRAY, BYTES, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import SyncGroupRequest, SyncGroupResponse


def _protocol(name: str, what: str) -> Field:
    return Field(name, STRING, what, since=5, nullable=5, default=None, ignorable=True)


SYNC_GROUP: Api[SyncGroupRequest, SyncGroupResponse] = Api(
    key=14,
    name="SyncGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        Field("group_id", STRING, "Name of the group."),
        Field("generation_id", INT32, "The group's generation."),
        Field("member_id", STRING, "Id that the coordinator gave."),
        group_instance_id(since=3),
        _protocol("protocol_type", "Kind of group, or null."),
        _protocol("protocol_name", "The way of assigning that was picked, or null."),
        Field(
            "assignments",
            ARRAY,
            "From the leader: who gets what; empty from others.",
            of=(
                Field("member_id", STRING, "Id of the member."),
                Field("assignment", BYTES, "What it gets."),
            ),
        ),
    ),
    response=(
        throttle_time(since=1),
        error_code(),
        _protocol("protocol_type", "Kind of group, or null."),
        _protocol("protocol_name", "The way of assigning that was picked, or null."),
        Field("assignment", BYTES, "What this member gets."),
    ),
)
