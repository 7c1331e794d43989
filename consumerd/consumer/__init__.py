"""The consumer: ties session, membership, fetching, delivery and commits together (ring 1)."""

from consumerd.consumer.backends import ClusterBackend, GroupBackend, V07Backend, V08Backend
from consumerd.consumer.config import ConsumerConfig
from consumerd.consumer.connector import ConsumerConnector
from consumerd.consumer.consumer import GroupConsumer
from consumerd.consumer.coordinated import CoordinatedConsumer
from consumerd.consumer.errors import (
    ConnectorStateError,
    ConsumerTimeoutError,
    FixedGroupError,
    GroupRefusedError,
    ListenerFailedError,
    NotAssignedError,
)
from consumerd.consumer.fixed import FixedConsumer
from consumerd.consumer.listeners import RebalanceListener
from consumerd.consumer.settings import ConsumerSettings
from consumerd.consumer.simple import (
    FetchRefusedError,
    FetchResult,
    InvalidFetchSizeError,
    InvalidMessageError,
    OffsetOutOfRangeError,
    SimpleConsumer,
    UnknownRefusalError,
    WrongPartitionError,
)
from consumerd.consumer.stats import ConsumerStats
from consumerd.consumer.streams import BatchStream, MessageStream

__all__ = [
    "BatchStream",
    "ClusterBackend",
    "ConnectorStateError",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerSettings",
    "ConsumerStats",
    "ConsumerTimeoutError",
    "CoordinatedConsumer",
    "FetchRefusedError",
    "FetchResult",
    "FixedConsumer",
    "FixedGroupError",
    "GroupBackend",
    "GroupConsumer",
    "GroupRefusedError",
    "InvalidFetchSizeError",
    "InvalidMessageError",
    "ListenerFailedError",
    "MessageStream",
    "NotAssignedError",
    "OffsetOutOfRangeError",
    "RebalanceListener",
    "SimpleConsumer",
    "UnknownRefusalError",
    "V07Backend",
    "V08Backend",
    "WrongPartitionError",
]
