"""The membership machine fed with random events: answers of any kind in any order, also contradictory ones.

The simulation (`test_membership_simulation`) has a world whose answers fit together, so that it can tell right from
wrong. Here answers contradict each other, and the test requires only that the machine neither stops nor spins.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_tables import Link, MembershipSettings, Phase
from consumerd.wire.registry import StaticSubscription

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Driver:
    """Feeds a machine, keeps what it waits for, and compares what it asks with what it may ask."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = MembershipSettings(
            settle=self.random.choice((0.0, 0.1)), reconcile_interval=self.random.choice((5.0, 30.0))
        )
        self.member = ZooKeeperMember(ME, StaticSubscription({"t": self.random.randint(1, 3)}), self.settings)
        self.now = 1000.0
        self.session = 0
        self.timer: float | None = None
        self.asked: dict[int, _Asked] = {}
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
        match action:
            case e.SetTimer():
                assert action.at > self.now, "a timer that is due already"
                self.timer = action.at
            case e.Abandon():
                for other in list(self.asked.values()):
                    if isinstance(other, e.Drain):
                        self._keep(other, other.partitions - action.partitions)
                self.asked[action.ticket] = action
            case e.TakeSnapshot() | e.Register() | e.Unregister() | e.Claim() | e.Release() | e.Drain():
                assert action.ticket not in self.asked
                self.asked[action.ticket] = action
            case e.Finished():
                self.finished = True
            case _:
                pass

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
                self.feed(e.Claimed(action.ticket, claimed, self._some(action.streams.keys() - claimed, chance)))
            case e.Release():
                self.feed(e.Released(action.ticket, self._some(action.partitions, chance)))
            case e.Drain() | e.Abandon():
                ended = self._some(action.partitions, max(0.5, chance))
                self._keep(action, action.partitions - ended)
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
        claimed = (frozenset(every) if well else self._some(every, 0.5)) if action.survey else None
        return e.SnapshotTaken(action.ticket, e.MembershipSnapshot(members, own, topics, owners, claimed))

    # -- what happens

    def start_session(self) -> None:
        self.session += 1
        self.feed(e.SessionStarted(self.session))

    def session_event(self) -> None:
        if self.member.link is Link.NONE:
            self.start_session()
            return
        chance = self.random.random()
        if chance < 0.1:
            self.start_session()
        else:
            news: tuple[e.Event, ...] = (
                e.SessionSuspended(),
                e.SessionResumed(),
                e.LeaseExpired(1),
                e.SessionExpired(),
            )
            self.feed(self.random.choices(news, (3, 3, 1, 1))[0])

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


@pytest.mark.parametrize("leave", [False, True], ids=["stay", "leave"])
def test_settles_or_leaves_once_failures_end(leave: bool) -> None:
    """It never asks for a timer that is due, never waits for nothing, and never needs more than its own intervals."""
    refused = 0
    for seed in range(SEEDS):
        driver = Driver(seed)
        for _ in range(EVENTS):
            if not driver.finished:
                driver.something()
        refused += driver.finished
        if driver.finished:
            continue
        if driver.member.link is Link.NONE:
            driver.start_session()
        elif driver.member.link is Link.SUSPENDED:
            driver.feed(e.SessionResumed())
        if leave:
            driver.feed(e.StopRequested())
        end = driver.now + driver.settings.reconcile_interval * 1.1 + 1.0
        while not (driver.finished if leave else driver.member.settled and not driver.asked):
            driver.wait()
            assert driver.now < end, f"seed {seed}: {driver.member.phase}, {driver.member.holds}, {driver.asked}"
    assert refused < SEEDS / 2


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
