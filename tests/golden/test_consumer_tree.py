"""Nodes that members write to ZooKeeper equal those of 0.7.2, byte by byte (golden zk/10..32).

The recorded sequence is played again in one chroot: a member that stops and one that is killed, a group of five that
shrinks, and filters that meet a new topic. Only the versions of offset nodes differ: 0.7.2 rewrites every offset at
every interval, we write those that moved.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from pathlib import Path

from consumerd.base.clock import SystemClock
from consumerd.base.settings.group import CommitSection
from consumerd.handlers.builtin.null import NullHandler
from consumerd.member.consumer.backends import V07Backend
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.cluster.reading import children
from consumerd.net.connect import Connection
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.storage.broker.registration import BrokerRegistration
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.values import configured_consumer_id
from tests.golden.test_broker_registration import FixedClock
from tests.support.waiting import cancel

#: Path -> text (None: null data), ephemeral, version (None: not compared).
Tree = dict[str, tuple[str | None, bool, int | None]]

#: The recorded brokers: id -> port, and when it was started.
BROKERS = {0: (29192, 1795263232660), 1: (29292, 1795263236836)}
#: Every log that was not empty: broker, topic, partition, payload.
MESSAGES = [
    (0, "alpha", 3, b"a0"),
    (1, "alpha", 0, b"a1"),
    (0, "beta", 3, b"b0"),
    (1, "beta", 1, b"b1"),
    (0, "gamma-x", 0, b"g0"),
    (1, "gamma-x", 3, b"g1"),
    (0, "delta", 3, b"d00"),
]


class Member:
    """One member on a session of its own."""

    def __init__(self, session: Session, consumer: GroupConsumer) -> None:
        self.session = session
        self.task = asyncio.create_task(consumer.run())
        self.consumer = consumer

    async def stop(self) -> None:
        self.consumer.request_stop()
        await asyncio.wait_for(self.task, 60)
        await self.session.close()

    async def kill(self) -> None:
        """End without closing the session, as with SIGKILL: the session expires."""
        await cancel(self.task)
        await self.session._stop()


class Replay:
    """The chroot with its brokers and members."""

    def __init__(self, connect_string: str, golden: Path, stack: AsyncExitStack) -> None:
        self._connect_string = connect_string
        self._golden = golden / "kafka-0.7.2" / "zk"
        self._stack = stack
        self._members: dict[str, Member] = {}
        self._brokers = {port: MemoryBroker() for port, _ in BROKERS.values()}
        for broker, topic, partition, payload in MESSAGES:
            self._brokers[BROKERS[broker][0]].append(topic, partition, payload)

    async def session(self, timeout: float = 6.0) -> Session:
        session = Session(self._connect_string, clock=SystemClock(), rng=random.Random(1), session_timeout=timeout)
        return await self._stack.enter_async_context(session)

    async def start_brokers(self) -> None:
        self.zk = await self.session()
        self._registrations = []
        for broker, (port, started) in BROKERS.items():
            partitions_of = _two_of_beta if broker == 1 else _four
            registration = BrokerRegistration(
                self.zk, broker, "127.0.0.1", port, partitions_of, FixedClock(started), random.Random(1)
            )
            await registration.register(["alpha", "gamma-x", "beta"])
            self._registrations.append(registration)

    async def new_topic(self, topic: str) -> None:
        await self._registrations[0].register([topic])

    async def connect(self, host: str, port: int) -> Connection:
        assert host == "127.0.0.1"
        return await self._brokers[port].connect(host, port)

    async def start(self, group: str, name: str, subscription: Subscription, *, timeout: float = 6.0) -> None:
        settings = ConsumerSettings(
            group=group,
            consumer_id=configured_consumer_id(group, name),
            subscription=subscription,
            fetch=FetchSettings(idle_backoff=0.05),
            commit=CommitSection(interval=0.05),
        )
        session = await self.session(timeout)
        consumer = GroupConsumer(
            settings,
            zk=session,
            backend=V07Backend(self.connect),
            handler=NullHandler(),
            clock=SystemClock(),
            rng=random.Random(1),
        )
        self._members[name] = Member(session, consumer)

    async def stop(self, *names: str) -> None:
        await asyncio.gather(*(self._members.pop(name).stop() for name in names))

    async def kill(self, name: str) -> None:
        await self._members.pop(name).kill()

    async def cancel_all(self) -> None:
        for member in self._members.values():
            await cancel(member.task)

    async def settles_as(self, name: str, seconds: float = 15.0) -> None:
        """Wait until the whole tree is the recorded one; fail with the difference."""
        expected = {
            path: (None if node["null_data"] else node["data"], node["ephemeral"], _version(path, node["version"]))
            for path, node in json.loads((self._golden / f"{name}.json").read_bytes()).items()
            if path != "/"
        }
        deadline = asyncio.get_running_loop().time() + seconds
        while (found := await _tree(self.zk, "")) != expected and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)  # several members write: there is no one thing to await
        assert found == expected, name


def _four(topic: str) -> int:
    return 4


def _two_of_beta(topic: str) -> int:
    return 2 if topic == "beta" else 4


def _version(path: str, version: int) -> int | None:
    return None if "/offsets/" in path else version


async def _tree(zk: Session, path: str) -> Tree:
    """The nodes below `path`. Nodes that are deleted during the read are left out."""
    tree: Tree = {}
    for name in await children(zk, path or "/"):
        below = f"{path}/{name}"
        try:
            data, stat = await zk.get(below)
        except NoNode:
            continue
        text = None if data is None else data.decode()
        tree[below] = (text, bool(stat.ephemeral_owner), _version(below, stat.version))
        tree |= await _tree(zk, below)
    return tree


def topics(**streams: int) -> StaticSubscription:
    return StaticSubscription(streams)


def whitelist(text: str, streams: int) -> FilterSubscription:
    return FilterSubscription(TopicFilter(FilterKind.WHITELIST, text), streams)


def blacklist(text: str, streams: int) -> FilterSubscription:
    return FilterSubscription(TopicFilter(FilterKind.BLACKLIST, text), streams)


async def test_sends_the_recorded_sequence(golden: Path, zk_root: str) -> None:
    async with AsyncExitStack() as stack:
        replay = Replay(zk_root, golden, stack)
        stack.push_async_callback(replay.cancel_all)
        await replay.start_brokers()

        await replay.start("grp1", "vm-1795263284806-3365085c", topics(alpha=1))
        await replay.settles_as("10-group-1-consumer-1-stream-autoid")
        await replay.stop("vm-1795263284806-3365085c")
        await replay.settles_as("11-after-clean-shutdown")
        await replay.start("grp1k", "vm-1795263290373-85bfe070", topics(alpha=2, beta=1), timeout=1.5)
        await replay.settles_as("12-one-consumer-alpha2-beta1")
        await replay.kill("vm-1795263290373-85bfe070")
        await replay.settles_as("13-immediately-after-kill9", 0.0)
        await replay.settles_as("14-after-kill9-session-expired")

        await replay.start("grp2", "c1", topics(alpha=1))
        await replay.start("grp2", "c2", topics(alpha=2), timeout=1.5)
        await replay.settles_as("20-group-2-consumers-streams-1-2")
        await replay.start("grp2", "c3", topics(alpha=3, beta=1))
        await replay.settles_as("21-group-3-consumers-streams-1-2-3")
        await replay.start("grp2", "c4", topics(alpha=1, beta=2))
        await replay.start("grp2", "c5", topics(alpha=4))
        await replay.settles_as("22-group-5-consumers")
        await replay.stop("c1")
        await replay.settles_as("23-group-5-minus-c1-clean")
        await replay.kill("c2")
        await replay.settles_as("24-group-5-minus-c1-c2-kill9")
        await replay.stop("c3", "c4", "c5")
        await replay.settles_as("25-group-all-down")

        await replay.start("grpw", "w1", whitelist("alpha,beta", 2))
        await replay.start("grpw", "w2", blacklist("gamma.*", 1))
        await replay.start("grpw", "w3", whitelist(".*", 3))
        await replay.start("grpw", "w4", whitelist('alpha|"beta', 1))
        await replay.settles_as("30-wildcard-consumers")
        await replay.new_topic("delta")
        await replay.settles_as("31-wildcard-after-new-topic-delta")
        await replay.stop("w1", "w2", "w3", "w4")
        await replay.settles_as("32-wildcard-all-down")
