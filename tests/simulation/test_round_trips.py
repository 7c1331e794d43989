"""The round trips to ZooKeeper or a broker that a user waits for: at a start, and at the end of another member.

Seconds are virtual, and nothing takes time but the way to the server: whatever is waited for is a round trip, or a
timer. docs/performance.md has the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from tests.simulation.base_world import BaseWorld
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.old_kafka_world import OldKafkaWorld
from tests.simulation.world import World

#: Seconds to the server and back. A message of each partition comes every fifth of it.
ROUND_TRIP = 0.1
#: Round trips after which nothing comes any more.
PATIENCE = 100
#: Part of a round trip: its variation, and the time until the next message.
MORE = 0.9
LATEST: dict[str, Any] = {"fetch": {"initial": "latest"}}


def first_message(world: BaseWorld, member: str, of: Collection[TopicPartition] = ()) -> float:
    """Round trips from now to the first message that a member handles, of some partitions or of any."""
    began, seen = world.kernel.now, len(world.account.hand_overs)
    for _ in range(PATIENCE):
        world.run(ROUND_TRIP)
        for each in world.account.hand_overs[seen:]:
            if each.member == member and (not of or each.partition in of):
                return (each.time - began) / ROUND_TRIP
    raise AssertionError(f"{member} handles nothing")


def with_topics(world: BaseWorld, topics: list[str]) -> dict[str, Any]:
    for topic in topics:
        world.topic(topic, 2)
    world.produce_steadily(2 * len(topics) / (ROUND_TRIP / 5))
    return LATEST


@pytest.mark.parametrize(
    ("world_of", "topics"),
    [(World, ["events"]), (OldKafkaWorld, ["events"]), (OldKafkaWorld, ["a", "b", "c", "d", "e"])],
    ids=["0.7", "1 topic", "5 topics"],
)
def test_starts_and_handovers_in_zookeeper(world_of: Callable[..., World | OldKafkaWorld], topics: list[str]) -> None:
    """They were 42, 24, 21 and 7 with one topic, and 58, 30, 28 and 7 with five."""
    with world_of(1, round_trip=ROUND_TRIP) as world:
        settings = with_topics(world, topics)
        first = world.daemon("a", settings)
        assert first_message(world, "a") < 27 + MORE  # it makes the nodes of the group
        world.settle()
        world.run(1.0)
        second = world.daemon("b", settings)
        assert first_message(world, "b") < 18 + MORE  # it waits for what the first one releases
        world.until_shared()
        world.run(1.0)
        its_own = {partition for partition, owner in world.owners().items() if owner == "b"}
        second.terminate()
        assert first_message(world, "a", its_own) < 6 + MORE
        world.run(1.0)
        first.terminate()
        world.until_ended(first)
        third = world.daemon("c", settings)
        assert first_message(world, "c") < 13 + MORE
        third.terminate()
        world.until_ended(third)
    assert world.account.violations == []


def test_starts_where_a_broker_coordinates() -> None:
    """They were 21 and 19. Each of the three connections takes three: TCP, and two to agree on versions."""
    with KafkaWorld(1, round_trip=ROUND_TRIP) as world:
        settings = with_topics(world, ["events"])
        first = world.daemon("a", settings)
        assert first_message(world, "a") < 18 + MORE
        first.terminate()
        world.until_ended(first)
        second = world.daemon("b", settings)
        assert first_message(world, "b") < 17 + MORE
        second.terminate()
        world.until_ended(second)
    assert world.account.violations == []
