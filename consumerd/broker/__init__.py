"""A Kafka 0.7 broker on `consumerd.storage` (ring 1)."""

from consumerd.broker.config import BrokerConfig
from consumerd.broker.errors import ListenError, RequestRefusedError
from consumerd.broker.server import Broker

__all__ = ["Broker", "BrokerConfig", "ListenError", "RequestRefusedError"]
