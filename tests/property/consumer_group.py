"""Machines of the consumer protocol around a model of their coordinator, with processes and a network that fail.

Strategy: a queue of events by their times. The coordinator is `tests.simulation.consumer_coordinator`; the machines of
`consumerd.group` are real, and runners perform their actions. At every moment each partition is delivered by one member
at most, and by a live one only while its lease lasts. Whole members are in `tests.simulation`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.consumer_protocol import ConsumerProtocolMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08.error_codes import ErrorCode
from tests.simulation.consumer_coordinator import ConsumerCoordinator, Place

SETTINGS = CoordinationSettings(
    session_timeout=6.0, heartbeat_interval=1.0, rebalance_timeout=8.0, reconcile_interval=5.0, protocol="consumer"
)
#: Processes of a group.
_MOST = 8


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


class Process:
    """A machine with its runner: it performs the actions, and knows what is delivered."""

    def __init__(self, group: Group, name: str, machine: type[ConsumerProtocolMember], instance: str | None) -> None:
        self.group, self.world, self.name, self.instance = group, group.world, name, instance
        settings = SETTINGS.replace(instance_id=instance)
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
                self.group.send(self, action, lambda: self._heartbeat(action, named))
            case e.Leave():
                assert not self.held
                self.group.send(self, action, lambda: self._leave(action))
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

    def _heartbeat(self, action: e.ConsumerHeartbeat, owned: set[Place]) -> e.Event:
        code, epoch, assignment = self.group.coordinator.heartbeat(
            action.member_id,
            action.epoch,
            action.topics,
            owned,
            rebalance_timeout=SETTINGS.rebalance_timeout,
            instance=self.instance,
        )
        if code:
            self.group.fenced += code == ErrorCode.FENCED_MEMBER_EPOCH
            return e.Refused(action.ticket, code)
        given = {topic_id: tuple(numbers) for topic_id, numbers in assignment.items()}
        return e.Assigned(action.ticket, action.member_id, epoch, self.group.coordinator.interval, given)

    def _leave(self, action: e.Leave) -> e.Event:
        code = self.group.coordinator.leave(action.member_id, action.epoch)
        return e.Refused(action.ticket, code) if code else e.Left(action.ticket)

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
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.coordinator = ConsumerCoordinator(lambda: self.world.now, lambda: self.topics)
        self.fenced = 0
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
        self.topics[topic] = topic_id, count
        self.world.after(self.world.rng.choice((0.0, 1.5)), lambda: self.names.update({topic_id: topic}))

    def grow(self, topic: str) -> None:
        topic_id, count = self.topics[topic]
        self.topics[topic] = topic_id, count + 1

    def read_topics(self, ticket: int) -> e.Event:
        counts: Mapping[str, int] = {name: count for name, (_, count) in self.topics.items()}
        return e.TopicsRead(ticket, counts, dict(self.names))

    def send(self, process: Process, action: Any, serve: Callable[[], e.Event]) -> None:
        """A request: it may be lost, its answer may be, and both take time."""
        rng, fate = self.world.rng, self.world.rng.random()
        failed = e.Failed(action.ticket)
        if fate < self._faults / 2:
            self.world.after(rng.uniform(0.0, 2.0), lambda: process.feed(failed))
            return

        def arrive() -> None:
            if not self.coordinator.up:
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
            self.coordinator.come_up, lambda: self.grow("t"), lambda: self.new_topic("u", rng.randint(1, 3)),
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
        self.coordinator.go_down()
        self.world.after(self.world.rng.uniform(0.5, 9.0), self.coordinator.come_up)

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
            for topic, (topic_id, count) in self.topics.items()
            if any(topic in known.topics for known in self.coordinator.members.values())
            for number in range(count)
        }
        assert sorted(owned) == sorted(wanted)
        for process in living:
            assert process.member.settled or not process.member.session_id, process.name
