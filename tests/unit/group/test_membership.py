"""The membership machine, rule by rule.

`Bench` holds what ZooKeeper would hold and answers snapshots from it; every other answer is given by the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group.membership import ZooKeeperMember, _Nudges
from consumerd.group.membership_tables import (
    HOLD,
    LINK,
    PHASE,
    Hold,
    Link,
    LinkCause,
    MembershipSettings,
    Phase,
    follow,
)
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

Actions = list[e.Action]


A = TypeVar("A")

ME = "g_m"
#: Ids that sort before and after ours.
BEFORE, AFTER = "g_a", "g_z"
ONE_STREAM = '{ "t": 1 }'
P0, P1, P2, P3 = (TopicPartition("t", 0, number) for number in range(4))


class Bench:
    """A member and its world. `feed` returns the actions but for SetTimer, whose time is in `timer`."""

    def __init__(
        self,
        streams: int = 1,
        *,
        partitions: int = 2,
        subscription: Subscription | None = None,
        settings: MembershipSettings | None = None,
    ) -> None:
        self.member = ZooKeeperMember(ME, subscription or StaticSubscription({"t": streams}), settings)
        self.now = 100.0
        self.timer = 0.0
        self.session = 1
        self.members: dict[str, bytes | str | None] = {}
        self.own_id: int | None = None
        self.topics: dict[str, dict[int, int]] = {"t": {0: partitions}}
        self.owners: dict[TopicPartition, int] = {}
        self.asked: e.TakeSnapshot | None = None

    def feed(self, event: e.Event) -> list[e.Action]:
        actions = self.member.handle(event, self.now)
        for action in actions:
            if isinstance(action, e.SetTimer):
                self.timer = action.at
            elif isinstance(action, e.TakeSnapshot):
                self.asked = action
        return [action for action in actions if not isinstance(action, e.SetTimer)]

    def look(self) -> list[e.Action]:
        """Answer the snapshot that was asked for last."""
        assert self.asked is not None, "no snapshot was asked for"
        asked, self.asked = self.asked, None
        return self.feed(e.SnapshotTaken(asked.ticket, self.snapshot(asked)))

    def snapshot(self, asked: e.TakeSnapshot) -> e.MembershipSnapshot:
        members = self.members | ({ME: "?"} if self.own_id is not None else {})
        verified = {partition: self.owners.get(partition) for partition in asked.verify}
        claimed = frozenset(self.owners) if asked.list_owners else None
        topics = {topic: {broker: range(n) for broker, n in found.items()} for topic, found in self.topics.items()}
        return e.MembershipSnapshot(members, self.own_id, topics, verified, claimed)

    def tick(self, seconds: float | None = None) -> list[e.Action]:
        """Let time pass, by default until the timer."""
        self.now = max(self.now, self.timer) if seconds is None else self.now + seconds
        return self.feed(e.TimerFired())

    def wait_for_look(self) -> float:
        """Let time pass until a snapshot is asked for; returns how long that took, in seconds."""
        begin = self.now
        while self.asked is None:
            assert self.tick() == [] or self.asked is not None
        return self.now - begin

    def fail_look(self) -> None:
        """The snapshot that was asked for last fails."""
        assert self.asked is not None, "no snapshot was asked for"
        asked, self.asked = self.asked, None
        assert self.feed(e.Failed(asked.ticket)) == []

    def trigger(self) -> list[e.Action]:
        """A trigger after a quiet time: longer than the settling time."""
        self.now += 1.0
        return self.feed(e.Triggered())

    def trigger_and_look(self) -> list[e.Action]:
        self.trigger()
        return self.look()

    def joined_by_peer(self) -> e.Drain:
        """A member joins that gets half of what is ours: the drain of it."""
        self.members[AFTER] = ONE_STREAM
        return only(e.Drain, self.trigger_and_look())

    def claimed(self, claim: e.Claim, *partitions: TopicPartition, blocked: Iterable[TopicPartition] = ()) -> Actions:
        """All of it by default, and what is not blocked; what is not named otherwise is left out of the answer."""
        blocked = frozenset(blocked)
        claimed = frozenset(partitions) or frozenset(claim.streams) - blocked
        self.owners |= dict.fromkeys(claimed, claim.session_id)
        return self.feed(e.Claimed(claim.ticket, claimed, blocked))

    def released(self, release: e.Release, *partitions: TopicPartition) -> Actions:
        """All of it, or these."""
        released = frozenset(partitions) or release.partitions
        for partition in released:
            self.owners.pop(partition, None)
        return self.feed(e.Released(release.ticket, released))

    def drained(self, drain: e.Drain, *partitions: TopicPartition) -> Actions:
        """All of it, or these."""
        return self.feed(e.Drained(drain.ticket, frozenset(partitions) or drain.partitions))

    def abandoned(self, abandon: e.Abandon, *partitions: TopicPartition) -> Actions:
        """All of it, or these."""
        return self.feed(e.Abandoned(abandon.ticket, frozenset(partitions) or abandon.partitions))

    def connect(self) -> None:
        self.feed(e.SessionStarted(self.session))

    def register(self) -> list[e.Action]:
        """From the session to the snapshot that shows our id; returns what follows from it."""
        self.connect()
        ticket = only(e.Register, self.look()).ticket
        self.own_id = self.session
        self.feed(e.Registered(ticket))
        return self.look()

    def settle(self) -> Bench:
        """Up to a member that consumes all that is its own."""
        self.claimed(only(e.Claim, self.register()))
        assert self.member.settled
        return self


def every(kind: type[A], actions: list[e.Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def only(kind: type[A], actions: list[e.Action]) -> A:
    assert [type(action) for action in actions] == [kind]
    return every(kind, actions)[0]


# ---- Joining ---------------------------------------------------------------------------------------------------------


def test_reads_registers_reads_claims_and_consumes_in_order() -> None:
    bench = Bench(partitions=1)
    first = only(e.TakeSnapshot, bench.feed(e.SessionStarted(1)))
    assert first.session_id == 1
    assert first.topics == frozenset({"t"})
    assert not first.verify
    register = only(e.Register, bench.look())
    assert bench.member.phase is Phase.REGISTERING
    bench.own_id = 1
    only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    claim = only(e.Claim, bench.look())
    assert (claim.streams, claim.session_id) == ({P0: 0}, 1)
    assert bench.claimed(claim) == [e.StartConsuming(1, {P0: 0})]
    assert bench.member.settled


def test_filter_reads_all_topics() -> None:
    bench = Bench(subscription=FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t|u"), 1))
    bench.topics = {"t": {0: 1}, "u": {0: 1}, "v": {0: 1}}
    actions = bench.register()
    assert {partition.topic for partition in only(e.Claim, actions).streams} == {"t", "u"}
    bench.trigger()
    assert bench.asked is not None
    assert bench.asked.topics is None


def test_has_no_target_and_is_not_settled_before_its_first_snapshot_as_a_member() -> None:
    bench = Bench()
    assert bench.member.target == {}
    bench.connect()
    register = only(e.Register, bench.look())
    bench.feed(e.Registered(register.ticket))
    assert bench.member.phase is Phase.MEMBER
    assert bench.member.settled is False


def test_target_may_be_computed_before_the_snapshot_is_handled() -> None:
    bench = Bench(partitions=1000)
    bench.connect()
    register = only(e.Register, bench.look())
    bench.own_id = 1
    asked = only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    for _ in bench.member.prepare(bench.snapshot(asked)):
        assert bench.feed(e.TimerFired()) == []  # other events come between the steps
    assert len(only(e.Claim, bench.look()).streams) == 1000


def test_member_without_partitions_is_settled() -> None:
    bench = Bench(partitions=1)
    bench.members[BEFORE] = ONE_STREAM
    bench.register()
    assert bench.member.settled
    assert not bench.member.target


def test_waits_for_id_node_of_another_session() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6))
    bench.own_id = 77  # of our former process, say
    bench.connect()
    register = only(e.Register, bench.look())
    for attempt in range(50):
        assert bench.feed(e.RegistrationBlocked(register.ticket)) == []
        assert bench.timer == pytest.approx(bench.now + min(0.2 * 2**attempt, 2.0))
        only(e.TakeSnapshot, bench.tick())
        register = only(e.Register, bench.look())
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    assert every(e.Claim, bench.look())


def test_finds_registration_after_lost_reply() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(e.Failed(only(e.Register, bench.look()).ticket))
    bench.own_id = 1
    only(e.TakeSnapshot, bench.tick())
    assert every(e.Claim, bench.look())
    assert bench.member.phase is Phase.MEMBER


def test_registers_again_without_id_node_and_keeps_partitions() -> None:
    bench = Bench().settle()
    bench.own_id = None
    bench.topics["t"] = {0: 3}
    register = only(e.Register, bench.trigger_and_look())
    assert set(bench.member.holds.values()) == {Hold.CONSUMING}
    bench.own_id = 1
    only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    assert only(e.Claim, bench.look()).streams == {P2: 0}


JSON_MEMBER = '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def test_rejects_group_of_other_dialect_before_registering() -> None:
    bench = Bench()
    bench.members[BEFORE] = JSON_MEMBER
    bench.connect()
    refuse, finished = bench.look()
    assert isinstance(refuse, e.RefuseGroup)
    assert "0.8" in refuse.reason
    assert isinstance(finished, e.Finished)


def test_keeps_partitions_when_other_dialect_joins_later() -> None:
    bench = Bench().settle()
    bench.members |= {BEFORE: JSON_MEMBER, AFTER: ONE_STREAM}
    warning = only(e.Warn, bench.trigger_and_look())
    assert "0.8" in warning.reason
    assert "kept" in warning.reason
    assert bench.trigger_and_look() == []
    assert bench.member.settled
    del bench.members[BEFORE]
    assert only(e.Drain, bench.trigger_and_look()).partitions == {P1}
    bench.members[BEFORE] = JSON_MEMBER
    only(e.Warn, bench.trigger_and_look())  # again: it had gone in between


def test_completes_rebalance_beside_other_dialect() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    bench.members[BEFORE] = JSON_MEMBER
    only(e.Warn, bench.trigger_and_look())
    release = only(e.Release, bench.drained(drain))
    assert bench.released(release) == []
    assert bench.member.holds == {P0: Hold.CONSUMING}


def test_abandons_lost_partitions_beside_other_dialect() -> None:
    bench = Bench().settle()
    bench.members[BEFORE] = JSON_MEMBER
    bench.owners[P0] = 66
    warning, abandon = bench.trigger_and_look()
    assert isinstance(warning, e.Warn)
    assert isinstance(abandon, e.Abandon)
    assert abandon.partitions == {P0}


def test_registers_again_only_after_other_dialect_left() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6)).settle()
    only(e.Abandon, bench.feed(e.SessionExpired()))
    bench.session, bench.own_id, bench.owners = 2, None, {}
    bench.members[BEFORE] = JSON_MEMBER
    bench.feed(e.SessionStarted(2))
    only(e.Warn, bench.look())
    for attempt in range(10):
        assert bench.timer == pytest.approx(bench.now + min(0.2 * 2**attempt, 2.0))
        only(e.TakeSnapshot, bench.tick())
        assert bench.look() == []
    del bench.members[BEFORE]
    bench.tick()
    only(e.Register, bench.look())


def test_claims_nothing_without_id_node_beside_other_dialect() -> None:
    bench = Bench().settle()
    bench.members[BEFORE] = JSON_MEMBER
    bench.own_id = None
    del bench.owners[P0]
    _warning, abandon = bench.trigger_and_look()
    assert isinstance(abandon, e.Abandon)
    assert bench.abandoned(abandon) == []
    assert not bench.member.settled
    bench.tick()
    assert bench.look() == []
    assert bench.member.holds == {P0: Hold.DOUBTFUL, P1: Hold.CONSUMING}
    del bench.members[BEFORE]
    bench.tick()
    register = only(e.Register, bench.look())
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    assert only(e.Claim, bench.look()).streams == {P0: 0}


def test_skips_unreadable_members_with_one_warning_each() -> None:
    bench = Bench(partitions=2)
    bench.members |= {BEFORE: "not a subscription", AFTER: ONE_STREAM}
    bench.connect()
    warning, register = bench.look()
    assert isinstance(warning, e.Warn)
    assert BEFORE in warning.reason
    assert isinstance(register, e.Register)
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    assert only(e.Claim, bench.look()).streams == {P0: 0}  # AFTER has the other one


# ---- Rebalancing -----------------------------------------------------------------------------------------------------


def test_leaves_unchanged_partitions_alone() -> None:
    bench = Bench().settle()
    assert bench.joined_by_peer().partitions == {P1}
    assert bench.member.holds[P0] is Hold.CONSUMING


def test_does_nothing_for_unchanged_target() -> None:
    bench = Bench().settle()
    assert bench.trigger_and_look() == []


def test_drains_releases_and_claims_in_order() -> None:
    bench = Bench(partitions=4)
    bench.members[BEFORE] = ONE_STREAM
    bench.settle()
    assert set(bench.member.target) == {P2, P3}
    del bench.members[BEFORE]
    drain = bench.joined_by_peer()
    assert drain.partitions == {P2, P3}
    release = only(e.Release, bench.drained(drain, P3))
    assert release.partitions == {P3}
    assert bench.released(release) == []  # the other one is still being drained
    release = only(e.Release, bench.drained(drain, P2))
    assert release.partitions == {P2}
    assert only(e.Claim, bench.released(release)).streams == {P0: 0, P1: 0}


def test_says_why_a_partition_is_not_consumed_in_each_state() -> None:
    bench = Bench(partitions=4)

    def why(*partitions: TopicPartition) -> set[str | None]:
        return {bench.member.why_not_consumed(each) for each in partitions}

    assert why(P0) == {"there is no connection to ZooKeeper"}
    bench.connect()
    assert why(P0) == {"the member's id node is not registered"}
    ticket = only(e.Register, bench.look()).ticket
    bench.own_id = bench.session
    bench.members[BEFORE] = ONE_STREAM
    bench.feed(e.Registered(ticket))
    assert why(P0) == {"no snapshot of the group was read in this session"}
    claim = only(e.Claim, bench.look())
    assert why(P0) == {"it is assigned to another member"}
    assert why(TopicPartition("other", 0, 0)) == {"it is in no topic that the group consumes"}
    assert why(P2, P3) == {"its owner node is being created"}
    bench.claimed(claim, blocked={P3})
    assert why(P2) == {None}
    assert why(P3) == {"it is claimed after the next snapshot of the group"}
    del bench.members[BEFORE]
    drain = bench.joined_by_peer()
    assert why(P0, P1) == {"this member gives up its former partitions first, 1 of them now"}
    release = only(e.Release, bench.drained(drain))
    bench.feed(e.Failed(release.ticket))
    bench.feed(e.Released(release.ticket, frozenset()))
    assert why(P0, P1) == {"a write to ZooKeeper failed and is tried again later"}
    bench.feed(e.SessionSuspended())
    assert why(P0, P1) == {"there is no connection to ZooKeeper"}
    bench.feed(e.StopRequested())
    bench.feed(e.SessionResumed())
    assert why(P0, P1) == {"the member is leaving the group"}


def test_combines_partitions_due_together_in_one_action() -> None:
    bench = Bench(partitions=1000)
    claim = only(e.Claim, bench.register())
    assert len(claim.streams) == 1000
    assert len(only(e.StartConsuming, bench.claimed(claim)).streams) == 1000
    drain = bench.joined_by_peer()
    assert len(drain.partitions) == 500
    release = only(e.Release, bench.drained(drain))
    assert release.partitions == drain.partitions
    assert bench.released(release) == []
    assert len(only(e.Abandon, bench.feed(e.SessionExpired())).partitions) == 500


def test_releases_and_claims_on_change_of_stream() -> None:
    bench = Bench(streams=2, partitions=2).settle()
    assert bench.member.target == {P0: 0, P1: 1}
    bench.topics["t"] = {0: 4}
    drain = only(e.Drain, bench.trigger_and_look())
    assert drain.partitions == {P1}
    claim = only(e.Claim, bench.released(only(e.Release, bench.drained(drain))))
    assert claim.streams == {P1: 0, P2: 1, P3: 1}


def test_releases_vanished_partition() -> None:
    bench = Bench().settle()
    bench.topics["t"] = {0: 1}
    assert only(e.Drain, bench.trigger_and_look()).partitions == {P1}


def test_repeats_blocked_claims_from_fresh_snapshots() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6))
    claim = only(e.Claim, bench.register())
    assert bench.claimed(claim, blocked={P1}) == [e.StartConsuming(1, {P0: 0})]
    for attempt in range(500):
        pause = min(0.2 * 2**attempt, 2.0)
        assert bench.timer == pytest.approx(bench.now + pause)
        assert bench.tick(pause / 2) == []  # a timer that comes too early
        assert bench.timer == pytest.approx(bench.now + pause / 2)
        only(e.TakeSnapshot, bench.tick())
        claim = only(e.Claim, bench.look())
        assert claim.streams == {P1: 0}
        assert bench.claimed(claim, blocked={P1}) == []
    bench.tick()
    claim = only(e.Claim, bench.look())
    assert bench.member.holds == {P0: Hold.CONSUMING, P1: Hold.CLAIMING}
    assert bench.claimed(claim) == [e.StartConsuming(1, {P1: 0})]


def block_often(bench: Bench, claim: e.Claim) -> None:
    """Until the pauses are as long as they get; a snapshot is requested at the end."""
    for attempt in range(6):
        bench.claimed(claim, blocked=claim.streams)
        assert bench.wait_for_look() == pytest.approx(min(0.2 * 2**attempt, 2.0))
        claim = only(e.Claim, bench.look())
    bench.claimed(claim, blocked=claim.streams)
    bench.wait_for_look()


def test_resets_pauses_after_successful_claim() -> None:
    bench = Bench()
    block_often(bench, only(e.Claim, bench.register()))
    bench.claimed(only(e.Claim, bench.look()))
    bench.topics["t"] = {0: 3}
    bench.claimed(only(e.Claim, bench.trigger_and_look()), blocked={P2})
    assert bench.wait_for_look() == pytest.approx(0.2)


def test_resets_pauses_after_obsolete_claims() -> None:
    bench = Bench()
    block_often(bench, only(e.Claim, bench.register()))
    bench.members |= {BEFORE: ONE_STREAM, "g_b": ONE_STREAM}
    assert bench.look() == []
    assert bench.member.settled
    bench.members.clear()
    claim = only(e.Claim, bench.trigger_and_look())
    bench.claimed(claim, blocked=claim.streams)
    assert bench.wait_for_look() == pytest.approx(0.2)


def test_snapshot_during_claim_does_not_reset_pauses() -> None:
    bench = Bench()
    block_often(bench, only(e.Claim, bench.register()))
    claim = only(e.Claim, bench.look())
    assert bench.trigger_and_look() == []
    bench.claimed(claim, blocked=claim.streams)
    assert bench.wait_for_look() == pytest.approx(2.0)


def test_resets_pauses_after_long_registration() -> None:
    bench = Bench()
    bench.own_id = 77
    bench.connect()
    for _ in range(6):
        bench.feed(e.RegistrationBlocked(only(e.Register, bench.look()).ticket))
        bench.tick()
    register = only(e.Register, bench.look())
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    claim = only(e.Claim, bench.look())
    bench.claimed(claim, blocked=claim.streams)
    assert bench.wait_for_look() == pytest.approx(0.2)


def test_drops_obsolete_blocked_claim() -> None:
    bench = Bench()
    bench.claimed(only(e.Claim, bench.register()), blocked={P1})
    bench.members[AFTER] = ONE_STREAM
    bench.tick()
    assert bench.look() == []
    assert bench.member.settled


def test_drains_of_rebalance_share_deadline_from_trigger() -> None:
    bench = Bench(partitions=4).settle()
    bench.trigger()
    triggered = bench.now
    bench.now += 1.5  # a slow snapshot
    bench.feed(e.Triggered())  # a second trigger does not give more time
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.look())
    assert drain.partitions == {P2, P3}
    assert drain.deadline == pytest.approx(triggered + 4.0)


def suspended(bench: Bench, seconds: float) -> None:
    bench.feed(e.SessionSuspended())
    bench.now += seconds
    only(e.TakeSnapshot, bench.feed(e.SessionResumed()))


def failing(bench: Bench, seconds: float) -> None:
    end = bench.now + seconds
    while bench.now < end:
        bench.fail_look()
        bench.wait_for_look()


@pytest.mark.parametrize("away", [suspended, failing])
def test_drain_after_deadline_gets_full_time_and_nudge(
    away: Callable[[Bench, float], None],
) -> None:
    bench = Bench().settle()
    bench.trigger()
    away(bench, 60.0)
    bench.now += 1.5  # a slow snapshot
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.look())
    assert drain.deadline == pytest.approx(bench.now + 4.0)
    release = only(e.Release, bench.drained(drain))
    only(e.Nudge, bench.released(release))  # peers may have seen the trigger when we did, and given up


def test_short_suspension_does_not_extend_drain() -> None:
    bench = Bench().settle()
    bench.trigger()
    triggered = bench.now
    suspended(bench, 3.0)
    bench.members[AFTER] = ONE_STREAM
    assert only(e.Drain, bench.look()).deadline == pytest.approx(triggered + 4.0)


def test_restarts_drained_partition_that_is_ours_again() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []
    assert bench.drained(drain) == [e.StartConsuming(1, {P1: 0})]
    assert bench.member.settled


def test_never_starts_second_action_for_partition() -> None:
    bench = Bench()
    claim = only(e.Claim, bench.register())
    assert bench.trigger_and_look() == []  # claims under way
    bench.claimed(claim)
    drain = bench.joined_by_peer()
    assert bench.trigger_and_look() == []
    release = only(e.Release, bench.drained(drain))
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []
    assert only(e.Claim, bench.released(release)).streams == {P1: 0}


def test_claims_nothing_while_newer_snapshot_is_awaited() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    release = only(e.Release, bench.drained(drain))
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []  # P1 is assigned again, and being released
    only(e.TakeSnapshot, bench.trigger())
    assert bench.released(release) == []
    assert only(e.Claim, bench.look()).streams == {P1: 0}


def test_releases_obsolete_claim_without_consuming() -> None:
    bench = Bench()
    claim = only(e.Claim, bench.register())
    bench.members[AFTER] = ONE_STREAM
    assert bench.trigger_and_look() == []
    start, release = bench.claimed(claim)
    assert start == e.StartConsuming(1, {P0: 0})
    assert isinstance(release, e.Release)
    assert release.partitions == {P1}


def test_reads_once_more_after_triggers_during_snapshot() -> None:
    bench = Bench().settle()
    only(e.TakeSnapshot, bench.trigger())
    assert [bench.feed(e.Triggered()) for _ in range(5)] == [[]] * 5
    assert bench.look() == []  # not before it has settled
    only(e.TakeSnapshot, bench.tick())
    assert bench.look() == []


# ---- Settling --------------------------------------------------------------------------------------------------------


def test_reads_at_once_after_first_trigger() -> None:
    only(e.TakeSnapshot, Bench().settle().trigger())


def test_takes_few_snapshots_in_burst_of_triggers() -> None:
    bench = Bench(settings=MembershipSettings(settle=0.1)).settle()
    bench.now += 1.0
    end = bench.now + 1.0
    looked = []
    while bench.now < end:
        actions = bench.feed(e.Triggered())
        if bench.timer <= bench.now:
            actions += bench.tick(0.0)
        if every(e.TakeSnapshot, actions):
            looked.append(bench.now)
            bench.look()
        bench.now += 0.001
    pauses = [after - before for before, after in pairwise(looked)]
    assert 0.05 <= min(pauses) <= max(pauses) <= 0.152
    assert len({round(pause, 3) for pause in pauses}) > 1  # members that hear the same do not look in step
    assert looked[0] == end - 1.0


def test_takes_snapshot_after_last_trigger_of_burst() -> None:
    bench = Bench(settings=MembershipSettings(settle=0.1)).settle()
    bench.trigger_and_look()
    assert bench.feed(e.Triggered()) == []
    assert bench.now + 0.05 <= bench.timer <= bench.now + 0.15
    only(e.TakeSnapshot, bench.tick())


def test_registration_and_resumed_session_do_not_wait_to_settle() -> None:
    bench = Bench(settings=MembershipSettings(settle=1e3))
    bench.settle()  # without any time that passes
    bench.feed(e.SessionSuspended())
    only(e.TakeSnapshot, bench.feed(e.SessionResumed()))


def test_spreads_settling_times_deterministically() -> None:
    def timer(name: str) -> float:
        bench = Bench()
        bench.member = ZooKeeperMember(name, StaticSubscription({"t": 1}))
        bench.connect()
        register = only(e.Register, bench.look())
        bench.own_id = 1
        bench.feed(e.Registered(register.ticket))
        bench.look()
        bench.feed(e.Triggered())
        return bench.timer

    assert timer("g_a") == timer("g_a")
    assert len({timer(f"g_{number}") for number in range(20)}) == 20


def test_sets_no_timer_while_suspended() -> None:
    bench = Bench().settle()
    bench.feed(e.SessionSuspended())
    assert bench.member.handle(e.Triggered(), bench.now) == []


def test_sets_the_same_timer_once() -> None:
    bench = Bench().settle()
    first = only(e.SetTimer, bench.member.handle(e.Triggered(), bench.now))
    assert first.at > bench.now
    assert bench.member.handle(e.Triggered(), bench.now) == []


def test_sets_no_timer_for_a_snapshot_that_waits_for_the_registration() -> None:
    bench = Bench(settings=MembershipSettings(settle=0.0))
    bench.connect()
    only(e.Register, bench.look())
    assert bench.member.handle(e.Triggered(), bench.now) == []  # a timer for now would be set again and again


# ---- Nudges ----------------------------------------------------------------------------------------------------------


def give_up_one(bench: Bench, *, released_after: float) -> list[e.Action]:
    """A peer joins; P1 is released so many seconds after the trigger."""
    drain = bench.joined_by_peer()
    release = only(e.Release, bench.drained(drain))
    bench.now += released_after
    return bench.released(release)


def test_nudges_after_late_release() -> None:
    assert only(e.Nudge, give_up_one(Bench().settle(), released_after=5.1)).session_id == 1


def test_does_not_nudge_after_release_in_time() -> None:
    assert give_up_one(Bench().settle(), released_after=4.9) == []
    assert give_up_one(Bench().settle(), released_after=5.0) == []  # not later than nudge_after


def test_nudges_once_when_all_is_released() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    releases = [only(e.Release, bench.drained(drain, partition)) for partition in (P2, P3)]
    bench.now += 6.0
    assert bench.released(releases[0]) == []
    only(e.Nudge, bench.released(releases[1]))


def test_ignores_old_drain_cause_on_later_release() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    del bench.members[AFTER]
    bench.trigger_and_look()
    assert bench.drained(drain) == [e.StartConsuming(1, {P1: 0})]
    bench.now += 20.0
    bench.members[AFTER] = ONE_STREAM
    bench.owners[P1] = 66
    abandon = only(e.Abandon, bench.trigger_and_look())
    release = only(e.Release, bench.abandoned(abandon))
    assert bench.released(release) == []  # no nudge


def test_nudges_after_release_for_change_without_trigger() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    bench.tick(33.0)
    release = only(e.Release, bench.drained(only(e.Drain, bench.look())))
    only(e.Nudge, bench.released(release))


def test_lateness_of_a_release_counts_from_the_trigger_of_its_drain() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    bench.now += 4.0
    assert bench.trigger_and_look() == []  # a later trigger changes nothing for P1
    release = only(e.Release, bench.drained(drain))
    bench.now += 1.0
    only(e.Nudge, bench.released(release))


def test_nudges_after_late_release_of_what_was_never_consumed() -> None:
    bench = Bench()
    claim = only(e.Claim, bench.register())
    bench.members[AFTER] = ONE_STREAM
    assert bench.trigger_and_look() == []
    bench.now += 5.1
    _start, release = bench.claimed(claim)
    assert isinstance(release, e.Release)
    only(e.Nudge, bench.released(release))


def test_drain_found_at_the_very_deadline_gets_full_time() -> None:
    bench = Bench().settle()
    bench.trigger()
    bench.now += 4.0
    bench.members[AFTER] = ONE_STREAM
    assert only(e.Drain, bench.look()).deadline == bench.now + 4.0


def test_nudges_after_release_for_a_change_during_a_suspension() -> None:
    bench = Bench().settle()
    suspended(bench, 1.0)
    bench.members[AFTER] = ONE_STREAM
    release = only(e.Release, bench.drained(only(e.Drain, bench.look())))
    only(e.Nudge, bench.released(release))  # it may be as old as the suspension


def test_end_of_the_lease_while_connected_leads_to_a_snapshot_of_unknown_age() -> None:
    bench = Bench().settle()
    bench.now += 1.0
    abandon, look = bench.feed(e.LeaseExpired(1))
    assert isinstance(abandon, e.Abandon)
    assert abandon.partitions == {P0, P1}
    assert isinstance(look, e.TakeSnapshot)
    bench.members[AFTER] = ONE_STREAM
    assert bench.look() == []
    release = only(e.Release, bench.abandoned(abandon))
    assert release.partitions == {P1}
    claim, nudge = bench.released(release)
    assert isinstance(claim, e.Claim)
    assert claim.streams == {P0: 0}
    assert isinstance(nudge, e.Nudge)  # nobody knows since when the lease was over


def test_nudges_idle_peer_with_growing_pauses() -> None:
    bench = Bench().settle()
    give_up_one(bench, released_after=0.0)
    assert nudge_pauses(bench)[:3] == [
        pytest.approx(30.0, abs=11),
        pytest.approx(60, abs=11),
        pytest.approx(120, abs=11),
    ]
    bench.owners[P1] = 2
    bench.tick()
    assert bench.look() == []
    assert bench.timer == pytest.approx(bench.now + 30.0, abs=3.0)


def test_does_not_nudge_peer_that_is_claiming() -> None:
    bench = Bench(partitions=20).settle()
    drain = bench.joined_by_peer()
    bench.released(only(e.Release, bench.drained(drain)))
    for partition in sorted(drain.partitions):
        bench.tick()
        if bench.asked is not None:
            assert every(e.Nudge, bench.look()) == []
        bench.owners[partition] = 2
    assert len(drain.partitions) == 10


def nudge_pauses(bench: Bench) -> list[float]:
    nudged = []
    for _ in range(60):
        bench.tick()
        if bench.asked is not None and every(e.Nudge, bench.look()):
            nudged.append(bench.now)
    return [after - before for before, after in pairwise(nudged)]


def test_nudges_peer_that_keeps_our_partitions() -> None:
    bench = Bench(partitions=1, settings=MembershipSettings(retry_interval=1e3, retry_interval_max=1e3))
    bench.owners[P0] = 66
    bench.claimed(only(e.Claim, bench.register()), blocked={P0})
    nudged = False
    for _ in range(3):
        bench.tick()
        claim, *nudges = bench.look()
        assert isinstance(claim, e.Claim)
        bench.claimed(claim, blocked={P0})
        nudged = nudged or nudges == [e.Nudge(1)]
    assert nudged


def test_nudge_is_due_when_a_partition_is_misplaced_twice_in_a_row() -> None:
    nudges = _Nudges(MembershipSettings())
    assert not nudges.taken()
    nudges.owners_listed({P0, P1}, 0.0)
    assert not nudges.taken()
    nudges.owners_listed({P1, P2}, 0.5)  # P0 has found its place: a peer is at work
    assert not nudges.taken()
    nudges.owners_listed({P1, P2, P3}, 0.5)
    assert nudges.taken()
    assert not nudges.taken()


def test_partitions_misplaced_in_turn_do_not_lead_to_a_nudge() -> None:
    nudges = _Nudges(MembershipSettings())
    for misplaced in ({P0}, set(), {P0}, {P1}, {P2}):
        nudges.owners_listed(misplaced, 0.0)
        assert not nudges.taken()


def test_nudges_for_an_idle_peer_come_at_twice_the_pause_each_time_up_to_twenty_reconciliations() -> None:
    nudges = _Nudges(MembershipSettings(reconcile_interval=10.0))
    nudges.owners_listed({P0}, 0.0)
    now = 1.0
    for pause in (10.0, 20.0, 40.0, 80.0, 160.0, 200.0, 200.0):
        nudges.owners_listed({P0}, now)
        assert nudges.taken()
        nudges.owners_listed({P0}, now + pause - 0.1)
        assert not nudges.taken()
        now += pause
    nudges.owners_listed(set(), now)  # all have found their place: the pauses begin again
    nudges.owners_listed({P0}, now)
    for later in (0.0, 10.0, 30.0):
        nudges.owners_listed({P0}, now + later)
        assert nudges.taken()


def test_end_of_the_session_forgets_the_signs_of_an_idle_peer() -> None:
    nudges = _Nudges(MembershipSettings())
    nudges.owners_listed({P0}, 0.0)
    nudges.released(0.0, trigger_known=False, now=0.0)
    nudges.forget()
    assert not nudges.taken()
    nudges.owners_listed({P0}, 0.0)
    assert not nudges.taken()


# ---- Verification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [None, 66])
def test_abandons_and_reclaims_partition_of_foreign_owner_node(owner: int | None) -> None:
    bench = Bench().settle()
    if owner is None:
        del bench.owners[P0]
    else:
        bench.owners[P0] = owner
    bench.trigger()
    assert bench.asked is not None
    assert bench.asked.verify == {P0, P1}
    abandon = only(e.Abandon, bench.look())
    assert abandon.partitions == {P0}
    assert only(e.Claim, bench.abandoned(abandon)).streams == {P0: 0}


def test_reclaims_only_after_old_handler_ended() -> None:
    bench = Bench().settle()
    del bench.owners[P0]
    only(e.Abandon, bench.trigger_and_look())
    assert bench.trigger_and_look() == []


def test_reclaims_each_lost_partition_when_its_handler_ended() -> None:
    bench = Bench(partitions=3).settle()
    bench.owners = {P0: 1}
    abandon = only(e.Abandon, bench.trigger_and_look())
    assert abandon.partitions == {P1, P2}
    assert only(e.Claim, bench.abandoned(abandon, P2)).streams == {P2: 0}
    assert only(e.Claim, bench.abandoned(abandon, P1)).streams == {P1: 0}


def test_refused_commit_loses_partitions() -> None:
    bench = Bench(partitions=3).settle()
    bench.now += 1.0
    abandon, look = bench.feed(e.OwnershipLost(frozenset({P0, P2, TopicPartition("else", 0, 0)})))
    assert isinstance(abandon, e.Abandon)
    assert abandon.partitions == {P0, P2}
    assert isinstance(look, e.TakeSnapshot)
    assert bench.abandoned(abandon) == []  # a fresh snapshot decides
    assert only(e.Claim, bench.look()).streams == {P0: 0, P2: 0}


def test_abandons_partition_lost_during_drain() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    bench.owners[P2] = 2
    abandon = only(e.Abandon, bench.trigger_and_look())
    assert abandon.partitions == {P2}
    # The drain of P2 is not awaited any more.
    assert only(e.Release, bench.drained(drain)).partitions == {P3}
    assert bench.member.holds[P2] is Hold.ABANDONING
    assert only(e.Release, bench.abandoned(abandon)).partitions == {P2}  # deletes nothing: the node is not ours


def test_verifies_partitions_before_start_after_registration() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []  # assigned again
    bench.own_id = None
    register = only(e.Register, bench.trigger_and_look())
    assert bench.drained(drain) == []
    bench.owners[P1] = 66
    bench.own_id = 1
    assert only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket))).verify == {P0, P1}
    assert only(e.Claim, bench.look()).streams == {P1: 0}


def test_reconciles_without_trigger() -> None:
    bench = Bench().settle()
    assert bench.timer == pytest.approx(bench.now + 30.0, abs=3.0)
    del bench.owners[P0]
    look = only(e.TakeSnapshot, bench.tick())
    assert look.verify == {P0, P1}
    assert look.list_owners
    only(e.Abandon, bench.look())


# ---- Failures --------------------------------------------------------------------------------------------------------


def test_retries_failed_snapshot_with_all_reasons() -> None:
    bench = Bench().settle()
    look = only(e.TakeSnapshot, bench.tick())  # a reconciliation
    assert look.list_owners
    assert bench.feed(e.Failed(look.ticket)) == []
    assert bench.feed(e.Triggered()) == []
    assert bench.timer == pytest.approx(bench.now + 0.2)
    again = only(e.TakeSnapshot, bench.tick())
    assert (again.verify, again.list_owners) == (look.verify, True)


def test_backs_off_failed_snapshots() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6)).settle()
    bench.trigger()
    for attempt in range(20):
        bench.fail_look()
        assert bench.wait_for_look() == pytest.approx(min(0.2 * 2**attempt, 5.0))
    assert bench.look() == []
    bench.trigger()
    bench.fail_look()
    assert bench.wait_for_look() == pytest.approx(0.2)


def test_retries_failed_snapshot_at_once_after_resume() -> None:
    bench = Bench().settle()
    bench.trigger()
    for _ in range(5):
        bench.fail_look()
        bench.wait_for_look()
    bench.fail_look()
    bench.feed(e.SessionSuspended())
    only(e.TakeSnapshot, bench.feed(e.SessionResumed()))


def test_failed_snapshot_delays_neither_release_nor_claim() -> None:
    bench = Bench().settle()
    drain = bench.joined_by_peer()
    only(e.TakeSnapshot, bench.trigger())
    bench.fail_look()
    release = only(e.Release, bench.drained(drain))
    assert bench.released(release) == []
    bench = Bench()
    claim = only(e.Claim, bench.register())
    bench.trigger()
    bench.fail_look()
    assert bench.claimed(claim) == [e.StartConsuming(1, {P0: 0, P1: 0})]


def test_reclaims_partitions_missing_from_claim_result() -> None:
    bench = Bench(partitions=3)
    claim = only(e.Claim, bench.register())
    assert bench.claimed(claim, P0, blocked={P1}) == [e.StartConsuming(1, {P0: 0})]
    assert bench.member.holds == {P0: Hold.CONSUMING, P2: Hold.DOUBTFUL}
    bench.owners[P2] = 1  # it was carried out
    bench.tick()
    assert bench.look() == []  # nothing is written for a while
    claim = only(e.Claim, bench.tick())
    assert claim.streams == {P1: 0, P2: 0}
    assert bench.claimed(claim) == [e.StartConsuming(1, {P1: 0, P2: 0})]


def test_releases_unwanted_partitions_missing_from_claim_result() -> None:
    bench = Bench(partitions=2)
    claim = only(e.Claim, bench.register())
    bench.claimed(claim, P0)
    bench.members[AFTER] = ONE_STREAM
    bench.tick()
    assert bench.look() == []
    assert only(e.Release, bench.tick()).partitions == {P1}


def test_releases_partitions_missing_from_claim_result_whose_stream_has_changed() -> None:
    bench = Bench(streams=2, partitions=2)
    claim = only(e.Claim, bench.register())
    assert claim.streams == {P0: 0, P1: 1}
    bench.claimed(claim, P0)
    bench.topics["t"] = {0: 4}  # now P1 belongs to stream 0
    bench.tick()
    assert bench.look() == []
    release = only(e.Release, bench.tick())
    assert release.partitions == {P1}
    assert only(e.Claim, bench.released(release)).streams == {P1: 0, P2: 1, P3: 1}


def test_releases_again_partitions_missing_from_release_result() -> None:
    bench = Bench(partitions=4).settle()
    release = only(e.Release, bench.drained(bench.joined_by_peer()))
    bench.now += 1.0
    only(e.TakeSnapshot, bench.released(release, P2))
    assert bench.member.holds == {P0: Hold.CONSUMING, P1: Hold.CONSUMING, P3: Hold.DOUBTFUL}
    assert bench.look() == []  # nothing is written for a while
    assert bench.timer <= bench.now + 0.2
    release = only(e.Release, bench.tick())
    assert release.partitions == {P3}
    assert bench.released(release) == []
    assert bench.member.settled


def test_backs_off_failed_releases() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6, settle=0.0)).settle()
    release = only(e.Release, bench.drained(bench.joined_by_peer()))
    pauses = []
    for _ in range(8):
        failed_at = bench.now
        bench.feed(e.Released(release.ticket, frozenset()))
        bench.wait_for_look()
        assert bench.look() == []
        release = only(e.Release, bench.tick())
        pauses.append(bench.now - failed_at)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0])
    only(e.Nudge, bench.released(release))
    del bench.members[AFTER]
    claim = only(e.Claim, bench.trigger_and_look())
    failed_at = bench.now
    bench.feed(e.Claimed(claim.ticket, frozenset(), frozenset()))
    bench.wait_for_look()
    bench.look()
    only(e.Claim, bench.tick())
    assert bench.now - failed_at == pytest.approx(0.2)


def fail_claims(bench: Bench, claim: e.Claim, times: int) -> e.Claim:
    """The outcome is unknown so many times; returns the claim after that."""
    for attempt in range(times):
        failed_at = bench.now
        bench.feed(e.Claimed(claim.ticket, frozenset(), frozenset()))
        bench.wait_for_look()
        assert bench.look() == []
        claim = only(e.Claim, bench.tick())
        assert bench.now - failed_at == pytest.approx(min(0.2 * 2**attempt, 2.0))
    return claim


@pytest.mark.parametrize("blocked", [False, True])
def test_resets_claim_backoff_after_answer(blocked: bool) -> None:
    bench = Bench(partitions=1)
    claim = fail_claims(bench, only(e.Claim, bench.register()), 5)
    bench.claimed(claim, blocked={P0} if blocked else ())
    bench.topics["t"] = {0: 2}
    fail_claims(bench, only(e.Claim, bench.trigger_and_look()), 1)


def test_resets_claim_backoff_after_resume() -> None:
    bench = Bench(partitions=1)
    claim = fail_claims(bench, only(e.Claim, bench.register()), 5)
    bench.feed(e.SessionSuspended())
    bench.feed(e.SessionResumed())
    assert bench.look() == []  # the claim is still under way
    fail_claims(bench, claim, 1)


def test_resets_claim_backoff_in_new_session() -> None:
    bench = Bench(partitions=1)
    fail_claims(bench, only(e.Claim, bench.register()), 5)
    bench.feed(e.SessionExpired())
    bench.session, bench.own_id = 2, None
    fail_claims(bench, only(e.Claim, bench.register()), 1)


def test_counts_concurrent_write_failures_once() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    releases = [only(e.Release, bench.drained(drain, partition)) for partition in (P2, P3)]
    for release in releases:
        bench.feed(e.Released(release.ticket, frozenset()))
    bench.now += 0.2
    assert only(e.Release, every(e.Release, bench.tick(0.0))).partitions == {P2, P3}


def test_snapshot_for_retried_claim_verifies_nothing() -> None:
    bench = Bench()
    bench.claimed(only(e.Claim, bench.register()), blocked={P1})
    assert not only(e.TakeSnapshot, bench.tick()).verify


def test_resets_pauses_of_blocked_claims_in_new_session() -> None:
    bench = Bench()
    block_often(bench, only(e.Claim, bench.register()))
    bench.feed(e.SessionExpired())
    bench.session, bench.own_id = 2, 77
    bench.connect()
    bench.feed(e.RegistrationBlocked(only(e.Register, bench.look()).ticket))
    assert bench.wait_for_look() == pytest.approx(0.2)


def test_retries_failed_writes_when_session_resumes() -> None:
    bench = Bench().settle()
    release = only(e.Release, bench.drained(bench.joined_by_peer()))
    bench.feed(e.Released(release.ticket, frozenset()))
    bench.feed(e.SessionSuspended())
    again, _look = bench.feed(e.SessionResumed())
    assert isinstance(again, e.Release)
    assert again.partitions == {P1}


def test_claims_before_end_of_burst() -> None:
    bench = Bench().settle()
    bench.topics["t"] = {0: 3}
    bench.trigger()
    bench.feed(e.Triggered())  # another snapshot is requested
    assert only(e.Claim, bench.look()).streams == {P2: 0}


def test_holds_writes_after_lost_answer() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    release = only(e.Release, bench.drained(drain, P2))
    bench.feed(e.Released(release.ticket, frozenset()))
    assert every(e.Release, bench.drained(drain, P3)) == []
    bench.now += 0.2
    assert only(e.Release, every(e.Release, bench.tick(0.0))).partitions == {P2, P3}


def test_ignores_unexpected_answers() -> None:
    bench = Bench().settle()
    before = bench.member.holds
    both = frozenset({P0, P1})
    stale: list[e.Event] = [
        e.Claimed(999, both, frozenset()),
        e.Claimed(999, frozenset(), both),
        e.Drained(999, both),
        e.Released(999, both),
        e.Abandoned(999, both),
        e.Registered(999),
        e.RegistrationBlocked(999),
        e.Unregistered(999),
        e.Failed(999),
        e.SnapshotTaken(999, e.MembershipSnapshot({}, None, {}, {})),
    ]
    assert [bench.feed(event) for event in stale] == [[]] * len(stale)
    assert bench.member.holds == before
    release = only(e.Release, bench.drained(only(e.Drain, bench.feed(e.StopRequested()))))
    only(e.Unregister, bench.released(release))  # it is registered still


def test_ignores_answers_about_other_partitions() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    release = only(e.Release, bench.drained(drain, P0, P2, P2, P1))
    assert release.partitions == {P2}
    assert bench.drained(drain, P2) == []  # a second time


def test_unexpected_answer_does_not_reset_pauses() -> None:
    bench = Bench()
    block_often(bench, only(e.Claim, bench.register()))
    bench.feed(e.Claimed(999, frozenset({P0}), frozenset()))
    claim = only(e.Claim, bench.look())
    bench.claimed(claim, blocked=claim.streams)
    assert bench.wait_for_look() == pytest.approx(2.0)


# ---- The session -----------------------------------------------------------------------------------------------------


def test_keeps_consuming_while_suspended_and_verifies_on_resume() -> None:
    bench = Bench().settle()
    assert bench.feed(e.SessionSuspended()) == []  # the runner's lease says for how long
    assert not bench.member.settled
    assert bench.trigger() == []  # nothing can be asked of ZooKeeper
    assert only(e.TakeSnapshot, bench.feed(e.SessionResumed())).verify == {P0, P1}
    del bench.owners[P0]
    assert only(e.Abandon, bench.look()).partitions == {P0}


def test_ignores_snapshot_from_before_suspension() -> None:
    bench = Bench().settle()
    before = only(e.TakeSnapshot, bench.trigger())
    stale = bench.snapshot(before)
    bench.feed(e.SessionSuspended())
    after = only(e.TakeSnapshot, bench.feed(e.SessionResumed()))
    bench.members[AFTER] = ONE_STREAM
    assert bench.feed(e.SnapshotTaken(before.ticket, stale)) == []
    only(e.Drain, bench.feed(e.SnapshotTaken(after.ticket, bench.snapshot(after))))


def test_releases_after_resume_what_was_drained_while_suspended() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    bench.feed(e.SessionSuspended())
    assert bench.drained(drain, P2) == []
    assert bench.drained(drain, P3) == []
    release, _look = bench.feed(e.SessionResumed())
    assert isinstance(release, e.Release)
    assert release.partitions == {P2, P3}


def test_abandons_everything_on_expired_session() -> None:
    bench = Bench().settle()
    bench.feed(e.SessionSuspended())
    abandon = only(e.Abandon, bench.feed(e.SessionExpired()))
    assert abandon.partitions == {P0, P1}
    assert (bench.member.link, bench.member.phase) == (Link.NONE, Phase.OUTSIDE)
    bench.session, bench.own_id, bench.owners = 2, None, {}
    assert only(e.TakeSnapshot, bench.feed(e.SessionStarted(2))).session_id == 2
    register = only(e.Register, bench.look())
    bench.own_id = 2
    bench.feed(e.Registered(register.ticket))
    assert bench.look() == []  # the old handlers have not ended
    for partition in (P1, P0):
        claim = only(e.Claim, bench.abandoned(abandon, partition))
        assert (claim.session_id, claim.streams) == (2, {partition: 0})


def test_ignores_late_answers_of_former_session() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    late = e.Claimed(claim.ticket, frozenset({P0}), frozenset())
    assert bench.feed(e.SessionExpired()) == []  # no handler runs that would have to end
    assert bench.feed(late) == []
    bench.feed(e.SessionStarted(2))
    assert bench.feed(late) == []
    assert bench.member.holds == {}


def test_new_session_does_not_wait_because_writes_of_the_former_one_failed() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    bench.feed(e.Claimed(claim.ticket, frozenset(), frozenset()))
    bench.feed(e.SessionExpired())
    bench.session, bench.own_id = 2, None
    assert only(e.Claim, bench.register()).session_id == 2  # no time has passed


def test_new_session_does_not_nudge_for_releases_of_the_former_one() -> None:
    bench = Bench(partitions=4).settle()
    drain = bench.joined_by_peer()
    late, _ = (only(e.Release, bench.drained(drain, partition)) for partition in (P2, P3))
    bench.now += 6.0
    assert bench.released(late) == []  # the nudge waits for the other release
    bench.abandoned(only(e.Abandon, bench.feed(e.SessionExpired())))
    bench.session, bench.own_id, bench.owners = 2, None, {}
    bench.connect()
    register = only(e.Register, bench.look())
    bench.own_id = 2
    only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    only(e.Claim, bench.look())


def test_second_expiry_waits_for_the_handlers_of_the_first() -> None:
    bench = Bench(partitions=1).settle()
    abandon = only(e.Abandon, bench.feed(e.SessionExpired()))
    bench.feed(e.SessionStarted(2))
    assert bench.feed(e.SessionExpired()) == []
    assert bench.member.holds == {P0: Hold.ORPHANED}
    bench.abandoned(abandon)
    assert bench.member.holds == {}


def test_new_session_begins_without_registration_and_target() -> None:
    bench = Bench(partitions=1).settle()
    bench.abandoned(only(e.Abandon, bench.feed(e.SessionExpired())))
    assert bench.member.target == {}
    bench.session, bench.own_id, bench.owners = 2, None, {}
    bench.connect()
    register = only(e.Register, bench.look())
    assert not register.replace
    bench.feed(e.Registered(register.ticket))
    assert bench.member.settled is False


def test_stopping_in_a_new_session_before_it_has_registered_finishes_at_once() -> None:
    bench = Bench(partitions=1).settle()
    bench.abandoned(only(e.Abandon, bench.feed(e.SessionExpired())))
    bench.session = 2
    bench.connect()
    assert bench.feed(e.StopRequested()) == [e.Finished()]


def test_loss_of_a_partition_that_no_handler_has_changes_nothing() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    bench.feed(e.OwnershipLost(frozenset({P0})))
    assert bench.member.holds == {P0: Hold.CLAIMING}
    assert bench.claimed(claim) == [e.StartConsuming(1, {P0: 0})]
    only(e.Abandon, every(e.Abandon, bench.feed(e.OwnershipLost(frozenset({P0})))))
    assert every(e.Abandon, bench.feed(e.OwnershipLost(frozenset({P0})))) == []


def test_treats_replaced_session_as_expired() -> None:
    bench = Bench().settle()
    abandon, look = bench.feed(e.SessionStarted(2))
    assert isinstance(abandon, e.Abandon)
    assert abandon.partitions == {P0, P1}
    assert isinstance(look, e.TakeSnapshot)
    assert look.session_id == 2


def test_stops_handlers_when_lease_ends_and_reclaims_on_same_session() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SessionSuspended())
    abandon = only(e.Abandon, bench.feed(e.LeaseExpired(1)))
    bench.abandoned(abandon)
    bench.feed(e.SessionResumed())
    claim = only(e.Claim, bench.look())
    assert bench.claimed(claim) == [e.StartConsuming(1, {P0: 0})]


# ---- Leaving ---------------------------------------------------------------------------------------------------------


def test_stopping_drains_releases_unregisters_and_finishes() -> None:
    bench = Bench().settle()
    drain = only(e.Drain, bench.feed(e.StopRequested()))
    assert drain.partitions == {P0, P1}
    assert drain.deadline == bench.now + 4.0
    releases = [only(e.Release, bench.drained(drain, partition)) for partition in (P0, P1)]
    assert bench.released(releases[0]) == []
    unregister = only(e.Unregister, bench.released(releases[1]))
    assert bench.feed(e.StopRequested()) == []
    assert bench.feed(e.Unregistered(unregister.ticket)) == [e.Finished()]
    assert bench.member.phase is Phase.LEFT
    for late in (e.Triggered(), e.StopRequested(), e.SessionExpired(), e.SessionStarted(2), e.LeaseExpired(1)):
        assert bench.feed(late) == []


def test_stopping_before_there_was_a_session_finishes_at_once() -> None:
    assert Bench().feed(e.StopRequested()) == [e.Finished()]


def test_stopping_waits_for_a_claim_and_a_registration_under_way() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    assert bench.feed(e.StopRequested()) == []
    only(e.Unregister, bench.released(only(e.Release, bench.claimed(claim))))
    bench = Bench()
    bench.connect()
    register = only(e.Register, bench.look())
    assert bench.feed(e.StopRequested()) == []
    only(e.Unregister, bench.feed(e.Registered(register.ticket)))


def test_stopping_while_suspended_goes_on_when_the_session_does() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SessionSuspended())
    drain = only(e.Drain, bench.feed(e.StopRequested()))
    assert bench.drained(drain) == []
    assert only(e.Release, bench.feed(e.SessionResumed())).partitions == {P0}


def test_only_ends_handlers_when_session_ends_during_stop() -> None:
    bench = Bench(partitions=1).settle()
    only(e.Drain, bench.feed(e.StopRequested()))
    abandon = only(e.Abandon, bench.feed(e.SessionExpired()))
    assert bench.abandoned(abandon) == [e.Finished()]


def test_stopping_ignores_the_answer_to_a_snapshot_under_way() -> None:
    bench = Bench(partitions=1).settle()
    bench.trigger()
    only(e.Drain, bench.feed(e.StopRequested()))
    assert bench.look() == []
    assert bench.member.holds == {P0: Hold.DRAINING}


def test_stopping_after_a_blocked_registration_unregisters() -> None:
    bench = Bench()
    bench.own_id = 77
    bench.connect()
    bench.feed(e.RegistrationBlocked(only(e.Register, bench.look()).ticket))
    unregister = only(e.Unregister, bench.feed(e.StopRequested()))
    assert bench.feed(e.Unregistered(unregister.ticket)) == [e.Finished()]


def test_retries_failed_unregistration() -> None:
    bench = Bench(partitions=1)
    bench.members[BEFORE] = ONE_STREAM
    bench.register()
    unregister = only(e.Unregister, bench.feed(e.StopRequested()))
    assert bench.feed(e.Failed(unregister.ticket)) == []
    only(e.Unregister, bench.tick())


# ---- The tables ------------------------------------------------------------------------------------------------------


def test_every_state_has_a_transition() -> None:
    assert {state for state, _ in HOLD} == set(Hold)
    assert {state for state, _ in LINK} == set(Link)
    assert {state for state, _ in PHASE} == set(Phase) - {Phase.LEFT}


def test_raises_on_transition_not_in_table() -> None:
    with pytest.raises(RuntimeError, match="no transition"):
        follow(LINK, Link.NONE, LinkCause.RESUMED)


# ---- Other topics ----------------------------------------------------------------------------------------------------

BOTH = StaticSubscription({"t": 1, "u": 1})
U0 = TopicPartition("u", 0, 0)


def test_changed_subscription_registers_again_and_keeps_what_stays() -> None:
    bench = Bench(partitions=1).settle()
    bench.topics["u"] = {0: 1}
    look = only(e.TakeSnapshot, bench.feed(e.SubscriptionChanged(BOTH)))
    assert look.topics == frozenset({"t", "u"})
    register = only(e.Register, bench.look())
    assert register.replace
    only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    assert only(e.Claim, bench.look()).streams == {U0: 0}
    assert bench.member.holds[P0] is Hold.CONSUMING


def test_changed_subscription_releases_only_after_registering_again() -> None:
    bench = Bench(partitions=1).settle()
    bench.topics["u"] = {0: 1}
    bench.feed(e.SubscriptionChanged(StaticSubscription({"u": 1})))
    register = only(e.Register, bench.look())
    assert bench.member.holds[P0] is Hold.CONSUMING
    bench.feed(e.Registered(register.ticket))
    drain = only(e.Drain, bench.look())
    assert drain.partitions == frozenset({P0})
    only(e.Release, bench.drained(drain))


def test_subscription_changed_again_while_registering_registers_once_more() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SubscriptionChanged(BOTH))
    register = only(e.Register, bench.look())
    bench.feed(e.SubscriptionChanged(StaticSubscription({"u": 1})))
    bench.feed(e.Registered(register.ticket))
    again = only(e.Register, bench.look())
    assert again.replace
    bench.feed(e.Registered(again.ticket))
    assert only(e.Drain, bench.look()).partitions == frozenset({P0})


def test_registers_again_after_lost_reply_to_changed_subscription() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SubscriptionChanged(BOTH))
    register = only(e.Register, bench.look())
    bench.feed(e.Failed(register.ticket))
    bench.wait_for_look()
    assert only(e.Register, bench.look()).replace


def test_snapshot_of_former_topics_is_ignored_after_changed_subscription() -> None:
    bench = Bench(partitions=1).settle()
    bench.trigger()
    former = bench.asked
    assert former is not None
    bench.feed(e.SubscriptionChanged(BOTH))
    assert bench.asked is not former
    assert bench.feed(e.SnapshotTaken(former.ticket, bench.snapshot(former))) == []


def test_changed_subscription_without_session_is_registered_with_the_next_one() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SessionExpired())
    bench.session, bench.own_id, bench.owners = 2, None, {}
    assert bench.feed(e.SubscriptionChanged(BOTH)) == []
    bench.topics["u"] = {0: 1}
    look = only(e.TakeSnapshot, [a for a in bench.feed(e.SessionStarted(2)) if not isinstance(a, e.Abandon)])
    assert look.topics == frozenset({"t", "u"})
    assert not only(e.Register, bench.look()).replace
