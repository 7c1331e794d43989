"""UpdateMetadata (API key 6): the controller tells brokers what they answer to Metadata. Codec only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code
from consumerd.wire.v08.apis.controller import CONTROLLER, PARTITION_STATE
from consumerd.wire.v08.schema import INT16, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import UpdateMetadataRequest, UpdateMetadataResponse

UPDATE_METADATA: Api[UpdateMetadataRequest, UpdateMetadataResponse] = Api(
    key=6,
    name="UpdateMetadata",
    versions=(0, 2),
    request=(
        *CONTROLLER,
        array("partition_states", "The state of each partition.", *PARTITION_STATE),
        array(
            "live_brokers",
            "All brokers that are alive.",
            Field("id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached.", until=0),
            Field("port", INT32, "Port at which it is reached.", until=0),
            array(
                "end_points",
                "Where it is reached.",
                Field("port", INT32, "Port at which it is reached."),
                Field("host", STRING, "Host at which it is reached."),
                Field("security_protocol_type", INT16, "0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."),
                since=1,
            ),
            Field("rack", STRING, "Its rack, or null.", since=2, nullable=2, default=None),
        ),
    ),
    response=(error_code(),),
)
