"""A Kafka 0.7 broker on `consumerd.storage` (ring 1)."""

from consumerd.storage.broker.config import WITHOUT_EFFECT, BrokerConfig
from consumerd.storage.broker.errors import ListenError, RequestRefusedError
from consumerd.storage.broker.server import Broker

__all__ = ["WITHOUT_EFFECT", "Broker", "BrokerConfig", "ListenError", "RequestRefusedError"]
