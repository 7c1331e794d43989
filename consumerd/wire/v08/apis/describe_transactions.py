"""DescribeTransactions (API key 65, since 3.0): the transactions of some transactional ids (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT16, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeTransactionsRequest, DescribeTransactionsResponse

DESCRIBE_TRANSACTIONS: Api[DescribeTransactionsRequest, DescribeTransactionsResponse] = Api(
    key=65,
    name="DescribeTransactions",
    versions=(0, 0),
    flexible=0,
    request=(Field("transactional_ids", ARRAY, "The ids.", of=STRING),),
    response=(
        throttle_time(since=0),
        array(
            "transaction_states",
            "The transactions.",
            error_code(),
            Field("transactional_id", STRING, "The id."),
            Field("transaction_state", STRING, "State of the transaction, such as `Ongoing`."),
            Field("transaction_timeout_ms", INT32, "After which the coordinator aborts it, ms."),
            Field("transaction_start_time_ms", INT64, "When it began, ms since 1970; -1 for unknown."),
            Field("producer_id", INT64, "Id of its producer."),
            Field("producer_epoch", INT16, "The producer's epoch."),
            array(
                "topics",
                "The partitions that are part of it, by topic.",
                Field("topic", STRING, "Name of the topic."),
                Field("partitions", ARRAY, "Numbers of partitions.", of=INT32),
            ),
        ),
    ),
)
