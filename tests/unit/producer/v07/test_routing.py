from __future__ import annotations

import random
from collections import Counter

import pytest

from consumerd.base.errors import ConfigError
from consumerd.producer import ANY_PARTITION, NoPartitionError, StaticRouter

BROKERS = [("a", 1), ("b", 2), ("c", 3)]


async def test_lets_a_random_broker_choose_the_partition() -> None:
    router = StaticRouter(BROKERS, rng=random.Random(1))
    routes = [await router.route("t", None, None) for _ in range(300)]
    assert {route.partition for route in routes} == {ANY_PARTITION}
    counts = Counter((route.host, route.port) for route in routes)
    assert sorted(counts) == BROKERS
    assert min(counts.values()) > 50
    # As in 0.7.2 a key has no influence.
    assert len({(await router.route("t", "key", None)).host for _ in range(100)}) == 3
    await router.close()


async def test_keeps_an_explicit_partition() -> None:
    router = StaticRouter(BROKERS[:1], rng=random.Random(1))
    assert await router.route("t", None, 7) == ("a", 1, 7)
    assert await router.route("t", None, -1) == ("a", 1, -1)
    assert await router.route("t", None, 2**31 - 1) == ("a", 1, 2**31 - 1)
    for wrong in (-2, 2**31):
        with pytest.raises(NoPartitionError, match=f"{wrong} is not a partition"):
            await router.route("t", None, wrong)


def test_rejects_an_empty_list() -> None:
    with pytest.raises(ConfigError, match="list of brokers is empty"):
        StaticRouter([], rng=random.Random())
