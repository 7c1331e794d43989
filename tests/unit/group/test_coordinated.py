"""The machine of a membership that a broker coordinates, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated import CoordinatedMember
from consumerd.group.coordinated_tables import CoordinationSettings, Phase, all_assignors
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.subscription import MemberAssignment, MemberMetadata, decode_assignment, decode_metadata
from tests.unit.group.driver import MachineDriver

SETTINGS = CoordinationSettings(session_timeout=10.0, heartbeat_interval=3.0, rebalance_timeout=20.0)
PLACES = (TopicPartition.numbered("t", 0), TopicPartition.numbered("t", 1))


class Driver(MachineDriver):
    """A member of a group of one topic with two partitions."""

    machine: CoordinatedMember

    def __init__(self, subscription: Any = None, **changes: Any) -> None:
        wanted = subscription or StaticSubscription({"t": 1})
        super().__init__(CoordinatedMember(wanted, SETTINGS.replace(**changes)))

    def fire(self) -> list[e.Action]:
        """Let the timer fire that was set last, at its time."""
        self.now = self.did(e.SetTimer).at
        return self.tell(e.TimerFired())

    def started(self) -> Driver:
        self.tell(e.Started())
        return self

    def refresh(self) -> None:
        """Let the time come at which it reads the topics again."""
        self.machine._refresh_at = self.now
        self.tell(e.TimerFired())

    def assign(self, **fields: Any) -> None:
        """Join and get both partitions."""
        self.tell(self.joined(**fields))
        self.tell(self.synced())

    def joined(self, *, leads: bool = False, members: tuple[e.GroupMember, ...] = (), **fields: Any) -> e.Joined:
        told: dict[str, Any] = {
            "generation": 5,
            "member_id": "me",
            "protocol": "range",
            "rebalance_timeout": 20.0,
        } | fields
        return e.Joined(self.did(e.Join).ticket, leads=leads, members=members, **told)

    def stable(self, **fields: Any) -> Driver:
        """Join as a follower and get both partitions."""
        self.started()
        self.tell(self.joined(**fields), 1.0)
        self.tell(self.synced(), 1.0)
        return self

    def synced(self) -> e.Synced:
        return e.Synced(self.did(e.Sync).ticket, MemberAssignment((("t", (0, 1)),)).encode())

    def beat(self) -> e.Heartbeat:
        if not self.has(e.Heartbeat):
            self.tell(e.TimerFired(), 3.0)
        return self.did(e.Heartbeat)


def metadata(*topics: str) -> bytes:
    return MemberMetadata(topics).encode()


def test_follower_gets_assignment_and_sends_heartbeats() -> None:
    driver = Driver().started()
    join = driver.did(e.Join)
    assert [name for name, _ in join.protocols] == ["range", "roundrobin"]
    assert decode_metadata(join.protocols[0][1]).topics == ("t",)
    assert join.member_id == ""
    driver.tell(driver.joined())
    sync = driver.did(e.Sync)
    assert (sync.generation, sync.member_id, sync.assignments) == (5, "me", ())
    driver.tell(driver.synced(), 1.0)
    start = driver.did(e.StartConsuming)
    assert start.partitions == PLACES
    assert driver.machine.session_id == start.session_id != 0
    assert driver.machine.settled
    beat = driver.did(e.Heartbeat)
    assert (beat.generation, beat.member_id) == (5, "me")
    driver.tell(e.Confirmed(beat.ticket), 0.5)
    assert driver.did(e.SetTimer).at == 102.0  # from when the last one was sent
    driver.tell(e.TimerFired(), 0.5)
    driver.did(e.Heartbeat)


def test_beats_each_second_after_a_generation_has_begun_and_then_by_its_interval() -> None:
    """The next change often comes soon: members are restarted one after the other."""
    driver = Driver().stable()
    for generation in (5, 6):
        began, times = driver.now, []
        while driver.now < began + 13.0:
            driver.tell(e.Confirmed(driver.did(e.Heartbeat).ticket))
            driver.fire()
            times.append(driver.now - began)
        assert times == [*map(float, range(1, 11)), 13.0], generation
        driver.tell(e.Refused(driver.did(e.Heartbeat).ticket, ErrorCode.REBALANCE_IN_PROGRESS))
        driver.tell(e.Drained(driver.did(e.Drain).ticket))
        driver.assign(generation=generation + 1)


def test_counts_lease_from_sending_of_confirmed_request() -> None:
    driver = Driver().stable()
    assert driver.machine.lease_until == 111.0  # the sync was sent at 101
    ticket = driver.beat().ticket
    sent = driver.now
    assert sent == 102.0
    driver.tell(e.Confirmed(ticket), 2.5)
    assert driver.machine.lease_until == sent + 10.0


def test_heartbeat_during_rebalance_renews_lease_but_not_rebalance_timeout() -> None:
    driver = Driver(rebalance_timeout=10.0, drain_timeout=9.0).stable(rebalance_timeout=10.0)
    driver.tell(e.Refused(driver.beat().ticket, 27), 0.5)
    drain = driver.did(e.Drain)
    assert driver.machine.lease_until == 111.0
    assert drain.deadline == 109.0  # 2 s before: there is a commit to be made, and the join to be sent
    assert driver.machine._phase is Phase.DRAINING


def test_drain_ends_before_rebalance_timeout() -> None:
    driver = Driver().stable()
    driver.tell(e.Refused(driver.beat().ticket, 27))
    assert driver.did(e.Drain).deadline == driver.now + 4.0
    ticket = driver.did(e.Drain).ticket
    session = driver.machine.session_id
    assert session  # the commit at the end of the drain is made in this generation
    driver.tell(e.TimerFired(), 3.0)
    driver.did(e.Heartbeat)  # it is a member still
    driver.tell(e.Drained(ticket))
    assert driver.did(e.Join).member_id == "me"
    assert driver.machine.session_id == 0
    driver.assign(generation=6)
    assert driver.did(e.StartConsuming).session_id not in (0, session)


def test_leader_assigns_partitions() -> None:
    driver = Driver().started()
    members = (e.GroupMember("me", metadata("t")), e.GroupMember("you", metadata("t", "u")), e.GroupMember("x", b"\0"))
    driver.tell(driver.joined(leads=True, members=members))
    read = driver.did(e.ReadTopics)
    assert read.topics == ("t", "u")
    assert "member x is assigned nothing" in driver.did(e.Warn).reason
    driver.tell(e.Failed(read.ticket))
    driver.tell(e.TimerFired(), 1.0)
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 3, "u": 1, "v": 9}))
    dealt = {name: decode_assignment(data).partitions for name, data in driver.did(e.Sync).assignments}
    assert dealt == {"me": (("t", (0, 1)),), "you": (("t", (2,)), ("u", (0,))), "x": ()}


def test_leader_rejoins_when_topics_of_others_change() -> None:
    driver = Driver().started()
    members = (e.GroupMember("me", metadata("t")), e.GroupMember("you", metadata("u")))
    driver.tell(driver.joined(leads=True, members=members))
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    driver.tell(driver.synced())
    driver.refresh()
    read = driver.did(e.ReadTopics)
    assert read.topics == ("t", "u")
    driver.tell(e.TopicsRead(read.ticket, {"t": 2, "u": 1}))
    driver.did(e.Drain)


def test_filter_reads_topics_before_join_and_rejoins_for_new_topic() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t|u.*"), 1)).started()
    read = driver.did(e.ReadTopics)
    assert read.topics is None
    driver.tell(e.TopicsRead(read.ticket, {"t": 2, "v": 1}))
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ("t",)
    driver.assign()
    driver.refresh()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2, "u1": 1}))
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ("t", "u1")


def test_unknown_member_abandons_and_joins_without_id() -> None:
    driver = Driver().stable()
    driver.tell(e.Refused(driver.beat().ticket, 25))
    ticket = driver.did(e.Abandon).ticket
    assert driver.machine.session_id == 0
    assert not driver.machine.assigned
    driver.tell(e.Abandoned(ticket), 0.5)
    assert driver.did(e.Join).member_id == ""


def test_keeps_member_id_after_illegal_generation() -> None:
    driver = Driver().stable()
    driver.tell(e.Refused(driver.beat().ticket, 22))
    driver.tell(e.Abandoned(driver.did(e.Abandon).ticket))
    assert driver.did(e.Join).member_id == "me"


@pytest.mark.parametrize("event", [e.LeaseExpired(1), e.OwnershipLost(PLACES[1])])
def test_abandons_partitions_that_may_have_new_owner(event: e.Event) -> None:
    driver = Driver().stable()
    driver.tell(event)
    driver.did(e.Abandon)
    driver.tell(event)
    assert not driver.actions  # once is enough


def test_end_of_an_earlier_lease_does_not_end_the_next_generation() -> None:
    # The watch saw it between two generations, and it waited in the queue behind the new share.
    driver = Driver().stable()
    driver.tell(e.LeaseExpired(driver.machine.session_id - 1))
    assert driver.machine.settled
    assert not driver.actions


def test_ignores_loss_of_partitions_not_held() -> None:
    driver = Driver().stable()
    driver.tell(e.OwnershipLost(TopicPartition.numbered("t", 7)))
    assert driver.machine.settled


def test_abandons_at_the_moment_when_the_lease_ends_without_heartbeat() -> None:
    driver = Driver().stable()
    ticket = driver.beat().ticket
    driver.fire()
    assert driver.now == 111.0  # ten seconds after the sync was sent
    driver.did(e.Abandon)
    driver.tell(e.Confirmed(ticket))
    assert driver.machine._phase is Phase.ABANDONING


def test_rejoins_with_id_given_by_coordinator() -> None:
    driver = Driver().started()
    driver.tell(e.Refused(driver.did(e.Join).ticket, 79, "new"))
    assert driver.did(e.Join).member_id == "new"


@pytest.mark.parametrize("late", [5.0, 8.0])
def test_assignment_that_comes_when_half_of_the_lease_is_over_waits_for_heartbeat(late: float) -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    driver.tell(driver.synced(), late)
    assert not driver.has(e.StartConsuming)
    driver.tell(e.Confirmed(driver.did(e.Heartbeat).ticket), 0.1)
    assert driver.did(e.StartConsuming).partitions == PLACES


def test_end_of_the_lease_does_not_matter_before_partitions_flow() -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    driver.tell(driver.synced(), 8.0)
    ticket = driver.did(e.Heartbeat).ticket
    assert driver.did(e.SetTimer).at == driver.machine._refresh_at > driver.machine.lease_until
    driver.tell(e.Confirmed(ticket), 3.0)
    driver.did(e.StartConsuming)


def test_lost_heartbeat_before_partitions_flow_is_sent_again_after_a_pause() -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    driver.tell(driver.synced(), 8.0)
    driver.tell(e.Failed(driver.did(e.Heartbeat).ticket))
    assert not driver.has(e.Heartbeat)
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    driver.fire()
    driver.did(e.Heartbeat)


def test_rejoins_at_once_when_rebalance_overtakes_sync() -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    driver.tell(e.Refused(driver.did(e.Sync).ticket, 27))
    assert driver.did(e.Join).member_id == "me"


def test_ignores_late_responses_to_earlier_requests() -> None:
    driver = Driver().started()
    joined = driver.joined()
    driver.tell(joined)
    synced = driver.synced()
    driver.tell(e.Refused(synced.ticket, 27))
    again = driver.joined(generation=6)
    assert driver.tell(joined) == []
    driver.tell(again)
    sync = driver.did(e.Sync)
    assert driver.tell(synced) == []  # it was assigned in generation 5
    assert driver.machine._phase is Phase.SYNCING
    assert not driver.machine.session_id
    driver.tell(e.Synced(sync.ticket, MemberAssignment((("t", (1,)),)).encode()))
    assert driver.did(e.StartConsuming).partitions == (PLACES[1],)
    assert driver.tell(synced) == []
    assert driver.machine.assigned == (PLACES[1],)


def test_retries_lost_requests_with_backoff() -> None:
    driver = Driver().started()
    pauses = []
    for _ in range(6):
        driver.tell(e.Failed(driver.did(e.Join).ticket))
        pauses.append(driver.did(e.SetTimer).at - driver.now)
        driver.tell(e.TimerFired(), pauses[-1])
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


def test_stopping_drains_and_leaves() -> None:
    driver = Driver().stable()
    driver.tell(e.StopRequested())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    leave = driver.did(e.Leave)
    assert leave.member_id == "me"
    driver.tell(e.Left(leave.ticket))
    driver.did(e.Finished)
    assert driver.tell(e.StopRequested()) == []


def test_stopping_while_joining_does_not_wait_for_the_others() -> None:
    driver = Driver().started()
    ticket = driver.did(e.Join).ticket
    driver.tell(e.StopRequested())
    assert driver.did(e.Forget).ticket == ticket
    driver.did(e.Finished)  # it has no id to leave with


def test_stopping_while_waiting_for_the_assignment_leaves_at_once() -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    ticket = driver.did(e.Sync).ticket
    driver.tell(e.StopRequested())
    assert driver.did(e.Forget).ticket == ticket
    driver.tell(e.Left(driver.did(e.Leave).ticket))
    driver.did(e.Finished)


def test_retries_leave_a_few_times() -> None:
    driver = Driver().stable()
    driver.tell(e.StopRequested())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    for _ in range(2):
        driver.tell(e.Failed(driver.did(e.Leave).ticket))
        driver.tell(e.TimerFired(), 2.0)
    driver.tell(e.Failed(driver.did(e.Leave).ticket))
    driver.did(e.Finished)


def test_static_member_stops_without_leaving() -> None:
    driver = Driver(instance_id="i").stable()
    assert driver.machine.instance_id == "i"
    driver.tell(e.StopRequested())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    driver.did(e.Finished)


def test_fenced_member_stops() -> None:
    driver = Driver(instance_id="i").stable()
    driver.tell(e.Refused(driver.beat().ticket, 82))
    assert driver.did(e.Refuse).code == 82
    driver.tell(e.Abandoned(driver.did(e.Abandon).ticket))
    driver.did(e.Finished)


@pytest.mark.parametrize("code", [23, 24, 26, 30, 81, 82])
def test_stops_when_group_rejects_member(code: int) -> None:
    driver = Driver().started()
    driver.tell(e.Refused(driver.did(e.Join).ticket, code))
    assert driver.did(e.Refuse).code == code
    driver.did(e.Finished)


def test_stops_on_protocol_not_offered() -> None:
    driver = Driver().started()
    driver.tell(driver.joined(protocol="sticky"))
    assert driver.did(e.Refuse).code == 23


def test_warns_of_an_unreadable_assignment_and_of_topics_not_subscribed_to() -> None:
    driver = Driver().started()
    driver.tell(driver.joined())
    driver.tell(e.Synced(driver.did(e.Sync).ticket, b"\0"))
    assert "cannot read the assignment" in driver.did(e.Warn).reason
    driver.tell(e.TimerFired(), 1.0)
    driver.tell(driver.joined())
    driver.tell(e.Synced(driver.did(e.Sync).ticket, MemberAssignment((("t", (1,)), ("u", (0,)))).encode()))
    assert "['u']" in driver.did(e.Warn).reason
    assert driver.did(e.StartConsuming).partitions == (PLACES[1],)


def test_returning_leader_keeps_assignment() -> None:
    driver = Driver(instance_id="i").started()
    member = e.GroupMember("me", metadata("t"), "i")
    driver.tell(driver.joined(leads=True, members=(member,), keep_assignment=True))
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    assert driver.did(e.Sync).assignments == ()


@pytest.mark.parametrize(
    "wrong", [{"heartbeat_interval": 6.0}, {"rebalance_timeout": 9.0}, {"assignors": ()}, {"assignors": ("sticky",)}]
)
def test_rejects_invalid_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least|assignors"):
        CoordinationSettings(**SETTINGS.values() | wrong)


def test_changed_subscription_drains_and_joins_again() -> None:
    driver = Driver().stable()
    driver.tell(e.SubscriptionChanged(StaticSubscription({"u": 1})))
    driver.tell(e.Drained(driver.did(e.Drain).ticket), 1.0)
    join = driver.did(e.Join)
    assert decode_metadata(join.protocols[0][1]).topics == ("u",)
    driver.tell(driver.joined(generation=6))
    sync = driver.did(e.Sync)
    driver.tell(e.Synced(sync.ticket, MemberAssignment((("u", (0,)),)).encode()))
    assert driver.did(e.StartConsuming).partitions == (TopicPartition.numbered("u", 0),)


def test_subscription_changed_while_joining_joins_once_more() -> None:
    driver = Driver().started()
    joined = driver.joined()
    driver.tell(e.SubscriptionChanged(StaticSubscription({"t": 1, "u": 1})))
    driver.tell(joined)
    driver.tell(driver.synced())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ("t", "u")


def test_lists_static_members_first_in_the_order_of_instance_ids() -> None:
    driver = Driver().started()
    members = (
        e.GroupMember("a", metadata("t")),
        e.GroupMember("b", metadata("t"), "two"),
        e.GroupMember("c", metadata("t"), "one"),
    )
    driver.tell(driver.joined(leads=True, members=members))
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 3}))
    shares = {name: decode_assignment(data).partitions for name, data in driver.did(e.Sync).assignments}
    assert shares == {"c": (("t", (0,)),), "b": (("t", (1,)),), "a": (("t", (2,)),)}


def test_leader_assigns_by_the_assignor_that_the_coordinator_chose() -> None:
    driver = Driver().started()
    members = (e.GroupMember("a", metadata("t")), e.GroupMember("b", metadata("t")))
    driver.tell(driver.joined(leads=True, members=members, protocol="roundrobin"))
    assert driver.machine.leads
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 4}))
    shares = {name: decode_assignment(data).partitions for name, data in driver.did(e.Sync).assignments}
    assert shares == {"a": (("t", (0, 2)),), "b": (("t", (1, 3)),)}


def test_has_neither_lease_nor_settled_before_it_consumes() -> None:
    driver = Driver()
    driver.now = 0.0
    assert driver.machine.lease_until < 0
    assert (driver.machine.generation, driver.machine.assigned) == (-1, ())
    assert not driver.machine.leads
    driver.tell(e.Started())
    driver.tell(driver.joined())
    assert driver.machine.leads is False
    driver.tell(driver.synced(), 8.0)  # too late to consume before a heartbeat
    assert driver.machine._phase is Phase.STABLE
    assert not driver.machine.settled


def test_ignores_topics_that_were_read_for_the_former_subscription() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1)).started()
    former = driver.did(e.ReadTopics)
    driver.tell(e.SubscriptionChanged(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "u"), 1)))
    read = driver.did(e.ReadTopics)
    assert driver.tell(e.TopicsRead(former.ticket, {"t": 1})) == []
    driver.tell(e.TopicsRead(read.ticket, {"t": 1, "u": 1}))
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ("u",)


def test_waits_before_it_joins_again_after_a_loss_of_ownership() -> None:
    driver = Driver().stable()
    driver.tell(e.OwnershipLost(PLACES[0]))
    driver.tell(e.Abandoned(driver.did(e.Abandon).ticket))
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    driver.tell(e.TimerFired(), SETTINGS.retry_interval)
    driver.did(e.Join)


def test_heartbeat_that_announces_a_rebalance_renews_the_lease() -> None:
    driver = Driver(rebalance_timeout=60.0).stable(rebalance_timeout=60.0)
    driver.tell(e.Confirmed(driver.beat().ticket))
    driver.tell(e.TimerFired(), 3.0)
    ticket = driver.did(e.Heartbeat).ticket
    sent = driver.now
    driver.tell(e.Refused(ticket, 27), 1.0)
    assert driver.machine.lease_until == sent + SETTINGS.session_timeout


def test_lost_heartbeat_is_sent_again_after_a_pause() -> None:
    driver = Driver().stable()
    driver.tell(e.Failed(driver.beat().ticket))
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    assert not driver.has(e.Heartbeat)
    driver.tell(e.TimerFired(), SETTINGS.retry_interval)
    driver.did(e.Heartbeat)


def test_failed_read_of_topics_is_repeated_after_a_pause() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1)).started()
    driver.tell(e.Failed(driver.did(e.ReadTopics).ticket))
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    driver.tell(e.TimerFired(), SETTINGS.retry_interval)
    driver.did(e.ReadTopics)


def test_fenced_heartbeat_abandons_and_a_rejected_one_drains() -> None:
    fenced = Driver(instance_id="i").stable()
    fenced.tell(e.Refused(fenced.beat().ticket, 82))
    fenced.did(e.Abandon)
    rejected = Driver().stable()
    rejected.tell(e.Refused(rejected.beat().ticket, 30))
    rejected.did(e.Drain)


def test_join_with_an_unknown_id_is_repeated_without_it_after_a_pause() -> None:
    driver = Driver().started()
    driver.tell(e.Refused(driver.did(e.Join).ticket, 79, "old"))
    assert driver.did(e.Join).member_id == "old"
    driver.tell(e.Refused(driver.did(e.Join).ticket, 25))
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    driver.tell(e.TimerFired(), SETTINGS.retry_interval)
    assert driver.did(e.Join).member_id == ""


def test_refused_leave_ends_the_membership() -> None:
    driver = Driver().stable()
    driver.tell(e.StopRequested())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    driver.tell(e.Refused(driver.did(e.Leave).ticket, 25))
    driver.did(e.Finished)


def test_answers_to_other_requests_end_neither_drain_nor_leave() -> None:
    driver = Driver().stable()
    driver.tell(e.StopRequested())
    drain = driver.did(e.Drain)
    driver.tell(e.Drained(drain.ticket + 100))
    assert driver.machine._phase.name == "DRAINING"
    driver.tell(e.Drained(drain.ticket))
    leave = driver.did(e.Leave)
    driver.tell(e.Left(leave.ticket + 100))
    assert driver.machine._phase.name == "LEAVING"
    driver.tell(e.Left(leave.ticket))
    driver.did(e.Finished)


def test_follower_refreshes_its_own_topics_and_a_filter_all() -> None:
    for subscription, topics in (
        (StaticSubscription({"u": 1, "t": 1}), ("t", "u")),
        (FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1), None),
    ):
        driver = Driver(subscription).started()
        if topics is None:
            driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
        driver.assign()
        driver.refresh()
        assert driver.did(e.ReadTopics).topics == topics


def test_timer_is_set_for_the_end_of_the_lease_while_a_heartbeat_is_under_way() -> None:
    driver = Driver().stable()
    driver.beat()
    assert driver.did(e.SetTimer).at == driver.machine.lease_until
    assert driver.machine.lease_until < driver.machine._refresh_at


def test_timer_is_set_for_the_next_refresh_of_topics() -> None:
    driver = Driver(reconcile_interval=1.0).stable()
    refresh = driver.now + 1.0
    assert driver.did(e.SetTimer).at == refresh
    driver.tell(e.Confirmed(driver.beat().ticket))
    driver.tell(e.TimerFired(), 1.0)
    read = driver.did(e.ReadTopics)
    driver.tell(e.TimerFired())
    assert not driver.has(e.ReadTopics)  # the first is under way
    driver.tell(e.TopicsRead(read.ticket, {"t": 2}))
    assert driver.did(e.SetTimer).at == driver.now + 1.0
    assert driver.machine.settled  # the topics are the same


def test_refresh_of_a_follower_ignores_the_partitions_of_topics() -> None:
    driver = Driver().stable()
    driver.refresh()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 9}))
    assert driver.machine.settled


def test_leader_keeps_its_assignment_while_topics_have_the_same_partitions() -> None:
    driver = Driver().started()
    members = (e.GroupMember("me", metadata("t", "gone")),)
    driver.tell(driver.joined(leads=True, members=members))
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2, "gone": 0}))
    driver.tell(driver.synced())
    driver.refresh()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2, "other": 4}))
    assert driver.machine.settled


def test_new_generation_ends_the_back_off() -> None:
    driver = Driver().started()
    for pause in (0.2, 0.4):
        driver.tell(e.Failed(driver.did(e.Join).ticket))
        driver.tell(e.TimerFired(), pause)
    driver.assign()
    driver.tell(e.Failed(driver.did(e.Heartbeat).ticket))
    assert driver.did(e.SetTimer).at == pytest.approx(driver.now + 0.2)


@pytest.mark.parametrize("leads", [False, True])
def test_member_that_joins_but_gets_no_assignment_backs_off(leads: bool) -> None:
    driver = Driver().started()
    pauses = []
    for _ in range(6):
        driver.tell(driver.joined(leads=leads))
        if leads:
            driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
        driver.tell(e.Synced(driver.did(e.Sync).ticket, b"\0"))  # unreadable
        pauses.append(driver.did(e.SetTimer).at - driver.now)
        driver.fire()
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


@pytest.mark.parametrize("code", [22, 27])
def test_third_refusal_of_sync_in_a_row_is_not_retried_at_once(code: int) -> None:
    driver = Driver().started()
    driver.tell(e.Failed(driver.did(e.Join).ticket))  # which is not a refusal
    driver.fire()
    for _ in range(2):
        for _ in range(2):
            driver.tell(driver.joined())
            driver.tell(e.Refused(driver.did(e.Sync).ticket, code))
            driver.did(e.Join)
        driver.tell(driver.joined())
        driver.tell(e.Refused(driver.did(e.Sync).ticket, code))
        assert driver.did(e.SetTimer).at > driver.now
        driver.fire()
        driver.tell(driver.joined())  # a generation in which it gets an assignment ends the row
        driver.tell(driver.synced())
        driver.tell(e.Refused(driver.did(e.Heartbeat).ticket, 27))
        driver.tell(e.Drained(driver.did(e.Drain).ticket))


def test_stop_after_a_loss_does_not_wait_for_the_back_off() -> None:
    driver = Driver().stable()
    driver.tell(e.OwnershipLost(PLACES[0]))
    ticket = driver.did(e.Abandon).ticket
    driver.tell(e.StopRequested())
    driver.tell(e.Abandoned(ticket))
    driver.did(e.Leave)


def test_new_generation_uses_tickets_that_were_never_used() -> None:
    driver = Driver().started()
    tickets = []
    for _ in range(4):
        tickets.append(driver.did(e.Join).ticket)
        driver.tell(e.Failed(tickets[-1]))
        driver.tell(e.TimerFired(), 5.0)
    assert tickets == sorted(set(tickets))
    assert tickets[0] > 0  # 0 means none


def test_drain_of_a_short_rebalance_timeout_keeps_a_quarter_of_it() -> None:
    driver = Driver(session_timeout=6.0, rebalance_timeout=6.0, drain_timeout=30.0).stable(rebalance_timeout=6.0)
    quiet = driver.machine._quiet_at
    driver.tell(e.StopRequested())
    assert driver.did(e.Drain).deadline == quiet + 6.0 - 6.0 / 4


def test_ignores_topics_for_which_the_filter_cannot_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FilterSubscription, topic: str) -> int:
        raise RegistryError("too many steps")

    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1)).started()
    monkeypatch.setattr(FilterSubscription, "streams_for", fail)
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 1}))
    assert "topic 't' is ignored: too many steps" in driver.did(e.Warn).reason
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ()


def test_prefers_an_assignor_and_offers_all() -> None:
    assert all_assignors("range") == ("range", "roundrobin")
    assert all_assignors("roundrobin") == ("roundrobin", "range")


def test_answers_to_other_requests_change_nothing_while_it_consumes() -> None:
    driver = Driver().stable()
    ticket = driver.beat().ticket
    until = driver.machine.lease_until
    assert driver.tell(e.Confirmed(ticket + 100), 1.0) == []
    assert driver.machine.lease_until == until
    assert driver.tell(e.Refused(ticket + 100, 25)) == []
    assert driver.machine.settled


def test_leader_ignores_topics_that_it_did_not_ask_for() -> None:
    driver = Driver().started()
    driver.tell(driver.joined(leads=True, members=(e.GroupMember("me", metadata("t")),)))
    read = driver.did(e.ReadTopics)
    assert driver.tell(e.TopicsRead(read.ticket + 100, {"t": 1})) == []
    driver.tell(e.TopicsRead(read.ticket, {"t": 2}))
    driver.did(e.Sync)


def test_expected_assignment_gives_no_warning() -> None:
    driver = Driver().stable()
    assert not driver.has(e.Warn)


def test_rebalance_during_a_drain_does_not_begin_another() -> None:
    driver = Driver().stable()
    driver.tell(e.Refused(driver.beat().ticket, 27))
    driver.did(e.Drain)
    driver.tell(e.TimerFired(), 3.0)
    driver.tell(e.Refused(driver.did(e.Heartbeat).ticket, 27))
    assert not driver.has(e.Drain)


def test_confirmed_heartbeat_ends_the_back_off() -> None:
    driver = Driver().stable()
    driver.tell(e.Failed(driver.beat().ticket))
    driver.tell(e.TimerFired(), 0.2)
    driver.tell(e.Confirmed(driver.did(e.Heartbeat).ticket))
    driver.tell(e.TimerFired(), 3.0)
    driver.tell(e.Failed(driver.did(e.Heartbeat).ticket))
    assert driver.did(e.SetTimer).at == pytest.approx(driver.now + 0.2)


def test_first_heartbeat_of_a_generation_is_sent_at_once() -> None:
    driver = Driver().stable()
    driver.tell(e.Confirmed(driver.beat().ticket))
    driver.tell(e.SubscriptionChanged(StaticSubscription({"t": 1})))
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    driver.assign(generation=6)
    driver.did(e.Heartbeat)


def test_timer_that_fires_too_early_is_set_again() -> None:
    driver = Driver().stable()
    driver.tell(e.Confirmed(driver.beat().ticket))
    at = driver.did(e.SetTimer).at
    driver.tell(e.TimerFired(), 0.5)
    assert driver.actions == [e.SetTimer(at)]


def test_sets_no_timer_while_it_waits_for_an_answer() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1)).started()
    read = driver.did(e.ReadTopics)
    assert driver.actions == [read]
    driver.tell(e.Failed(read.ticket))
    driver.fire()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    assert driver.actions == [driver.did(e.Join)]
    driver.tell(driver.joined(leads=True, members=(e.GroupMember("me", metadata("t")),)))
    assert driver.actions == [driver.did(e.ReadTopics)]
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    driver.tell(driver.synced())
    driver.tell(e.StopRequested())
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    assert driver.actions == [driver.did(e.Leave)]


def test_topics_that_are_read_before_joining_end_the_back_off() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), 1)).started()
    for _ in range(2):
        driver.tell(e.Failed(driver.did(e.ReadTopics).ticket))
        driver.fire()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    driver.tell(e.Failed(driver.did(e.Join).ticket))
    assert driver.did(e.SetTimer).at == pytest.approx(driver.now + 0.2)


def test_heartbeat_that_announces_a_rebalance_ends_the_back_off() -> None:
    driver = Driver().stable()
    driver.tell(e.Failed(driver.beat().ticket))
    driver.fire()
    driver.tell(e.Refused(driver.did(e.Heartbeat).ticket, 27))
    driver.fire()
    driver.tell(e.Failed(driver.did(e.Heartbeat).ticket))
    assert driver.did(e.SetTimer).at == pytest.approx(driver.now + 0.2)


def test_late_failure_of_an_earlier_request_changes_nothing() -> None:
    driver = Driver().started()
    first = driver.did(e.Join).ticket
    driver.tell(e.Failed(first))
    driver.fire()
    joined = driver.joined()
    assert driver.tell(e.Failed(first)) == []
    driver.tell(joined)
    driver.did(e.Sync)


def test_leader_reads_topics_again_at_the_end_of_the_pause() -> None:
    driver = Driver().started()
    driver.tell(driver.joined(leads=True, members=(e.GroupMember("me", metadata("t")),)))
    driver.tell(e.Failed(driver.did(e.ReadTopics).ticket))
    assert driver.did(e.SetTimer).at == driver.now + SETTINGS.retry_interval
    driver.fire()
    assert driver.did(e.ReadTopics).topics == ("t",)


def test_leader_that_follows_in_the_next_generation_refreshes_its_own_topics_only() -> None:
    driver = Driver().started()
    members = (e.GroupMember("me", metadata("t")), e.GroupMember("you", metadata("u")))
    driver.tell(driver.joined(leads=True, members=members))
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2, "u": 1}))
    driver.tell(driver.synced())
    driver.tell(e.Refused(driver.beat().ticket, 27))
    driver.tell(e.Drained(driver.did(e.Drain).ticket))
    driver.assign(generation=6)
    driver.refresh()
    read = driver.did(e.ReadTopics)
    assert read.topics == ("t",)
    driver.tell(e.TopicsRead(read.ticket, {"t": 2}))
    assert driver.machine.settled


def test_subscription_to_named_topics_stays_when_one_of_them_is_gone() -> None:
    driver = Driver(StaticSubscription({"t": 1, "gone": 1})).stable()
    driver.refresh()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    assert driver.machine.settled


def test_topics_that_change_during_a_drain_do_not_begin_another() -> None:
    driver = Driver(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t|u"), 1)).started()
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 2}))
    driver.assign()
    ticket = driver.did(e.Heartbeat).ticket
    driver.refresh()
    read = driver.did(e.ReadTopics)
    driver.tell(e.Refused(ticket, 27))
    drain = driver.did(e.Drain)
    driver.tell(e.TopicsRead(read.ticket, {"t": 2, "u": 1}))
    assert not driver.has(e.Drain)
    driver.tell(e.Drained(drain.ticket))
    assert decode_metadata(driver.did(e.Join).protocols[0][1]).topics == ("t", "u")


def test_answer_to_an_earlier_drain_does_not_end_the_next_one() -> None:
    driver = Driver().stable()
    driver.tell(e.Refused(driver.beat().ticket, 27))
    earlier = driver.did(e.Drain).ticket
    driver.tell(e.OwnershipLost(PLACES[0]))
    abandon = driver.did(e.Abandon).ticket
    driver.tell(e.Abandoned(abandon))
    driver.fire()
    driver.assign(generation=6)
    driver.tell(e.Refused(driver.did(e.Heartbeat).ticket, 27))
    driver.did(e.Drain)
    driver.tell(e.Drained(earlier))
    assert driver.machine.session_id  # it still drains
    driver.tell(e.OwnershipLost(PLACES[0]))
    driver.did(e.Abandon)
    driver.tell(e.Abandoned(abandon))  # a second time
    phase: Phase = driver.machine._phase
    assert phase is Phase.ABANDONING


def test_stopping_while_it_waits_to_read_topics_again_has_nothing_to_forget() -> None:
    driver = Driver().started()
    driver.tell(driver.joined(leads=True, members=(e.GroupMember("me", metadata("t")),)))
    driver.tell(e.Failed(driver.did(e.ReadTopics).ticket))
    driver.tell(e.StopRequested())
    assert driver.actions == [driver.did(e.Leave)]
