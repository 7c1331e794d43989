"""Fetching owned partitions into bounded lanes (ring 1). `FetchPool` is the entry point.

In: an owned partition with its start offset (`FetchPool.add`). Out: batches in its `Lane`, within a `ByteBudget`.

Files in reading order: pool, fetcher, lane, budget, response, policies, log_changes, listener, settings, backoff,
event, errors.
"""

from typing import TYPE_CHECKING

from consumerd.base.budget import ByteBudget, Reservation
from consumerd.base.lazy import lazy_names
from consumerd.member.fetch.errors import (
    BrokerUnknownError,
    CorruptPartitionError,
    LaneClosedError,
    LogChangedError,
    MessageTooLargeError,
    OffsetBeyondError,
    OffsetRefusedError,
)
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters, FetchListener
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import BadMessagePolicy, FetchSettings, LogChangePolicy, ResetPolicy

if TYPE_CHECKING:
    from consumerd.member.fetch.v07.brokers import V07Brokers
    from consumerd.member.fetch.v07.link import Directory
else:
    __getattr__ = lazy_names(
        __name__, {"consumerd.member.fetch.v07.brokers": "V07Brokers", "consumerd.member.fetch.v07.link": "Directory"}
    )

__all__ = [
    "BadMessagePolicy",
    "BrokerUnknownError",
    "ByteBudget",
    "CorruptPartitionError",
    "Directory",
    "FetchCounters",
    "FetchListener",
    "FetchPool",
    "FetchSettings",
    "Lane",
    "LaneClosedError",
    "LogChangePolicy",
    "LogChangedError",
    "MessageTooLargeError",
    "OffsetBeyondError",
    "OffsetRefusedError",
    "Reservation",
    "ResetPolicy",
    "V07Brokers",
]
