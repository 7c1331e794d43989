"""ListGroups (API key 16): the groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import GROUP_ID, array, error_code, throttle_time
from consumerd.wire.v08.schema import ARRAY, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ListGroupsRequest, ListGroupsResponse

LIST_GROUPS: Api[ListGroupsRequest, ListGroupsResponse] = Api(
    key=16,
    name="ListGroups",
    versions=(0, 5),
    flexible=3,
    request=(
        Field("states_filter", ARRAY, "States of the groups to return; empty for all.", of=STRING, since=4, default=()),
        Field("types_filter", ARRAY, "Types of the groups to return; empty for all.", of=STRING, since=5, default=()),
    ),
    response=(
        throttle_time(since=1),
        error_code(),
        array(
            "groups",
            "The groups.",
            GROUP_ID,
            Field("protocol_type", STRING, "Kind of group; empty where only offsets are stored."),
            Field("group_state", STRING, "State of the group.", since=4, default="", ignorable=True),
            Field("group_type", STRING, "Type of the group.", since=5, default="", ignorable=True),
        ),
    ),
)
