"""StopReplica (API key 5): the controller tells a broker to stop being a replica. Codec only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array
from consumerd.wire.v08.apis.controller import CONTROLLER, PARTITION_RESULTS
from consumerd.wire.v08.schema import BOOLEAN, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import StopReplicaRequest, StopReplicaResponse

STOP_REPLICA: Api[StopReplicaRequest, StopReplicaResponse] = Api(
    key=5,
    name="StopReplica",
    versions=(0, 0),
    request=(
        *CONTROLLER,
        Field("delete_partitions", BOOLEAN, "Whether the logs go, too."),
        array(
            "partitions",
            "Which partitions.",
            Field("topic", STRING, "Name of the topic."),
            Field("partition", INT32, "Number of the partition."),
        ),
    ),
    response=PARTITION_RESULTS,
)
