"""Obeying quotas: how long a broker wants us to be silent.

Strategy: an answer's throttle_time_ms counts only in the versions from which brokers answer at once and leave the
waiting to the client (since 2.0); before, the broker has waited itself, and waiting again would halve what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from consumerd.wire.v08 import apis
from consumerd.wire.v08.schema import Api

#: API key -> the first version whose throttle time is the client's to obey.
_SINCE: Final = {
    apis.PRODUCE.key: 6,
    apis.FETCH.key: 8,
    apis.LIST_OFFSETS.key: 3,
    apis.METADATA.key: 6,
    apis.OFFSET_COMMIT.key: 4,
    apis.OFFSET_FETCH.key: 4,
    apis.FIND_COORDINATOR.key: 2,
    apis.JOIN_GROUP.key: 3,
    apis.HEARTBEAT.key: 2,
    apis.LEAVE_GROUP.key: 2,
    apis.SYNC_GROUP.key: 2,
    apis.DESCRIBE_GROUPS.key: 2,
    apis.LIST_GROUPS.key: 2,
    apis.API_VERSIONS.key: 2,
    apis.CREATE_TOPICS.key: 3,
    apis.DELETE_TOPICS.key: 2,
    apis.INIT_PRODUCER_ID.key: 1,
    apis.OFFSET_FOR_LEADER_EPOCH.key: 2,
    apis.ADD_PARTITIONS_TO_TXN.key: 1,
    apis.ADD_OFFSETS_TO_TXN.key: 1,
    apis.END_TXN.key: 1,
    apis.TXN_OFFSET_COMMIT.key: 1,
    apis.DELETE_GROUPS.key: 1,
    apis.DESCRIBE_CONFIGS.key: 2,
    apis.DESCRIBE_PRODUCERS.key: 0,
    apis.DESCRIBE_TRANSACTIONS.key: 0,
    apis.LIST_TRANSACTIONS.key: 0,
    apis.CONSUMER_GROUP_DESCRIBE.key: 0,
}
#: Longest throttle time that is accepted from a broker.
LONGEST: Final = 60.0


def silence(api: Api[Any, Any], version: int, body: Mapping[str, Any]) -> float:
    """Seconds for which the next request has to wait after this answer."""
    since = _SINCE.get(api.key)
    if since is None or version < since:
        return 0.0
    milliseconds: int = body.get("throttle_time_ms", 0)
    return min(max(milliseconds, 0) / 1000, LONGEST)
