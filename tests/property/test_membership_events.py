"""The membership machine fed with random events: answers of any kind in any order, also contradictory ones.

Whole groups (`tests.simulation.schedule`) have a world whose answers fit together, so that they show right owners. Here
answers contradict each other: the machine must keep the order of its contract (`consumerd.group.events`), partition by
partition, and must neither stop nor spin. Machines that are broken on purpose must be caught.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group import membership, membership_holdings, membership_tables
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_tables import HOLD, LINK, PHASE, Link, MembershipSettings, Phase
from consumerd.wire.registry.subscription import StaticSubscription

SEEDS = 400
EVENTS = 400

ME = "g_m"
MEMBERS = {
    "g_a": '{ "t": 1 }',
    "g_z": '{ "t": 2 }',
    "strange": "not a subscription",
    "foreign": '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}',
}

_Asked = e.TakeSnapshot | e.Register | e.Unregister | e.Claim | e.Release | e.Drain | e.Abandon


def _partitions(action: _Asked) -> Iterable[TopicPartition]:
    return action.streams if isinstance(action, e.Claim) else getattr(action, "partitions", ())


class Driver:
    """Feeds a machine, keeps what it waits for, and compares what it asks with what it may ask."""

    def __init__(self, seed: int, machine: type[ZooKeeperMember] = ZooKeeperMember) -> None:
        self.random = random.Random(seed)
        self.settings = MembershipSettings(
            settle=self.random.choice((0.0, 0.1)), reconcile_interval=self.random.choice((5.0, 30.0))
        )
        self.member = machine(ME, StaticSubscription({"t": self.random.randint(1, 3)}), self.settings)
        self.now = 1000.0
        self.session = 0
        self.timer: float | None = None
        self.asked: dict[int, _Asked] = {}
        #: The session under which each partition was claimed, until it is released or abandoned.
        self.claimed: dict[TopicPartition, int] = {}
        self.consumed: set[TopicPartition] = set()
        self.finished = False

    def feed(self, event: e.Event) -> list[e.Action]:
        if isinstance(event, e.TimerFired):
            self.timer = None
        actions = self.member.handle(event, self.now)
        for action in actions:
            self._note(action)
        self._check_that_something_follows()
        return actions

    def _note(self, action: e.Action) -> None:
        assert not self.finished, action
        self._check_order(action)
        match action:
            case e.SetTimer():
                assert action.at > self.now, "a timer that is due already"
                self.timer = action.at
            case e.StartConsuming():
                self.consumed |= action.streams.keys()
            case e.Abandon():
                for other in list(self.asked.values()):
                    if isinstance(other, e.Drain):
                        self._keep(other, other.partitions - action.partitions)
                self.consumed -= action.partitions
                self._ask(action)
            case e.Release():
                for partition in action.partitions:
                    self.claimed.pop(partition, None)
                self._ask(action)
            case e.TakeSnapshot() | e.Register() | e.Unregister() | e.Claim() | e.Drain():
                self._ask(action)
            case e.Finished():
                self.finished = True
            case _:
                pass

    def _check_order(self, action: e.Action) -> None:
        """The contract, partition by partition."""
        match action:
            case e.StartConsuming():
                for partition in action.streams:
                    assert self.claimed.get(partition) == self.session, f"starts {partition}, which it did not claim"
                    assert partition not in self.consumed, f"starts {partition}, which is consumed"
                    assert not self._under_way(partition), f"starts {partition} beside {self._under_way(partition)}"
            case e.Drain() | e.Abandon():
                assert action.partitions <= self.consumed
            case e.Claim():
                assert action.streams
                blocking = [each for each in self._current() if isinstance(each, e.Drain | e.Release)]
                assert not blocking, f"claims before {blocking}"
            case e.Release():
                assert not action.partitions & self.consumed, "releases what a handler holds"
            case e.RefuseGroup():
                assert not self.consumed
            case e.Finished():
                assert not self.consumed
                assert not any(isinstance(each, e.Drain | e.Abandon) for each in self.asked.values())
            case _:
                pass

    def _ask(self, action: _Asked) -> None:
        assert action.ticket not in self.asked
        for partition in _partitions(action):
            assert not (busy := self._under_way(partition)), f"{action} beside {busy}"
        self.asked[action.ticket] = action

    def _current(self) -> list[_Asked]:
        """What is under way, without requests to a former session."""
        return [each for each in self.asked.values() if getattr(each, "session_id", self.session) == self.session]

    def _under_way(self, partition: TopicPartition) -> list[_Asked]:
        return [each for each in self._current() if partition in _partitions(each)]

    def _check_that_something_follows(self) -> None:
        if self.finished or self.member.link is not Link.UP or self.member.phase is Phase.LEFT or self.asked:
            return
        assert self.timer is not None, f"waits for nothing, in {self.member.phase} with {self.member.holds}"

    # -- answers

    def _some(self, partitions: Iterable[TopicPartition], chance: float) -> frozenset[TopicPartition]:
        return frozenset(each for each in sorted(partitions) if self.random.random() < chance)

    def _keep(self, action: e.Drain | e.Abandon, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self.asked[action.ticket] = type(action)(action.ticket, partitions, *([0.0] * isinstance(action, e.Drain)))
        else:
            self.asked.pop(action.ticket, None)

    def answer(self, action: _Asked, *, well: bool = False) -> None:
        del self.asked[action.ticket]
        chance = 1.0 if well else self.random.random()
        failed = chance < 0.3
        match action:
            case e.TakeSnapshot():
                self.feed(e.Failed(action.ticket) if failed else self._snapshot(action, well=well))
            case e.Register() if failed:
                self.feed(self.random.choice((e.Failed, e.RegistrationBlocked))(action.ticket))
            case e.Register():
                self.feed(e.Registered(action.ticket))
            case e.Unregister():
                self.feed((e.Failed if failed else e.Unregistered)(action.ticket))
            case e.Claim():
                claimed = self._some(action.streams, chance)
                self.claimed.update(dict.fromkeys(claimed, action.session_id))
                self.feed(e.Claimed(action.ticket, claimed, self._some(action.streams.keys() - claimed, chance)))
            case e.Release():
                self.feed(e.Released(action.ticket, self._some(action.partitions, chance)))
            case e.Drain() | e.Abandon():
                ended = self._some(action.partitions, max(0.5, chance))
                self._keep(action, action.partitions - ended)
                if isinstance(action, e.Drain):
                    self.consumed -= ended
                self.feed((e.Drained if isinstance(action, e.Drain) else e.Abandoned)(action.ticket, ended))

    def _snapshot(self, action: e.TakeSnapshot, *, well: bool) -> e.SnapshotTaken:
        pick = self.random.choice
        if well:
            own: int | None = self.session
            members: dict[str, bytes | str | None] = {}
            owners: dict[TopicPartition, int | None] = dict.fromkeys(action.verify, self.session)
        else:
            own = pick((self.session, self.session, self.session, None, 77))
            members = {name: text for name, text in MEMBERS.items() if self.random.random() < 0.3}
            owners = {each: pick((self.session, self.session, None, 66)) for each in sorted(action.verify)}
        topics = {"t": {broker: range(self.random.randint(1, 6)) for broker in (0, 1)}}
        every = [TopicPartition("t", broker, number) for broker, numbers in topics["t"].items() for number in numbers]
        claimed = (frozenset(every) if well else self._some(every, 0.5)) if action.list_owners else None
        return e.SnapshotTaken(action.ticket, e.MembershipSnapshot(members, own, topics, owners, claimed))

    # -- what happens

    def start_session(self) -> None:
        self.session += 1
        self.feed(e.SessionStarted(self.session))

    def session_event(self) -> None:
        none = self.member.link is Link.NONE
        if self.random.random() < (0.9 if none else 0.1):
            self.start_session()
        else:
            news: tuple[e.Event, ...] = (
                e.SessionSuspended(),
                e.SessionExpired(),
                e.LeaseExpired(1),
                e.SessionResumed(),
            )
            self.feed(self.random.choices(news, (3, 1, 0, 0) if none else (3, 1, 1, 3))[0])

    def something(self) -> None:
        self.now += self.random.choice((0.0, 0.0, 0.001, 0.3, 3.0)) * self.random.random()
        chance = self.random.random()
        if chance < 0.5 and self.asked:
            self.answer(self.random.choice(list(self.asked.values())))
        elif chance < 0.7 and self.timer is not None:
            self.now = max(self.now, self.timer)
            self.feed(e.TimerFired())
        elif chance < 0.75:
            self.feed(e.TimerFired())
        elif chance < 0.85:
            self.session_event()
        elif chance < 0.9:
            self.feed(e.OwnershipLost(self._some(self.member.holds, 0.3)))
        elif chance < 0.92:
            self.feed(e.SubscriptionChanged(StaticSubscription({"t": self.random.randint(1, 3)})))
        else:
            self.feed(e.Triggered())

    def wait(self) -> None:
        """Let the next answer come, at once and to the best; the timer when there is none."""
        if self.asked:
            self.answer(next(iter(self.asked.values())), well=True)
        elif self.timer is not None:
            self.now = max(self.now, self.timer)
            self.feed(e.TimerFired())


def run(seed: int, *, leave: bool, machine: type[ZooKeeperMember] = ZooKeeperMember) -> bool:
    """Random events, then answers to the best until it has settled or left. Whether it refused the group before."""
    driver = Driver(seed, machine)
    for _ in range(EVENTS):
        if not driver.finished:
            driver.something()
    if driver.finished:
        return True
    if leave:
        driver.feed(e.StopRequested())
        for _ in range(5):
            driver.something()
        driver.feed(e.StopRequested())
    if driver.member.link is Link.NONE:
        driver.start_session()
    elif driver.member.link is Link.SUSPENDED:
        driver.feed(e.SessionResumed())
    end = driver.now + driver.settings.reconcile_interval * 1.1 + 1.0
    while not (driver.finished if leave else driver.member.settled and not driver.asked):
        driver.wait()
        assert driver.now < end, f"seed {seed}: {driver.member.phase}, {driver.member.holds}, {driver.asked}"
    return False


def test_settles_or_leaves_once_failures_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never asks for a timer that is due, never waits for nothing, and never needs more than its own intervals."""
    taken: Counter[tuple[object, object]] = Counter()

    def follow(table: dict[tuple[Any, Any], Any], state: Any, cause: Any) -> Any:
        taken[state, cause] += 1
        return membership_tables.follow(table, state, cause)

    monkeypatch.setattr(membership, "follow", follow)
    monkeypatch.setattr(membership_holdings, "follow", follow)
    assert sum(run(seed, leave=False) for seed in range(SEEDS)) < SEEDS / 2
    assert sum(run(seed, leave=True) for seed in range(SEEDS)) < SEEDS / 2
    # A transition that no event reaches is not tested.
    assert not {key for table in (LINK, PHASE, HOLD) for key in table} - taken.keys()


def test_does_not_spin_when_everything_fails() -> None:
    """Answers that take no time at all, and none of them good: whatever is claimed or released, and all is lost."""
    for seed in range(20):
        driver = Driver(seed)
        driver.start_session()
        while not driver.member.settled:
            driver.wait()
        begin, events = driver.now, 0
        while driver.now < begin + 100.0:
            driver.now += 1e-6
            asked = next(iter(driver.asked.values()), None)
            if asked is None:
                driver.wait()
            elif isinstance(asked, e.TakeSnapshot):
                del driver.asked[asked.ticket]
                lost = dict.fromkeys(asked.verify, 66)
                topics = {"t": {0: range(4)}}
                driver.feed(e.SnapshotTaken(asked.ticket, e.MembershipSnapshot({}, driver.session, topics, lost)))
            elif isinstance(asked, e.Claim | e.Release):
                del driver.asked[asked.ticket]
                nothing: frozenset[TopicPartition] = frozenset()
                answer = e.Claimed(asked.ticket, nothing, nothing)
                driver.feed(answer if isinstance(asked, e.Claim) else e.Released(asked.ticket, nothing))
            else:
                driver.answer(asked, well=True)
            events += 1
        assert events < 300


# ---- Machines that break the contract: their runner hides it, so no whole group would show it -----------------------


class ClaimsBeforeReleasing(ZooKeeperMember):
    def _proceed(self) -> None:
        if self._may_write and self.phase is Phase.MEMBER and self._decided and self._fresh:
            self._claim()
        super()._proceed()


class IgnoresTickets(ZooKeeperMember):
    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        if isinstance(event, e.Claimed | e.Drained | e.Released | e.Abandoned):
            for partition in sorted(event.claimed if isinstance(event, e.Claimed) else event.partitions):
                holding = self._holdings.get(partition)
                if holding is not None and holding.ticket:
                    event = dataclasses.replace(event, ticket=holding.ticket)
        return super().handle(event, now)


class StartsAnewBesideTheOldHandler(ZooKeeperMember):
    """Does not wait for Abandoned."""

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        actions = super().handle(event, now)
        for action in list(actions):
            if isinstance(action, e.Abandon):
                actions += super().handle(e.Abandoned(action.ticket, action.partitions), now)
        return actions


@pytest.mark.parametrize("machine", [ClaimsBeforeReleasing, IgnoresTickets, StartsAnewBesideTheOldHandler])
def test_detects_a_machine_that_breaks_the_contract(machine: type[ZooKeeperMember]) -> None:
    with pytest.raises(AssertionError, match=r"beside|claims before|starts .*, which|releases what"):
        sum(run(seed, leave=False, machine=machine) for seed in range(SEEDS))
