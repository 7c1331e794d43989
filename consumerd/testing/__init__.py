"""For tests of handlers, consumers and producers: a pytest plugin, and what its fixtures give. See docs/testing.md.

Importing the package imports none of it: pytest loads the plugin in every project that has consumerd.

In: the fixtures of `plugin`. Out: groups, brokers and ZooKeeper in memory, a harness for handlers, a proxy for faults.

Files in reading order: plugin, harness, life, handover, records, journal, group, member, memory_zookeeper, memory_tree,
memory_broker, partition_log, clock, loop, brokers, proxy, fault_proxy, damage, errors.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.testing.brokers import LoopbackBroker
    from consumerd.testing.clock import FakeClock
    from consumerd.testing.errors import ContractError, HarnessError
    from consumerd.testing.fault_proxy import Direction
    from consumerd.testing.group import MemoryGroup
    from consumerd.testing.handover import Handover
    from consumerd.testing.harness import HandlerHarness
    from consumerd.testing.loop import LoopThread
    from consumerd.testing.member import MemoryMember
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

#: Module -> the names that it defines.
_ROOMS = {
    "consumerd.testing.brokers": "LoopbackBroker",
    "consumerd.testing.clock": "FakeClock",
    "consumerd.testing.errors": "ContractError HarnessError",
    "consumerd.testing.fault_proxy": "Direction",
    "consumerd.testing.group": "MemoryGroup",
    "consumerd.testing.handover": "Handover",
    "consumerd.testing.harness": "HandlerHarness",
    "consumerd.testing.loop": "LoopThread",
    "consumerd.testing.member": "MemoryMember",
    "consumerd.testing.plugin": "BrokerFactory CoroutineRunner HandlerFactory ProxyFactory",
    "consumerd.testing.proxy": "LoopbackProxy",
    "consumerd.testing.records": "Attempt DeliveredBatch Revocation",
    "consumerd.wire.compression": "Codec",
}

#: Former names, which are still found.
_FORMER = {"Delivery": "DeliveredBatch", "Member": "MemoryMember", "Run": "CoroutineRunner"}


if not TYPE_CHECKING:  # type checkers shall complain about names that do not exist

    def __getattr__(name: str) -> object:
        if name in _FORMER:
            present = _FORMER[name]
            warnings.warn(
                f"{__name__}.{name} is deprecated: use {__name__}.{present}.", DeprecationWarning, stacklevel=2
            )
            name = present
        for room, names in _ROOMS.items():
            if name in names.split():
                return getattr(import_module(room), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
