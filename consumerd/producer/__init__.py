"""The producer of Kafka 0.7: synchronous sends of batches, to a list of brokers or as ZooKeeper says (ring 1)."""

from consumerd.producer.errors import MessageSizeTooLargeError, NoBrokerError, NoPartitionError, UncertainError
from consumerd.producer.keys import Key, java_bytes_hash, java_string_hash, key_index
from consumerd.producer.producer import Producer, ProducerData
from consumerd.producer.routing import ANY_PARTITION, Route, Router, StaticRouter
from consumerd.producer.settings import ProducerSettings
from consumerd.producer.zookeeper_routing import ZooKeeperRouter

__all__ = [
    "ANY_PARTITION",
    "Key",
    "MessageSizeTooLargeError",
    "NoBrokerError",
    "NoPartitionError",
    "Producer",
    "ProducerData",
    "ProducerSettings",
    "Route",
    "Router",
    "StaticRouter",
    "UncertainError",
    "ZooKeeperRouter",
    "java_bytes_hash",
    "java_string_hash",
    "key_index",
]
