"""EndTxn (API key 26): commit or abort a transaction. Version 5 raises the producer's epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import TRANSACTIONAL_PRODUCER, error_code, throttle_time
from consumerd.wire.v08.schema import BOOLEAN, INT16, INT64, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import EndTxnRequest, EndTxnResponse

END_TXN: Api[EndTxnRequest, EndTxnResponse] = Api(
    key=26,
    name="EndTxn",
    versions=(0, 5),
    flexible=3,
    request=(*TRANSACTIONAL_PRODUCER, Field("committed", BOOLEAN, "Whether to commit; abort otherwise.")),
    response=(
        throttle_time(since=0),
        error_code(),
        Field(
            "producer_id", INT64, "Id of the producer from now on, -1 for unknown.", since=5, default=-1, ignorable=True
        ),
        Field(
            "producer_epoch",
            INT16,
            "Epoch of the producer from now on, -1 for unknown.",
            since=5,
            default=-1,
            ignorable=True,
        ),
    ),
)
