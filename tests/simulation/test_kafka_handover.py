"""Members of groups that a broker coordinates, and of fixed partitions, that come and go: the thin whole slice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.kafka_broker import ERAS, Era
from tests.simulation.kafka_world import KafkaWorld

#: Real seconds; virtual ones are what counts here.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("era", ERAS, ids=lambda era: era.name)
@pytest.mark.parametrize("initial", ["earliest", "latest"])
def test_second_member_joins_and_leaves(era: Era, initial: str) -> None:
    settings: dict[str, Any] = {"fetch": {"initial": initial}}
    with KafkaWorld(1, brokers=2, era=era) as world:
        world.topic("events", 6)
        first = world.daemon("a", settings)
        world.settle()
        world.produce_steadily(40)
        world.run(1.0)
        second = world.daemon("b", settings)
        world.run(1.0)
        world.until_shared(20.0)
        world.run(3.0)
        assert world.leave(second) < 5.0
        world.until_shared(20.0)
        world.run(3.0)
        world.finish()
        assert world.leave(first) < 5.0
        assert not world.kafka.coordinator.members
    world.account.require_each_once()


def test_slow_handler_ends_before_the_coordinator_goes_on_without_the_member() -> None:
    with KafkaWorld(1, brokers=2) as world:
        world.topic("events", 6)
        world.account.count_all()
        first = world.daemon("a", {"rebalance": {"drain_timeout": 60.0}}, handling=40.0)
        world.until_shared(20.0)
        world.produce_all()
        world.run(2.0)
        second = world.daemon("b")
        world.until_shared(20.0)
        assert world.shares() == {"a": 3, "b": 3}
        world.run(1.0)
        assert {each.member for each in world.account.hand_overs} == {"a", "b"}
        world.finish()
        assert first.alive
        world.leave(second)
    assert (world.account.violations, world.account.lost) == ([], [])


def test_fixed_partitions_resume_from_their_commits_after_a_restart() -> None:
    settings: dict[str, Any] = {"group": {"partitions": {"events": [0, 1]}}}
    with KafkaWorld(1, brokers=2, fixed=True) as world:
        world.topic("events", 2)
        world.account.count_all()
        first = world.daemon("a", settings)
        world.produce_steadily(40)
        world.run(3.0)
        world.leave(first)
        world.run(1.0)
        second = world.daemon("b", settings)
        world.run(3.0)
        world.finish()
        world.leave(second)
        assert not world.kafka.coordinator.members
    world.account.require_each_once()


@pytest.mark.parametrize("partitions", [1, 100])
def test_idle_member_sets_seven_timers_a_second_whatever_it_owns(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two each for stalls, heartbeats (every second) and what follows from them; one for the lease."""
    with KafkaWorld(1, brokers=1, era=ERAS[-1]) as world:
        world.topic("events", partitions)
        member = world.daemon("a", {})
        world.settle()
        world.run(10.0)
        timers: list[float] = []
        call_at = member.loop.call_at

        def counted(when: float, *arguments: Any, **options: Any) -> Any:
            timers.append(when)
            return call_at(when, *arguments, **options)

        monkeypatch.setattr(member.loop, "call_at", counted)
        world.run(20.0)
        assert len(timers) <= 7 * 20
        assert len(timers) >= 20  # they are what is counted
        assert world.leave(member) < 5.0
