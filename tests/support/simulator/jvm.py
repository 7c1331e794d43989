"""A consumer as Kafka's own, 0.7.2 to 1.1: releases all, claims all, tries four times, two seconds apart, and gives up.

Strategy: the observed behaviour (golden notes, 5; notes on mixed groups) written as one generator, which yields what it
waits for: seconds, or an operation at the server. It is only ever killed, asked to leave, or without a server for a
while, because what it does beyond that breaks groups of its own kind too: it has no lease, and deletes owner nodes by
path. That deletion is a misfortune of its own in the schedules.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consumerd.group import events as e
from consumerd.wire.registry import RegistryError, format_owner
from tests.support.simulator.client import Client, Weather

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Set as AbstractSet
    from typing import Any

    from consumerd.base.partition import TopicPartition
    from consumerd.group import Topics
    from consumerd.wire.registry import Subscription
    from tests.support.simulator.server import Server
    from tests.support.simulator.world import World

    #: Yields what it waits for: seconds, or an operation at the server, whose result it is sent.
    _Script = Generator[float | Callable[[], Any], Any, None]

_TRIES = 4
_BACKOFF = 2.0
_RECONNECT = 0.2
_FAIR = Weather(latency=0.005, watch_delay=0.02)


class JvmMember(Client):
    """One consumer process on a JVM."""

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        world: World,
        server: Server,
        overlap: Callable[[JvmMember, TopicPartition], None],
    ) -> None:
        super().__init__(name, world, server, _FAIR)
        self.subscription = subscription
        self._consumed: set[TopicPartition] = set()
        self.gave_up = 0
        self._owned: list[TopicPartition] = []
        self._overlap = overlap
        self._busy = False
        self._again = False

    @property
    def active(self) -> AbstractSet[TopicPartition]:
        return self._consumed

    def hands_over(self, partition: TopicPartition) -> bool:
        return partition in self._consumed and not self.dead

    @property
    def healthy(self) -> bool:
        return super().healthy and not self._busy

    def feed(self, event: e.Event) -> None:
        if isinstance(event, e.SessionStarted):
            self._run(self._join())
        elif isinstance(event, e.Triggered) or (isinstance(event, e.SessionResumed) and self.missed_watch):
            self.missed_watch = False
            if self._busy:
                self._again = True
            else:
                self._run(self._rebalance())

    def stop(self) -> None:
        if not self.dead:
            self.world.note(self.name, "leaves")
            self._consumed.clear()
            self.leave()

    def _run(self, script: _Script) -> None:
        self._busy = True
        self._step(script, None)

    def _step(self, script: _Script, result: object) -> None:
        try:
            wanted = script.send(result)
        except StopIteration:
            self._busy = False
            if self._again:
                self._again = False
                self._run(self._rebalance())
            return
        if callable(wanted):
            self._operate(script, wanted)
        else:
            self.local(wanted, self._step, script, None)

    def _operate(self, script: _Script, operation: Callable[[], Any]) -> None:
        """As its ZooKeeper client does: again and again until there is an answer."""
        failed = partial(self.local, _RECONNECT, self._operate, script, operation)
        self.send(self.session_id, [operation], partial(self._step, script), failed)

    def _join(self) -> _Script:
        yield partial(self.server.create_id, self.name, self.session_id, self.server.rules.format(self.subscription, 0))
        yield from self._rebalance()

    def _rebalance(self) -> _Script:
        for attempt in range(_TRIES):
            if attempt:
                yield _BACKOFF
            members, topics = yield self._read
            self._consumed.clear()
            yield from self._release()
            conflict = False
            for partition, (consumer_id, stream) in self.server.rules.owners(topics, members).items():
                if consumer_id == self.name:
                    value = format_owner(self.name, stream)
                    if (yield partial(self.server.create_owner, partition, self.session_id, value)):
                        self._owned.append(partition)
                    else:
                        conflict = True
            if not conflict:
                self._consumed.update(self._owned)
                for partition in self._owned:
                    self._overlap(self, partition)
                return
            yield from self._release()
        self.gave_up += 1
        self.world.note(self.name, "gives up")

    def _release(self) -> _Script:
        while self._owned:
            yield partial(self.server.delete_owner, self._owned.pop(), self.session_id)

    def _read(self) -> tuple[dict[str, Subscription], Topics]:
        self.server.watch("ids", self, self.session_id)
        self.server.watch("topics", self, self.session_id)
        members: dict[str, Subscription] = {}
        for consumer_id, (_, text) in self.server.ids.items():
            try:
                members[consumer_id] = self.server.rules.parse(text)
            except RegistryError:
                continue
        return members, dict(self.server.topics)
