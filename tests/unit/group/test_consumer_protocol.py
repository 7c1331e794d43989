"""The machine of a membership by the consumer protocol, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.consumer_protocol import ConsumerProtocolMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import Blacklist, Whitelist
from tests.unit.group.driver import MachineDriver

SETTINGS = CoordinationSettings(session_timeout=10.0, rebalance_timeout=20.0, protocol="consumer")
T, U = b"t" * 16, b"u" * 16
#: The id of the topic "t" after it was created again.
AGAIN = b"n" * 16
TOPICS = {"t": 3, "u": 1}
IDS = {T: "t", U: "u"}


def places(*numbers: int, topic: str = "t") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition.numbered(topic, number) for number in numbers)


class Driver(MachineDriver):
    """A member, and the answers of its coordinator."""

    machine: ConsumerProtocolMember

    def __init__(self, subscription: Any = None, **changes: Any) -> None:
        wanted = subscription or StaticSubscription({"t": 1})
        super().__init__(ConsumerProtocolMember(wanted, SETTINGS.replace(**changes), "me"))

    def start(self, **read: Any) -> e.ConsumerHeartbeat:
        """Read the topics, and send the heartbeat that joins."""
        self.tell(e.Started())
        self.tell(e.TopicsRead(self.did(e.ReadTopics).ticket, **{"partitions": TOPICS, "ids": IDS, **read}))
        return self.did(e.ConsumerHeartbeat)

    def answer(self, assignment: Any, epoch: int = 1, after: float = 0.5, interval: float = 3.0) -> list[e.Action]:
        return self.tell(e.Assigned(self.machine._beating, "me", epoch, interval, assignment), after)

    def beat(self) -> e.ConsumerHeartbeat:
        if not self.has(e.ConsumerHeartbeat):
            self.tell(e.TimerFired(), 3.0)
        return self.did(e.ConsumerHeartbeat)

    def stable(self, *numbers: int) -> Driver:
        self.start()
        self.answer({T: numbers or (0, 1)})
        return self


def test_joins_with_epoch_0_and_consumes_what_the_answer_names() -> None:
    driver = Driver()
    join = driver.start()
    assert (join.member_id, join.epoch, join.topics, join.pattern, join.owned) == ("me", 0, ("t",), None, {})
    driver.answer({T: (0, 1)}, epoch=4)
    assert driver.did(e.StartConsuming).partitions == places(0, 1)
    assert driver.did(e.StartConsuming).session_id == driver.machine.session_id != 0
    driver.did(e.Settled)
    assert driver.machine.settled
    assert driver.machine.assigned == places(0, 1)
    assert driver.machine.generation == 4
    assert driver.did(e.SetTimer).at == 101.0  # a second after the last one was sent, as others may release more
    assert driver.beat().owned == {T: (0, 1)}
    assert driver.beat().epoch == 4
    assert driver.machine.lease_until == 110.0  # from the sending of the one that was answered


def test_an_empty_assignment_settles_too() -> None:
    driver = Driver()
    driver.start()
    driver.answer({})
    driver.did(e.Settled)
    assert not driver.has(e.StartConsuming)


def test_revoked_partitions_are_drained_and_acknowledged_while_others_flow_on() -> None:
    driver = Driver().stable(0, 1)
    driver.beat()
    driver.answer({T: (1,)})
    drain = driver.did(e.Drain)
    assert drain.partitions == frozenset(places(0))
    assert not driver.machine.settled
    driver.tell(e.TimerFired(), 2.5)
    assert driver.did(e.ConsumerHeartbeat).owned == {T: (0, 1)}  # what is drained is held
    driver.tell(e.Drained(drain.ticket), 0.1)
    assert not driver.has(e.ConsumerHeartbeat)  # one is under way
    driver.answer({T: (1,)})
    assert driver.did(e.ConsumerHeartbeat).owned == {T: (1,)}  # at once
    assert not driver.machine.settled  # the coordinator does not know it yet
    driver.answer({T: (1, 2)}, epoch=2)
    assert driver.did(e.StartConsuming).partitions == places(2)
    driver.did(e.Settled)


def test_begins_nothing_while_a_heartbeat_did_not_name_it() -> None:
    driver = Driver()
    driver.start(ids={})
    driver.answer({T: (0,)})
    assert not driver.has(e.StartConsuming)  # the metadata do not show the topic yet
    reading = driver.did(e.ReadTopics)
    driver.tell(e.TimerFired(), 2.5)
    beat = driver.did(e.ConsumerHeartbeat)
    driver.tell(e.TopicsRead(reading.ticket, TOPICS, IDS))
    assert not driver.has(e.StartConsuming)  # the coordinator may take the heartbeat for a release
    driver.tell(e.Failed(beat.ticket))
    assert not driver.has(e.StartConsuming)
    driver.tell(e.TimerFired(), 0.2)
    driver.answer({T: (0,)})
    assert driver.did(e.StartConsuming).partitions == places(0)


def test_drain_ends_before_the_coordinator_stops_waiting() -> None:
    driver = Driver(drain_timeout=60.0).stable(0, 1)
    driver.beat()  # sent at 103
    driver.answer({T: (1,)}, after=2.0)
    # Nothing was to be released after the heartbeat of 100; the coordinator may have begun to wait right after it.
    assert driver.did(e.Drain).deadline == 100.0 + 20.0 - 2.0
    for _ in range(2):
        driver.tell(e.TimerFired(), 4.0)
        driver.answer({T: (1,)})
    assert driver.machine.lease_until == 120.0  # not 124: heartbeats do not give more time for releasing


@pytest.mark.parametrize("code", [25, 69, 110])
def test_rejected_member_abandons_everything_and_then_joins_again(code: int) -> None:
    driver = Driver().stable()
    session = driver.machine.session_id
    driver.tell(e.Refused(driver.beat().ticket, code))
    abandon = driver.did(e.Abandon)
    assert driver.machine.session_id == 0
    assert driver.machine.assigned == ()
    driver.tell(e.TimerFired(), 1.0)
    assert not driver.has(e.ConsumerHeartbeat)  # handlers are still being cancelled
    driver.tell(e.Abandoned(abandon.ticket))
    assert (driver.did(e.ConsumerHeartbeat).epoch, driver.did(e.ConsumerHeartbeat).owned) == (0, {})
    driver.answer({T: (0,)}, epoch=7)
    assert driver.did(e.StartConsuming).session_id not in (0, session)


def test_abandons_everything_when_the_lease_ends() -> None:
    driver = Driver().stable()
    driver.tell(e.Failed(driver.beat().ticket), 1.0)
    driver.tell(e.TimerFired(), 5.9)
    driver.did(e.Abandon)


def test_lost_ownership_abandons_everything() -> None:
    driver = Driver().stable(0)
    driver.tell(e.OwnershipLost(places(1)[0]))
    assert not driver.has(e.Abandon)  # of another member
    driver.tell(e.OwnershipLost(places(0)[0]))
    driver.did(e.Abandon)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaves_when_nothing_is_held(instance: str | None, epoch: int) -> None:
    driver = Driver(instance_id=instance).stable()
    driver.tell(e.StopRequested())
    assert driver.did(e.Drain).partitions == frozenset(places(0, 1))
    ticket = driver.did(e.Drain).ticket
    assert driver.machine.session_id  # the last commit is made as a member
    driver.tell(e.Drained(ticket))
    leave = driver.did(e.Leave)
    assert (leave.member_id, leave.epoch) == ("me", epoch)
    driver.tell(e.Left(leave.ticket))
    driver.did(e.Finished)


def test_stop_during_a_drain_waits_for_it() -> None:
    driver = Driver().stable(0, 1)
    driver.beat()
    driver.answer({T: (1,)})
    first = driver.did(e.Drain).ticket
    driver.tell(e.StopRequested())
    rest = driver.did(e.Drain)
    assert rest.partitions == frozenset(places(1))
    driver.tell(e.Drained(rest.ticket))
    assert not driver.has(e.Leave)
    driver.tell(e.Drained(first))
    driver.did(e.Leave)


def test_stop_before_joining_sends_nothing() -> None:
    driver = Driver()
    driver.tell(e.Started())
    driver.tell(e.StopRequested())
    driver.did(e.Finished)
    assert not driver.has(e.Leave)


def test_stop_while_joining_leaves() -> None:
    driver = Driver()
    ticket = driver.start().ticket
    driver.tell(e.StopRequested())
    assert driver.did(e.Forget).ticket == ticket
    driver.did(e.Leave)


def test_leaving_is_attempted_a_few_times() -> None:
    driver = Driver(leave_attempts=2)
    driver.start()
    driver.answer({})
    driver.tell(e.StopRequested())
    driver.tell(e.Failed(driver.did(e.Leave).ticket))
    driver.tell(e.TimerFired(), 0.2)
    driver.tell(e.Failed(driver.did(e.Leave).ticket))
    driver.did(e.Finished)


def test_static_member_waits_for_its_former_process_and_not_for_ever() -> None:
    driver = Driver(instance_id="i")
    driver.tell(e.Refused(driver.start().ticket, 111))
    assert "'i'" in driver.did(e.Warn).reason
    waited = 0.0
    while not driver.has(e.Refuse):
        driver.tell(e.TimerFired(), 5.0)
        driver.tell(e.Refused(driver.did(e.ConsumerHeartbeat).ticket, 111))
        assert not driver.has(e.Warn)
        waited += 5.0
    assert waited == 15.0
    assert driver.did(e.Refuse).code == 111


@pytest.mark.parametrize("code", [35, 69, 81, 112, 128])
def test_refused_join_stops_the_member(code: int) -> None:
    driver = Driver()
    driver.tell(e.Refused(driver.start().ticket, code))
    assert driver.did(e.Refuse).code == code
    driver.tell(e.Refused(driver.did(e.Leave).ticket, 25))
    driver.did(e.Finished)


def test_another_process_with_the_instance_id_ends_the_member() -> None:
    driver = Driver(instance_id="i").stable()
    driver.tell(e.Refused(driver.beat().ticket, 82))
    assert driver.did(e.Refuse).code == 82
    driver.tell(e.Abandoned(driver.did(e.Abandon).ticket))
    driver.did(e.Finished)


def test_topic_that_may_not_be_seen_does_not_hold_back_others() -> None:
    driver = Driver(StaticSubscription({"t": 1, "u": 1}))
    assert driver.start(denied=frozenset({"u"}), ids={T: "t"}, partitions={"t": 3}).topics == ("t",)
    driver = Driver(StaticSubscription({"t": 1, "u": 1}))
    driver.start()
    driver.answer({T: (0,)})
    driver.tell(e.Refused(driver.beat().ticket, 29))  # the permission was taken away
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 3}, {T: "t"}, frozenset({"u"})))
    assert driver.did(e.ConsumerHeartbeat).topics == ("t",)


def test_filter_is_matched_here_and_a_new_topic_is_named_at_once() -> None:
    driver = Driver(FilterSubscription(Whitelist("[tv]"), 1))
    assert driver.start().topics == ("t",)
    driver.answer({T: (0,)})
    driver.tell(e.TimerFired(), 2.5)
    driver.answer({T: (0,)})
    driver.machine._refresh_at = driver.now
    driver.tell(e.TimerFired())
    driver.tell(e.TopicsRead(driver.did(e.ReadTopics).ticket, {"t": 3, "v": 1}, IDS))
    assert driver.did(e.ConsumerHeartbeat).topics == ("t", "v")


def test_changed_filter_keeps_the_topics_until_it_was_matched() -> None:
    driver = Driver(FilterSubscription(Whitelist("t"), 1))
    driver.start()
    driver.answer({T: (0,)})
    driver.tell(e.SubscriptionChanged(FilterSubscription(Whitelist("u"), 1)))
    reading = driver.did(e.ReadTopics).ticket
    assert driver.beat().topics == ("t",)
    driver.answer({T: (0,)})
    driver.tell(e.TopicsRead(reading, TOPICS, IDS))
    assert driver.did(e.ConsumerHeartbeat).topics == ("u",)


def test_broker_matches_the_pattern_where_asked_and_it_is_withdrawn_with_the_filter() -> None:
    driver = Driver(FilterSubscription(Whitelist("t.*"), 1), broker_filter=True)
    join = driver.start()
    assert (join.topics, join.pattern) == ((), "t.*")
    driver.answer({T: (0,)})
    driver.tell(e.SubscriptionChanged(StaticSubscription({"u": 1})))
    beat = driver.did(e.ConsumerHeartbeat)
    assert (beat.topics, beat.pattern) == (("u",), "")


def test_blacklist_is_matched_here_in_any_case() -> None:
    join = Driver(FilterSubscription(Blacklist("u"), 1), broker_filter=True).start()
    assert (join.topics, join.pattern) == (("t",), None)


def test_topic_that_was_created_again_begins_after_its_namesake_was_drained() -> None:
    driver = Driver().stable(0)
    driver.beat()
    driver.answer({AGAIN: (0,)})
    drain, reading = driver.did(e.Drain), driver.did(e.ReadTopics)
    driver.tell(e.TopicsRead(reading.ticket, {"t": 1}, {AGAIN: "t"}))
    assert not driver.has(e.StartConsuming)
    driver.tell(e.Drained(drain.ticket))
    assert driver.did(e.StartConsuming).partitions == places(0)
    assert driver.beat().owned == {AGAIN: (0,)}


def test_ignores_late_answers_and_what_cannot_be() -> None:
    driver = Driver().stable(0)
    for event in (
        e.Assigned(999, "other", 9, 0.0, {}),
        e.Refused(999, 25),
        e.Failed(999),
        e.Drained(999),
        e.Abandoned(999),
        e.Left(999),
        e.TopicsRead(999, {}),
        e.LeaseExpired(999),
    ):
        driver.tell(event)
        assert not any(driver.has(kind) for kind in (e.Abandon, e.Drain, e.ConsumerHeartbeat, e.Refuse))
    driver.beat()
    driver.answer({T: (0, -5)}, interval=0.0)  # a number that is not one, and no interval
    assert driver.machine.assigned == places(0)
    driver.beat()
    driver.answer(None)  # as before
    assert driver.machine.settled


def test_beats_often_enough_for_a_session_timeout_below_the_brokers() -> None:
    driver = Driver(session_timeout=6.0)
    driver.start()
    driver.answer({T: (0,)}, interval=5.0)
    for _ in range(10):
        driver.tell(e.TimerFired(), 0.9)
        driver.answer({T: (0,)}, interval=5.0, after=0.1)
    assert driver.did(e.SetTimer).at == driver.now - 0.1 + 2.0


def test_lease_is_not_longer_than_the_coordinators_session_timeout() -> None:
    driver = Driver()
    driver.start()
    driver.tell(e.Assigned(driver.machine._beating, "me", 1, 5.0, {T: (0,)}, session_timeout=6.0))
    assert driver.machine.lease_until == 106.0
    driver.beat()
    driver.answer({T: (0,)}, interval=5.0)  # later answers do not tell it
    assert driver.machine.lease_until == 109.0
    longer = Driver()
    longer.start()
    longer.tell(e.Assigned(longer.machine._beating, "me", 1, 5.0, {}, session_timeout=60.0))
    assert longer.machine.lease_until == 110.0


def beats(driver: Driver, until: float, assigned: dict[bytes, tuple[int, ...]], **fields: Any) -> list[float]:
    """The times of heartbeats up to one, all of which are answered alike."""
    times = []
    while driver.now < until:
        driver.now = driver.did(e.SetTimer).at
        driver.tell(e.TimerFired())
        assert driver.has(e.ConsumerHeartbeat)
        times.append(driver.now)
        driver.answer(assigned, after=0.0, **fields)
    return times


@pytest.mark.parametrize(("interval", "eager"), [(3.0, 10), (11.0, 12)])
def test_beats_each_second_after_joining_and_then_by_the_brokers_interval(interval: float, eager: int) -> None:
    driver = Driver(session_timeout=60.0)
    driver.start()
    driver.answer({}, interval=interval, after=0.0)
    second = [101.0 + number for number in range(eager)]
    assert beats(driver, second[-1] + interval, {}, interval=interval) == [*second, second[-1] + interval]


@pytest.mark.parametrize(("epoch", "assigned"), [(2, {}), (1, {T: (0,)})], ids=["epoch", "assignment"])
def test_beats_each_second_again_after_a_change_of_the_group(
    epoch: int, assigned: dict[bytes, tuple[int, ...]]
) -> None:
    """The next change often comes soon: members are restarted one after the other."""
    driver = Driver()
    driver.start()
    driver.answer({}, interval=3.0, after=0.0)
    assert beats(driver, 113.0, {}, interval=3.0)[-1] == 113.0
    driver.tell(e.TimerFired(), 3.0)
    driver.answer(assigned, interval=3.0, epoch=epoch, after=0.0)
    again = beats(driver, 129.0, assigned, interval=3.0, epoch=epoch)
    assert again == [117.0 + number for number in range(10)] + [129.0]
