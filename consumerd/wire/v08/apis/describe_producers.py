"""DescribeProducers (API key 61, since 2.8): who writes to a partition, and whose transactions are open (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import PARTITION_INDEX, TOPIC_NAME, array, error_code, error_message, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT32, INT64, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeProducersRequest, DescribeProducersResponse

DESCRIBE_PRODUCERS: Api[DescribeProducersRequest, DescribeProducersResponse] = Api(
    key=61,
    name="DescribeProducers",
    versions=(0, 0),
    flexible=0,
    request=(
        array(
            "topics", "By topics.", TOPIC_NAME, Field("partition_indexes", ARRAY, "Numbers of partitions.", of=INT32)
        ),
    ),
    response=(
        throttle_time(since=0),
        array(
            "topics",
            "By topics.",
            TOPIC_NAME,
            array(
                "partitions",
                "The partitions.",
                PARTITION_INDEX,
                error_code(),
                error_message(since=0),
                array(
                    "active_producers",
                    "Those whose last messages the broker remembers.",
                    Field("producer_id", INT64, "Id of the producer."),
                    Field("producer_epoch", INT32, "Its epoch."),
                    Field("last_sequence", INT32, "Its last sequence number, -1 for none.", default=-1),
                    Field("last_timestamp", INT64, "When it wrote last, ms since 1970.", default=-1),
                    Field("coordinator_epoch", INT32, "Epoch of its coordinator, which ended one last."),
                    Field(
                        "current_txn_start_offset",
                        INT64,
                        "First offset of its open transaction, -1 for none.",
                        default=-1,
                    ),
                ),
            ),
        ),
    ),
)
