"""A model of a coordinator of the consumer protocol (KIP-848), and of members, processes and the network around it.

Strategy: a queue of events by their times. The coordinator is written from KIP-848, not from the machine: epochs,
targets, revocation before assignment, session and rebalance timeouts, fencing. The machines of `consumerd.group` are
real. At every moment each partition is delivered by one member at most, and by a live one only while its lease lasts.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.consumer_protocol import ConsumerProtocolMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.wire.registry.subscription import StaticSubscription

UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID = 25, 110, 111
SETTINGS = CoordinationSettings(
    session_timeout=6.0, heartbeat_interval=1.0, rebalance_timeout=8.0, topic_refresh_interval=5.0, protocol="consumer"
)
#: What the coordinator itself uses; its session timeout may be longer than ours.
SESSION, INTERVAL = 6.5, 1.0
#: Processes of a group.
_MOST = 8
Place = tuple[bytes, int]


class World:
    """The clock and the queue of events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(time, self.now), self._count, work))

    def after(self, delay: float, work: Callable[[], None]) -> None:
        self.at(self.now + delay, work)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, work = heapq.heappop(self._queue)
            work()
        self.now = end


@dataclass
class Known:
    """A member as the coordinator knows it."""

    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous: int = 0
    instance: str | None = None
    away: bool = False
    assigned: set[Place] = field(default_factory=set)
    pending: set[Place] = field(default_factory=set)
    heard: float = 0.0
    #: When it has to have released what is pending.
    patience: float | None = None

    @property
    def owns(self) -> set[Place]:
        return self.assigned | self.pending


class Coordinator:
    """The coordinator of one group."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.members: dict[str, Known] = {}
        self.epoch = 0
        self.available = True
        self.fenced = 0

    def change(self) -> None:
        self.epoch += 1

    def _expire(self) -> None:
        now = self.world.now
        for name, known in list(self.members.items()):
            if now - known.heard >= SESSION or (known.patience is not None and now >= known.patience):
                del self.members[name]
                self.change()

    def move(self) -> None:
        """Another broker coordinates: it gives every member its full time again."""
        for known in self.members.values():
            known.heard = self.world.now
            if known.patience is not None:
                known.patience = self.world.now + SETTINGS.rebalance_timeout

    def _target(self, name: str) -> set[Place]:
        target: set[Place] = set()
        for topic, (topic_id, count) in self.topics.items():
            wanting = sorted(each for each, known in self.members.items() if topic in known.topics)
            target |= {(topic_id, n) for n in range(count) if wanting and wanting[n % len(wanting)] == name}
        return target

    def heartbeat(self, action: e.ConsumerHeartbeat, instance: str | None) -> e.Event:
        self._expire()
        now, ticket = self.world.now, action.ticket
        owned = {(topic_id, number) for topic_id, numbers in action.owned.items() for number in numbers}
        known = self.members.get(action.member_id)
        if action.epoch == 0:
            former = next((each for each in self.members.items() if instance and each[1].instance == instance), None)
            if former is not None and former[0] != action.member_id:
                if not former[1].away:
                    return e.Refused(ticket, UNRELEASED_INSTANCE_ID)
                self.members[action.member_id] = self.members.pop(former[0])
                self.members[action.member_id].away = False
                self.change()
            elif known is None:
                self.members[action.member_id] = Known(instance=instance)
                self.change()
            known = self.members[action.member_id]
        elif known is None:
            return e.Refused(ticket, UNKNOWN_MEMBER_ID)
        elif action.epoch != known.epoch and not (action.epoch == known.previous and owned <= known.assigned):
            self.fenced += 1
            return e.Refused(ticket, FENCED_MEMBER_EPOCH)
        known.heard = now
        if known.topics != action.topics:
            known.topics = action.topics
            self.change()
        self._reconcile(action.member_id, known, owned)
        assignment: dict[bytes, tuple[int, ...]] = {}
        for topic_id, number in sorted(known.assigned):
            assignment[topic_id] = (*assignment.get(topic_id, ()), number)
        return e.Assigned(ticket, action.member_id, known.epoch, INTERVAL, assignment)

    def _reconcile(self, name: str, known: Known, owned: set[Place]) -> None:
        target = self._target(name)
        if not known.pending & owned:
            known.pending, known.patience = set(), None
        revoked = known.assigned - target
        if known.epoch != self.epoch or revoked or known.pending:
            known.assigned -= revoked
            known.pending |= revoked & owned
        if known.pending:
            if known.patience is None:
                known.patience = self.world.now + SETTINGS.rebalance_timeout
            return
        if known.epoch != self.epoch:
            known.previous, known.epoch = known.epoch, self.epoch
        others = [each.owns for each in self.members.values() if each is not known]
        known.assigned |= {place for place in target if not any(place in owns for owns in others)}

    def leave(self, action: e.Leave) -> e.Event:
        self._expire()
        known = self.members.get(action.member_id)
        if known is None:
            return e.Refused(action.ticket, UNKNOWN_MEMBER_ID)
        if action.epoch == -2:
            known.away = True
        else:
            del self.members[action.member_id]
            self.change()
        return e.Left(action.ticket)


class Process:
    """A machine with its runner: it performs the actions, and knows what is delivered."""

    def __init__(self, group: Group, name: str, machine: type[ConsumerProtocolMember], instance: str | None) -> None:
        self.group, self.world, self.name, self.instance = group, group.world, name, instance
        settings = CoordinationSettings(
            **{key: getattr(SETTINGS, key) for key in SETTINGS.__slots__ if key != "instance_id"}, instance_id=instance
        )
        self.member = machine(StaticSubscription(dict.fromkeys(group.subscribed, 1)), settings, name)
        self.alive = True
        self.finished = False
        self.frozen_until = 0.0
        #: What handlers hold, with the topic ids.
        self.held: dict[TopicPartition, bytes] = {}
        self.session = 0
        self._timer = 0
        self.feed(e.Started())

    @property
    def delivers(self) -> set[Place]:
        """The partitions of which a message may reach its handler now, as the fence has it."""
        member, now = self.member, self.world.now
        if not self.alive or self.session != member.session_id or now >= member.lease_until or now < self.frozen_until:
            return set()
        return {(topic_id, partition.partition) for partition, topic_id in self.held.items()}

    def feed(self, event: e.Event) -> None:
        if not self.alive or self.finished:
            return
        if self.world.now < self.frozen_until:
            self.world.at(self.frozen_until, lambda: self.feed(event))
            return
        for action in self.member.handle(event, self.world.now):
            assert not self.finished
            self._perform(action)
        self.group.check()

    def _perform(self, action: e.Action) -> None:
        world, rng = self.world, self.world.rng
        match action:
            case e.ConsumerHeartbeat():
                named = {(topic_id, number) for topic_id, numbers in action.owned.items() for number in numbers}
                assert named >= {(topic_id, each.partition) for each, topic_id in self.held.items()}
                self.group.send(self, action, lambda: self.group.coordinator.heartbeat(action, self.instance))
            case e.Leave():
                assert not self.held
                self.group.send(self, action, lambda: self.group.coordinator.leave(action))
            case e.ReadTopics(ticket):
                world.after(rng.uniform(0.0, 0.3), lambda: self.feed(self.group.read_topics(ticket)))
            case e.StartConsuming(partitions, session_id):
                assert not self.held.keys() & set(partitions)
                self.held |= {partition: self.member._held[partition] for partition in partitions}
                self.session = session_id
            case e.Drain(ticket, deadline, partitions):
                assert partitions
                assert partitions <= self.held.keys()
                # Some handlers do not end when they are cancelled.
                end = rng.uniform(world.now, deadline) if rng.random() < 0.8 else deadline + rng.choice((0.0, 6.0))
                session = self.session
                world.at(end, lambda: self._drained(ticket, partitions, session))
            case e.Abandon(ticket):
                world.after(rng.uniform(0.0, 0.2), lambda: self._abandoned(ticket))
                self.session = 0
            case e.SetTimer(at):
                self._timer += 1
                number = self._timer
                assert at > world.now
                world.at(at, lambda: self.feed(e.TimerFired()) if number == self._timer else None)
            case e.Finished():
                assert not self.held
                self.finished = True
            case _:
                pass

    def _drained(self, ticket: int, partitions: frozenset[TopicPartition], session: int) -> None:
        if self.session == session:  # else all were abandoned meanwhile
            for partition in partitions:
                del self.held[partition]
        self.feed(e.Drained(ticket))

    def _abandoned(self, ticket: int) -> None:
        self.held.clear()
        self.feed(e.Abandoned(ticket))

    def watch(self) -> None:
        """The fence's report, now and then."""
        if self.member.session_id and self.world.now >= self.member.lease_until:
            self.feed(e.LeaseExpired(self.member.session_id))


class Group:
    """A coordinator, processes, and faults."""

    def __init__(self, seed: int, machine: type[ConsumerProtocolMember] = ConsumerProtocolMember) -> None:
        self.world = World(seed)
        self.machine = machine
        self.coordinator = Coordinator(self.world)
        self.processes: list[Process] = []
        self.subscribed = ("t", "u")
        self._ids = 0
        self.names: dict[bytes, str] = {}
        self.new_topic("t", self.world.rng.randint(1, 6))
        self._faults = 0.0
        self.watching()

    def watching(self) -> None:
        for process in self.processes:
            process.watch()
        self.check()
        self.world.after(0.5, self.watching)

    def new_topic(self, topic: str, count: int) -> None:
        """Create a topic, perhaps again; metadata show it a moment later."""
        self._ids += 1
        topic_id = self._ids.to_bytes(16, "big")
        self.coordinator.topics[topic] = topic_id, count
        self.coordinator.change()
        self.world.after(self.world.rng.choice((0.0, 1.5)), lambda: self.names.update({topic_id: topic}))

    def grow(self, topic: str) -> None:
        topic_id, count = self.coordinator.topics[topic]
        self.coordinator.topics[topic] = topic_id, count + 1
        self.coordinator.change()

    def read_topics(self, ticket: int) -> e.Event:
        counts: Mapping[str, int] = {name: count for name, (_, count) in self.coordinator.topics.items()}
        return e.TopicsRead(ticket, counts, dict(self.names))

    def send(self, process: Process, action: Any, serve: Callable[[], e.Event]) -> None:
        """A request: it may be lost, its answer may be, and both take time."""
        rng, fate = self.world.rng, self.world.rng.random()
        failed = e.Failed(action.ticket)
        if fate < self._faults / 2:
            self.world.after(rng.uniform(0.0, 2.0), lambda: process.feed(failed))
            return

        def arrive() -> None:
            if not self.coordinator.available:
                self.world.after(0.1, lambda: process.feed(failed))
                return
            answer = serve()
            self.check()
            lost = fate < self._faults
            self.world.after(rng.uniform(0.0, 2.0 if lost else 0.5), lambda: process.feed(failed if lost else answer))

        self.world.after(rng.uniform(0.0, 0.3), arrive)

    def check(self) -> None:
        """No partition is delivered by two members."""
        owners: dict[Place, str] = {}
        for process in self.processes:
            for place in process.delivers:
                assert place not in owners, f"{owners[place]} and {process.name} deliver {place}"
                owners[place] = process.name

    # -- what happens

    def join(self, instance: str | None = None) -> None:
        """A process starts, of a static member with an `instance`."""
        if len(self.processes) < _MOST:
            self.processes.append(Process(self, f"m{len(self.processes)}", self.machine, instance))

    def _one(self) -> Process | None:
        living = [each for each in self.processes if each.alive and not each.finished]
        return self.world.rng.choice(living) if living else None

    def step(self) -> None:
        """Something happens to the group, or to one of its members."""
        rng, one = self.world.rng, self._one()
        common: list[Callable[[], None]] = [
            self.join, self.join, lambda: self.join("i"), self._disturb, self._calm, self._go_away,
            self.coordinator.move, lambda: self.grow("t"), lambda: self.new_topic("u", rng.randint(1, 3)),
            lambda: self.new_topic("t", rng.randint(1, 4)),
        ]  # fmt: skip
        own: list[Callable[[Process], None]] = [self._kill, self._freeze, self._subscribe, self._lose, self._stop]
        if one is not None and rng.random() < 0.4:
            rng.choice(own)(one)
        else:
            rng.choice(common)()

    def _disturb(self) -> None:
        self._faults = self.world.rng.choice((0.1, 0.3, 0.6))

    def _calm(self) -> None:
        self._faults = 0.0

    def _go_away(self) -> None:
        self.coordinator.available = False
        self.world.after(self.world.rng.uniform(0.5, 9.0), self._come_back)

    def _kill(self, process: Process) -> None:
        process.alive = False

    def _freeze(self, process: Process) -> None:
        process.frozen_until = self.world.now + self.world.rng.uniform(1.0, 12.0)

    def _subscribe(self, process: Process) -> None:
        topics = self.world.rng.choice((("t",), ("t", "u")))
        process.feed(e.SubscriptionChanged(StaticSubscription(dict.fromkeys(topics, 1))))

    def _lose(self, process: Process) -> None:
        if process.held:
            process.feed(e.OwnershipLost(min(process.held)))

    def _stop(self, process: Process) -> None:
        process.feed(e.StopRequested())

    def _come_back(self) -> None:
        self.coordinator.available = True
        self.coordinator.move()

    def play(self, steps: int = 20) -> None:
        """Let things happen, then heal everything; all partitions must be owned by members that want them."""
        rng = self.world.rng
        self.join()
        for _ in range(steps):
            self.world.run(rng.choice((0.0, 0.3, 1.0, 4.0)) * rng.random())
            self.step()
        self._faults = 0.0
        self.world.run(15.0)
        if self._one() is None:
            self.processes.append(Process(self, "last", self.machine, None))
        self.world.run(30.0)
        self._require_all_owned()

    def _require_all_owned(self) -> None:
        living = [each for each in self.processes if each.alive and not each.finished]
        owned = [place for process in living for place in process.delivers]
        wanted = {
            (topic_id, number)
            for topic, (topic_id, count) in self.coordinator.topics.items()
            if any(topic in known.topics for known in self.coordinator.members.values())
            for number in range(count)
        }
        assert sorted(owned) == sorted(wanted)
        for process in living:
            assert process.member.settled or not process.member.session_id, process.name
