"""A process with a ZooKeeper session, as the network, the operating system and the lease treat it.

Strategy: one class for all that is not membership: latency and order of operations, watch events that come late or
never, connections that are cut or fall silent, processes that are stopped and continued, and the lease computed by the
client alone. Events for a stopped process wait in its inbox and are handled in order when it resumes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.group import events as e

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from consumerd.base.partition import TopicPartition
    from tests.support.simulator.server import Server
    from tests.support.simulator.world import World


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of the network. Times in seconds, drawn uniformly up to the value."""

    latency: float = 0.01
    watch_delay: float = 0.05
    #: Chance that a watch event never comes.
    watch_loss: float = 0.0
    #: Chance that an operation is done but the connection breaks before the reply.
    reply_loss: float = 0.0
    #: Chance that what was asked for one partition of many is not carried out or, as often, that its reply is lost.
    vague_replies: float = 0.0
    #: Whether the client says when its lease has run out, before the server says that the session has.
    lease_told: bool = True


class Client:
    """A process. Subclasses say what it does with events; `None` as an answer means: nothing to report."""

    def __init__(self, name: str, world: World, server: Server, weather: Weather) -> None:
        self.name = name
        self.world = world
        self.server = server
        self.weather = weather
        self.session_id = 0
        #: Whether the process has ended.
        self.dead = False
        self.stopped = False
        self.connected = False
        #: The lease: until when the server cannot have ended the session. Infinite while pings are answered.
        self.lease_until = -math.inf
        self._connection = 0
        self._silent_until = 0.0
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._pending: dict[int, Callable[[], None]] = {}
        self._operations = 0
        self._last_arrival = 0.0
        self._last_reply = 0.0
        self._trigger_coming = False
        #: Whether a watch event was missed while disconnected.
        self.missed_watch = False

    # -- for subclasses

    @property
    def active(self) -> AbstractSet[TopicPartition]:
        """The partitions that are consumed, be it with a pause."""
        raise NotImplementedError

    def hands_over(self, partition: TopicPartition) -> bool:
        """Whether a message of the partition can reach the handler at this moment."""
        raise NotImplementedError

    def stop(self) -> None:
        """Leave in order."""
        raise NotImplementedError

    def feed(self, event: e.Event) -> None:
        """An event of the session or a watch."""
        raise NotImplementedError

    def lease_renewed(self) -> None:
        """Handing over may have become possible again."""

    @property
    def healthy(self) -> bool:
        """Whether no misfortune is upon this process."""
        return self.connected and self._reachable and not self.stopped and self.server.alive(self.session_id)

    @property
    def calm(self) -> bool:
        """Whether it waits for nothing from the server and nothing is on its way to it."""
        return not self._pending and not self._trigger_coming

    @property
    def lease_valid(self) -> bool:
        """Whether no other member can own our partitions yet."""
        return self.world.now < self.lease_until

    def local(self, delay: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call in this process after `delay`: not while it is stopped, not when it is dead."""
        self.world.after(delay, self._locally, callback, arguments)

    def _locally(self, callback: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self.dead:
            return
        if self.stopped:
            self._inbox.append((callback, arguments))
        else:
            callback(*arguments)

    # -- operations

    def send(
        self,
        session_id: int,
        steps: Sequence[Callable[[], object]],
        done: Callable[..., None],
        failed: Callable[[], None],
    ) -> None:
        """Perform `steps` at the server, one after the other, then call `done` here with what the last one returned.

        Or call `failed`, if it is unclear what came of them.
        """
        if not self.connected or session_id != self.session_id:
            self.local(0.0, failed)
            return
        self._operations += 1
        number = self._operations
        self._pending[number] = failed
        arrival = max(self._last_arrival, self.world.now) + self._latency()
        for _ in steps[1:]:
            arrival += self._latency()
        self._last_arrival = max(self._last_arrival, arrival)
        self.world.at(arrival, self._arrive, self._connection, number, steps, 0, done)

    def _latency(self) -> float:
        return self.world.random.random() * self.weather.latency

    @property
    def _reachable(self) -> bool:
        return self.world.now >= self._silent_until and not self.server.down

    def _arrive(
        self, connection: int, number: int, steps: Sequence[Callable[[], object]], index: int, done: Callable[..., None]
    ) -> None:
        if connection != self._connection or not self._reachable or not self.server.alive(self.session_id):
            return  # the caller gets the error when the connection is found to be dead
        result = steps[index]()
        if index + 1 < len(steps):
            self.world.after(self._latency(), self._arrive, connection, number, steps, index + 1, done)
            return
        self._last_reply = max(self._last_reply, self.world.now + self._latency())
        if self.world.random.random() < self.weather.reply_loss:
            self.cut(self.world.random.random())
        self.world.at(self._last_reply, self._reply, connection, number, done, result)

    def _reply(self, connection: int, number: int, done: Callable[..., None], result: object) -> None:
        if connection == self._connection and self._reachable:
            self._locally(self._answered, (number, done, result))

    def _answered(self, number: int, done: Callable[..., None], result: object) -> None:
        if self._pending.pop(number, None) is not None:
            done(result)

    def watch_fired(self, session_id: int) -> None:
        """The server tells, the network delays or forgets."""
        if self._trigger_coming or self.world.random.random() < self.weather.watch_loss:
            return
        self._trigger_coming = True
        self.world.after(self.world.random.random() * self.weather.watch_delay, self._watch_event, session_id)

    def _watch_event(self, session_id: int) -> None:
        self._trigger_coming = False
        if session_id == self.session_id and self.connected and self._reachable:
            self._locally(self.feed, (e.Triggered(),))
        else:
            self.missed_watch = True

    # -- the session

    def connect(self) -> None:
        """Connect until the server answers; continue the session if it still exists, else open one."""
        if self.connected:
            return
        if not self._reachable:
            self.local(0.05 + self.world.random.random() * 0.5, self.connect)
            return
        self._connection += 1
        self.connected = True
        if self.session_id and self.server.heard(self.session_id):
            self.lease_until = math.inf
            self._news(e.SessionResumed())
            self.lease_renewed()
            return
        former, self.session_id = self.session_id, self.server.open()
        self.lease_until = math.inf
        self.world.note(self.name, f"session {self.session_id}")
        if former and self.world.random.random() < 0.9:
            self._news(e.SessionExpired())
            if self.world.random.random() < 0.1:
                self._news(e.SessionSuspended())
        self.feed(e.SessionStarted(self.session_id))

    def _news(self, event: e.Event) -> None:
        """Tell, and sometimes tell again."""
        self.feed(event)
        if self.world.random.random() < 0.05:
            self.feed(event)

    def _fall_silent(self) -> None:
        """Nothing of us reaches the server from now on: the lease counts from the last ping that was sent."""
        self.server.silence(self.session_id)
        timeout = self.server.session_timeout
        self.lease_until = min(self.lease_until, self.world.now + timeout - self.world.random.random() * timeout / 3)

    def cut(self, outage: float) -> None:
        """The connection ends, noticed at once; the next attempt to connect is after `outage` seconds."""
        if self.dead or not self.connected:
            return
        self.world.note(self.name, f"cut for {outage:.2f}")
        self._fall_silent()
        self._connection += 1
        self._locally(self._disconnected, (outage,))

    def partition(self, seconds: float) -> None:
        """Packets vanish; the client notices when pings stay unanswered."""
        if self.dead or not self.connected:
            return
        self.world.note(self.name, f"partitioned for {seconds:.2f}")
        self._fall_silent()
        noticed = max(0.0, self.lease_until - self.server.session_timeout / 3 - self.world.now)
        self._silent_until = self.world.now + max(seconds, noticed)
        self.local(noticed, self._notice, self._connection)

    def _notice(self, connection: int) -> None:
        if connection == self._connection:
            self._connection += 1
            self._disconnected(0.1)

    def _disconnected(self, outage: float) -> None:
        """The client has noticed the lost connection. Pending requests fail before, after or much later."""
        if not self.connected:
            return
        self.connected = False
        failed = list(self._pending.values())
        self._pending.clear()
        chance = self.world.random.random()
        late = self.world.random.random() * 12 if chance < 0.4 else 0.0
        if chance > 0.6:
            for fail in failed:
                fail()
        if chance > 0.2 or self.server.alive(self.session_id):  # else the first news will be that the session is over
            self._news(e.SessionSuspended())
        if chance <= 0.6:
            for fail in failed:
                self.local(late, fail)
        if not self.dead:
            self._watch_lease()
            self.local(outage, self.connect)

    def _watch_lease(self) -> None:
        if not self.lease_valid:
            self._lease_ended(self.lease_until)
        elif self.lease_until < math.inf:
            self.local(self.lease_until - self.world.now, self._lease_ended, self.lease_until)

    def _lease_ended(self, lease: float) -> None:
        if self.lease_until == lease and self.weather.lease_told:
            self.feed(e.LeaseExpired(self.session_id))

    # -- the process

    def stop_signal(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`: nothing is done meanwhile, and nothing known of it."""
        if self.dead or self.stopped:
            return
        self.world.note(self.name, f"stopped for {seconds:.2f}")
        self.stopped = True
        if self.connected:
            self._fall_silent()
        self.world.after(seconds, self._continue)

    def _continue(self) -> None:
        if self.dead:
            return
        self.world.note(self.name, "continued")
        self.stopped = False
        self.lease_renewed()  # if it outlasted the stop: delivery continues at once
        lapsed = self.connected and not self.lease_valid
        if lapsed and self.world.random.random() < 0.5:
            self._lease_ended(self.lease_until)
            lapsed = False
        while self._inbox and not self.stopped and not self.dead:
            callback, arguments = self._inbox.popleft()
            callback(*arguments)
        if self.dead or not self.connected:
            return
        if lapsed:
            self._lease_ended(self.lease_until)
        if not self.server.alive(self.session_id):
            self._connection += 1
            self._disconnected(self.world.random.random() * 0.1)
        elif self._reachable:
            self.server.heard(self.session_id)
            self.local(self._latency(), self._ping_answered, self._connection)

    def _ping_answered(self, connection: int) -> None:
        if connection == self._connection:
            self.lease_until = math.inf
            self.lease_renewed()

    def kill(self) -> None:
        """SIGKILL: the session lives until it expires."""
        if not self.dead:
            self.world.note(self.name, "killed")
            self.dead = True
            if self.session_id:
                self.server.silence(self.session_id)

    def leave(self) -> None:
        """The process ends in order: its session is closed."""
        self.dead = True
        if self.session_id and self.connected:
            self.server.close(self.session_id)
        elif self.session_id:
            self.server.silence(self.session_id)
