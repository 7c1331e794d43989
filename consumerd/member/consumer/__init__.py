"""The consumer: ties session, membership, fetching, delivery and commits together (ring 1)."""

from typing import TYPE_CHECKING

from consumerd.consumer.backends import GroupBackend, V07Backend
from consumerd.consumer.consumer import GroupConsumer
from consumerd.consumer.errors import (
    ConnectorStateError,
    ConsumerTimeoutError,
    FixedGroupError,
    GroupRefusedError,
    ListenerFailedError,
    NotAssignedError,
)
from consumerd.consumer.listeners import RebalanceListener
from consumerd.consumer.settings import ConsumerSettings
from consumerd.consumer.stats import ConsumerStats
from consumerd.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.consumer.backends_v08 import ClusterBackend, V08Backend
    from consumerd.consumer.config import ConsumerConfig
    from consumerd.consumer.connector import ConsumerConnector
    from consumerd.consumer.coordinated import CoordinatedConsumer
    from consumerd.consumer.fixed import FixedConsumer
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
    from consumerd.consumer.streams import BatchStream, MessageStream
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.consumer.backends_v08": "ClusterBackend V08Backend",
            "consumerd.consumer.config": "ConsumerConfig",
            "consumerd.consumer.connector": "ConsumerConnector",
            "consumerd.consumer.coordinated": "CoordinatedConsumer",
            "consumerd.consumer.fixed": "FixedConsumer",
            "consumerd.consumer.simple": (
                "FetchRefusedError FetchResult InvalidFetchSizeError InvalidMessageError "
                "OffsetOutOfRangeError SimpleConsumer UnknownRefusalError WrongPartitionError"
            ),
            "consumerd.consumer.streams": "BatchStream MessageStream",
        },
    )

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
