"""InitProducerId (API key 22): an id with which brokers know repeated batches of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, throttle_time
from consumerd.wire.v08.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import InitProducerIdRequest, InitProducerIdResponse

INIT_PRODUCER_ID: Api[InitProducerIdRequest, InitProducerIdResponse] = Api(
    key=22,
    name="InitProducerId",
    versions=(0, 6),
    flexible=2,
    request=(
        Field("transactional_id", STRING, "The id of a transactional producer; null for any other.", nullable=0),
        Field("transaction_timeout_ms", INT32, "After so long an idle transaction is aborted, ms."),
        Field("producer_id", INT64, "The id that the producer has, -1 for none.", since=3, default=-1),
        Field("producer_epoch", INT16, "The epoch that the producer has, -1 for none.", since=3, default=-1),
        Field("enable_2pc", BOOLEAN, "Whether it takes part in two-phase commits.", since=6, default=False),
        Field("keep_prepared_txn", BOOLEAN, "Whether a prepared transaction is kept.", since=6, default=False),
    ),
    response=(
        throttle_time(since=0),
        error_code(),
        Field("producer_id", INT64, "The producer's id.", default=-1),
        Field("producer_epoch", INT16, "The producer's epoch."),
        Field("ongoing_txn_producer_id", INT64, "Id of the transaction that was kept, or -1.", since=6, default=-1),
        Field(
            "ongoing_txn_producer_epoch", INT16, "Epoch of the transaction that was kept, or -1.", since=6, default=-1
        ),
    ),
)
