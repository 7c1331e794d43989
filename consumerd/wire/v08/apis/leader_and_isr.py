"""LeaderAndIsr (API key 4): the controller names the leaders to brokers. Codec only; between brokers, until Kafka 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array
from consumerd.wire.v08.apis.controller import CONTROLLER, PARTITION_RESULTS, PARTITION_STATE
from consumerd.wire.v08.schema import INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import LeaderAndIsrRequest, LeaderAndIsrResponse

LEADER_AND_ISR: Api[LeaderAndIsrRequest, LeaderAndIsrResponse] = Api(
    key=4,
    name="LeaderAndIsr",
    versions=(0, 0),
    request=(
        *CONTROLLER,
        array("partition_states", "The new states.", *PARTITION_STATE),
        array(
            "live_leaders",
            "The brokers that lead any of them.",
            Field("id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached."),
            Field("port", INT32, "Port at which it is reached."),
        ),
    ),
    response=PARTITION_RESULTS,
)
