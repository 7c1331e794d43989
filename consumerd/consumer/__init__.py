"""The consumer: ties session, membership, fetching, handing over and commits together (ring 1)."""

from consumerd.consumer.consumer import GroupConsumer
from consumerd.consumer.errors import GroupRefusedError
from consumerd.consumer.settings import ConsumerSettings
from consumerd.consumer.stats import ConsumerStats

__all__ = ["ConsumerSettings", "ConsumerStats", "GroupConsumer", "GroupRefusedError"]
