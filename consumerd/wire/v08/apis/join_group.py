"""JoinGroup (API key 11): become a member; answered when all have joined.

The broker picks a protocol that every member has, and a leader, who gets the members and assigns (SyncGroup). From
version 4 on a new member is first answered MEMBER_ID_REQUIRED (79) with the id to join by.
"""

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
from consumerd.wire.v08.schema import BOOLEAN, BYTES, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import JoinGroupRequest, JoinGroupResponse

JOIN_GROUP: Api[JoinGroupRequest, JoinGroupResponse] = Api(
    key=11,
    name="JoinGroup",
    versions=(0, 9),
    flexible=6,
    request=(
        GROUP_ID,
        Field("session_timeout_ms", INT32, "After so long without a heartbeat the member counts as dead, ms."),
        Field(
            "rebalance_timeout_ms",
            INT32,
            "How long the coordinator waits for members to join again, ms; in version 0 it is the session timeout.",
            since=1,
            default=-1,
            ignorable=True,
        ),
        Field("member_id", STRING, "Id that the coordinator gave, empty for a new member."),
        group_instance_id(since=5),
        Field("protocol_type", STRING, "Kind of group: `consumer`."),
        array(
            "protocols",
            "Ways of assigning that the member knows, dearest first.",
            Field("name", STRING, "Name of the way."),
            Field("metadata", BYTES, "What the leader needs to know of the member: its subscription."),
        ),
        optional_string("reason", "Why it joins, for the broker's log, or null.", since=8),
    ),
    response=(
        throttle_time(since=2),
        error_code(),
        Field("generation_id", INT32, "The group's generation.", default=-1),
        optional_string("protocol_type", "Kind of group, or null.", since=7),
        Field("protocol_name", STRING, "The way of assigning that was picked; null (v7+) with an error.", nullable=7),
        Field("leader", STRING, "Member id of the leader."),
        Field("skip_assignment", BOOLEAN, "Whether the leader shall not assign.", since=9, default=False),
        Field("member_id", STRING, "Id that the coordinator gave."),
        array(
            "members",
            "For the leader: all members.",
            Field("member_id", STRING, "Id of the member."),
            group_instance_id(since=5, ignorable=True),
            Field("metadata", BYTES, "Its metadata for the way that was picked."),
        ),
    ),
)
