"""AddPartitionsToTxn (API key 24): name the partitions that a transaction is about to write to.

Version 4 and later are for brokers. Where transactions have version 2 (KIP-890), PRODUCE adds the partitions itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import PARTITION_INDEX, TOPIC_NAME, TRANSACTIONAL_PRODUCER, array, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT16, INT32, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ADD_PARTITIONS_TO_TXN: Api[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse] = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 3),
    flexible=3,
    request=(
        *TRANSACTIONAL_PRODUCER,
        array(
            "topics",
            "The partitions, by topic.",
            TOPIC_NAME,
            Field("partitions", ARRAY, "Numbers of partitions.", of=INT32),
        ),
    ),
    response=(
        throttle_time(since=0),
        array(
            "results_by_topic",
            "The results, by topic.",
            TOPIC_NAME,
            array(
                "results_by_partition",
                "The results, by partition.",
                PARTITION_INDEX,
                Field("partition_error_code", INT16, "The error, 0 for none.", default=0),
            ),
        ),
    ),
)
