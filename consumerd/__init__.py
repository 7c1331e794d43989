"""consumerd: an asyncio member of a ZooKeeper-coordinated Kafka consumer group, as a daemon and as a library.

Importing the package imports nothing else of it but its version: executors of a data pipeline import `consumerd.wire`
and `consumerd.storage` alone. The names of the library are imported at their first use (docs/library.md).
"""

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

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
    "TopicFilter",
    "TopicPartition",
    "UnknownRefusalError",
    "V08ProducerSettings",
    "Whitelist",
    "WrongPartitionError",
    "__version__",
    "open_producer",
]

#: Module -> the names that it defines.
_ROOMS = {
    "consumerd.base.errors": "ConsumerdError",
    "consumerd.base.partition": "TopicPartition",
    "consumerd.handlers.messages": "Batch Identity KeyedMessage Message",
    "consumerd.member.consumer.config": "ConsumerConfig",
    "consumerd.member.consumer.connector": "ConsumerConnector",
    "consumerd.member.consumer.errors": "ConnectorStateError ConsumerTimeoutError ListenerFailedError NotAssignedError",
    "consumerd.member.consumer.listeners": "RebalanceListener",
    "consumerd.member.consumer.simple": (
        "FetchRefusedError FetchResult InvalidFetchSizeError InvalidMessageError OffsetOutOfRangeError SimpleConsumer "
        "UnknownRefusalError WrongPartitionError"
    ),
    "consumerd.member.consumer.streams": "BatchStream MessageStream",
    "consumerd.net.client.sasl": "Plain Scram",
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
}


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> object:
        if name == "LogicalProducerSettings":
            warnings.warn(
                "consumerd.LogicalProducerSettings is deprecated: use consumerd.V08ProducerSettings.",
                DeprecationWarning,
                stacklevel=2,
            )
            return import_module("consumerd.producer").V08ProducerSettings
        for room, names in _ROOMS.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(room), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]


class _FormerModules:
    """Finds modules that users imported by their former names."""

    names: ClassVar = {
        "consumerd.errors": "consumerd.base.errors",
        "consumerd.ports": "consumerd.base.ports",
    }

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        present = self.names[module.__name__]
        warnings.warn(f"{module.__name__} is deprecated: use {present}.", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(present)


sys.meta_path.append(_FormerModules())
