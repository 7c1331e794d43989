"""A simulated member of a group that a broker coordinates: performs what the real machine asks for, slowly.

Strategy: requests and answers take their time, get lost, and are given up after as long as the real ones; handlers
hold a batch for a while, and are cancelled at a drain's deadline. Before each batch the fence's condition is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from consumerd.group import coordinated_events as e
from consumerd.wire.v08.error_codes import ErrorCode, error_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.base.partition import TopicPartition
    from consumerd.group.coordinated import CoordinatedMember
    from consumerd.group.coordinated_tables import CoordinationSettings
    from consumerd.wire.registry import Subscription
    from tests.support.simulator.coordinated import CoordinatedSchedule

#: The fence's margin, and what a cancelled handler takes at most: less.
MARGIN: Final = 0.5
_CANCEL: Final = 0.2
#: A join is waited for so much longer than the coordinator's patience.
_JOIN_GRACE: Final = 5.0


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
        self,
        schedule: CoordinatedSchedule,
        name: str,
        subscription: Subscription,
        settings: CoordinationSettings,
        machine: CoordinatedMember,
    ) -> None:
        self.schedule = schedule
        self._settings = settings
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
        self._watching = self._ran_out = False
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
        settings = self._settings
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
            case e.ReadTopics(ticket, topics):
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
        settings = self._settings
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
                self.tell(e.TopicsRead(ticket, {t: n for t, n in found.items() if topics is None or t in topics}))

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
            self.world.after(0.0, self._lease_due)

    def _lease_due(self) -> None:
        """As `consumerd.member.consumer.fence.Fence.watch`: called each time that it ends."""
        if not self.alive or not self.machine.session_id:
            self._watching = self._ran_out = False
            return
        left = self._lease_left - MARGIN
        if self.frozen:  # it sees when it wakes
            self.world.after(0.1, self._lease_due)
            return
        told, self._ran_out = self._ran_out, left <= 0
        self.world.after(0.1 if self._ran_out else max(left, 0.02), self._lease_due)
        if self._ran_out and not told:
            self.tell(e.LeaseExpired(self.machine.session_id))

    def _load(self, partition: TopicPartition, session: int) -> None:
        """The position comes from the coordinator; until then nothing is delivered."""
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
        """The handler ends soon, and its current batch does not count."""
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
        """Commit the handled positions, with the generation at the time of sending."""
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
