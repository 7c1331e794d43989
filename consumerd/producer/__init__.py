"""Producers for brokers of Kafka 0.7 and for those of 0.8 and later; `open_producer` chooses (ring 1)."""

from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.config import ProducerConfig
from consumerd.producer.encoders import DefaultEncoder, Encoder
from consumerd.producer.errors import (
    EncodingError,
    EventsFailedError,
    MessageSizeTooLargeError,
    Missing,
    NoBrokerError,
    NoPartitionError,
    NotArrivedError,
    NotSentError,
    PartitionerError,
    PluginError,
    ProducerClosedError,
    QueueFullError,
    UncertainError,
)
from consumerd.producer.opening import open_producer
from consumerd.producer.partitioners import HashPartitioner, Partitioner, load_partitioner
from consumerd.producer.v07.async_producer import AsyncProducer
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v07.event_handling import DefaultEventHandler
from consumerd.producer.v07.events import CallbackHandler, Event, EventHandler
from consumerd.producer.v07.keys import Key, java_bytes_hash, java_string_hash, key_index
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.routing import ANY_PARTITION, Route, Router, StaticRouter
from consumerd.producer.v07.settings import ProducerSettings, QueueSettings, WhenFull
from consumerd.producer.v07.stats import AsyncProducerStats
from consumerd.producer.v07.zookeeper_routing import ZooKeeperRouter
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings

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
    "ProducerSettings",
    "QueueFullError",
    "QueueSettings",
    "Route",
    "Router",
    "StaticRouter",
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
