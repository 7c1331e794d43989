"""For tests of handlers, consumers and producers: a pytest plugin, and what its fixtures give. See docs/testing.md.

Importing the package imports none of it: pytest loads the plugin in every project that has consumerd.

In: the fixtures of `plugin`. Out: groups, brokers and ZooKeeper in memory, a harness for handlers, a proxy for faults.

Files in reading order: plugin, harness, life, records, group, memory_zookeeper, memory_tree, memory_broker, clock,
loop, brokers, proxy, fault_proxy, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.testing.brokers import LoopbackBroker
    from consumerd.testing.clock import FakeClock
    from consumerd.testing.errors import ContractError, HarnessError
    from consumerd.testing.fault_proxy import Direction
    from consumerd.testing.group import MemoryGroup, MemoryMember
    from consumerd.testing.harness import HandlerHarness
    from consumerd.testing.life import Handover
    from consumerd.testing.loop import LoopThread
    from consumerd.testing.plugin import BrokerFactory, CoroutineRunner, HandlerFactory, ProxyFactory
    from consumerd.testing.proxy import LoopbackProxy
    from consumerd.testing.records import Attempt, DeliveredBatch, Revocation
    from consumerd.wire.compression import Codec

__all__ = [
    "Attempt",
    "BrokerFactory",
    "Codec",
    "ContractError",
    "CoroutineRunner",
    "DeliveredBatch",
    "Direction",
    "FakeClock",
    "HandlerFactory",
    "HandlerHarness",
    "Handover",
    "HarnessError",
    "LoopThread",
    "LoopbackBroker",
    "LoopbackProxy",
    "MemoryGroup",
    "MemoryMember",
    "ProxyFactory",
    "Revocation",
]

if not TYPE_CHECKING:  # type checkers shall complain about names that do not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.testing.brokers": "LoopbackBroker",
            "consumerd.testing.clock": "FakeClock",
            "consumerd.testing.errors": "ContractError HarnessError",
            "consumerd.testing.fault_proxy": "Direction",
            "consumerd.testing.group": "MemoryGroup MemoryMember",
            "consumerd.testing.life": "Handover",
            "consumerd.testing.harness": "HandlerHarness",
            "consumerd.testing.loop": "LoopThread",
            "consumerd.testing.plugin": "BrokerFactory CoroutineRunner HandlerFactory ProxyFactory",
            "consumerd.testing.proxy": "LoopbackProxy",
            "consumerd.testing.records": "Attempt DeliveredBatch Revocation",
            "consumerd.wire.compression": "Codec",
        },
        {"Delivery": "DeliveredBatch", "Member": "MemoryMember", "Run": "CoroutineRunner"},
    )

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
