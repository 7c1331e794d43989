"""Fetch (API key 1): read record sets of partitions, waiting for new ones if asked to.

The answer's last message or batch of a partition may be cut off. From version 3 on the first one is whole, beyond
the limits if necessary; the broker fills partitions in the order of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    PARTITION_INDEX,
    array,
    by_topic,
    current_leader,
    current_leader_epoch,
    error_code,
    ignorable,
    node_endpoints,
    optional_string,
    optional_structure,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, INT8, INT32, INT64, NO_UUID, RECORDS, STRING, STRUCT, UUID, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies

_TOPIC = (ignorable("topic", STRING, "Name of the topic.", until=12, default=""), topic_id(since=13))

_PARTITION = (
    Field("partition", INT32, "Number of the partition."),
    current_leader_epoch(since=9),
    Field("fetch_offset", INT64, "Offset of the first message to return."),
    Field("last_fetched_epoch", INT32, "Epoch of the last record that was read, -1 for none.", since=12, default=-1),
    ignorable(
        "log_start_offset", INT64, "The oldest offset that a follower keeps; -1 from consumers.", since=5, default=-1
    ),
    Field("partition_max_bytes", INT32, "Most bytes to send of this partition."),
    ignorable("replica_directory_id", UUID, "Directory of a follower's log.", since=17, tag=0, default=NO_UUID),
    ignorable(
        "high_watermark",
        INT64,
        "The high watermark that a follower knows; the largest number where it plays no part.",
        since=18,
        tag=1,
        default=2**63 - 1,
    ),
)

_PARTITION_RESPONSE = (
    PARTITION_INDEX,
    error_code("Why there are no records; 0 where there may be."),
    Field("high_watermark", INT64, "Offset after the last message that consumers may read."),
    ignorable("last_stable_offset", INT64, "Offset up to which all transactions are decided.", since=4, default=-1),
    ignorable("log_start_offset", INT64, "The oldest offset that is kept.", since=5, default=-1),
    optional_structure(
        "diverging_epoch",
        "Where the reader's log parts from the leader's; absent (null) where it does not.",
        Field("epoch", INT32, "The largest epoch that both have.", default=-1),
        Field("end_offset", INT64, "Offset at which it ends.", default=-1),
        since=12,
        tag=0,
    ),
    current_leader(since=12, tag=1),
    optional_structure(
        "snapshot_id",
        "The snapshot to read instead of deleted records (metadata log only); absent (null) otherwise.",
        Field("end_offset", INT64, "Offset at which it ends.", default=-1),
        Field("epoch", INT32, "Its epoch.", default=-1),
        since=12,
        tag=2,
    ),
    array(
        "aborted_transactions",
        "Transactions in the records that came to nothing, for readers of committed records; or null.",
        Field("producer_id", INT64, "Id of the producer."),
        Field("first_offset", INT64, "Offset of the transaction's first record."),
        since=4,
        nullable=4,
        default=None,
        ignorable=True,
    ),
    Field("preferred_read_replica", INT32, "Broker id of a nearer replica to read from, or -1.", since=11, default=-1),
    Field("records", RECORDS, "Messages or record batches as the log has them, cut off anywhere."),
)

FETCH: Api[bodies.FetchRequest, bodies.FetchResponse] = Api(
    key=1,
    name="Fetch",
    versions=(0, 18),
    flexible=12,
    request=(
        optional_string(
            "cluster_id", "The cluster that is meant, where a broker asks that is not registered yet.", since=12, tag=0
        ),
        ignorable("replica_id", INT32, "Broker id of a follower; -1 from consumers.", until=14, default=-1),
        Field(
            "replica_state",
            STRUCT,
            "Which follower asks; absent (null) from consumers.",
            of=(
                Field("replica_id", INT32, "Broker id of the follower.", default=-1),
                Field("replica_epoch", INT64, "Epoch of the follower.", default=-1),
            ),
            since=15,
            tag=1,
            default=None,
        ),
        Field("max_wait_ms", INT32, "How long the broker may wait for `min_bytes`, ms."),
        Field("min_bytes", INT32, "Answer as soon as there are so many bytes."),
        ignorable(
            "max_bytes",
            INT32,
            "Most bytes of the whole answer; a first message that is larger comes nevertheless.",
            since=3,
            default=2**31 - 1,
        ),
        ignorable(
            "isolation_level", INT8, "0: all records; 1: those of committed transactions only.", since=4, default=0
        ),
        ignorable("session_id", INT32, "Id of the fetch session, 0 for none.", since=7, default=0),
        ignorable(
            "session_epoch",
            INT32,
            "Number of this fetch in its session; 0 begins one, -1 goes without.",
            since=7,
            default=-1,
        ),
        by_topic("What to read", *_PARTITION, topic=_TOPIC),
        array(
            "forgotten_topics_data",
            "Partitions that leave the fetch session.",
            *_TOPIC,
            Field("partitions", ARRAY, "Numbers of the partitions.", of=INT32),
            since=7,
            default=(),
        ),
        ignorable("rack_id", STRING, "Rack of the consumer, empty for none.", since=11, default=""),
    ),
    response=(
        throttle_time(since=1, obeyed=8),
        error_code("Why nothing at all could be read; 0 otherwise.", since=7),
        Field("session_id", INT32, "Id of the fetch session, 0 for none.", since=7, default=0),
        by_topic("What was read", *_PARTITION_RESPONSE, topic=_TOPIC, names=("responses", "partitions")),
        node_endpoints(since=16),
    ),
)
