"""The membership machine, rule by rule.

`Bench` holds what ZooKeeper would hold and answers snapshots from it; every other answer is given by the test.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

from consumerd.group import events as e
from consumerd.group.membership import Member
from consumerd.group.membership_settings import MembershipSettings
from consumerd.group.membership_tables import HOLD, LINK, PHASE, Hold, Link, LinkCause, Phase, follow
from consumerd.partition import TopicPartition
from consumerd.registry import FilterKind, FilterSubscription, StaticSubscription, TopicFilter

if TYPE_CHECKING:
    from consumerd.registry import Subscription

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
        self.member = Member("g", ME, subscription or StaticSubscription({"t": streams}), settings)
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

    def snapshot(self, asked: e.TakeSnapshot) -> e.GroupSnapshot:
        members = self.members | ({ME: "?"} if self.own_id is not None else {})
        verified = {partition: self.owners.get(partition) for partition in asked.verify}
        claimed = frozenset(self.owners) if asked.survey else None
        topics = {topic: {broker: range(n) for broker, n in found.items()} for topic, found in self.topics.items()}
        return e.GroupSnapshot(members, self.own_id, topics, verified, claimed)

    def tick(self, seconds: float | None = None) -> list[e.Action]:
        """Let time pass, by default until the timer."""
        self.now = self.timer if seconds is None else self.now + seconds
        return self.feed(e.TimerFired())

    def trigger_and_look(self) -> list[e.Action]:
        self.feed(e.Triggered())
        return self.look()

    def claimed(self, claim: e.Claim) -> list[e.Action]:
        self.owners[claim.partition] = claim.session_id
        return self.feed(e.Claimed(claim.partition, claim.ticket))

    def released(self, release: e.Release) -> list[e.Action]:
        self.owners.pop(release.partition, None)
        return self.feed(e.Released(release.partition, release.ticket))

    def drained(self, drain: e.Drain) -> list[e.Action]:
        return self.feed(e.Drained(drain.partition, drain.ticket))

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
        for claim in every(e.Claim, self.register()):
            self.claimed(claim)
        assert self.member.settled
        return self


def every(kind: type[A], actions: list[e.Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def only(kind: type[A], actions: list[e.Action]) -> A:
    assert [type(action) for action in actions] == [kind]
    return every(kind, actions)[0]


# ---- Joining ---------------------------------------------------------------------------------------------------------


def test_it_looks_then_registers_then_looks_again_then_claims_then_consumes() -> None:
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
    assert (claim.partition, claim.session_id, claim.stream) == (P0, 1, 0)
    assert bench.claimed(claim) == [e.StartConsuming(P0, 1, 0)]
    assert bench.member.settled


def test_a_filter_looks_at_all_topics() -> None:
    bench = Bench(subscription=FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t|u"), 1))
    bench.topics = {"t": {0: 1}, "u": {0: 1}, "v": {0: 1}}
    actions = bench.register()
    assert {claim.partition.topic for claim in every(e.Claim, actions)} == {"t", "u"}
    bench.feed(e.Triggered())
    assert bench.asked is not None
    assert bench.asked.topics is None


def test_a_member_without_a_share_is_settled_too() -> None:
    bench = Bench(partitions=1)
    bench.members[BEFORE] = ONE_STREAM
    bench.register()
    assert bench.member.settled
    assert not bench.member.target


def test_an_id_of_another_session_is_waited_for_and_never_adopted() -> None:
    bench = Bench()
    bench.own_id = 77  # of our former process, say
    bench.connect()
    register = only(e.Register, bench.look())
    for _ in range(50):
        assert bench.feed(e.RegistrationBlocked(register.ticket)) == []
        assert bench.timer == pytest.approx(bench.now + 0.2)
        only(e.TakeSnapshot, bench.tick())
        register = only(e.Register, bench.look())
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    assert every(e.Claim, bench.look())


def test_a_lost_reply_to_the_registration_is_found_by_the_next_look() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(e.Failed(only(e.Register, bench.look()).ticket))
    bench.own_id = 1
    only(e.TakeSnapshot, bench.tick())
    assert every(e.Claim, bench.look())
    assert bench.member.phase is Phase.MEMBER


def test_without_its_id_node_it_registers_again_before_it_claims_and_keeps_what_it_has() -> None:
    bench = Bench().settle()
    bench.own_id = None
    bench.topics["t"] = {0: 3}
    register = only(e.Register, bench.trigger_and_look())
    assert set(bench.member.holds.values()) == {Hold.CONSUMING}
    bench.own_id = 1
    only(e.TakeSnapshot, bench.feed(e.Registered(register.ticket)))
    assert only(e.Claim, bench.look()).partition == P2


JSON_MEMBER = '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def test_a_group_of_the_other_dialect_is_refused_before_anything_is_registered() -> None:
    bench = Bench()
    bench.members[BEFORE] = JSON_MEMBER
    bench.connect()
    refuse, finished = bench.look()
    assert isinstance(refuse, e.RefuseGroup)
    assert "0.8" in refuse.reason
    assert isinstance(finished, e.Finished)


def test_when_the_other_dialect_joins_later_the_member_leaves_in_order() -> None:
    bench = Bench(partitions=1).settle()
    bench.members[BEFORE] = JSON_MEMBER
    refuse, drain = bench.trigger_and_look()
    assert isinstance(refuse, e.RefuseGroup)
    assert isinstance(drain, e.Drain)
    assert bench.member.phase is Phase.LEAVING


def test_unreadable_members_are_left_out_with_one_warning_each() -> None:
    bench = Bench(partitions=2)
    bench.members |= {BEFORE: "not a subscription", AFTER: ONE_STREAM}
    bench.connect()
    warning, register = bench.look()
    assert isinstance(warning, e.Warn)
    assert BEFORE in warning.reason
    assert isinstance(register, e.Register)
    bench.own_id = 1
    bench.feed(e.Registered(register.ticket))
    assert only(e.Claim, bench.look()).partition == P0  # AFTER has the other one


# ---- Rebalancing -----------------------------------------------------------------------------------------------------


def test_what_stays_with_its_stream_is_left_alone() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    assert only(e.Drain, bench.trigger_and_look()).partition == P1
    assert bench.member.holds[P0] is Hold.CONSUMING


def test_an_unchanged_target_needs_nothing() -> None:
    bench = Bench().settle()
    assert bench.trigger_and_look() == []


def test_it_drains_then_releases_then_claims() -> None:
    bench = Bench(partitions=4)
    bench.members[BEFORE] = ONE_STREAM
    bench.settle()
    assert set(bench.member.target) == {P2, P3}
    del bench.members[BEFORE]
    bench.members[AFTER] = ONE_STREAM
    drains = every(e.Drain, bench.trigger_and_look())
    assert {drain.partition for drain in drains} == {P2, P3}
    release = only(e.Release, bench.drained(drains[0]))
    assert bench.released(release) == []  # the other one is still being drained
    release = only(e.Release, bench.drained(drains[1]))
    assert {claim.partition for claim in every(e.Claim, bench.released(release))} == {P0, P1}


def test_a_change_of_stream_within_the_member_is_a_release_and_a_claim() -> None:
    bench = Bench(streams=2, partitions=2).settle()
    assert bench.member.target == {P0: 0, P1: 1}
    bench.topics["t"] = {0: 4}
    drain = only(e.Drain, bench.trigger_and_look())
    assert drain.partition == P1
    claims = every(e.Claim, bench.released(only(e.Release, bench.drained(drain))))
    assert {claim.partition: claim.stream for claim in claims} == {P1: 0, P2: 1, P3: 1}


def test_a_vanished_partition_is_given_back() -> None:
    bench = Bench().settle()
    bench.topics["t"] = {0: 1}
    assert only(e.Drain, bench.trigger_and_look()).partition == P1


def test_blocked_claims_are_repeated_from_fresh_snapshots_without_end_and_the_rest_is_kept() -> None:
    bench = Bench(settings=MembershipSettings(reconcile_interval=1e6))
    first, second = every(e.Claim, bench.register())
    bench.claimed(first)
    for _ in range(500):
        assert bench.feed(e.ClaimBlocked(second.partition, second.ticket)) == []
        assert bench.timer == pytest.approx(bench.now + 0.2)
        assert bench.tick(0.1) == []  # a timer that comes too early
        assert bench.timer == pytest.approx(bench.now + 0.1)
        only(e.TakeSnapshot, bench.tick())
        second = only(e.Claim, bench.look())
    assert bench.member.holds == {P0: Hold.CONSUMING, P1: Hold.CLAIMING}
    assert bench.claimed(second) == [e.StartConsuming(P1, 1, 0)]


def test_a_blocked_claim_that_is_no_longer_rightful_is_not_repeated() -> None:
    bench = Bench()
    first, second = every(e.Claim, bench.register())
    bench.claimed(first)
    bench.feed(e.ClaimBlocked(second.partition, second.ticket))
    bench.members[AFTER] = ONE_STREAM
    bench.tick()
    assert bench.look() == []
    assert bench.member.settled


def test_all_drains_of_a_rebalance_end_within_the_time_from_its_trigger() -> None:
    bench = Bench(partitions=4).settle()
    bench.feed(e.Triggered())
    triggered = bench.now
    bench.now += 1.5  # a slow snapshot
    bench.feed(e.Triggered())  # a second trigger does not give more time
    bench.members[AFTER] = ONE_STREAM
    drains = every(e.Drain, bench.look())
    assert [drain.deadline for drain in drains] == [pytest.approx(triggered + 4.0)] * 2


def test_a_drained_partition_that_is_ours_again_just_goes_on() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []
    assert bench.drained(drain) == [e.StartConsuming(P1, 1, 0)]
    assert bench.member.settled


def test_there_is_never_a_second_action_for_a_partition_under_way() -> None:
    bench = Bench()
    claims = every(e.Claim, bench.register())
    assert bench.trigger_and_look() == []  # claims under way
    for claim in claims:
        bench.claimed(claim)
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    assert bench.trigger_and_look() == []
    release = only(e.Release, bench.drained(drain))
    del bench.members[AFTER]
    assert bench.trigger_and_look() == []
    assert only(e.Claim, bench.released(release)).partition == P1


def test_a_claim_that_is_no_longer_wanted_is_released_without_being_consumed() -> None:
    bench = Bench()
    _, second = every(e.Claim, bench.register())
    bench.members[AFTER] = ONE_STREAM
    assert bench.trigger_and_look() == []
    assert only(e.Release, bench.claimed(second)).partition == P1


def test_triggers_during_a_look_lead_to_one_more() -> None:
    bench = Bench().settle()
    only(e.TakeSnapshot, bench.feed(e.Triggered()))
    assert [bench.feed(e.Triggered()) for _ in range(5)] == [[]] * 5
    only(e.TakeSnapshot, bench.look())
    assert bench.look() == []


# ---- Nudges ----------------------------------------------------------------------------------------------------------


def give_up_one(bench: Bench, *, released_after: float) -> list[e.Action]:
    """A peer joins; P1 is released so many seconds after the trigger."""
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    release = only(e.Release, bench.drained(drain))
    bench.now += released_after
    return bench.released(release)


def test_a_late_release_is_followed_by_a_nudge() -> None:
    assert only(e.Nudge, give_up_one(Bench().settle(), released_after=5.1)).session_id == 1


def test_a_release_in_time_is_not() -> None:
    assert give_up_one(Bench().settle(), released_after=4.9) == []


def test_one_nudge_is_enough_and_comes_when_all_is_released() -> None:
    bench = Bench(partitions=4).settle()
    bench.members[AFTER] = ONE_STREAM
    drains = every(e.Drain, bench.trigger_and_look())
    releases = [only(e.Release, bench.drained(drain)) for drain in drains]
    bench.now += 6.0
    assert bench.released(releases[0]) == []
    only(e.Nudge, bench.released(releases[1]))


def test_a_change_that_no_watch_told_of_may_be_old_so_its_release_is_followed_by_a_nudge() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    bench.tick(30.0)
    release = only(e.Release, bench.drained(only(e.Drain, bench.look())))
    only(e.Nudge, bench.released(release))


def test_a_peer_that_does_not_claim_its_own_is_nudged_less_and_less_often() -> None:
    bench = Bench().settle()
    give_up_one(bench, released_after=0.0)
    nudged = []
    for _ in range(60):
        bench.tick()
        if every(e.Nudge, bench.look()):
            nudged.append(bench.now)
    pauses = [after - before for before, after in pairwise(nudged)]
    assert pauses[:3] == [pytest.approx(30.0), pytest.approx(60.0), pytest.approx(120.0)]
    bench.owners[P1] = 2
    bench.tick()
    assert bench.look() == []
    assert bench.timer == pytest.approx(bench.now + 30.0)


# ---- Verification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [None, 66])
def test_a_partition_whose_owner_node_is_not_ours_is_abandoned_then_claimed_anew(owner: int | None) -> None:
    bench = Bench().settle()
    if owner is None:
        del bench.owners[P0]
    else:
        bench.owners[P0] = owner
    bench.feed(e.Triggered())
    assert bench.asked is not None
    assert bench.asked.verify == {P0, P1}
    abandon = only(e.Abandon, bench.look())
    assert abandon.partition == P0
    claim = only(e.Claim, bench.feed(e.Abandoned(P0, abandon.ticket)))
    assert claim.partition == P0


def test_it_is_not_claimed_before_the_old_handler_has_ended() -> None:
    bench = Bench().settle()
    del bench.owners[P0]
    only(e.Abandon, bench.trigger_and_look())
    assert bench.trigger_and_look() == []


def test_a_refused_commit_means_a_lost_partition() -> None:
    bench = Bench().settle()
    abandon, look = bench.feed(e.OwnershipLost(P0))
    assert isinstance(abandon, e.Abandon)
    assert isinstance(look, e.TakeSnapshot)
    assert bench.feed(e.Abandoned(P0, abandon.ticket)) == []  # a fresh snapshot decides
    assert only(e.Claim, bench.look()).partition == P0


def test_a_partition_can_be_lost_while_it_is_drained() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    bench.owners[P1] = 2
    abandon = only(e.Abandon, bench.trigger_and_look())
    assert bench.drained(drain) == []  # nobody waits for that any more
    only(e.Release, bench.feed(e.Abandoned(P1, abandon.ticket)))  # deletes nothing: the node is not ours


def test_a_snapshot_judges_only_the_ownership_that_it_was_asked_about() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    only(e.TakeSnapshot, bench.feed(e.Triggered()))  # while P1 is drained; it is asked about
    asked = bench.asked
    assert asked is not None
    assert P1 in asked.verify
    release = only(e.Release, bench.drained(drain))
    bench.released(release)
    del bench.members[AFTER]
    stale = bench.snapshot(asked)  # read between release and claim: no owner
    claim = only(e.Claim, bench.feed(e.SnapshotTaken(asked.ticket, stale)))
    assert bench.claimed(claim) == [e.StartConsuming(P1, 1, 0)]


def test_it_reconciles_without_any_trigger() -> None:
    bench = Bench().settle()
    assert bench.timer == pytest.approx(bench.now + 30.0)
    del bench.owners[P0]
    look = only(e.TakeSnapshot, bench.tick())
    assert look.verify == {P0, P1}
    assert look.survey
    only(e.Abandon, bench.look())


# ---- Failures --------------------------------------------------------------------------------------------------------


def test_a_failed_look_is_repeated_after_the_retry_interval_with_all_its_reasons() -> None:
    bench = Bench().settle()
    look = only(e.TakeSnapshot, bench.feed(e.Triggered()))
    assert bench.feed(e.Failed(look.ticket)) == []
    assert bench.feed(e.Triggered()) == []
    assert bench.timer == pytest.approx(bench.now + 0.2)
    assert only(e.TakeSnapshot, bench.tick()).verify == look.verify


def test_a_claim_of_unknown_outcome_is_made_again() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    assert bench.feed(e.Failed(claim.ticket)) == []
    assert bench.member.holds == {P0: Hold.DOUBTFUL}
    only(e.TakeSnapshot, bench.tick())
    assert bench.claimed(only(e.Claim, bench.look())) == [e.StartConsuming(P0, 1, 0)]


def test_a_claim_of_unknown_outcome_that_is_not_wanted_any_more_is_released() -> None:
    bench = Bench(partitions=1)
    bench.feed(e.Failed(only(e.Claim, bench.register()).ticket))
    bench.members[BEFORE] = ONE_STREAM
    bench.tick()
    assert only(e.Release, bench.look()).partition == P0


def test_a_failed_release_is_repeated() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    release = only(e.Release, bench.drained(only(e.Drain, bench.trigger_and_look())))
    assert bench.feed(e.Failed(release.ticket)) == []
    again, _look = bench.tick()
    assert isinstance(again, e.Release)
    assert again.partition == P1


def test_answers_that_nobody_waits_for_change_nothing() -> None:
    bench = Bench().settle()
    before = bench.member.holds
    stale: list[e.Event] = [
        e.Claimed(P0, 999),
        e.ClaimBlocked(P0, 999),
        e.Drained(P0, 999),
        e.Released(P1, 999),
        e.Abandoned(P1, 999),
        e.Registered(999),
        e.RegistrationBlocked(999),
        e.Unregistered(999),
        e.Failed(999),
        e.SnapshotTaken(999, e.GroupSnapshot({}, None, {}, {})),
    ]
    assert [bench.feed(event) for event in stale] == [[]] * len(stale)
    assert bench.member.holds == before


# ---- The session -----------------------------------------------------------------------------------------------------


def test_a_suspended_session_pauses_handing_over_until_ownership_is_verified() -> None:
    bench = Bench().settle()
    assert bench.feed(e.SessionSuspended()) == [e.PauseHandover()]
    assert not bench.member.settled
    assert bench.feed(e.Triggered()) == []  # nothing can be asked of ZooKeeper
    assert only(e.TakeSnapshot, bench.feed(e.SessionResumed())).verify == {P0, P1}
    del bench.owners[P0]
    abandon, resume = bench.look()
    assert isinstance(abandon, e.Abandon)
    assert isinstance(resume, e.ResumeHandover)


def test_a_snapshot_from_before_the_suspension_does_not_count() -> None:
    bench = Bench().settle()
    before = only(e.TakeSnapshot, bench.feed(e.Triggered()))
    bench.feed(e.SessionSuspended())
    after = only(e.TakeSnapshot, bench.feed(e.SessionResumed()))
    assert bench.feed(e.SnapshotTaken(before.ticket, bench.snapshot(before))) == []
    assert bench.feed(e.SnapshotTaken(after.ticket, bench.snapshot(after))) == [e.ResumeHandover()]


def test_what_was_drained_while_suspended_is_released_after_it() -> None:
    bench = Bench().settle()
    bench.members[AFTER] = ONE_STREAM
    drain = only(e.Drain, bench.trigger_and_look())
    bench.feed(e.SessionSuspended())
    assert bench.drained(drain) == []
    release, _look = bench.feed(e.SessionResumed())
    assert isinstance(release, e.Release)


def test_an_expired_session_abandons_everything_and_the_next_one_starts_from_nothing() -> None:
    bench = Bench().settle()
    bench.feed(e.SessionSuspended())
    abandons = every(e.Abandon, bench.feed(e.SessionExpired()))
    assert {abandon.partition for abandon in abandons} == {P0, P1}
    assert (bench.member.link, bench.member.phase) == (Link.NONE, Phase.OUTSIDE)
    bench.session, bench.own_id, bench.owners = 2, None, {}
    assert only(e.TakeSnapshot, bench.feed(e.SessionStarted(2))).session_id == 2
    resume, register = bench.look()
    assert isinstance(resume, e.ResumeHandover)
    assert isinstance(register, e.Register)
    bench.own_id = 2
    bench.feed(e.Registered(register.ticket))
    assert bench.look() == []  # the old handlers have not ended
    claims = [bench.feed(e.Abandoned(abandon.partition, abandon.ticket)) for abandon in abandons]
    assert [only(e.Claim, actions).session_id for actions in claims] == [2, 2]


def test_late_answers_of_the_former_session_are_ignored() -> None:
    bench = Bench(partitions=1)
    claim = only(e.Claim, bench.register())
    bench.feed(e.SessionExpired())
    assert bench.feed(e.Claimed(P0, claim.ticket)) == []
    bench.feed(e.SessionStarted(2))
    assert bench.feed(e.Claimed(P0, claim.ticket)) == []
    assert bench.member.holds == {}


def test_a_session_that_is_replaced_without_a_word_counts_as_expired() -> None:
    bench = Bench().settle()
    *abandons, look = bench.feed(e.SessionStarted(2))
    assert [type(abandon) for abandon in abandons] == [e.Abandon, e.Abandon]
    assert isinstance(look, e.TakeSnapshot)
    assert look.session_id == 2


def test_when_the_lease_runs_out_handlers_are_stopped_and_a_surviving_session_claims_anew() -> None:
    bench = Bench(partitions=1).settle()
    bench.feed(e.SessionSuspended())
    abandon = only(e.Abandon, bench.feed(e.LeaseExpired()))
    bench.feed(e.Abandoned(P0, abandon.ticket))
    bench.feed(e.SessionResumed())
    resume, claim = bench.look()
    assert isinstance(resume, e.ResumeHandover)
    assert isinstance(claim, e.Claim)
    assert bench.claimed(claim) == [e.StartConsuming(P0, 1, 0)]


# ---- Leaving ---------------------------------------------------------------------------------------------------------


def test_stopping_drains_releases_unregisters_and_finishes() -> None:
    bench = Bench().settle()
    drains = every(e.Drain, bench.feed(e.StopRequested()))
    assert [drain.deadline for drain in drains] == [bench.now + 4.0] * 2
    releases = [only(e.Release, bench.drained(drain)) for drain in drains]
    assert bench.released(releases[0]) == []
    unregister = only(e.Unregister, bench.released(releases[1]))
    assert bench.feed(e.StopRequested()) == []
    assert bench.feed(e.Unregistered(unregister.ticket)) == [e.Finished()]
    assert bench.member.phase is Phase.LEFT
    assert bench.feed(e.Triggered()) == []


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
    resume, release = bench.feed(e.SessionResumed())
    assert isinstance(resume, e.ResumeHandover)
    assert isinstance(release, e.Release)


def test_a_session_that_ends_during_the_stop_leaves_nothing_to_do_but_to_end_the_handlers() -> None:
    bench = Bench(partitions=1).settle()
    only(e.Drain, bench.feed(e.StopRequested()))
    abandon = only(e.Abandon, bench.feed(e.SessionExpired()))
    assert bench.feed(e.Abandoned(P0, abandon.ticket)) == [e.Finished()]


def test_a_failed_unregistration_is_repeated() -> None:
    bench = Bench(partitions=1)
    bench.members[BEFORE] = ONE_STREAM
    bench.register()
    unregister = only(e.Unregister, bench.feed(e.StopRequested()))
    assert bench.feed(e.Failed(unregister.ticket)) == []
    only(e.Unregister, bench.tick())


# ---- The tables ------------------------------------------------------------------------------------------------------


def test_from_every_state_there_is_a_way_on() -> None:
    assert {state for state, _ in HOLD} == set(Hold)
    assert {state for state, _ in LINK} == set(Link)
    assert {state for state, _ in PHASE} == set(Phase) - {Phase.LEFT}


def test_a_transition_that_is_in_no_table_is_a_defect() -> None:
    with pytest.raises(RuntimeError, match="no way"):
        follow(LINK, Link.NONE, LinkCause.RESUMED)
