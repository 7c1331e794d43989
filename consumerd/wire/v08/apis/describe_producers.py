"""DescribeProducers (API key 61, since 2.8): who writes to a partition, and whose transactions are open (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, error_message, throttle_time
from consumerd.wire.v08.schema import ARRAY, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeProducersRequest, DescribeProducersResponse

DESCRIBE_PRODUCERS: Api[DescribeProducersRequest, DescribeProducersResponse] = Api(
    key=61,
    name="DescribeProducers",
    versions=(0, 0),
    flexible=0,
    request=(
        Field(
            "topics",
            ARRAY,
            "By topics.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field("partition_indexes", ARRAY, "Numbers of partitions.", of=INT32),
            ),
        ),
    ),
    response=(
        throttle_time(since=0),
        Field(
            "topics",
            ARRAY,
            "By topics.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field(
                    "partitions",
                    ARRAY,
                    "The partitions.",
                    of=(
                        Field("partition_index", INT32, "Number of the partition."),
                        error_code(),
                        error_message("The error in the broker's words, or null.", since=0),
                        Field(
                            "active_producers",
                            ARRAY,
                            "Those whose last messages the broker remembers.",
                            of=(
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
            ),
        ),
    ),
)
