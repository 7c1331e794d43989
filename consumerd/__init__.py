"""consumerd: an asyncio member of a ZooKeeper-coordinated Kafka consumer group, as a daemon and as a library.

Importing the package imports nothing else of it but its version and `consumerd.base.lazy`: executors of a data
pipeline import `consumerd.wire` and `consumerd.storage` alone. The names of the library are imported at their first
use (docs/library.md).
"""

import sys
from typing import TYPE_CHECKING

from consumerd.base.lazy import FormerModules, lazy_names
from consumerd.base.version import __version__

if TYPE_CHECKING:
    from consumerd.base.errors import ConsumerdError
    from consumerd.base.partition import TopicPartition
    from consumerd.handlers.messages import Batch, Identity, KeyedMessage, Message
    from consumerd.member.consumer.config import ConsumerConfig
    from consumerd.member.consumer.connector import ConsumerConnector
    from consumerd.member.consumer.errors import (
        ConnectorStateError,
        ConsumerTimeoutError,
        ListenerFailedError,
        NotAssignedError,
    )
    from consumerd.member.consumer.listeners import RebalanceListener
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
    from consumerd.net.client.sasl import Plain, Scram
    from consumerd.net.client.sasl_oauth import ClientCredentials, OAuthBearer, OAuthToken, TokenCache
    from consumerd.net.zk.sasl import DigestMd5
    from consumerd.producer.cluster import ClusterProducer
    from consumerd.producer.config import ProducerConfig
    from consumerd.producer.encoders import Encoder
    from consumerd.producer.opening import open_producer
    from consumerd.producer.partitioners import Partitioner
    from consumerd.producer.v07.async_producer import AsyncProducer
    from consumerd.producer.v07.data import ProducerData
    from consumerd.producer.v07.events import CallbackHandler, EventHandler
    from consumerd.producer.v07.producer import Producer
    from consumerd.producer.v07.settings import ProducerSettings, QueueSettings
    from consumerd.producer.v08.settings import V08ProducerSettings
    from consumerd.wire.registry.topic_filter import Blacklist, TopicFilter, Whitelist
    from consumerd.wire.v07.batch import MessageBatch
    from consumerd.wire.v07.constants import EARLIEST, LATEST
    from consumerd.wire.v07.requests import FetchRequest

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncProducer",
    "Batch",
    "BatchStream",
    "Blacklist",
    "CallbackHandler",
    "ClientCredentials",
    "ClusterProducer",
    "ConnectorStateError",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerTimeoutError",
    "ConsumerdError",
    "DigestMd5",
    "Encoder",
    "EventHandler",
    "FetchRefusedError",
    "FetchRequest",
    "FetchResult",
    "Identity",
    "InvalidFetchSizeError",
    "InvalidMessageError",
    "KeyedMessage",
    "ListenerFailedError",
    "Message",
    "MessageBatch",
    "MessageStream",
    "NotAssignedError",
    "OAuthBearer",
    "OAuthToken",
    "OffsetOutOfRangeError",
    "Partitioner",
    "Plain",
    "Producer",
    "ProducerConfig",
    "ProducerData",
    "ProducerSettings",
    "QueueSettings",
    "RebalanceListener",
    "Scram",
    "SimpleConsumer",
    "TokenCache",
    "TopicFilter",
    "TopicPartition",
    "UnknownRefusalError",
    "V08ProducerSettings",
    "Whitelist",
    "WrongPartitionError",
    "__version__",
    "open_producer",
]

if not TYPE_CHECKING:  # so that type checkers report names that do not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.base.errors": "ConsumerdError",
            "consumerd.base.partition": "TopicPartition",
            "consumerd.handlers.messages": "Batch Identity KeyedMessage Message",
            "consumerd.member.consumer.config": "ConsumerConfig",
            "consumerd.member.consumer.connector": "ConsumerConnector",
            "consumerd.member.consumer.errors": (
                "ConnectorStateError ConsumerTimeoutError ListenerFailedError NotAssignedError"
            ),
            "consumerd.member.consumer.listeners": "RebalanceListener",
            "consumerd.member.consumer.simple": (
                "FetchRefusedError FetchResult InvalidFetchSizeError InvalidMessageError OffsetOutOfRangeError "
                "SimpleConsumer UnknownRefusalError WrongPartitionError"
            ),
            "consumerd.member.consumer.streams": "BatchStream MessageStream",
            "consumerd.net.client.sasl": "Plain Scram",
            "consumerd.net.client.sasl_oauth": "ClientCredentials OAuthBearer OAuthToken TokenCache",
            "consumerd.net.zk.sasl": "DigestMd5",
            "consumerd.producer.cluster": "ClusterProducer",
            "consumerd.producer.config": "ProducerConfig",
            "consumerd.producer.encoders": "Encoder",
            "consumerd.producer.opening": "open_producer",
            "consumerd.producer.partitioners": "Partitioner",
            "consumerd.producer.v07.async_producer": "AsyncProducer",
            "consumerd.producer.v07.data": "ProducerData",
            "consumerd.producer.v07.events": "CallbackHandler EventHandler",
            "consumerd.producer.v07.producer": "Producer",
            "consumerd.producer.v07.settings": "ProducerSettings QueueSettings",
            "consumerd.producer.v08.settings": "V08ProducerSettings",
            "consumerd.wire.registry.topic_filter": "Blacklist TopicFilter Whitelist",
            "consumerd.wire.v07.batch": "MessageBatch",
            "consumerd.wire.v07.constants": "EARLIEST LATEST",
            "consumerd.wire.v07.requests": "FetchRequest",
        },
        {"LogicalProducerSettings": "V08ProducerSettings"},
    )

    def __dir__() -> list[str]:
        return [*globals(), *__all__]


sys.meta_path.append(
    FormerModules({"consumerd.errors": "consumerd.base.errors", "consumerd.ports": "consumerd.base.ports"})
)
