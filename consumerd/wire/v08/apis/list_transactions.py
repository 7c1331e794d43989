"""ListTransactions (API key 66, since 3.0): the transactional ids that a broker coordinates (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ListTransactionsRequest, ListTransactionsResponse

LIST_TRANSACTIONS: Api[ListTransactionsRequest, ListTransactionsResponse] = Api(
    key=66,
    name="ListTransactions",
    versions=(0, 2),
    flexible=0,
    request=(
        Field("state_filters", ARRAY, "Names of states; without any, all.", of=STRING, default=()),
        Field("producer_id_filters", ARRAY, "Ids of producers; without any, all.", of=INT64, default=()),
        Field("duration_filter", INT64, "The least age of a transaction, ms; -1 for any.", since=1, default=-1),
        Field(
            "transactional_id_pattern",
            STRING,
            "A regular expression for transactional ids; null for all.",
            since=2,
            nullable=2,
            default=None,
        ),
    ),
    response=(
        throttle_time(since=0),
        error_code(),
        Field("unknown_state_filters", ARRAY, "Names of states that the broker does not know.", of=STRING),
        array(
            "transaction_states",
            "The transactional ids.",
            Field("transactional_id", STRING, "The id."),
            Field("producer_id", INT64, "Id of its producer."),
            Field("transaction_state", STRING, "State of its transaction, such as `Ongoing`."),
        ),
    ),
)
