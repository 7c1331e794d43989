"""AddPartitionsToTxn (API key 24): name the partitions that a transaction is about to write to.

Version 4 and later are for brokers. Where transactions have version 2 (KIP-890), PRODUCE adds the partitions itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import TRANSACTIONAL_PRODUCER, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT16, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ADD_PARTITIONS_TO_TXN: Api[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse] = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 3),
    flexible=3,
    request=(
        *TRANSACTIONAL_PRODUCER,
        Field(
            "topics",
            ARRAY,
            "The partitions, by topic.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field("partitions", ARRAY, "Numbers of partitions.", of=INT32),
            ),
        ),
    ),
    response=(
        throttle_time(since=0),
        Field(
            "results_by_topic",
            ARRAY,
            "The results, by topic.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field(
                    "results_by_partition",
                    ARRAY,
                    "The results, by partition.",
                    of=(
                        Field("partition_index", INT32, "Number of the partition."),
                        Field("partition_error_code", INT16, "The error, 0 for none.", default=0),
                    ),
                ),
            ),
        ),
    ),
)
