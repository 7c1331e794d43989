"""The APIs: a module for each subject; `APIS` has them by key."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from consumerd.wire.v08.apis.connections import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.apis.controller import CONTROLLED_SHUTDOWN, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from consumerd.wire.v08.apis.fetch import FETCH
from consumerd.wire.v08.apis.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from consumerd.wire.v08.apis.offsets import LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.apis.produce import PRODUCE
from consumerd.wire.v08.apis.topics import CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, METADATA
from consumerd.wire.v08.apis.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
)
from consumerd.wire.v08.schema import Api

#: All APIs that are described, by their keys.
APIS: dict[int, Api[Any, Any]] = {
    api.key: api
    for api in sorted((value for value in globals().values() if isinstance(value, Api)), key=attrgetter("key"))
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
