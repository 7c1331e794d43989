"""The APIs: one module each, named for it; `APIS` has them by key."""

from __future__ import annotations

from typing import Any

from consumerd.wire.v08.apis.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from consumerd.wire.v08.apis.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from consumerd.wire.v08.apis.api_versions import API_VERSIONS
from consumerd.wire.v08.apis.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from consumerd.wire.v08.apis.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from consumerd.wire.v08.apis.controlled_shutdown import CONTROLLED_SHUTDOWN
from consumerd.wire.v08.apis.create_topics import CREATE_TOPICS
from consumerd.wire.v08.apis.delete_groups import DELETE_GROUPS
from consumerd.wire.v08.apis.delete_topics import DELETE_TOPICS
from consumerd.wire.v08.apis.describe_configs import DESCRIBE_CONFIGS
from consumerd.wire.v08.apis.describe_groups import DESCRIBE_GROUPS
from consumerd.wire.v08.apis.describe_producers import DESCRIBE_PRODUCERS
from consumerd.wire.v08.apis.describe_transactions import DESCRIBE_TRANSACTIONS
from consumerd.wire.v08.apis.end_txn import END_TXN
from consumerd.wire.v08.apis.fetch import FETCH
from consumerd.wire.v08.apis.find_coordinator import FIND_COORDINATOR
from consumerd.wire.v08.apis.heartbeat import HEARTBEAT
from consumerd.wire.v08.apis.init_producer_id import INIT_PRODUCER_ID
from consumerd.wire.v08.apis.join_group import JOIN_GROUP
from consumerd.wire.v08.apis.leader_and_isr import LEADER_AND_ISR
from consumerd.wire.v08.apis.leave_group import LEAVE_GROUP
from consumerd.wire.v08.apis.list_groups import LIST_GROUPS
from consumerd.wire.v08.apis.list_offsets import LIST_OFFSETS
from consumerd.wire.v08.apis.list_transactions import LIST_TRANSACTIONS
from consumerd.wire.v08.apis.metadata import METADATA
from consumerd.wire.v08.apis.offset_commit import OFFSET_COMMIT
from consumerd.wire.v08.apis.offset_fetch import OFFSET_FETCH
from consumerd.wire.v08.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.apis.produce import PRODUCE
from consumerd.wire.v08.apis.sasl_authenticate import SASL_AUTHENTICATE
from consumerd.wire.v08.apis.sasl_handshake import SASL_HANDSHAKE
from consumerd.wire.v08.apis.stop_replica import STOP_REPLICA
from consumerd.wire.v08.apis.sync_group import SYNC_GROUP
from consumerd.wire.v08.apis.txn_offset_commit import TXN_OFFSET_COMMIT
from consumerd.wire.v08.apis.update_metadata import UPDATE_METADATA
from consumerd.wire.v08.schema import Api

#: All APIs that are described, by their keys.
APIS: dict[int, Api[Any, Any]] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        LEADER_AND_ISR,
        STOP_REPLICA,
        UPDATE_METADATA,
        CONTROLLED_SHUTDOWN,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        TXN_OFFSET_COMMIT,
        SASL_AUTHENTICATE,
        DELETE_GROUPS,
        DESCRIBE_CONFIGS,
        DESCRIBE_PRODUCERS,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
    )
}

__all__ = [
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "APIS",
    "API_VERSIONS",
    "CONSUMER_GROUP_DESCRIBE",
    "CONSUMER_GROUP_HEARTBEAT",
    "CONTROLLED_SHUTDOWN",
    "CREATE_TOPICS",
    "DELETE_GROUPS",
    "DELETE_TOPICS",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_GROUPS",
    "DESCRIBE_PRODUCERS",
    "DESCRIBE_TRANSACTIONS",
    "END_TXN",
    "FETCH",
    "FIND_COORDINATOR",
    "HEARTBEAT",
    "INIT_PRODUCER_ID",
    "JOIN_GROUP",
    "LEADER_AND_ISR",
    "LEAVE_GROUP",
    "LIST_GROUPS",
    "LIST_OFFSETS",
    "LIST_TRANSACTIONS",
    "METADATA",
    "OFFSET_COMMIT",
    "OFFSET_FETCH",
    "OFFSET_FOR_LEADER_EPOCH",
    "PRODUCE",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "STOP_REPLICA",
    "SYNC_GROUP",
    "TXN_OFFSET_COMMIT",
    "UPDATE_METADATA",
]
