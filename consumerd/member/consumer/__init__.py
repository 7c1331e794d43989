"""The consumer: ties session, membership, fetching, delivery and commits together (ring 1)."""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.member.consumer.backends import GroupBackend, V07Backend
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.errors import (
    ConnectorStateError,
    ConsumerTimeoutError,
    FixedGroupError,
    GroupRefusedError,
    ListenerFailedError,
    NotAssignedError,
)
from consumerd.member.consumer.listeners import RebalanceListener
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.stats import ConsumerStats

if TYPE_CHECKING:
    from consumerd.member.consumer.backends_v08 import ClusterBackend, V08Backend
    from consumerd.member.consumer.config import ConsumerConfig
    from consumerd.member.consumer.connector import ConsumerConnector
    from consumerd.member.consumer.coordinated import CoordinatedConsumer
    from consumerd.member.consumer.fixed import FixedConsumer
    from consumerd.member.consumer.simple import (
        FetchRefusedError,
        FetchResult,
        InvalidFetchSizeError,
        InvalidMessageError,
        OffsetOutOfRangeError,
        SimpleConsumer,
        UnknownRefusalError,
        WrongPartitionError,
    )
    from consumerd.member.consumer.streams import BatchStream, MessageStream
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.member.consumer.backends_v08": "ClusterBackend V08Backend",
            "consumerd.member.consumer.config": "ConsumerConfig",
            "consumerd.member.consumer.connector": "ConsumerConnector",
            "consumerd.member.consumer.coordinated": "CoordinatedConsumer",
            "consumerd.member.consumer.fixed": "FixedConsumer",
            "consumerd.member.consumer.simple": (
                "FetchRefusedError FetchResult InvalidFetchSizeError InvalidMessageError "
                "OffsetOutOfRangeError SimpleConsumer UnknownRefusalError WrongPartitionError"
            ),
            "consumerd.member.consumer.streams": "BatchStream MessageStream",
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
