"""Members join and leave in order, without kills or cut connections: no message may be lost or delivered twice."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.errors import IdTakenError
from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.paths import offset_path, owner_path
from tests.simulation.daemon import Daemon
from tests.simulation.world import World

#: Real seconds; virtual ones are what counts here.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("initial", ["earliest", "latest"])
@pytest.mark.parametrize("milliseconds", [1, 5, 10])
@pytest.mark.parametrize("partitions", [200, 600])
def test_second_member_joins_and_leaves(partitions: int, milliseconds: int, initial: str) -> None:
    settings = {"fetch": {"initial": initial}}
    with World(partitions + milliseconds, round_trip=milliseconds / 1000) as world:
        world.topic("events", partitions)
        first = world.daemon("a", settings)
        world.settle()
        world.produce_steadily(partitions)
        world.run(1.0)  # nothing was committed on the interval yet: what is, the drains have to write
        second = world.daemon("b", settings)
        assert world.until_shared() < 5.0
        world.run(3.0)
        assert world.leave(second) < 5.0
        assert world.until_shared() < 5.0
        world.run(3.0)
        world.finish()
        world.leave(first)
    world.account.require_each_once()


def test_messages_after_the_latest_offset_survive_a_kill_before_the_first_commit() -> None:
    """The next member finds the start offset of the first one only if it was committed."""
    settings = {"fetch": {"initial": "latest"}}
    with World(1) as world:
        world.topic("events", 20)
        first = world.daemon("a", settings)
        world.settle()
        world.produce_steadily(200)
        world.run(2.0)
        first.kill()
        world.daemon("b", settings)
        world.until_shared()
        world.run(2.0)
        world.finish()
    assert (world.account.violations, world.account.lost) == ([], [])


@pytest.mark.parametrize("milliseconds", [1, 10])
def test_graceful_stop_commits_a_thousand_partitions(milliseconds: int) -> None:
    with World(milliseconds, round_trip=milliseconds / 1000) as world:
        world.topic("events", 1000)
        member = world.daemon("a", {"commit": {"interval": 60.0}})
        world.settle()
        world.produce_all()
        world.run(5.0)
        assert world.leave(member) < 2.0
        world.run(0.1)
    world.account.require_each_once()


def test_waits_for_the_last_commit_to_a_distant_zookeeper() -> None:
    """It is the first one, too, and makes the nodes above: some eight round trips, and the drain's time is over."""
    settings = {"commit": {"interval": 3600.0}, "rebalance": {"drain_timeout": 0.1}}
    with World(1, round_trip=0.4) as world:
        world.topic("events", 4)
        first = world.daemon("a", settings)
        world.settle()
        world.produce_all()
        world.run(3.0)
        second = world.daemon("b", settings)
        world.until_shared()
        world.run(5.0)
        world.finish()
        world.leave(second)
        world.leave(first)
        world.run(1.0)
    world.account.require_each_once()


def test_late_commit_writes_nothing_after_the_owner_changed() -> None:
    """Between the look at the owner node and the commit's arrival a peer takes the partition over and continues."""
    partition = TopicPartition("events", 0, 0)
    with World(1, round_trip=0.01) as world:
        zookeeper = world.zookeeper
        world.topic("events", 1)
        member = world.daemon("a", {"commit": {"interval": 2.0}})
        world.settle()
        world.produce(partition, 5)
        world.run(3.0)
        peer = zookeeper.peer("peer")
        taken: list[int] = []

        def take_over(owner: str, kind: str) -> None:
            if (owner, kind) != ("a", "multi") or taken:
                return
            end = world.ends()[partition]
            world.produce(partition, 5)
            taken.append(world.ends()[partition])
            zookeeper.remove(owner_path(world.group, partition))
            zookeeper.put(owner_path(world.group, partition), b"group_peer-0", session=peer)
            offsets = [number for number in world.account.offsets(partition) if number >= end]
            world.account.begin("peer", partition, offsets)
            world.account.end("peer", partition, offsets, handled=True)
            zookeeper.put(offset_path(world.group, partition), b"%d" % taken[0])

        zookeeper.before = take_over
        world.produce(partition, 5)
        world.kernel.until(lambda: bool(taken), 10.0, what="the member commits")
        world.run(2.0)
        assert zookeeper.tree.nodes[offset_path(world.group, partition)].data == b"%d" % taken[0]
        zookeeper.remove(owner_path(world.group, partition))
        world.produce(partition, 5)
        world.finish()
        world.leave(member)
    assert world.account.violations == []
    assert world.account.lost == []


def hold(world: World, partition: TopicPartition) -> None:
    """Produce a message, and let time pass until a handler processes it."""
    before = len(world.account.hand_overs)
    world.produce(partition)
    world.kernel.until(lambda: len(world.account.hand_overs) > before, 5.0, what="a message is handed over", every=0.01)


def hold_one_of_two(world: World, partition: TopicPartition) -> None:
    """The handler, which takes 2 s, ends its current batch in half a second; another batch has been fetched."""
    hold(world, partition)
    world.produce(partition)
    world.run(1.5)


def require_taken_over(world: World, partition: TopicPartition, before: Daemon, after: Daemon) -> None:
    """A frozen member has delivered nothing since, and the next owner gets the rest."""
    world.finish()
    world.leave(before)
    world.leave(after)
    account = world.account
    assert (account.violations, account.lost, account.uncommitted) == ([], [], [])
    assert [each.member for each in account.history(partition)] == ["a", "b", "b"]


def test_suspended_process_delivers_nothing_after_its_lease_ended() -> None:
    """It finds the handler's end before it finds that its lease is over, and the next batch is there already."""
    partition = TopicPartition("events", 0, 0)
    with World(1) as world:
        world.topic("events", 1)
        first = world.daemon("a", handling=2.0)
        world.settle()
        second = world.daemon("b", handling=0.3)
        world.run(3.0)
        hold_one_of_two(world, partition)
        first.freeze()
        world.kernel.until(lambda: world.owners().get(partition) == "b", 20.0, what="the other takes over")
        world.run(5.0)
        first.thaw()
        world.run(5.0)
        require_taken_over(world, partition, first, second)


def test_suspended_machine_delivers_nothing_after_the_lease_ended() -> None:
    """Its timers did not run on, and ZooKeeper cannot be reached yet to say that the session is over."""
    partition = TopicPartition("events", 0, 0)
    with World(1) as world:
        zookeeper, network = world.zookeeper, world.network
        world.topic("events", 1)
        first = world.daemon("a", handling=2.0)
        world.settle()
        second = world.daemon("b", handling=0.3)
        world.run(3.0)
        hold_one_of_two(world, partition)
        network.cut_off("a", zookeeper.host)
        first.suspend()
        world.kernel.until(lambda: world.owners().get(partition) == "b", 20.0, what="the other takes over")
        world.run(5.0)
        first.resume()
        world.run(3.0)
        network.cut_off("a", zookeeper.host, False)
        world.run(5.0)
        require_taken_over(world, partition, first, second)


def test_handler_is_cancelled_right_after_a_suspended_machine_wakes_without_its_lease() -> None:
    """Its timers had seconds to go when the machine fell asleep, and ZooKeeper cannot be reached."""
    partition = TopicPartition("events", 0, 0)
    with World(1) as world:
        zookeeper, network = world.zookeeper, world.network
        world.topic("events", 1)
        member = world.daemon("a", handling=30.0)
        world.settle()
        hold(world, partition)
        network.cut_off("a", zookeeper.host)
        member.suspend()
        world.run(20.0)
        member.resume()
        world.run(0.4)
        assert {each for each, _, _ in world.account.cancelled} == {"a"}
        network.cut_off("a", zookeeper.host, False)
        world.run(3.0)
        world.leave(member)
    assert (world.account.violations, world.account.lost) == ([], [])


def test_each_end_of_a_lease_cancels_batches_of_handlers() -> None:
    partition = TopicPartition("events", 0, 0)
    with World(1) as world:
        network, host = world.network, world.zookeeper.host
        world.topic("events", 1)
        member = world.daemon("a", handling=15.0)
        world.settle()
        hold(world, partition)
        for times in (2, 3):
            network.cut_off("a", host)
            world.run(12.0)
            assert not world.owners()
            network.cut_off("a", host, False)
            world.kernel.until(
                lambda: len(world.account.hand_overs) == times,  # noqa: B023 - called within the turn
                20.0,
                what="it is handed over again",
            )
        world.run(20.0)
        world.leave(member)
    assert (world.account.violations, world.account.lost, world.account.uncommitted) == ([], [], [])


def test_member_that_waits_for_one_partition_notices_the_loss_of_another() -> None:
    """Nothing else would tell it: it commits nothing, and does not look by itself for an hour."""
    settings = {"commit": {"interval": 3600.0}, "rebalance": {"reconcile_interval": 3600.0}}
    own, wanted = TopicPartition("events", 0, 0), TopicPartition("events", 0, 1)
    with World(1) as world:
        zookeeper = world.zookeeper
        peer = zookeeper.peer("peer")
        world.topic("events", 2)
        member = world.daemon("a", settings)
        world.settle()
        world.produce_steadily(20)
        for partition in (wanted, own):
            zookeeper.remove(owner_path(world.group, partition))
            zookeeper.put(owner_path(world.group, partition), b"group_peer-0", session=peer)
            world.run(5.0)
        assert world.account.violations == []
        assert world.kernel.now - world.account.history(own)[-1].time > 3.0
        for partition in (wanted, own):
            zookeeper.remove(owner_path(world.group, partition))
        world.until_shared()
        world.run(3.0)
        world.finish()
        world.leave(member)
    assert (world.account.violations, world.account.lost, world.account.uncommitted) == ([], [], [])


@pytest.mark.parametrize("fate", ["carried out", "late", "lost"])
@pytest.mark.parametrize("seconds", [4.0, 15.0], ids=["same session", "new session"])
def test_stall_with_a_commit_under_way_repeats_nothing_while_nobody_else_owns(seconds: float, fate: str) -> None:
    """ZooKeeper stands still before or after it carries out the commit, whose reply never arrives."""
    with World(7) as world:
        zookeeper, network = world.zookeeper, world.network
        world.topic("events", 20)
        member = world.daemon("a", {"commit": {"interval": 1.0}})
        world.settle()
        world.produce_steadily(500)
        world.run(5.0)
        commits = zookeeper.requests["a", "multi"]

        def stall(owner: str, kind: str) -> None:
            if (owner, kind) == ("a", "multi"):
                network.cut_off("a", zookeeper.host)

        if fate == "carried out":
            zookeeper.before = stall
            world.kernel.until(lambda: zookeeper.requests["a", "multi"] > commits, 10.0, what="the member commits")
            zookeeper.before = lambda owner, kind: None
        else:
            network.cut_off("a", zookeeper.host)
        world.run(seconds)
        assert zookeeper.requests["a", "multi"] - commits == (fate == "carried out")
        for link in network.links_of("a", (zookeeper.host, zookeeper.port)) if fate == "lost" else ():
            link.cut()
        network.cut_off("a", zookeeper.host, False)
        world.until_shared()
        world.run(3.0)
        world.finish()
        world.leave(member)
        assert bool(zookeeper.expired) is (seconds > 10.0)
        world.account.require_each_once(lease_ended=True)


def test_stall_with_a_commit_under_way_continues_after_what_another_member_committed() -> None:
    """The remembered position would set the group back; the next member's commit is newer."""
    partition = TopicPartition("events", 0, 0)
    with World(7, round_trip=0.001) as world:
        zookeeper, network = world.zookeeper, world.network
        world.topic("events", 1)
        first = world.daemon("a", {"commit": {"interval": 1.0}})
        world.settle()
        world.produce_steadily(50)
        world.run(5.0)
        stalled: list[float] = []

        def stall(owner: str, kind: str) -> None:
            if (owner, kind) == ("a", "multi") and not stalled:
                stalled.append(world.kernel.now)
                network.cut_off("a", zookeeper.host)

        zookeeper.before = stall
        world.kernel.until(lambda: bool(stalled), 10.0, what="the member commits")
        second = world.daemon("b", {"commit": {"interval": 1.0}})
        world.kernel.until(lambda: world.owners().get(partition) == "b", 30.0, what="the other takes over")
        world.run(5.0)
        world.leave(second)
        at = world.account.history(partition)[-1].offset
        network.cut_off("a", zookeeper.host, False)
        world.until_shared()
        world.run(3.0)
        world.finish()
        world.leave(first)
        after = [each.offset for each in world.account.history(partition) if each.offset > at]
    account = world.account
    assert (account.violations, account.lost, account.uncommitted) == ([], [], [])
    assert after
    assert len(after) == len({*after})


def test_member_says_for_how_long_its_claim_waits_for_another_owner() -> None:
    partition = TopicPartition("events", 0, 0)
    with World(1) as world:
        zookeeper = world.zookeeper
        world.topic("events", 1)
        peer = zookeeper.peer("peer")
        zookeeper.put(owner_path(world.group, partition), b"group_peer-0", session=peer)
        world.daemon("a")
        world.run(90.0)
        told = [what for _, _, what in world.kernel.timeline if "claim_blocked" in what or " rebalanced" in f" {what}"]
        zookeeper.remove(owner_path(world.group, partition))
        world.until_shared()
        world.run(1.0)
        told_then = [what for _, _, what in world.kernel.timeline if what.startswith("rebalanced")]
    seconds = [float(what.rpartition("seconds=")[2]) for what in told]
    assert [least <= each < least + 3.0 for each, least in zip(seconds, (10, 20, 40, 80), strict=True)] == [True] * 4
    assert all(f"owner=group_peer session={peer:#x}" in what for what in told)
    assert len(told_then) == 1
    assert str(partition) in told_then[0]


def restart(world: World, before: Daemon, settings: dict[str, dict[str, Any]] | None = None) -> Daemon:
    """Kill a process, and start it again with the same id, as systemd does."""
    before.kill()
    world.run(1.0)
    return world.daemon("a", FIXED | (settings or {}))


FIXED: dict[str, dict[str, Any]] = {"group": {"id": "group", "whitelist": ".*", "consumer_id": "a"}}


def waits(world: World) -> list[str]:
    return [what for _, _, what in world.kernel.timeline if "waiting_for_consumer_id" in what]


def test_member_waits_for_its_own_dead_node_while_zookeeper_restarts() -> None:
    """The session of the dead process begins to expire again with each start of ZooKeeper."""
    with World(3) as world:
        zookeeper = world.zookeeper
        world.topic("events", 4)
        first = world.daemon("a", FIXED)
        world.settle()
        again = restart(world, first)
        for _ in range(4):
            world.run(4.0)
            zookeeper.stop()
            world.run(8.0)
            zookeeper.start()
        world.until_shared()
        world.run(3.0)
        assert again.failure is None
        assert len(waits(world)) == 1
        world.leave(again)
    assert world.account.violations == []


def test_member_waits_for_its_own_dead_node_whose_session_lasts_longer() -> None:
    with World(3) as world:
        world.topic("events", 4)
        first = world.daemon("a", FIXED | {"zookeeper": {**world.tables()["zookeeper"], "session_timeout": 40.0}})
        world.settle()
        session = next(iter(world.zookeeper.sessions))
        again = restart(world, first)
        world.until_shared()
        world.run(3.0)
        assert again.failure is None
        (told,) = waits(world)
        assert f"session={session:#x}" in told
        world.leave(again)
    assert world.account.violations == []


def test_member_stops_if_a_node_outlives_any_dead_session() -> None:
    with World(3) as world:
        world.topic("events", 4)
        world.daemon("b", {"group": {**FIXED["group"], "consumer_id": "a"}})
        world.settle()
        twin = world.daemon("a", FIXED)
        began = world.kernel.now
        world.until_ended(twin, 120.0)
        assert isinstance(twin.failure, IdTakenError)
        assert 60.0 <= world.kernel.now - began < 80.0
    assert world.account.violations == []


def test_member_stops_at_once_if_its_id_is_a_persistent_node() -> None:
    with World(3) as world:
        world.topic("events", 4)
        world.zookeeper.put("/consumers/group/ids/group_a", b'{ "events": 1 }')
        member = world.daemon("a", FIXED)
        world.until_ended(member, 20.0)
        assert isinstance(member.failure, IdTakenError)
        assert "a persistent node (/consumers/group/ids/group_a)" in str(member.failure)


@pytest.mark.parametrize("seconds", [3.0, 30.0], ids=["within the session timeout", "longer"])
def test_member_survives_a_zookeeper_that_sheds_load(seconds: float) -> None:
    """It keeps its connection and session, loses no message, and repeats what was in hand when a lease ended alone."""
    with World(5) as world:
        zookeeper = world.zookeeper
        world.topic("events", 20)
        member = world.daemon("a", {"commit": {"interval": 1.0}})
        world.settle()
        world.produce_steadily(200)
        for _ in range(3):
            world.run(2.3)
            zookeeper.sheds_load = True
            world.run(seconds)
            zookeeper.sheds_load = False
            world.until_shared()
            world.run(3.0)
        world.finish()
        assert not [what for _, _, what in world.kernel.timeline if "session_suspended" in what]
        assert (len(zookeeper.sessions), zookeeper.expired) == (1, [])
        world.leave(member)
    world.account.require_each_once(lease_ended=True)


def test_member_joins_while_zookeeper_sheds_load() -> None:
    with World(5) as world:
        zookeeper = world.zookeeper
        world.topic("events", 20)
        zookeeper.sheds_load = True
        member = world.daemon("a")
        for _ in range(20):
            world.run(0.7)
            zookeeper.sheds_load = not zookeeper.sheds_load
        zookeeper.sheds_load = False
        world.settle()
        world.produce_all()
        world.finish()
        world.leave(member)
    world.account.require_each_once()
