"""Fetching owned partitions into bounded lanes (ring 1). `FetchPool` is the entry point."""

from consumerd.fetch.budget import ByteBudget, Reservation
from consumerd.fetch.errors import (
    BrokerUnknownError,
    CorruptPartitionError,
    LaneClosedError,
    LogChangedError,
    MessageTooLargeError,
    OffsetBeyondError,
    OffsetRefusedError,
)
from consumerd.fetch.lane import Lane
from consumerd.fetch.listener import FetchCounters, FetchListener
from consumerd.fetch.pool import FetchPool
from consumerd.fetch.settings import BadMessagePolicy, FetchSettings, LogChangePolicy, ResetPolicy
from consumerd.fetch.v07.brokers import V07Brokers
from consumerd.fetch.v07.link import Directory

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
