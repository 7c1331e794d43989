"""The time until many partitions are started whose broker is far away."""

from __future__ import annotations

import re

import pytest

from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.v07 import OffsetsRequest
from tests.simulation.world import World

#: Seconds to the broker, each way: 0.1 there and back.
FAR = 0.05
PARTITIONS = 1000


def begun(world: World) -> int:
    lines = [what for _, _, what in world.kernel.timeline if what.startswith("partition_started ")]
    counts = [re.search(r" partitions=(\d+)", line) for line in lines]  # without a number: one
    return sum(1 if count is None else int(count[1]) for count in counts)


@pytest.mark.parametrize("initial", ["earliest", "latest"])
def test_starts_a_thousand_partitions_of_a_distant_broker_within_three_seconds(initial: str) -> None:
    with World(1, round_trip=0.001) as world:
        world.add_broker(1, latency=FAR)
        world.topic("events", PARTITIONS, broker=1)
        world.daemon("a", {"fetch": {"initial": initial}})
        world.kernel.until(lambda: begun(world) == PARTITIONS, 3.0, what="all partitions have begun")


def test_connections_closed_for_some_partitions_delay_the_others_by_seconds_only() -> None:
    bad = {7, 300, 301, 999}
    with World(2, round_trip=0.001) as world:
        broker = world.add_broker(1, latency=FAR)
        world.topic("events", PARTITIONS, broker=1)

        def refuse(request: object) -> Exception | None:
            if isinstance(request, OffsetsRequest) and request.partition in bad:
                return ConnectionClosedError("hung up")
            return None

        broker.store.on_request = refuse
        world.daemon("a")
        world.kernel.until(lambda: begun(world) == PARTITIONS - len(bad), 6.0, what="all others have begun")
        world.run(10.0)
        assert begun(world) == PARTITIONS - len(bad)
        # Repeated requests do not affect members that join later.
        world.topic("events", PARTITIONS + 500, broker=1)
        world.kernel.until(lambda: begun(world) == PARTITIONS - len(bad) + 500, 4.0, what="those that came have begun")
        bad.clear()
        world.kernel.until(lambda: begun(world) == PARTITIONS + 500, 3.0, what="they have begun, too")
