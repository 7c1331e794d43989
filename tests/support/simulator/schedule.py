"""One random schedule: a group, a series of misfortunes, then quiet; and what must be true all along and at the end.

Strategy: everything is drawn from one seed, first the character of the schedule (how many, how slow, how lossy), then
what happens when. While it runs, two members never deliver the same partition. Once the last fault is over,
within a bounded virtual time every partition has exactly one owner, as the formula says, and is being delivered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumerd.base.partition import NO_BROKER
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_tables import MembershipSettings
from consumerd.group.rules import V07Rules, V08Rules
from consumerd.wire.registry import FilterKind, FilterSubscription, StaticSubscription, TopicFilter, format_owner
from tests.support.simulator.client import Weather
from tests.support.simulator.jvm import JvmMember
from tests.support.simulator.member import Handling, SimulatedMember
from tests.support.simulator.server import Server
from tests.support.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.base.partition import TopicPartition
    from consumerd.group.rules import GroupRules
    from consumerd.wire.registry import Subscription

    MemberFactory = Callable[[str, Subscription, MembershipSettings, GroupRules], ZooKeeperMember]

GROUP = "g"
_TOPICS = ("apples", "beans", "cress")
_MOST_MEMBERS = 6
_FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a schedule; the rest is drawn."""

    #: Chance of a schedule with JVM members.
    jvm: float = 0.15
    #: Chance of a schedule with watches that are lost or very late.
    lossy: float = 0.4
    weather: Weather | None = None
    handling: Handling | None = None
    settings: MembershipSettings | None = None
    #: Only these misfortunes (names of `Schedule` methods without the underscore); all when empty.
    misfortunes: tuple[str, ...] = ()
    #: The dialect of the group.
    rules: GroupRules = field(default_factory=V07Rules)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The summary of a successful schedule."""

    seed: int
    steps: int
    session_timeout: float
    #: Virtual seconds from the last misfortune until all was as it should be.
    converged_after: float
    partitions: int
    members: int
    nudges: int
    gave_up: int


class Schedule:
    """A schedule that is being run."""

    def __init__(self, seed: int, profile: Profile | None = None, member: MemberFactory = ZooKeeperMember) -> None:
        self.seed = seed
        self.profile = profile or Profile()
        self.world = World(seed)
        self.random = self.world.random
        self.with_jvm = self.random.random() < self.profile.jvm
        self.server = Server(self.world, self.random.choice((4.0, 6.0)), self.profile.rules)
        self.settings = self.profile.settings or self._draw_settings()
        self.weather = self.profile.weather or self._draw_weather()
        self.members: list[SimulatedMember] = []
        self.jvm_members: list[JvmMember] = []
        self._member = member
        self._names = 0
        self._coming_back = 0
        self._misfortunes: list[Callable[[], None]] = [
            getattr(self, f"_{name}") for name in (self.profile.misfortunes or self._all_misfortunes())
        ]

    # -- the character of the schedule

    def _draw_settings(self) -> MembershipSettings:
        choice = self.random.choice
        return MembershipSettings(
            drain_timeout=choice((1.0, 4.0)),
            retry_interval=choice((0.2, 0.5, 1.0)),
            reconcile_interval=choice((10.0, 30.0)),
        )

    def _draw_weather(self) -> Weather:
        lossy = self.random.random() < self.profile.lossy
        return Weather(
            latency=self.random.choice((0.005, 0.02, 0.3, 1.0)),
            watch_delay=self.random.choice((0.5, 3.0)) if lossy else 0.05,
            watch_loss=self.random.choice((0.1, 0.5)) if lossy else 0.0,
            reply_loss=0.01 if self.random.random() < 0.3 else 0.0,
            vague_replies=0.1 if self.random.random() < 0.3 else 0.0,
            lease_told=self.random.random() < 0.5,
        )

    def _draw_handling(self) -> Handling:
        if self.profile.handling is not None:
            return self.profile.handling
        return Handling(drain=self.random.choice((0.0, 0.5, 6.0)), cancel=self.random.choice((0.0, 0.05, 4.0)))

    def _draw_subscription(self) -> Subscription:
        kind = self.random.random()
        if kind < 0.15:
            return FilterSubscription(TopicFilter(FilterKind.WHITELIST, "apples|b.*"), self.random.randint(1, 2))
        if kind < 0.25:
            return FilterSubscription(TopicFilter(FilterKind.BLACKLIST, "cress"), 1)
        topics = self.random.sample(_TOPICS, self.random.randint(1, 2))
        return StaticSubscription({topic: self.random.randint(1, 3) for topic in topics})

    def _draw_brokers(self) -> dict[int, int]:
        if not isinstance(self.profile.rules, V07Rules):
            return {NO_BROKER: self.random.randint(1, 12)}
        return {
            broker: self.random.randint(1, 4) for broker in self.random.sample((0, 2, 10), self.random.randint(1, 2))
        }

    # -- running

    def run(self) -> Outcome:
        """Run it. Raises SimulationError."""
        for topic in _TOPICS[: self.random.randint(1, 3)]:
            self.server.set_topic(topic, self._draw_brokers())
        for _ in range(self.random.randint(1, 5)):
            self._join()
        until = self.random.choice((5.0, 15.0, 30.0))
        for _ in range(self.random.randint(2, 12)):
            time = self.random.random() * until
            self.world.at(time, self._strike)
            if self.random.random() < 0.4:  # seldom alone: the next one meets members at work
                self.world.at(min(time + self.random.random() * 1.5, until), self._strike)
        self.world.run_until(until)
        return self._quiet()

    def _strike(self) -> None:
        self.random.choice(self._misfortunes)()

    def _quiet(self) -> Outcome:
        """No more misfortunes; those under way end by themselves."""
        begin = self.world.now
        self.weather = replace(self.weather, watch_loss=0.0, reply_loss=0.0, vague_replies=0.0)
        for member in self.members:
            member.weather = self.weather
        if _FOREIGN in self.server.ids:
            self._foreign_id()
        bound = begin + 60.0 + 4 * self.settings.reconcile_interval
        while (problem := self._restless() or self._unsettled()) is not None:
            if self.world.now >= bound:
                self.world.fail(f"not settled {self.world.now - begin:.0f} s after the last misfortune: {problem}")
            self.world.run_until(self.world.now + 0.5)
        converged = self.world.now - begin
        self.world.run_until(self.world.now + 4.0)
        if (problem := self._unsettled()) is not None:
            self.world.fail(f"was settled, is no longer: {problem}")
        return Outcome(
            self.seed,
            self.world.steps,
            self.server.session_timeout,
            converged,
            len(self.server.owners),
            len(self.alive) + len(self.alive_jvm),
            sum(member.nudges for member in self.members),
            sum(member.gave_up for member in self.jvm_members),
        )

    @property
    def alive(self) -> list[SimulatedMember]:
        """Processes of ours that run or are stopped."""
        return [member for member in self.members if not member.dead]

    @property
    def alive_jvm(self) -> list[JvmMember]:
        """JVM processes."""
        return [member for member in self.jvm_members if not member.dead]

    # -- what must be true

    def _check_overlap(self, who: SimulatedMember | JvmMember, partition: TopicPartition) -> None:
        """Two members never deliver the same partition; the one exception is a node that a peer deleted by path."""
        for other in (*self.members, *self.jvm_members):
            if other is who or not other.hands_over(partition):
                continue
            if self.server.robbed.isdisjoint({(who.session_id, partition), (other.session_id, partition)}):
                self.world.fail(f"{who.name} and {other.name} both hand over {partition}")

    def _restless(self) -> str | None:
        """The work that is still in progress; None if there is none."""
        if self._coming_back:
            return "a process is being started again"
        for peer in (*self.members, *self.jvm_members):
            if peer.dead and peer.session_id and self.server.alive(peer.session_id):
                return f"{peer.name} is dead, its session is not"
            if not peer.dead and not (peer.healthy and peer.calm):
                return f"{peer.name} is not well, or is still waiting for answers"
        return None

    def _unsettled(self) -> str | None:
        """The first difference from the formula; None if there is none."""
        server = self.server
        expected = server.formula()
        for partition in server.owners.keys() - expected.keys():
            return f"{partition} has an owner and should not"
        for partition, (consumer_id, stream) in expected.items():
            owner = server.owners.get(partition)
            if owner != (server.ids[consumer_id][0], format_owner(consumer_id, stream)):
                return f"{partition} should belong to {consumer_id}-{stream}, and the owner is {owner}"
        for member in (*self.alive, *self.alive_jvm):
            if server.ids.get(member.name, (0, ""))[0] != member.session_id:
                return f"{member.name} is not registered"
            own = {partition for partition, (consumer_id, _) in expected.items() if consumer_id == member.name}
            handed_over = {partition for partition in member.active if member.hands_over(partition)}
            if handed_over != own:
                return f"{member.name} hands over {handed_over} instead of {own}"
            if isinstance(member, SimulatedMember) and not member.machine.settled:
                return f"{member.name} is not settled: {member.machine.holds}"
        return None

    # -- misfortunes

    def _all_misfortunes(self) -> list[str]:
        common = ["join", "leave", "kill", "cut", "partition", "stop_process", "outage", "topic", "broker", "rob"]
        return (
            [*common, "join"] if self.with_jvm else [*common, "restart", "rob_id", "nudge", "strange_id", "foreign_id"]
        )

    def _join(self) -> None:
        if len(self.alive) + len(self.alive_jvm) >= _MOST_MEMBERS:
            return
        self._names += 1
        # Names sort before and after the ones that are there.
        name = f"{GROUP}_{self.random.choice('acxz')}{self._names}"
        if self.with_jvm and self.random.random() < 0.5:
            peer = JvmMember(name, self._draw_subscription(), self.world, self.server, self._check_overlap)
            self.jvm_members.append(peer)
            peer.connect()
        else:
            self._start(name, self._draw_subscription())

    def _start(self, name: str, subscription: Subscription) -> None:
        machine = self._member(name, subscription, self.settings, self.profile.rules)
        member = SimulatedMember(
            machine, self.world, self.server, self.weather, self._draw_handling(), self._check_overlap
        )
        self.members.append(member)
        member.connect()

    def _some_member(self) -> SimulatedMember | None:
        return self.random.choice(self.alive) if self.alive else None

    def _leave(self) -> None:
        peers = [*self.alive, *self.alive_jvm]
        if peers:
            self.random.choice(peers).stop()

    def _kill(self) -> None:
        peers = [*self.alive, *self.alive_jvm]
        if peers:
            self.random.choice(peers).kill()

    def _restart(self) -> None:
        """A process with a configured id is killed and comes back while its former nodes still stand."""
        member = self._some_member()
        if member is not None:
            member.kill()
            self._coming_back += 1
            self.world.after(self.random.random() * 3, self._come_back, member)

    def _come_back(self, member: SimulatedMember) -> None:
        self._coming_back -= 1
        self._start(member.name, member.machine.subscription)

    def _cut(self) -> None:
        member = self._some_member()
        if member is not None:
            member.cut(self.random.choice((0.05, 1.0, 12.0)) * self.random.random())

    def _partition(self) -> None:
        member = self._some_member()
        if member is not None:
            member.partition(12.0 * self.random.random())

    def _stop_process(self) -> None:
        member = self._some_member()
        if member is not None:
            member.stop_signal(self.random.choice((2.0, 15.0)) * self.random.random())

    def _outage(self) -> None:
        """All of ZooKeeper is unavailable."""
        seconds = 8.0 * self.random.random()
        self.server.go_down(seconds)
        for member in self.alive:
            member.cut(seconds * self.random.random())
        for peer in self.alive_jvm:
            peer.cut(0.0)

    def _topic(self) -> None:
        topic = self.random.choice(_TOPICS)
        self.server.set_topic(topic, {} if topic in self.server.topics else self._draw_brokers())

    def _broker(self) -> None:
        """Brokers of a topic come and go; partition counts change."""
        if self.server.topics:
            self.server.set_topic(self.random.choice(sorted(self.server.topics)), self._draw_brokers())

    def _rob(self) -> None:
        """A confused peer deletes an owner node of ours by path."""
        sessions = {member.session_id for member in self.members}
        ours = sorted(p for p, (session_id, _) in self.server.owners.items() if session_id in sessions)
        if ours:
            self.server.rob_owner(self.random.choice(ours))

    def _rob_id(self) -> None:
        """Likewise an id node."""
        if self.server.ids:
            self.server.rob_id(self.random.choice(sorted(self.server.ids)))

    def _nudge(self) -> None:
        self.server.nudge()

    def _foreign_id(self) -> None:
        """A member of the other dialect registers; or goes again, at the latest when all is quiet."""
        if _FOREIGN in self.server.ids:
            self.server.rob_id(_FOREIGN)
        else:
            foreign: GroupRules = V08Rules() if isinstance(self.profile.rules, V07Rules) else V07Rules()
            text = foreign.format(StaticSubscription({_TOPICS[0]: 1}), 0)
            self.server.create_id(_FOREIGN, self.server.open(), text)

    def _strange_id(self) -> None:
        """A client registers an unreadable id, or deletes it again."""
        if "strange" in self.server.ids:
            self.server.rob_id("strange")
        else:
            self.server.create_id("strange", self.server.open(), self.random.choice(("", "beans", '{"beans": 0}')))
