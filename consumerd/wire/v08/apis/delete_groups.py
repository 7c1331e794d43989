"""DeleteGroups (API key 42, since 1.1): remove groups without members, and all that they committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import GROUP_ID, array, error_code, throttle_time
from consumerd.wire.v08.schema import ARRAY, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DeleteGroupsRequest, DeleteGroupsResponse

DELETE_GROUPS: Api[DeleteGroupsRequest, DeleteGroupsResponse] = Api(
    key=42,
    name="DeleteGroups",
    versions=(0, 2),
    flexible=2,
    request=(Field("groups_names", ARRAY, "Names of the groups.", of=STRING),),
    response=(throttle_time(since=0), array("results", "The result for each group.", GROUP_ID, error_code())),
)
