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
    from consumerd.handlers import Batch, Identity, KeyedMessage, Message
    from consumerd.member.consumer import (
        BatchStream,
        ConnectorStateError,
        ConsumerConfig,
        ConsumerConnector,
        ConsumerTimeoutError,
        FetchRefusedError,
        FetchResult,
        InvalidFetchSizeError,
        InvalidMessageError,
        ListenerFailedError,
        MessageStream,
        NotAssignedError,
        OffsetOutOfRangeError,
        RebalanceListener,
        SimpleConsumer,
        UnknownRefusalError,
        WrongPartitionError,
    )
    from consumerd.net.client import Plain, Scram
    from consumerd.net.zk import DigestMd5
    from consumerd.producer import (
        AsyncProducer,
        CallbackHandler,
        ClusterProducer,
        Encoder,
        EventHandler,
        Partitioner,
        Producer,
        ProducerConfig,
        ProducerData,
        ProducerSettings,
        QueueSettings,
        V08ProducerSettings,
        open_producer,
    )
    from consumerd.wire.registry import Blacklist, TopicFilter, Whitelist
    from consumerd.wire.v07 import EARLIEST, LATEST, FetchRequest, MessageBatch

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
    "consumerd.net.client": "Plain Scram",
    "consumerd.member.consumer": (
        "BatchStream ConnectorStateError ConsumerConfig ConsumerConnector ConsumerTimeoutError FetchRefusedError "
        "FetchResult InvalidFetchSizeError InvalidMessageError ListenerFailedError MessageStream NotAssignedError "
        "OffsetOutOfRangeError RebalanceListener SimpleConsumer UnknownRefusalError WrongPartitionError"
    ),
    "consumerd.base.errors": "ConsumerdError",
    "consumerd.handlers": "Batch Identity KeyedMessage Message",
    "consumerd.base.partition": "TopicPartition",
    "consumerd.producer": (
        "AsyncProducer CallbackHandler ClusterProducer Encoder EventHandler Partitioner Producer ProducerConfig "
        "ProducerData ProducerSettings QueueSettings V08ProducerSettings open_producer"
    ),
    "consumerd.wire.registry": "Blacklist TopicFilter Whitelist",
    "consumerd.wire.v07": "EARLIEST LATEST FetchRequest MessageBatch",
    "consumerd.net.zk": "DigestMd5",
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

    names: ClassVar = {"consumerd.errors": "consumerd.base.errors", "consumerd.ports": "consumerd.base.ports"}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        present = self.names[module.__name__]
        warnings.warn(f"{module.__name__} is deprecated: use {present}.", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(present)


sys.meta_path.append(_FormerModules())
