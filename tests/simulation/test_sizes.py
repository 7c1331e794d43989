"""Groups of production's size, and beside others: how soon they settle, what that costs, and what is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from consumerd.wire.registry.paths import ids_path
from tests.simulation import requests
from tests.simulation.daemon import Daemon
from tests.simulation.jvm import JvmConsumer
from tests.simulation.world import World

#: Real seconds; virtual ones are what counts here.
pytestmark = pytest.mark.timeout(1800)


def lost_and_broken(world: World) -> tuple[list[object], list[str]]:
    return [*world.account.lost[:5]], world.account.violations[:5]


def spent(world: World) -> Counter[str]:
    """Requests by kind, without heartbeats."""
    counts: Counter[str] = Counter()
    for (_, kind), count in world.zookeeper.requests.items():
        if kind not in requests.HEARTBEATS:
            counts[kind] += count
    return counts


def registered(world: World) -> int:
    node = world.zookeeper.tree.nodes.get(ids_path(world.group))
    return 0 if node is None else len(node.children)


def test_twenty_five_members_that_start_together_claim_a_thousand_partitions_soon() -> None:
    with World(25, round_trip=0.005) as world:
        world.topic("events", 1000)
        for number in range(25):
            world.daemon(f"m{number:02}")
        world.kernel.until(lambda: registered(world) == 25, 10.0, what="all are registered")
        assert world.until_shared() < 5.0
        world.run(1.0)
        world.account.count_all()
        world.produce_all()
        world.finish()
        world.leave(*world.daemons.values())
        world.run(0.1)
    world.account.require_each_once()


@pytest.mark.long
def test_requests_of_a_rebalance_are_proportional_to_moved_partitions() -> None:
    members, partitions = 200, 2000
    settings = {"commit": {"interval": 3600.0}, "rebalance": {"reconcile_interval": 3600.0}}
    with World(200, round_trip=0.001) as world:
        world.topic("events", partitions)
        for number in range(members):
            world.daemon(f"m{number:03}", {**settings, "group": {"consumer_id": f"m{number:03}"}})
            world.run(0.02)
        world.settle(120.0)

        def event(happen: Callable[[], object], all_owned: Callable[[], bool]) -> tuple[int, int, float]:
            """Its requests, how many partitions moved, and after how many seconds all are owned in fair shares."""
            before, owners = spent(world), world.owners()
            happen()
            took = world.kernel.until(all_owned, 60.0, what="all partitions are owned in fair shares")
            world.run(5.0)
            moved = sum(owners.get(partition) != owner for partition, owner in world.owners().items())
            return (spent(world) - before).total(), moved, took

        count, moved, took = event(
            lambda: world.daemon("m0995", {**settings, "group": {"consumer_id": "m0995"}}),
            lambda: registered(world) == members + 1 and world.is_shared,
        )
        limit = requests.of_join(members, moved, 1, 1, 1, waited=took, new_topics=1)
        least = requests.least_of_join(members, moved, 1, 1, 1)
        assert least <= count <= limit < 15_000, (least, count, limit, moved)
        assert took < 5.0
        count, moved, took = event(lambda: world.topic("events", partitions + 1), lambda: world.is_shared)
        limit = requests.of_partitions(members + 1, moved, 1, waited=took)
        assert requests.least_of_partitions(members + 1, moved) <= count <= min(limit, 3_000), (count, limit, moved)
        assert took < 5.0
        world.account.count_all()
        world.produce_all()
        world.finish()
    assert lost_and_broken(world) == ([], [])
    assert world.account.repeated == []


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "theirs first"])
def test_shares_two_hundred_partitions_with_a_jvm_consumer(ours_first: bool) -> None:
    """The other one joins and leaves in order."""
    with World(7 + ours_first, round_trip=0.005) as world:
        world.topic("events", 200)
        make: list[Callable[[], Daemon | JvmConsumer]] = [lambda: world.daemon("ours"), lambda: world.jvm("theirs")]
        if not ours_first:
            make.reverse()
        make[0]()
        world.settle()
        world.produce_steadily(200)
        world.run(2.0)  # the peer does not write its offsets now, which it would go on with behind its release
        second = make[1]()
        world.until_shared(30.0)
        world.run(5.0)
        assert world.shares() == {"ours": 100, "theirs": 100}
        world.leave(second)
        world.until_shared(30.0)
        world.run(3.0)
        world.finish()
        peer = world.jvm_consumers["theirs"]
    assert peer.gave_up == 0
    assert lost_and_broken(world) == ([], [])
    # A draining owner commits after a peer has read the offset; no other message is repeated.
    again = Counter(each[:2] for each in world.account.repeated)
    members = {each.member for each in world.account.hand_overs if (each.partition, each.offset) in again}
    assert members <= {"ours", "theirs"}
    for message in again:
        assert [each.member for each in world.account.history(message[0]) if each.offset == message[1]] == [
            "ours",
            "theirs",
        ]


def test_group_works_on_a_server_without_multi() -> None:
    """As those of 3.3: claims, commits and releases are single requests."""
    with World(33, round_trip=0.005) as world:
        world.zookeeper.with_multi = False
        world.topic("events", 100)
        world.daemon("a")
        world.settle()
        world.produce_steadily(100)
        world.run(2.0)
        second = world.daemon("b")
        assert world.until_shared() < 5.0
        world.run(2.0)
        world.leave(second)
        assert world.until_shared() < 5.0
        world.run(2.0)
        world.finish()
        world.leave(*world.daemons.values())
        world.run(0.1)
        assert (
            not [kind for _, kind in world.zookeeper.requests if kind == "multi"][1:]
            or world.zookeeper.requests["a", "multi"] == 1
        )
    world.account.require_each_once()
