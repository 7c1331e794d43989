"""DescribeGroups (API key 15): state and members of groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    array,
    authorized_operations,
    error_code,
    error_message,
    group_instance_id,
    include_authorized_operations,
    throttle_time,
)
from consumerd.wire.v08.schema import ARRAY, BYTES, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeGroupsRequest, DescribeGroupsResponse

DESCRIBE_GROUPS: Api[DescribeGroupsRequest, DescribeGroupsResponse] = Api(
    key=15,
    name="DescribeGroups",
    versions=(0, 6),
    flexible=5,
    request=(Field("groups", ARRAY, "Names of the groups.", of=STRING), include_authorized_operations(since=3)),
    response=(
        throttle_time(since=1),
        array(
            "groups",
            "The groups.",
            error_code(),
            error_message(since=6),
            GROUP_ID,
            Field(
                "group_state", STRING, "Dead, Empty, Stable, AwaitingSync or PreparingRebalance; empty with an error."
            ),
            Field("protocol_type", STRING, "Kind of group; empty where nobody is in it."),
            Field("protocol_data", STRING, "The way of assigning; empty unless Stable."),
            array(
                "members",
                "Its members.",
                Field("member_id", STRING, "Id that the coordinator gave."),
                group_instance_id(since=4, ignorable=True),
                Field("client_id", STRING, "Client id with which it joined."),
                Field("client_host", STRING, "Address from which it joined."),
                Field("member_metadata", BYTES, "Its subscription; empty unless the group is Stable."),
                Field("member_assignment", BYTES, "What it was given; empty unless the group is Stable."),
            ),
            authorized_operations("authorized_operations", "the group", since=3),
        ),
    ),
)
