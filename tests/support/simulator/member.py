"""A simulated process around the real membership machine: performs its actions, and watches that they are legal.

Strategy: the same contract as the consumer's (`consumerd.group.events`), with the flow of messages reduced to what
matters for the group: from StartConsuming to Drained or Abandon a partition is *delivered*, whenever the process
runs and the lease is valid. Every breach of the contract's order fails the simulation at once, partition by partition.
What the contract leaves open is drawn: in how many requests a set is claimed or released, what an answer leaves out,
in which parts handlers end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from consumerd.group import events as e
from consumerd.group.rules import topics_to_read
from consumerd.wire.registry import format_owner
from tests.support.simulator.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from consumerd.base.partition import TopicPartition
    from consumerd.group.membership import ZooKeeperMember
    from tests.support.simulator.client import Weather
    from tests.support.simulator.server import Server
    from tests.support.simulator.world import World

    #: One operation at the server; the last one returns the answering event.
    Step = Callable[[], object]
    _Busy = e.Claim | e.Release | e.Drain | e.Abandon

#: Seconds from SIGTERM to SIGKILL.
_STOP_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Handling:
    """The behaviour of a member's handlers. Times in seconds, drawn uniformly up to the value."""

    #: The time that a handler needs to finish its batch.
    drain: float = 0.5
    #: The time that it needs to end when it is cancelled.
    cancel: float = 0.01
    #: False: a broken process that delivers without checking its lease.
    heeds_lease: bool = True


class SimulatedMember(Client):
    """One consumer process. `others` shows whether another member delivers a partition."""

    def __init__(
        self,
        machine: ZooKeeperMember,
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
        self._timer = 0
        #: The work in progress for a partition.
        self._busy: dict[TopicPartition, _Busy] = {}
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
            and not (self.dead or self.stopped)
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

    def _ask(self, action: e.TakeSnapshot | e.Register | e.Unregister, *steps: Step) -> None:
        self.send(action.session_id, steps, self.feed, partial(self.feed, e.Failed(action.ticket)))

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
            return e.SnapshotTaken(action.ticket, e.MembershipSnapshot(members, own[0], topics, sessions, claimed))

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
        if not action.streams:
            self.world.fail(f"{self.name} claims nothing")
        self._begin(action, action.streams)
        for partition, busy in self._busy.items():
            if isinstance(busy, e.Drain) or (isinstance(busy, e.Release) and busy.session_id == self.session_id):
                self.world.fail(f"{self.name} claims {set(action.streams)} before it has released {partition}")
        claimed: set[TopicPartition] = set()
        blocked: set[TopicPartition] = set()

        def create(partition: TopicPartition) -> None:
            server = self.server
            registered = server.ids.get(self.name, (0, ""))[0] == action.session_id
            if not registered and (action.session_id, self.name) not in server.robbed:
                self.world.fail(f"{self.name} claims {partition} without being registered")
            value = format_owner(self.name, action.streams[partition])
            if server.create_owner(partition, action.session_id, value):
                claimed.add(partition)
            elif server.owners[partition][0] == action.session_id:
                self.world.fail(f"{self.name} claims {partition} for another stream without releasing it")
            else:
                blocked.add(partition)

        def answer() -> e.Event:
            return e.Claimed(action.ticket, self._known(claimed), self._known(blocked))

        self._write(action, action.streams, create, answer, e.Claimed(action.ticket, frozenset(), frozenset()))

    def _release(self, action: e.Release) -> None:
        self._begin(action, action.partitions)
        for partition in action.partitions & self._consumed:
            self.world.fail(f"{self.name} releases {partition} while its handler holds messages")
        released: set[TopicPartition] = set()

        def delete(partition: TopicPartition) -> None:
            self.server.delete_owner(partition, action.session_id)
            released.add(partition)

        def answer() -> e.Event:
            return e.Released(action.ticket, self._known(released))

        self._write(action, action.partitions, delete, answer, e.Released(action.ticket, frozenset()))

    def _write(
        self,
        action: e.Claim | e.Release,
        partitions: Collection[TopicPartition],
        perform: Callable[[TopicPartition], None],
        answer: Callable[[], e.Event],
        nothing_known: e.Event,
    ) -> None:
        """Do it for all partitions, in one request or in some; a part of them may not be carried out."""
        vague = self.weather.vague_replies
        chance = self.world.random.random

        def request(part: frozenset[TopicPartition]) -> None:
            for partition in sorted(part):
                if vague == 0.0 or chance() >= vague / 2:
                    perform(partition)

        def answered(event: e.Event) -> None:
            self._finish(action, partitions)
            self.feed(event)

        requests = [partial(request, part) for part in self._parts(partitions, 0.2)]
        self.send(action.session_id, requests, lambda _: answered(answer()), partial(answered, nothing_known))

    def _known(self, partitions: set[TopicPartition]) -> frozenset[TopicPartition]:
        """The part of `partitions` in an answer: the replies to some of the requests may be lost."""
        vague = self.weather.vague_replies
        if vague == 0.0:
            return frozenset(partitions)
        return frozenset(each for each in sorted(partitions) if self.world.random.random() >= vague / 2)

    def _parts(self, partitions: Iterable[TopicPartition], cut: float) -> Iterator[frozenset[TopicPartition]]:
        """The partitions in random parts; `cut` is the chance that a part ends after a partition."""
        remaining = sorted(partitions)
        self.world.random.shuffle(remaining)
        part: list[TopicPartition] = []
        for partition in remaining:
            part.append(partition)
            if self.world.random.random() < cut:
                yield frozenset(part)
                part = []
        if part:
            yield frozenset(part)

    def _nudge(self, action: e.Nudge) -> None:
        def again() -> None:
            if action.session_id == self.session_id:
                self.local(1.0, self._nudge, action)

        self.nudges += 1
        self.send(action.session_id, [self.server.nudge], self._ignore, again)

    # -- the flow of messages

    def _begin(self, action: _Busy, partitions: Iterable[TopicPartition]) -> None:
        """Note what is under way for the partitions; only Abandon may come on top of something, a Drain."""
        for partition in partitions:
            busy = self._busy.get(partition)
            legal = busy is None or (isinstance(action, e.Abandon) and isinstance(busy, e.Drain))
            if not legal and getattr(busy, "session_id", self.session_id) == self.session_id:
                self.world.fail(f"{self.name}: {action} while {busy} is under way for {partition}")
            self._busy[partition] = action

    def _finish(self, action: _Busy, partitions: Iterable[TopicPartition]) -> None:
        """The action is not under way for these any more."""
        for partition in partitions:
            if self._busy.get(partition) is action:
                del self._busy[partition]

    def _start(self, action: e.StartConsuming) -> None:
        for partition in sorted(action.streams):
            if partition in self._consumed or partition in self._busy:
                self.world.fail(f"{self.name} starts {partition}, which has not ended")
            self._consumed.add(partition)
            self._check(partition)

    def _check(self, partition: TopicPartition) -> None:
        if self.hands_over(partition):
            self._overlap(self, partition)

    def _drain(self, action: e.Drain) -> None:
        self._begin(action, action.partitions)
        for partition in action.partitions - self._consumed:
            self.world.fail(f"{self.name} drains {partition}, which is not consumed")
        chance = self.world.random.random
        left = max(0.0, action.deadline - self.world.now)
        for part in self._parts(action.partitions, 0.5):
            needed = chance() * self.handling.drain
            if needed > left:
                needed = left + chance() * self.handling.cancel
            self.local(needed, self._drained, action, part)

    def _drained(self, action: e.Drain, part: frozenset[TopicPartition]) -> None:
        """Also answer for partitions that were abandoned meanwhile: the machine no longer waits for it."""
        ended = {partition for partition in part if self._busy.get(partition) is action}
        self._consumed -= ended
        self._finish(action, ended)
        self.feed(e.Drained(action.ticket, part))

    def _abandon(self, action: e.Abandon) -> None:
        self._begin(action, action.partitions)
        for partition in action.partitions - self._consumed:
            self.world.fail(f"{self.name} abandons {partition}, which is not consumed")
        self._consumed -= action.partitions
        for part in self._parts(action.partitions, 0.5):
            self.local(self.world.random.random() * self.handling.cancel, self._abandoned, action, part)

    def _abandoned(self, action: e.Abandon, part: frozenset[TopicPartition]) -> None:
        self._finish(action, part)
        self.feed(e.Abandoned(action.ticket, part))

    # -- the rest

    def _set_timer(self, action: e.SetTimer) -> None:
        if action.at <= self.world.now:
            self.world.fail(f"{self.name} asks for a timer that is due already")
        self._timer += 1
        self.local(action.at - self.world.now, self._timer_fired, self._timer)

    def _timer_fired(self, number: int) -> None:
        if number == self._timer:
            self.feed(e.TimerFired())

    def _refuse(self, _: e.RefuseGroup) -> None:
        if self._consumed:
            self.world.fail(f"{self.name} refuses a group in which it consumes {self._consumed}")
        self.refused = True

    def _finished(self, _: e.Finished) -> None:
        running = [busy for busy in self._busy.values() if isinstance(busy, e.Drain | e.Abandon)]
        if self._consumed or running:
            self.world.fail(f"{self.name} is finished, but consumes {self._consumed} and {running} are under way")
        self.left = True
        self.leave()

    def _ignore(self, _: object) -> None:
        pass
