"""Random schedules of groups that a broker coordinates: the real machine, a model of the coordinator, one seed.

Strategy: as `consumerd.embedded.simulator.schedule`. Members run the machine over a network that delays, loses and is
cut, with handlers that take their time; they hand batches over under the fence's condition. All along, no two members
hand over the same partition, and nobody begins beyond what was handled. Once it is quiet, within a bounded time every
partition is consumed by exactly one member that wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumerd.embedded.simulator.coordinator import Coordinator, Rules
from consumerd.embedded.simulator.world import World
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated import CoordinatedMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.registry import FilterKind, FilterSubscription, StaticSubscription, TopicFilter
from consumerd.wire.v08.error_codes import ErrorCode, error_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.partition import TopicPartition
    from consumerd.registry import Subscription

    MachineFactory = Callable[[Subscription, CoordinationSettings], CoordinatedMember]

#: The fence's margin, and what a cancelled handler takes: less.
MARGIN = 0.5
_CANCEL = 0.2
_TOPICS = ("apples", "beans", "cress")
_MOST_MEMBERS = 6
#: Answers are waited for so long.
_JOIN_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule that went well amounted to."""

    seed: int
    steps: int
    #: Virtual seconds from the last misfortune until all was as it should be.
    settled_after: float
    members: int
    partitions: int
    generations: int
    batches: int


class _Flow:
    """A partition that a member consumes."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.position: int | None = None
        self.in_hand = False
        self.fetching = True


class _Call:
    """A request on its way, and its answer."""

    def __init__(
        self, process: CoordinatedProcess, ticket: int, connection: int, answer: Callable[[dict[str, Any]], e.Event]
    ) -> None:
        self._process = process
        self._ticket = ticket
        self._connection = connection
        self._answer = answer
        self._open = True

    def arrive(self, send: Callable[[Any], None]) -> None:
        """At the broker."""
        coordinator = self._process.schedule.coordinator
        if coordinator.up:
            send(self._reply)
        else:
            self._reply(ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE, {})

    def _reply(self, code: int, fields: dict[str, Any]) -> None:
        schedule = self._process.schedule
        if not schedule.lost(self._process):
            schedule.world.after(schedule.latency(), self._deliver, code, fields)

    def _deliver(self, code: int, fields: dict[str, Any]) -> None:
        if not self._open or self._connection != self._process.connection:
            return
        self._open = False
        if code == 0:
            event = self._answer(fields)
        elif error_info(code).retriable:
            event = e.Failed(self._ticket)
        else:
            event = e.Refused(self._ticket, code, fields.get("member_id", ""))
        self._process.tell(event)

    def give_up(self) -> None:
        """No answer came in time."""
        if self._open:
            self._open = False
            self._process.tell(e.Failed(self._ticket))


class CoordinatedProcess:
    """One member: performs what its machine asks for, slowly."""

    def __init__(
        self, schedule: CoordinatedSchedule, name: str, subscription: Subscription, machine: CoordinatedMember
    ) -> None:
        self.schedule = schedule
        self.subscription = subscription
        self.world = schedule.world
        self.name = name
        self.machine = machine
        self.alive = True
        self.frozen = False
        self.cut = False
        self.left = False
        self.connection = 0
        self._inbox: list[e.Event] = []
        self._timer = 0
        self._watching = False
        self.flows: dict[TopicPartition, _Flow] = {}
        self._ending: tuple[int, bool] | None = None
        self.world.after(0.0, self.tell, e.Started())

    # -- events and actions

    def tell(self, event: e.Event) -> None:
        """Hand an event to the machine, when the process runs."""
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(event)
            return
        self.world.note(self.name, event)
        for action in self.machine.handle(event, self.world.now):
            self.world.note(self.name, action)
            self._perform(action)
        self._watch_lease()

    def _perform(self, action: e.Action) -> None:
        settings = self.schedule.settings
        coordinator = self.schedule.coordinator
        match action:
            case e.Join(ticket, member_id, protocols):
                patience = max(settings.rebalance_timeout, settings.session_timeout) + _JOIN_GRACE
                times = settings.session_timeout, settings.rebalance_timeout
                self._ask(
                    ticket,
                    patience,
                    lambda reply: coordinator.join(member_id, *times, protocols, reply),
                    lambda fields: self._joined(ticket, fields),
                )
            case e.Sync(ticket, generation, member_id, _, assignments):
                self._ask(
                    ticket,
                    settings.rebalance_timeout + _JOIN_GRACE,
                    lambda reply: coordinator.sync(member_id, generation, assignments, reply),
                    lambda fields: e.Synced(ticket, fields["assignment"]),
                )
            case e.Heartbeat(ticket, generation, member_id):
                self._ask(
                    ticket,
                    settings.session_timeout / 3,
                    lambda reply: coordinator.heartbeat(member_id, generation, reply),
                    lambda _: e.Confirmed(ticket),
                )
            case e.Leave(ticket, member_id):
                self._ask(
                    ticket,
                    settings.session_timeout / 3,
                    lambda reply: coordinator.leave(member_id, reply),
                    lambda _: e.Left(ticket),
                )
            case e.LookAtTopics(ticket, topics):
                self._look(ticket, topics)
            case e.Forget():
                self.connection += 1
            case e.SetTimer(at):
                self._timer += 1
                self.world.at(at, self._fire, self._timer)
            case e.Refuse(code):
                self.world.fail(f"{self.name} is refused with {code}")
            case e.Finished():
                self._end()
            case _:
                self._perform_flow(action)

    def _perform_flow(self, action: e.Action) -> None:
        match action:
            case e.StartConsuming(partitions, session_id):
                for partition in partitions:
                    if partition in self.flows:
                        self.world.fail(f"{self.name} starts {partition}, which flows")
                    self.flows[partition] = _Flow(session_id)
                    self.world.after(self.schedule.latency(), self._load, partition, session_id)
            case e.Drain(ticket, deadline):
                self._ending = ticket, False
                for flow in self.flows.values():
                    flow.fetching = False
                self.world.at(deadline, self._cancel, ticket)
                self._ended()
            case e.Abandon(ticket):
                self._ending = ticket, True
                for flow in self.flows.values():
                    flow.fetching = False
                self._cancel(ticket)
                self._ended()

    def _fire(self, timer: int) -> None:
        if timer == self._timer:
            self.tell(e.TimerFired())

    def _end(self) -> None:
        if self.flows:
            self.world.fail(f"{self.name} finished while it consumes")
        self.left, self.alive = True, False

    # -- the network

    def _ask(
        self, ticket: int, patience: float, send: Callable[[Any], None], answer: Callable[[dict[str, Any]], e.Event]
    ) -> None:
        """Over the member's own connection: what the process drops, or a cut, is not answered any more."""
        call = _Call(self, ticket, self.connection, answer)
        self.world.after(patience, call.give_up)
        if not self.schedule.lost(self):
            self.world.after(self.schedule.latency(), call.arrive, send)

    def _joined(self, ticket: int, fields: dict[str, Any]) -> e.Event:
        settings = self.schedule.settings
        one = self.schedule.coordinator.rules.one_timeout
        return e.Joined(
            ticket,
            fields["generation"],
            fields["member_id"],
            fields["protocol"],
            fields["leads"],
            tuple(e.GroupMember(name, metadata) for name, metadata in fields["members"]),
            settings.session_timeout if one else settings.rebalance_timeout,
        )

    def _look(self, ticket: int, topics: tuple[str, ...] | None) -> None:
        def seen() -> None:
            found = self.schedule.topics
            if self.cut:
                self.tell(e.Failed(ticket))
            else:
                self.tell(e.TopicsSeen(ticket, {t: n for t, n in found.items() if topics is None or t in topics}))

        self.world.after(2 * self.schedule.latency(), seen)

    # -- the flow

    @property
    def _lease_left(self) -> float:
        return self.machine.lease_until - self.world.now

    def _allows(self, flow: _Flow) -> bool:
        return self.machine.session_id == flow.session and self._lease_left > MARGIN

    def may_hand_over(self, partition: TopicPartition) -> bool:
        """Whether the fence would let a batch through at this moment."""
        flow = self.flows.get(partition)
        return self.alive and not self.frozen and flow is not None and flow.fetching and self._allows(flow)

    def _watch_lease(self) -> None:
        if self.alive and not self._watching and self.machine.session_id:
            self._watching = True
            self.world.at(self.machine.lease_until - MARGIN, self._lease_due)

    def _lease_due(self) -> None:
        self._watching = False
        if not self.alive or not self.machine.session_id:
            return
        if self.frozen:  # it sees when it wakes
            self._watching = True
            self.world.after(0.1, self._lease_due)
        elif self._lease_left <= MARGIN:
            self.tell(e.LeaseExpired())
            # It is told once; the machine may wait for a heartbeat before it starts.
            self.world.after(MARGIN, self._watch_lease)
        else:
            self._watch_lease()

    def _load(self, partition: TopicPartition, session: int) -> None:
        """The position comes from the coordinator; until then nothing is handed over."""
        flow = self.flows.get(partition)
        if not self.alive or flow is None or flow.session != session or not flow.fetching:
            return
        coordinator = self.schedule.coordinator
        if self.frozen or self.cut or not coordinator.up:
            self.world.after(0.3, self._load, partition, session)
            return
        flow.position = coordinator.offsets.get(partition, 0)
        self._next_batch(partition, flow)

    def _next_batch(self, partition: TopicPartition, flow: _Flow) -> None:
        if not self.alive or not flow.fetching or self.flows.get(partition) is not flow:
            return
        if self.frozen or not self._allows(flow):
            self.world.after(0.1, self._next_batch, partition, flow)
            return
        assert flow.position is not None
        self.schedule.begin(self, partition, flow.position)
        flow.in_hand = True
        self.world.after(self.schedule.work(), self._handled, partition, flow)

    def _handled(self, partition: TopicPartition, flow: _Flow) -> None:
        if not self.alive or not flow.in_hand or self.flows.get(partition) is not flow:
            return
        if self.frozen:
            self.world.after(0.1, self._handled, partition, flow)
            return
        assert flow.position is not None
        flow.in_hand = False
        flow.position += 1
        self.schedule.end(self, partition, flow.position)
        if flow.fetching:
            self.world.after(0.05, self._next_batch, partition, flow)
        self._ended()

    def _cancel(self, ticket: int) -> None:
        """The handler obeys soon, and what it had in hand does not count."""
        if self._ending is not None and self._ending[0] == ticket:
            self.world.after(_CANCEL * self.schedule.random.random(), self._cancelled, ticket)

    def _cancelled(self, ticket: int) -> None:
        if self.frozen:
            self.world.after(0.1, self._cancelled, ticket)
        elif self.alive and self._ending is not None and self._ending[0] == ticket:
            for partition, flow in self.flows.items():
                if flow.in_hand:
                    flow.in_hand = False
                    self.schedule.end(self, partition, None)
            self._ended()

    def _ended(self) -> None:
        if self._ending is None or any(flow.in_hand for flow in self.flows.values()):
            return
        (ticket, abandoned), self._ending = self._ending, None
        if not abandoned:
            self.commit()
        self.flows.clear()
        delay = 2 * self.schedule.latency()
        self.world.after(delay, self.tell, e.Abandoned(ticket) if abandoned else e.Drained(ticket))

    def commit(self) -> None:
        """What was handled, with the generation as it is when it is sent."""
        positions = {tp: flow.position for tp, flow in self.flows.items() if flow.position is not None}
        machine, coordinator = self.machine, self.schedule.coordinator
        member_id, generation = machine.member_id, machine.generation

        def arrive() -> None:
            if coordinator.up:
                coordinator.commit(member_id, generation, positions, lambda _code, _fields: None)

        if positions and not self.schedule.lost(self):
            self.world.after(self.schedule.latency(), arrive)

    # -- misfortunes

    def freeze(self, seconds: float) -> None:
        """Stop the process for a while."""
        self.frozen = True
        self.schedule.excuse(self)
        self.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self.tell(event)

    def reconnect(self) -> None:
        """The network is there again; what was asked before is answered no more."""
        self.cut = False

    def kill(self) -> None:
        """End it at once."""
        self.alive = False
        for partition, flow in self.flows.items():
            if flow.in_hand:
                self.schedule.end(self, partition, None)


class CoordinatedSchedule:
    """A schedule that is being run."""

    def __init__(self, seed: int, machine: MachineFactory = CoordinatedMember) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        choice, chance = self.random.choice, self.random.random
        rules = Rules(one_timeout=chance() < 0.2, id_first=chance() < 0.6, quiet_completing=chance() < 0.5)
        self.coordinator = Coordinator(self.world, rules)
        session = choice((3.0, 6.0, 10.0))
        self.settings = CoordinationSettings(
            session_timeout=session,
            heartbeat_interval=session * choice((0.1, 0.3, 0.5)),
            rebalance_timeout=session + choice((0.0, 4.0, 25.0)),
            drain_timeout=choice((1.0, 4.0)),
            look_interval=choice((5.0, 15.0)),
        )
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

    # -- what members ask of their world

    def latency(self) -> float:
        """One way."""
        return self._latency * (0.5 + self.random.random())

    def work(self) -> float:
        """What a handler takes for a batch."""
        return self._work * self.random.random()

    def lost(self, process: CoordinatedProcess) -> bool:
        """Whether what `process` sends, or is sent, gets lost."""
        return process.cut or self.random.random() < self._loss

    def begin(self, process: CoordinatedProcess, partition: TopicPartition, position: int) -> None:
        """A hand-over begins."""
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
        """A hand-over ended; `position` is None where it does not count."""
        self._excused.discard((partition, process))
        if self._in_hand.get(partition) is process:
            del self._in_hand[partition]
        if position is not None:
            self._handled[partition] = max(position, self._handled.get(partition, 0))

    def excuse(self, process: CoordinatedProcess) -> None:
        """What a process has in hand when it is frozen cannot be taken from it."""
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
        machine = self._machine(subscription, self.settings)
        self.processes.append(CoordinatedProcess(self, f"p{self._names}", subscription, machine))

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
        settings = self.settings
        limit = (
            start
            + 40.0
            + 3
            * (settings.session_timeout + settings.rebalance_timeout + settings.look_interval + settings.drain_timeout)
        )
        while (wrong := self._wrong()) is not None:
            if self.world.now > limit:
                self.world.fail(f"{limit - start:.0f} s after the last misfortune {wrong}")
            self.world.run_until(self.world.now + 0.5)
        settled = self.world.now - start
        before = self._batches
        self.world.run_until(self.world.now + 2 * settings.look_interval + 10.0)
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
        """What is not as it should be, if anything."""
        alive = [each for each in self.processes if each.alive]
        owners: dict[TopicPartition, CoordinatedProcess] = {}
        if not self.coordinator.up:
            return "nobody coordinates"
        for process in alive:
            if process.frozen or process.cut:
                return f"{process.name} is frozen or cut off"
            if not process.machine.settled:
                return f"{process.name} is {process.machine.phase.value}"
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
