"""FindCoordinator (API key 10; in the guide GroupCoordinator): which broker coordinates a group.

Version 4 and later ask for several at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, error_message, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT8, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import FindCoordinatorRequest, FindCoordinatorResponse

_ADDRESS = (
    Field("node_id", INT32, "Broker id, -1 with an error."),
    Field("host", STRING, "Host at which it is reached."),
    Field("port", INT32, "Port at which it is reached."),
)

FIND_COORDINATOR: Api[FindCoordinatorRequest, FindCoordinatorResponse] = Api(
    key=10,
    name="FindCoordinator",
    alias="GroupCoordinator",
    versions=(0, 6),
    flexible=3,
    request=(
        Field("key", STRING, "Name of the group, or what else `key_type` says.", until=3),
        Field("key_type", INT8, "0: a group; 1: a transactional id; 2: a share group.", since=1, default=0),
        Field("coordinator_keys", ARRAY, "Names of the groups, or what else `key_type` says.", of=STRING, since=4),
    ),
    response=(
        throttle_time(since=1),
        error_code(until=3),
        error_message(since=1, until=3),
        *(replace(field, until=3) for field in _ADDRESS),
        array(
            "coordinators",
            "The broker for each key.",
            Field("key", STRING, "The key that was asked for."),
            *_ADDRESS,
            error_code(),
            error_message(since=4),
            since=4,
        ),
    ),
)
