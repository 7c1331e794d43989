"""Random schedules of groups that a broker coordinates: the real machine, a model of the coordinator, one seed.

Strategy: as `tests.support.simulator.schedule`. Members run the machine over a network that delays, loses and is
cut, with handlers that take their time; they hand batches over under the fence's condition. All along, no two members
deliver the same partition, and no member starts after an unhandled message. Once it is quiet, within a bounded time
every partition is consumed by exactly one member that subscribes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.group import coordinated_events as e
from consumerd.group.coordinated import CoordinatedMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.wire.registry import FilterKind, FilterSubscription, StaticSubscription, TopicFilter
from tests.support.simulator.coordinated_process import CoordinatedProcess
from tests.support.simulator.coordinator import Coordinator, Rules
from tests.support.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.base.partition import TopicPartition
    from consumerd.wire.registry import Subscription

    MachineFactory = Callable[[Subscription, CoordinationSettings], CoordinatedMember]

_TOPICS = ("apples", "beans", "cress")
_MOST_MEMBERS = 6
#: Seconds: the most of what members may be set to.
_LONGEST_SESSION = 10.0
_MORE_PATIENCE = 25.0
_LONGEST_DRAIN = 4.0
_LONGEST_REFRESH = 15.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The summary of a successful schedule."""

    seed: int
    steps: int
    #: Virtual seconds from the last misfortune until all was as it should be.
    settled_after: float
    members: int
    partitions: int
    generations: int
    batches: int


class CoordinatedSchedule:
    """A schedule that is being run."""

    def __init__(self, seed: int, machine: MachineFactory = CoordinatedMember) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        choice, chance = self.random.choice, self.random.random
        rules = Rules(one_timeout=chance() < 0.2, id_first=chance() < 0.6, quiet_completing=chance() < 0.5)
        self.coordinator = Coordinator(self.world, rules)
        # Of all members, or else each has its own: the coordinator goes by the longest patience.
        self._settings = self._any_settings() if chance() < 0.3 else None
        self._latency = choice((0.002, 0.02, 0.3))
        self._loss = choice((0.0, 0.0, 0.02))
        self._work = choice((0.05, 1.0, 6.0))
        self._machine = machine
        self.topics: dict[str, int] = {}
        self.processes: list[CoordinatedProcess] = []
        self._in_hand: dict[TopicPartition, CoordinatedProcess] = {}
        self._excused: set[tuple[TopicPartition, CoordinatedProcess]] = set()
        self._handled: dict[TopicPartition, int] = {}
        self._batches = 0
        self._names = 0

    def _any_settings(self) -> CoordinationSettings:
        choice = self.random.choice
        session = choice((3.0, 6.0, _LONGEST_SESSION))
        return CoordinationSettings(
            session_timeout=session,
            heartbeat_interval=session * choice((0.1, 0.3, 0.5)),
            rebalance_timeout=session + choice((0.0, 4.0, _MORE_PATIENCE)),
            drain_timeout=choice((1.0, _LONGEST_DRAIN)),
            topic_refresh_interval=choice((5.0, _LONGEST_REFRESH)),
        )

    # -- what members ask of their world

    def latency(self) -> float:
        """One way."""
        return self._latency * (0.5 + self.random.random())

    def work(self) -> float:
        """The time in seconds that a handler needs for a batch."""
        return self._work * self.random.random()

    def lost(self, process: CoordinatedProcess) -> bool:
        """Whether what `process` sends, or is sent, gets lost."""
        return process.cut or self.random.random() < self._loss

    def begin(self, process: CoordinatedProcess, partition: TopicPartition, position: int) -> None:
        """A delivery begins."""
        holder = self._in_hand.get(partition)
        if holder is not None and (partition, holder) not in self._excused:
            self.world.fail(f"{process.name} and {holder.name} both hand over {partition}")
        for other in self.processes:
            if other is not process and other.may_hand_over(partition):
                self.world.fail(f"{process.name} hands over {partition}, and {other.name} may do so too")
        if position > self._handled.get(partition, 0):
            self.world.fail(f"{process.name} begins {partition} at {position}, beyond what was handled")
        self._excused.discard((partition, process))
        self._in_hand[partition] = process
        self._batches += 1

    def end(self, process: CoordinatedProcess, partition: TopicPartition, position: int | None) -> None:
        """A delivery ended; `position` is None if it does not count."""
        self._excused.discard((partition, process))
        if self._in_hand.get(partition) is process:
            del self._in_hand[partition]
        if position is not None:
            self._handled[partition] = max(position, self._handled.get(partition, 0))

    def excuse(self, process: CoordinatedProcess) -> None:
        """A process keeps the batch that it is handling when it is frozen."""
        self._excused |= {(partition, holder) for partition, holder in self._in_hand.items() if holder is process}

    # -- the course

    def run(self) -> Outcome:
        """Run it. Raises SimulationError."""
        for topic in _TOPICS[: self.random.randint(1, 3)]:
            self.topics[topic] = self.random.randint(1, 6)
        for _ in range(self.random.randint(1, 4)):
            self._join()
        until = self.random.choice((10.0, 30.0, 60.0))
        for _ in range(self.random.randint(2, 12)):
            self.world.at(self.random.random() * until, self._strike)
        for second in range(1, int(until) + 200):
            self.world.at(float(second), self._commit_all)
        self.world.run_until(until)
        return self._quiet()

    def _commit_all(self) -> None:
        for process in self.processes:
            if process.alive and not process.frozen and process.machine.session_id:
                process.commit()

    def _strike(self) -> None:
        misfortunes = (
            self._join, self._leave, self._kill, self._freeze, self._cut, self._move, self._move, self._grow,
        )  # fmt: skip
        self.random.choice(misfortunes)()

    def _someone(self) -> CoordinatedProcess | None:
        alive = [each for each in self.processes if each.alive and not each.frozen]
        return self.random.choice(alive) if alive else None

    def _join(self) -> None:
        if sum(each.alive for each in self.processes) >= _MOST_MEMBERS:
            return
        self._names += 1
        subscription: Subscription
        if self.random.random() < 0.3:
            subscription = FilterSubscription(TopicFilter(FilterKind.WHITELIST, "apples|b.*"), 1)
        else:
            topics = self.random.sample(_TOPICS, self.random.randint(1, 3))
            subscription = StaticSubscription(dict.fromkeys(topics, 1))
        settings = self._settings or self._any_settings()
        machine = self._machine(subscription, settings)
        self.processes.append(CoordinatedProcess(self, f"p{self._names}", subscription, settings, machine))

    def _leave(self) -> None:
        if process := self._someone():
            process.tell(e.StopRequested())

    def _kill(self) -> None:
        if process := self._someone():
            self.world.note(process.name, "killed")
            process.kill()

    def _freeze(self) -> None:
        if process := self._someone():
            seconds = self.random.choice((1.0, 5.0, 20.0))
            self.world.note(process.name, f"frozen for {seconds} s")
            process.freeze(seconds)

    def _cut(self) -> None:
        if process := self._someone():
            seconds = self.random.choice((1.0, 5.0, 20.0))
            self.world.note(process.name, f"cut off for {seconds} s")
            process.cut = True
            self.world.after(seconds, process.reconnect)

    def _move(self) -> None:
        if self.coordinator.up:
            self.world.note("coordinator", "goes down")
            self.coordinator.go_down()
            self.world.after(self.random.choice((0.1, 2.0, 12.0)), self._loaded)

    def _loaded(self) -> None:
        self.world.note("coordinator", "is there again")
        self.coordinator.come_up()

    def _grow(self) -> None:
        topic = self.random.choice(_TOPICS)
        self.topics[topic] = self.topics.get(topic, 0) + self.random.randint(1, 3)

    def _quiet(self) -> Outcome:
        """No misfortune any more; those under way end."""
        self._loss = 0.0
        start = self.world.now
        limit = start + 40.0 + 3 * (2 * _LONGEST_SESSION + _MORE_PATIENCE + _LONGEST_REFRESH + _LONGEST_DRAIN)
        while (wrong := self._wrong()) is not None:
            if self.world.now > limit:
                self.world.fail(f"{limit - start:.0f} s after the last misfortune {wrong}")
            self.world.run_until(self.world.now + 0.5)
        settled = self.world.now - start
        before = self._batches
        self.world.run_until(self.world.now + 2 * _LONGEST_REFRESH + 10.0)
        if (wrong := self._wrong()) is not None:
            self.world.fail(f"having settled, {wrong}")
        partitions = sum(len(each.machine.assigned) for each in self.processes if each.alive)
        if partitions and self._batches == before:
            self.world.fail("nothing is handed over any more")
        return Outcome(
            self.seed,
            self.world.steps,
            settled,
            sum(each.alive for each in self.processes),
            partitions,
            self.coordinator.generation,
            self._batches,
        )

    def _wrong(self) -> str | None:
        """The first violation, if there is one."""
        alive = [each for each in self.processes if each.alive]
        owners: dict[TopicPartition, CoordinatedProcess] = {}
        if not self.coordinator.up:
            return "nobody coordinates"
        for process in alive:
            if process.frozen or process.cut:
                return f"{process.name} is frozen or cut off"
            if not process.machine.settled:
                return f"{process.name} is {process.machine._phase.value}"
            for partition in process.machine.assigned:
                if partition in owners:
                    return f"{partition} is owned twice"
                if not self._wants(process, partition.topic):
                    return f"{process.name} has {partition}"
                owners[partition] = process
        for topic, count in self.topics.items():
            if any(self._wants(process, topic) for process in alive):
                have = sum(partition.topic == topic for partition in owners)
                if have != count:
                    return f"{have} of {count} partitions of {topic} are owned"
        return None

    def _wants(self, process: CoordinatedProcess, topic: str) -> bool:
        return process.subscription.streams_for(topic) > 0
