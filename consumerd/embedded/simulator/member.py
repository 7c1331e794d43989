"""A simulated process around the real membership machine: performs its actions, and watches that they are legal.

Strategy: the same contract as the consumer's (`consumerd.group.events`), with the flow of messages reduced to what
matters for the group: from StartConsuming to Drained or Abandon a partition is *handed over*, whenever the process
runs, handover is not paused and the lease is valid. Every breach of the contract's order fails the simulation at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from consumerd.embedded.simulator.client import Client
from consumerd.group import events as e
from consumerd.group.rules import topics_to_read
from consumerd.registry import format_owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from consumerd.embedded.simulator.client import Weather
    from consumerd.embedded.simulator.server import Server
    from consumerd.embedded.simulator.world import World
    from consumerd.group.membership import Member
    from consumerd.partition import TopicPartition

    #: One operation at the server; the last one returns the answering event.
    Step = Callable[[], object]

#: Seconds from SIGTERM to SIGKILL.
_STOP_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Handling:
    """How the handlers of a member behave. Times in seconds, drawn uniformly up to the value."""

    #: What a handler needs to finish what it holds.
    drain: float = 0.5
    #: What it needs to end when it is cancelled.
    cancel: float = 0.01
    #: False: a broken process that hands over without looking at its lease.
    heeds_lease: bool = True


class SimulatedMember(Client):
    """One consumer process. `others` is asked whether somebody else hands a partition over."""

    def __init__(
        self,
        machine: Member,
        world: World,
        server: Server,
        weather: Weather,
        handling: Handling,
        overlap: Callable[[SimulatedMember, TopicPartition], None],
    ) -> None:
        super().__init__(machine.consumer_id, world, server, weather)
        self.machine = machine
        self.handling = handling
        self.left = False
        self.refused = False
        self._consumed: set[TopicPartition] = set()
        self.nudges = 0
        self._overlap = overlap
        self._paused = False
        self._timer = 0
        #: What is under way for a partition: (action, session).
        self._busy: dict[TopicPartition, e.Claim | e.Release | e.Drain | e.Abandon] = {}
        self._perform = {
            e.TakeSnapshot: self._take_snapshot,
            e.Register: self._register,
            e.Unregister: self._unregister,
            e.Claim: self._claim,
            e.Release: self._release,
            e.Nudge: self._nudge,
            e.StartConsuming: self._start,
            e.Drain: self._drain,
            e.Abandon: self._abandon,
            e.PauseHandover: self._pause,
            e.ResumeHandover: self._resume,
            e.SetTimer: self._set_timer,
            e.Warn: self._ignore,
            e.RefuseGroup: self._refuse,
            e.Finished: self._finished,
        }

    @property
    def active(self) -> AbstractSet[TopicPartition]:
        return self._consumed

    def hands_over(self, partition: TopicPartition) -> bool:
        return (
            partition in self._consumed
            and not (self.dead or self.stopped or self._paused)
            and (self.lease_valid or not self.handling.heeds_lease)
        )

    def lease_renewed(self) -> None:
        for partition in self._consumed:
            self._check(partition)

    def feed(self, event: e.Event) -> None:
        if self.left:
            return
        self.world.note(self.name, event)
        for action in self.machine.handle(event, self.world.now):
            self.world.note(self.name, action)
            self._perform[type(action)](action)  # type: ignore[operator]

    def stop(self) -> None:
        self.local(0.0, self.feed, e.StopRequested())
        self.world.after(_STOP_TIMEOUT, self.kill)

    # -- ZooKeeper

    def _ask(self, action: e.TakeSnapshot | e.Register | e.Unregister | e.Claim | e.Release, *steps: Step) -> None:
        failed = partial(self._answer, action, e.Failed(action.ticket))
        self.send(action.session_id, steps, partial(self._answer, action), failed)

    def _answer(self, action: e.Action, event: e.Event) -> None:
        partition = getattr(action, "partition", None)
        if partition is not None and self._busy.get(partition) is action:
            del self._busy[partition]
        self.feed(event)

    def _take_snapshot(self, action: e.TakeSnapshot) -> None:
        server = self.server
        members: dict[str, str] = {}
        own: list[int | None] = []

        def read_ids() -> None:
            server.watch("ids", self, action.session_id)
            server.watch(("id", self.name), self, action.session_id)
            members.update((consumer_id, text) for consumer_id, (_, text) in server.ids.items())
            own.append(server.ids[self.name][0] if self.name in server.ids else None)

        def read_topics() -> e.SnapshotTaken:
            server.watch("topics", self, action.session_id)
            wanted = topics_to_read(server.rules, action.topics, members.values())
            topics = {topic: brokers for topic, brokers in server.topics.items() if wanted is None or topic in wanted}
            sessions: dict[TopicPartition, int | None] = {}
            for partition in action.verify:
                server.watch(("owner", partition), self, action.session_id)
                sessions[partition] = server.owners[partition][0] if partition in server.owners else None
            claimed = frozenset(p for p in server.owners if p.topic in topics) if action.survey else None
            return e.SnapshotTaken(action.ticket, e.GroupSnapshot(members, own[0], topics, sessions, claimed))

        self._ask(action, read_ids, read_topics)

    def _register(self, action: e.Register) -> None:
        def create() -> e.Event:
            text = self.server.rules.format(self.machine.subscription, 0)
            if self.server.create_id(self.name, action.session_id, text):
                return e.Registered(action.ticket)
            return e.RegistrationBlocked(action.ticket)

        self._ask(action, create)

    def _unregister(self, action: e.Unregister) -> None:
        def delete() -> e.Event:
            for partition, (session_id, _) in self.server.owners.items():
                if session_id == action.session_id:
                    self.world.fail(f"{self.name} unregisters while it owns {partition}")
            self.server.delete_id(self.name, action.session_id)
            return e.Unregistered(action.ticket)

        self._ask(action, delete)

    def _claim(self, action: e.Claim) -> None:
        self._begin(action)
        for partition, busy in self._busy.items():
            if isinstance(busy, e.Drain) or (isinstance(busy, e.Release) and busy.session_id == self.session_id):
                self.world.fail(f"{self.name} claims {action.partition} before it has released {partition}")

        def create() -> e.Event:
            server = self.server
            registered = server.ids.get(self.name, (0, ""))[0] == action.session_id
            if not registered and (action.session_id, self.name) not in server.robbed:
                self.world.fail(f"{self.name} claims {action.partition} without being registered")
            if server.create_owner(action.partition, action.session_id, format_owner(self.name, action.stream)):
                return e.Claimed(action.partition, action.ticket)
            if server.owners[action.partition][0] == action.session_id:
                self.world.fail(f"{self.name} claims {action.partition} for another stream without releasing it")
            return e.ClaimBlocked(action.partition, action.ticket)

        self._ask(action, create)

    def _release(self, action: e.Release) -> None:
        self._begin(action)
        if action.partition in self._consumed:
            self.world.fail(f"{self.name} releases {action.partition} while its handler holds messages")

        def delete() -> e.Event:
            self.server.delete_owner(action.partition, action.session_id)
            return e.Released(action.partition, action.ticket)

        self._ask(action, delete)

    def _nudge(self, action: e.Nudge) -> None:
        def again() -> None:
            if action.session_id == self.session_id:
                self.local(1.0, self._nudge, action)

        self.nudges += 1
        self.send(action.session_id, [self.server.nudge], self._ignore, again)

    # -- the flow of messages

    def _begin(self, action: e.Claim | e.Release | e.Drain | e.Abandon) -> None:
        """Note what is under way for the partition; only Abandon may come on top of something, a Drain."""
        busy = self._busy.get(action.partition)
        legal = busy is None or (isinstance(action, e.Abandon) and isinstance(busy, e.Drain))
        if not legal and getattr(busy, "session_id", self.session_id) == self.session_id:
            self.world.fail(f"{self.name}: {action} while {busy} is under way")
        self._busy[action.partition] = action

    def _start(self, action: e.StartConsuming) -> None:
        if action.partition in self._consumed or action.partition in self._busy:
            self.world.fail(f"{self.name} starts {action.partition}, which has not ended")
        self._consumed.add(action.partition)
        self._check(action.partition)

    def _check(self, partition: TopicPartition) -> None:
        if self.hands_over(partition):
            self._overlap(self, partition)

    def _drain(self, action: e.Drain) -> None:
        self._begin(action)
        if action.partition not in self._consumed:
            self.world.fail(f"{self.name} drains {action.partition}, which is not consumed")
        chance = self.world.random.random
        left = max(0.0, action.deadline - self.world.now)
        needed = chance() * self.handling.drain
        if needed > left:
            needed = left + chance() * self.handling.cancel
        self.local(needed, self._drained, action)

    def _drained(self, action: e.Drain) -> None:
        drained = e.Drained(action.partition, action.ticket)
        if self._busy.get(action.partition) is action:
            self._end(action.partition)
            self._answer(action, drained)
        else:
            self.feed(drained)  # it was abandoned meanwhile: an answer that nobody waits for any more

    def _abandon(self, action: e.Abandon) -> None:
        self._begin(action)
        if action.partition not in self._consumed:
            self.world.fail(f"{self.name} abandons {action.partition}, which is not consumed")
        self._end(action.partition)
        needed = self.world.random.random() * self.handling.cancel
        self.local(needed, self._answer, action, e.Abandoned(action.partition, action.ticket))

    def _end(self, partition: TopicPartition) -> None:
        self._consumed.discard(partition)

    def _pause(self, _: e.PauseHandover) -> None:
        self._paused = True

    def _resume(self, _: e.ResumeHandover) -> None:
        self._paused = False
        self.lease_renewed()

    # -- the rest

    def _set_timer(self, action: e.SetTimer) -> None:
        self._timer += 1
        self.local(action.at - self.world.now, self._timer_fired, self._timer)

    def _timer_fired(self, number: int) -> None:
        if number == self._timer:
            self.feed(e.TimerFired())

    def _refuse(self, _: e.RefuseGroup) -> None:
        self.refused = True

    def _finished(self, _: e.Finished) -> None:
        running = [busy for busy in self._busy.values() if isinstance(busy, e.Drain | e.Abandon)]
        if self._consumed or running:
            self.world.fail(f"{self.name} is finished, but consumes {self._consumed} and {running} are under way")
        self.left = True
        self.leave()

    def _ignore(self, _: object) -> None:
        pass
