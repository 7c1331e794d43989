"""Producers for brokers of Kafka 0.7 and of Kafka 0.8 and later (ring 1).

Strategy: `open_producer` makes the producer that a `ProducerConfig` asks for. The two kinds of brokers share the
configuration, encoders, partitioners, plugin loading and errors, which are here. How messages are routed, batched, sent
and confirmed differs, and is in `producer.v07` and `producer.v08`.

In: `open_producer`, or a `Producer` or `ClusterProducer`, and messages. Out: their places in the logs, or an error for
each.

Files in reading order: opening, config, cluster, encoders, partitioners, lines, errors.

Easy to miss:

- When a producer's batch fails on every attempt, later batches are sent nevertheless. Code that needs the order despite
  failures has one batch in flight (`forward.feed`).
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.config import ProducerConfig
from consumerd.producer.encoders import DefaultEncoder, Encoder
from consumerd.producer.errors import (
    EncodingError,
    MessageSizeTooLargeError,
    Missing,
    NoBrokerError,
    NoPartitionError,
    NotArrivedError,
    NotSentError,
    PartitionerError,
    PluginError,
    ProducerClosedError,
    ProducerFencedError,
    QueueFullError,
    TransactionAbortedError,
    TransactionUncertainError,
    UncertainError,
)
from consumerd.producer.opening import open_producer
from consumerd.producer.partitioners import HashPartitioner, Partitioner, load_partitioner
from consumerd.producer.v07.async_producer import AsyncProducer
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v07.dispatch import AsyncProducerStats
from consumerd.producer.v07.events import (
    CallbackHandler,
    DefaultEventHandler,
    Event,
    EventHandler,
    EventsFailedError,
)
from consumerd.producer.v07.keys import Key, java_bytes_hash, java_string_hash, key_index
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.routing import ANY_PARTITION, Route, Router, StaticRouter, ZooKeeperRouter
from consumerd.producer.v07.settings import ProducerSettings, QueueSettings, WhenFull
from consumerd.producer.v08.producer import ProducerTransaction, V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.transactions import TransactionOffset

__all__ = [
    "ANY_PARTITION",
    "AsyncProducer",
    "AsyncProducerStats",
    "CallbackHandler",
    "ClusterProducer",
    "DefaultEncoder",
    "DefaultEventHandler",
    "Encoder",
    "EncodingError",
    "Event",
    "EventHandler",
    "EventsFailedError",
    "HashPartitioner",
    "Key",
    "MessageSizeTooLargeError",
    "Missing",
    "NoBrokerError",
    "NoPartitionError",
    "NotArrivedError",
    "NotSentError",
    "Partitioner",
    "PartitionerError",
    "PluginError",
    "Producer",
    "ProducerClosedError",
    "ProducerConfig",
    "ProducerData",
    "ProducerFencedError",
    "ProducerSettings",
    "ProducerTransaction",
    "QueueFullError",
    "QueueSettings",
    "Route",
    "Router",
    "StaticRouter",
    "TransactionAbortedError",
    "TransactionOffset",
    "TransactionUncertainError",
    "UncertainError",
    "V08Producer",
    "V08ProducerSettings",
    "WhenFull",
    "ZooKeeperRouter",
    "java_bytes_hash",
    "java_string_hash",
    "key_index",
    "load_partitioner",
    "open_producer",
]

if not TYPE_CHECKING:  # type checkers shall complain about names that do not exist
    __getattr__ = lazy_names(
        __name__, {}, {"LogicalProducer": "V08Producer", "LogicalProducerSettings": "V08ProducerSettings"}
    )
