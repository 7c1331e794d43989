"""The nudge: makes members of a group that gave up their rebalance start another one.

Ring 0. Every member watches the children of `/consumers/G/ids`. A dummy id that is created and deleted in one
transaction makes all of them look again, and no rebalance ever sees it (notes on mixed groups: it woke every member
that had given up within 0.13 s, and costs a healthy member one rebalance of under 0.1 s). Multis need ZooKeeper 3.4.
"""

from __future__ import annotations

from consumerd.base.ports import Create, Delete, Operation
from consumerd.wire.registry.paths import id_path

#: The dummy's value, if a member should read it. Empty data or `{"t":0}` would break every JVM peer's rebalance.
NUDGE_VALUE = b"{ }"
#: The same for groups of 0.8 and later, where `{ }` would break it.
NUDGE_VALUE_V08 = b'{"version":1,"subscription":{},"pattern":"static","timestamp":"0"}'


def nudge_operations(group: str, consumer_id: str, value: bytes = NUDGE_VALUE) -> list[Operation]:
    """Return the multi that nudges `group`; `consumer_id`, the nudging member, makes the name of the node unique.

    `value`: `NUDGE_VALUE_V08` for a group of Kafka 0.8 or later.
    """
    path = id_path(group, f"{consumer_id}-nudge")
    return [Create(path, value), Delete(path)]
