"""A whole group without sockets and processes: ZooKeeper in memory, a broker in memory, members in the test's loop.

Strategy: only the two servers are replaced (by `consumerd.testing.memory_zookeeper` and `.memory_broker`); membership,
fetching, delivery and commits are those of the daemon. Intervals are short, so a rebalance takes milliseconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.group import CommitSection
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers import Letter, RetryPolicy, load_handler, make_handler, plain_handler, retrying
from consumerd.handlers.giving_up import KEEPING
from consumerd.member.consumer.backends import V07Backend
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.testing.errors import HarnessError
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.testing.memory_tree import WatchKind
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.testing.records import MemoryDeadLetters
from consumerd.wire.compression import Codec
from consumerd.wire.registry.paths import offset_path, owner_path, topic_broker_path
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.values import parse_owner

# The events of a group under test, in order, and waiting for them.
#
# Strategy: one list of short entries that all parts write to, and one event that is set with each; a task that waits
# for a condition checks it again after every entry.

#: Time between checks of conditions that the journal does not record, in seconds.
_TICK = 0.01


class Journal:
    """Entries of (what, about): `created`, `set` and `deleted` nodes by path, and other notes."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def note(self, what: str, about: str) -> None:
        """Add an entry."""
        self.entries.append((what, about))
        self.tell()

    def tell(self) -> None:
        """Wake all waiters: something has changed."""
        self._news.set()

    def of(self, *about: str) -> list[tuple[str, str]]:
        """The entries about one of these."""
        return [entry for entry in self.entries if entry[1] in about]

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return when `condition()` holds; raises TimeoutError. It is checked after every entry, and every tick."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                try:
                    async with asyncio.timeout(_TICK):
                        await self._news.wait()
                except TimeoutError:
                    continue


class JournalingZooKeeper(MemoryZooKeeper):
    """A ZooKeeper in memory that notes every change of a node."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._there: set[str] = set()
        super().__init__()

    def _changed(self, kind: WatchKind, path: str) -> None:
        if kind is WatchKind.DATA:
            there = self.tree.has(path)
            self._journal.note("deleted" if not there else "set" if path in self._there else "created", path)
            (self._there.add if there else self._there.discard)(path)
        super()._changed(kind, path)


class MemoryMember:
    """A member at work. `handler` is the test's own object, `zk` the member's session, `name` the end of its id."""

    def __init__(self, name: str, consumer: GroupConsumer, zk: MemorySession, handler: Any) -> None:
        self.name = name
        self.consumer = consumer
        self.zk = zk
        self.handler = handler
        self.task = asyncio.create_task(consumer.run(), name=f"member {name}")
        self._looked_at = False

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that it consumes now."""
        return sorted(self.consumer.owned)

    async def ended(self, seconds: float = 5.0) -> None:
        """Return when it has left the group. Raises what stopped it, such as HandlerFailedError, and TimeoutError."""
        async with asyncio.timeout(seconds):
            await asyncio.wait([self.task])
        self._looked_at = True
        self.task.result()

    async def stop(self, seconds: float = 5.0) -> None:
        """Leave in order, as at SIGTERM: drain, commit, release. Raises as `ended`."""
        self.consumer.request_stop()
        await self.ended(seconds)

    async def cancel(self) -> None:
        """End its work at once and await the end; its nodes stay until its session ends."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def kill(self) -> None:
        """Die as at SIGKILL, and have ZooKeeper expire the session: nothing of the last moments is committed."""
        await self.cancel()
        await self.zk.close()

    def unseen_failure(self) -> BaseException | None:
        """The error that stopped it, unless `ended` or `stop` has raised it."""
        if self._looked_at or not self.task.done() or self.task.cancelled():
            return None
        return self.task.exception()

    def __repr__(self) -> str:
        if not self.task.done():
            return f"{self.name} (at work on {', '.join(map(str, self.owned)) or 'nothing'})"
        if self.task.cancelled() or (error := self.task.exception()) is None:
            return f"{self.name} (gone)"
        return f"{self.name} (stopped by {type(error).__name__}: {error})"


#: Seconds: everything that waits does so shortly.
FETCH = FetchSettings(poll_backoff_min=0.002, idle_backoff=0.01, retry_backoff_min=0.002, retry_backoff_max=0.01)
MEMBERSHIP = MembershipSettings(drain_timeout=2.0, retry_interval=0.02)
POLICY = RetryPolicy(initial_backoff=0.001, max_backoff=0.01)


def changed(settings: ConsumerSettings, **values: Any) -> ConsumerSettings:
    """Return `settings` with other values: of fields, or of keys of the tables, by the library's keyword if it has one.

    Raises TypeError for a name that is neither.
    """
    for field in ("fetch", "membership", "commit", "handler"):
        table = values.get(field, getattr(settings, field))
        names = {each.names.keyword or name: name for name, each in table.fields.items()}
        keys = {names[name]: values.pop(name) for name in names.keys() & values.keys()}
        if keys:
            values[field] = table.replace(**keys)
    return replace(settings, **values)


class MemoryGroup:
    """One group on one broker, whose id is 0. Use as `async with`: at the end all members are ended.

    What stopped a member comes out of `MemoryMember.ended` and `MemoryMember.stop`, or else out of the block at its
    end. `zookeeper` and `broker` are the servers: to look into, and to make fail.
    """

    def __init__(self, name: str = "group", *, settings: ConsumerSettings | None = None) -> None:
        self.name = name
        self.journal = Journal()
        self.zookeeper = JournalingZooKeeper(self.journal)
        self.broker = MemoryBroker()
        self.members: list[MemoryMember] = []
        self.dead_letters: list[Letter] = []
        self._stack: AsyncExitStack | None = None
        self._settings = settings or ConsumerSettings(
            group=name,
            consumer_id=f"{name}_",
            subscription=FilterSubscription(TopicFilter(FilterKind.WHITELIST, ".*"), 1),
            membership=MEMBERSHIP,
            fetch=FETCH,
            commit=CommitSection(interval=0.02),
        )
        self.register_broker(0)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            async with stack:
                for member in self.members:
                    await member.cancel()
        failures = [failure for member in self.members if (failure := member.unseen_failure())]
        if failures and error is None:
            raise failures[0]

    # -- the cluster

    def register_broker(self, broker: int) -> None:
        """Make a broker id known. All ids are answered by the one broker in memory."""
        self.zookeeper.put(f"/brokers/ids/{broker}", b"creator:memory:%d" % (9000 + broker))

    def topic(self, topic: str, partitions: int = 1, *, broker: int = 0) -> None:
        """Make a topic known, or change how many partitions it has."""
        self.zookeeper.put(topic_broker_path(topic, broker), b"%d" % partitions)

    def produce(
        self, topic: str, payloads: Iterable[bytes], *, partition: int = 0, codec: Codec = Codec.NONE, magic: int = 1
    ) -> int:
        """Append one message set; where the partition's log ends now. An unknown topic is made known first."""
        if not self.zookeeper.tree.has(topic_broker_path(topic, 0)):
            self.topic(topic, partition + 1)
        end = self.broker.append(topic, partition, *payloads, codec=codec, magic=magic)
        self.journal.tell()
        return end

    def committed(self, topic: str, partition: int = 0, *, broker: int = 0) -> int | None:
        """The group's offset in ZooKeeper; None before the first commit."""
        data = self._data(offset_path(self.name, TopicPartition(topic, broker, partition)))
        return None if data is None else int(data)

    def owner(self, topic: str, partition: int = 0, *, broker: int = 0) -> str | None:
        """The name of the member that owns the partition in ZooKeeper, if any."""
        data = self._data(owner_path(self.name, TopicPartition(topic, broker, partition)))
        return None if data is None else parse_owner(data)[0].removeprefix(f"{self.name}_")

    def _data(self, path: str) -> bytes | None:
        return self.zookeeper.dump().get(path)

    # -- members

    async def member(
        self,
        handler: object,
        options: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        topics: Mapping[str, int] | None = None,
        policy: RetryPolicy = POLICY,
        **settings: Any,
    ) -> MemoryMember:
        """Start one more member; returns when it is in the group.

        `handler` and `options` as for `HandlerHarness`; `topics` are streams by topic, by default one of every topic;
        `settings` are fields of `consumerd.member.consumer.settings.ConsumerSettings`, or keys of its tables. Raises
        HandlerLoadError and what ends it at the start. Dead letters go to `MemoryGroup.dead_letters`.
        """
        made = load_handler(handler, options) if isinstance(handler, str) else make_handler(handler, options)
        number = len(self.members)
        name = name or (chr(ord("a") + number) if number < 26 else f"m{number}")
        if topics is not None:
            settings["subscription"] = StaticSubscription(dict(topics))
        wrapped = retrying(
            made,
            policy,
            clock=SystemClock(),
            rng=random.Random(number),
            dead_letters=MemoryDeadLetters(self.dead_letters) if policy.on_failure in KEEPING else None,
        )
        member = await self.join(name, wrapped, seen=plain_handler(made), **settings)
        await self.until(lambda: member.task.done() or member.consumer.ready.is_set())
        if member.task.done():
            await member.ended()
        return member

    async def join(self, name: str, handler: Any, *, seen: object = None, **settings: Any) -> MemoryMember:
        """Start a member with its handler as it is; returns at once. `seen` is what `MemoryMember.handler` shows."""
        if self._stack is None:
            raise HarnessError("use `async with group:`, so that its members end with the test")
        zk: MemorySession = await self._stack.enter_async_context(self.zookeeper.session(session_timeout=6.0))
        settings = {"consumer_id": f"{self.name}_{name}", **settings}
        consumer = GroupConsumer(
            changed(self._settings, **settings),
            zk=zk,
            backend=V07Backend(self.broker.connect),
            handler=handler,
            clock=SystemClock(),
            rng=random.Random(1),
        )
        member = MemoryMember(name, consumer, zk, handler if seen is None else seen)
        self.members.append(member)
        return member

    def expire(self, member: MemoryMember) -> None:
        """Have ZooKeeper expire the member's session: all it owned is free; the member rejoins by itself."""
        self.zookeeper.expire(member.zk)

    # -- waiting

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return when `condition()` holds. Raises TimeoutError, which describes the members."""
        try:
            await self.journal.until(condition, seconds)
        except TimeoutError:
            raise TimeoutError(
                f"the condition was not met within {seconds:g} s; members: {self.members or 'none'}"
            ) from None

    async def until_committed(self, seconds: float = 5.0) -> None:
        """Return when everything that was produced is handled and committed. Raises as `until`."""
        await self.until(self._all_committed, seconds)

    def _all_committed(self) -> bool:
        return all(self.committed(topic, partition) == len(log) for (topic, partition), log in self.broker.logs.items())
