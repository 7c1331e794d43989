"""A Kafka 0.7 broker on `consumerd.storage` (ring 1)."""

from consumerd.broker.config import WITHOUT_EFFECT, BrokerConfig
from consumerd.broker.errors import ListenError, RequestRefusedError
from consumerd.broker.server import Broker

__all__ = ["WITHOUT_EFFECT", "Broker", "BrokerConfig", "ListenError", "RequestRefusedError"]
