"""Transactions and idempotent producers: their APIs, and those that show both from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    PARTITION_INDEX,
    TOPIC_NAME,
    TRANSACTIONAL_PRODUCER,
    array,
    by_topic,
    commit_results,
    error_code,
    error_message,
    group_instance_id,
    ignorable,
    offsets_to_commit,
    throttle_time,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT16, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies


#: InitProducerId (API key 22): an id with which brokers know repeated batches of a producer.
INIT_PRODUCER_ID: Api[bodies.InitProducerIdRequest, bodies.InitProducerIdResponse] = Api(
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
        throttle_time(since=0, obeyed=1),
        error_code(),
        Field("producer_id", INT64, "The producer's id.", default=-1),
        Field("producer_epoch", INT16, "The producer's epoch."),
        Field("ongoing_txn_producer_id", INT64, "Id of the transaction that was kept, or -1.", since=6, default=-1),
        Field(
            "ongoing_txn_producer_epoch", INT16, "Epoch of the transaction that was kept, or -1.", since=6, default=-1
        ),
    ),
)


#: AddPartitionsToTxn (API key 24): name the partitions that a transaction is about to write to.
#:
#: Version 4 and later are for brokers. Where transactions have version 2 (KIP-890), PRODUCE adds the partitions itself.
ADD_PARTITIONS_TO_TXN: Api[bodies.AddPartitionsToTxnRequest, bodies.AddPartitionsToTxnResponse] = Api(
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
        throttle_time(since=0, obeyed=1),
        by_topic(
            "The results",
            PARTITION_INDEX,
            Field("partition_error_code", INT16, "The error, 0 for none.", default=0),
            names=("results_by_topic", "results_by_partition"),
        ),
    ),
)


#: AddOffsetsToTxn (API key 25): name the group whose offsets a transaction is about to commit.
#:
#: Where transactions have version 2 (KIP-890), TxnOffsetCommit adds the group itself.
ADD_OFFSETS_TO_TXN: Api[bodies.AddOffsetsToTxnRequest, bodies.AddOffsetsToTxnResponse] = Api(
    key=25,
    name="AddOffsetsToTxn",
    versions=(0, 4),
    flexible=3,
    request=(*TRANSACTIONAL_PRODUCER, GROUP_ID),
    response=(throttle_time(since=0, obeyed=1), error_code()),
)


#: TxnOffsetCommit (API key 28): offsets of a group that count once a transaction is committed.
#:
#: Version 3 and later name the member, and are refused for one that is not in the group any more (KIP-447).
TXN_OFFSET_COMMIT: Api[bodies.TxnOffsetCommitRequest, bodies.TxnOffsetCommitResponse] = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 5),
    flexible=3,
    request=(
        Field("transactional_id", STRING, "The producer's transactional id."),
        GROUP_ID,
        Field("producer_id", INT64, "The producer's id."),
        Field("producer_epoch", INT16, "The producer's epoch."),
        Field("generation_id", INT32, "The group's generation, -1 for none.", since=3, default=-1),
        Field("member_id", STRING, "Id that the coordinator gave to the member.", since=3, default=""),
        group_instance_id(since=3),
        offsets_to_commit(TOPIC_NAME, epoch_since=2),
    ),
    response=(throttle_time(since=0, obeyed=1), commit_results(TOPIC_NAME)),
)


#: EndTxn (API key 26): commit or abort a transaction. Version 5 raises the producer's epoch (KIP-890).
END_TXN: Api[bodies.EndTxnRequest, bodies.EndTxnResponse] = Api(
    key=26,
    name="EndTxn",
    versions=(0, 5),
    flexible=3,
    request=(*TRANSACTIONAL_PRODUCER, Field("committed", BOOLEAN, "Whether to commit; abort otherwise.")),
    response=(
        throttle_time(since=0, obeyed=1),
        error_code(),
        ignorable("producer_id", INT64, "Id of the producer from now on, -1 for unknown.", since=5, default=-1),
        ignorable("producer_epoch", INT16, "Epoch of the producer from now on, -1 for unknown.", since=5, default=-1),
    ),
)


#: DescribeProducers (API key 61, since 2.8): who writes to a partition, and whose transactions are open (KIP-664).
DESCRIBE_PRODUCERS: Api[bodies.DescribeProducersRequest, bodies.DescribeProducersResponse] = Api(
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
        throttle_time(since=0, obeyed=0),
        by_topic(
            "The producers",
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
)


#: DescribeTransactions (API key 65, since 3.0): the transactions of some transactional ids (KIP-664).
DESCRIBE_TRANSACTIONS: Api[bodies.DescribeTransactionsRequest, bodies.DescribeTransactionsResponse] = Api(
    key=65,
    name="DescribeTransactions",
    versions=(0, 0),
    flexible=0,
    request=(Field("transactional_ids", ARRAY, "The ids.", of=STRING),),
    response=(
        throttle_time(since=0, obeyed=0),
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


#: ListTransactions (API key 66, since 3.0): the transactional ids that a broker coordinates (KIP-664).
LIST_TRANSACTIONS: Api[bodies.ListTransactionsRequest, bodies.ListTransactionsResponse] = Api(
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
        throttle_time(since=0, obeyed=0),
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
