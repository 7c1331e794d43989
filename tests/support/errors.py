"""Errors of brokers of other projects."""

from __future__ import annotations

from consumerd.base.errors import BrokerError


class JafkaStartError(BrokerError):
    """The Jafka broker did not start."""


class KafkaStartError(BrokerError):
    """The Kafka broker did not start."""
