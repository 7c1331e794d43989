"""ControlledShutdown (API key 7): a broker that stops asks the controller to move its leaderships. Codec only.

The guide has version 1 alone. Version 0 has the same fields; its request's header has no client id (golden notes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code
from consumerd.wire.v08.schema import INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ControlledShutdownRequest, ControlledShutdownResponse

CONTROLLED_SHUTDOWN: Api[ControlledShutdownRequest, ControlledShutdownResponse] = Api(
    key=7,
    name="ControlledShutdown",
    versions=(0, 1),
    request=(Field("broker_id", INT32, "Id of the broker that stops."),),
    response=(
        error_code(),
        array(
            "partitions_remaining",
            "What it still leads.",
            Field("topic", STRING, "Name of the topic."),
            Field("partition", INT32, "Number of the partition."),
        ),
    ),
)
