"""The current addresses of the brokers, for everything that connects to them.

Strategy: `consumerd.net.cluster.following` in each dialect. In 0.7 every connection asks for its broker's address.
Clients of 0.8 and later learn addresses from the brokers themselves, and need only bootstrap addresses from here.
"""

from __future__ import annotations

from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.following import RegisteredBrokers
from consumerd.wire.registry.v08.broker import BrokerNode, parse_broker_node
from consumerd.wire.registry.values import RegisteredBroker, parse_broker

Address = tuple[str, int]


class BrokerDirectory(RegisteredBrokers[RegisteredBroker]):
    """The live brokers of Kafka 0.7. `run` must be running for it to learn anything; times in seconds."""

    def __init__(self, zk: ZooKeeper, *, clock: Clock, **times: float) -> None:
        super().__init__(zk, parse_broker, clock=clock, **times)

    def address(self, broker_id: int) -> Address | None:
        """Return host and port, or None while the broker is not registered."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.address


class V08BrokerDirectory(RegisteredBrokers[BrokerNode]):
    """The live brokers of Kafka 0.8 and later. `run` must be running for it to learn anything; times in seconds."""

    def __init__(self, zk: ZooKeeper, *, clock: Clock, **times: float) -> None:
        super().__init__(zk, parse_broker_node, clock=clock, **times)

    def addresses(self, protocol: str) -> list[Address]:
        """Return the listeners for `protocol` (`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`), by broker id."""
        found = (self.brokers[broker_id].address(protocol) for broker_id in sorted(self.brokers))
        return [address for address in found if address is not None]
