"""Produce (API key 0): append record sets to partitions. No answer comes with acks 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    array,
    by_topic,
    current_leader,
    error_code,
    ignorable,
    node_endpoints,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import INT16, INT32, INT64, RECORDS, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies

_TOPIC = (ignorable("name", STRING, "Name of the topic.", until=12, default=""), topic_id(since=13))

PRODUCE: Api[bodies.ProduceRequest, bodies.ProduceResponse] = Api(
    key=0,
    name="Produce",
    versions=(0, 13),
    flexible=9,
    request=(
        Field(
            "transactional_id",
            STRING,
            "The id of a transactional producer; null for any other.",
            since=3,
            nullable=3,
            default=None,
        ),
        Field(
            "acks",
            INT16,
            "Who must have the sets before the answer: 0 nobody (no answer), 1 the leader, -1 all in sync.",
        ),
        Field("timeout_ms", INT32, "How long the broker may wait for them, ms."),
        by_topic(
            "What to append",
            Field("index", INT32, "Number of the partition."),
            Field("records", RECORDS, "Messages of magic 0 (v0, v1) or 1 (v2), or record batches (v3+)."),
            topic=_TOPIC,
            names=("topic_data", "partition_data"),
        ),
    ),
    response=(
        by_topic(
            "The results",
            Field("index", INT32, "Number of the partition."),
            error_code("Why nothing was appended; 0 where it was."),
            Field("base_offset", INT64, "Offset of the first message appended, -1 for none."),
            ignorable(
                "log_append_time_ms",
                INT64,
                "When the broker appended it (ms since 1970), if the topic takes the time of appending; "
                "-1 if it keeps the time of creation.",
                since=2,
                default=-1,
            ),
            ignorable(
                "log_start_offset",
                INT64,
                "The oldest offset that the partition keeps, -1 for unknown.",
                since=5,
                default=-1,
            ),
            array(
                "record_errors",
                "Which records made the broker refuse the batch.",
                Field("batch_index", INT32, "Number of the record in its batch."),
                optional_string("batch_index_error_message", "What is wrong with it, or null.", since=8),
                since=8,
                default=(),
                ignorable=True,
            ),
            optional_string("error_message", "The cause in the broker's words, or null.", since=8),
            current_leader(since=10, tag=0),
            topic=_TOPIC,
            names=("responses", "partition_responses"),
        ),
        throttle_time(since=1, obeyed=6),
        node_endpoints(since=10),
    ),
)
