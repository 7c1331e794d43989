"""Routing of messages to a broker and one of its partitions.

Strategy: a `Router` routes one message batch at a time and is called again at every retry, so that a broker that
died or moved is left out as soon as that is known. This module has the router over a fixed list of brokers; the one
that follows ZooKeeper is in `zookeeper_routing`.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from consumerd.base.errors import ConfigError
from consumerd.producer.errors import NoPartitionError

#: The partition number that leaves the choice to the broker (golden notes, 1).
ANY_PARTITION = -1

_INT32_MAX = (1 << 31) - 1


class Route(NamedTuple):
    """A broker's address and the partition to write in the request."""

    host: str
    port: int
    partition: int


class Router(Protocol):
    """Chooses routes."""

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        """Return the route of a batch. Raises NoBrokerError where that may change, NoPartitionError, ZooKeeperError."""
        ...

    async def close(self) -> None:
        """Forget everything; the router is not asked again."""
        ...


def check_partition(partition: int | None) -> None:
    """Refuse numbers that no broker accepts: they would cost the connection (golden notes, 1)."""
    if partition is not None and not ANY_PARTITION <= partition <= _INT32_MAX:
        raise NoPartitionError(f"{partition} is not a partition: give a number from 0, or -1 for the broker's choice.")


class StaticRouter(Router):
    """A fixed list of brokers: one at random for each batch, which then chooses the partition (golden notes, 7).

    As in 0.7.2 keys have no influence: how many partitions there are is not known.
    """

    def __init__(self, brokers: Sequence[tuple[str, int]], *, rng: random.Random) -> None:
        if not brokers:
            raise ConfigError("the list of brokers is empty: give at least one host:port.")
        self._brokers = list(brokers)
        self._rng = rng

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        check_partition(partition)
        host, port = self._rng.choice(self._brokers)
        return Route(host, port, ANY_PARTITION if partition is None else partition)

    async def close(self) -> None:
        return
