"""A first look at whole members in virtual time: one, then two, and the same again for the same seed."""

from __future__ import annotations

import pytest

from tests.simulation.world import World

#: Seconds, by default.
SESSION_TIMEOUT = 6.0


def join_and_leave(seed: int) -> World:
    """A second member joins and leaves in order while messages come."""
    with World(seed) as world:
        world.topic("events", 20)
        world.daemon("a")
        world.settle()
        world.produce_steadily(200)
        world.run(3.0)
        second = world.daemon("b")
        world.until_shared()
        assert world.shares() == {"a": 10, "b": 10}
        world.run(3.0)
        world.leave(second)
        world.until_shared()
        world.run(2.0)
        world.finish()
        assert world.daemons["a"].alive
    return world


def test_one_member_consumes_everything_and_commits_it() -> None:
    with World() as world:
        world.topic("events", 50)
        member = world.daemon("a", {"commit": {"interval": 1.0}})
        world.settle()
        world.produce_steadily(500)
        world.run(10.0)
        world.finish()
        assert world.account.count > 4500
        world.run(2.0)
        assert (world.account.lost, world.account.repeated, world.account.uncommitted) == ([], [], [])
        assert world.leave(member) < 1.0
    assert world.account.violations == []


def test_delivers_every_message_once_while_a_member_joins_and_leaves() -> None:
    world = join_and_leave(seed=1)
    account = world.account
    assert (account.violations, account.lost, account.repeated) == ([], [], [])
    assert account.count > 1500
    assert {each.member for each in account.hand_overs} == {"a", "b"}


def test_only_the_same_seed_gives_the_same_run() -> None:
    runs = [join_and_leave(seed).account.hand_overs for seed in (7, 7, 8)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("seed", range(3, 8))
def test_takes_over_from_a_killed_member_within_three_seconds_of_its_session(seed: int) -> None:
    with World(seed) as world:
        world.topic("events", 20)
        world.daemon("a")
        victim = world.daemon("b")
        world.settle()
        world.produce_steadily(200)
        world.run(3.0)
        victim.kill()
        took = world.until_shared()
        assert 4.0 < took < SESSION_TIMEOUT + 3.0
        assert world.shares() == {"a": 20}
        world.run(2.0)
        world.finish()
    assert (world.account.violations, world.account.lost) == ([], [])
    assert [name for _, name in world.zookeeper.expired] == ["b"]


def test_suspended_member_delivers_nothing_after_its_lease_and_rejoins() -> None:
    with World(4) as world:
        world.topic("events", 20)
        world.daemon("a")
        frozen = world.daemon("b")
        world.settle()
        world.produce_steadily(200)
        world.run(3.0)
        frozen.freeze()
        world.run(15.0)
        assert world.shares() == {"a": 20}
        frozen.thaw()
        world.until_shared()
        assert world.shares() == {"a": 10, "b": 10}
        world.run(2.0)
        world.finish()
    assert world.account.lost == []


def test_nudge_wakes_a_jvm_consumer_that_gave_up() -> None:
    """Our drain takes longer than it waits for what it is to own."""
    with World(6, round_trip=0.005) as world:
        world.topic("events", 4)
        world.account.count_all()
        world.daemon("ours", {"rebalance": {"drain_timeout": 9.0}}, handling=12.0)
        world.until_shared()
        world.produce_all()
        world.run(2.0)
        peer = world.jvm("theirs")
        world.until_shared(20.0)
        assert world.shares() == {"ours": 2, "theirs": 2}
        assert peer.gave_up == 1
        world.finish()
    assert world.account.lost == []
