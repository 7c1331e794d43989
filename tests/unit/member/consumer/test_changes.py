"""Changes while a member runs: its handler between batches, and its topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import ConfigError, HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import HandlerSection
from consumerd.group.membership_tables import MembershipSettings
from consumerd.wire.registry.subscription import StaticSubscription

TP = TopicPartition("t", 0, 0)
OWNER = "/consumers/g/owners/t/0-0"
OFFSET = "/consumers/g/offsets/t/0-0"


def never() -> Any:
    raise AssertionError("the former handler is not made again")


async def test_exchanges_handler_between_batches_and_keeps_the_partition(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member()
    former, other = member.handler, group.recorder("b")
    former.hold()
    await group.until(lambda: former.holding == 1)
    exchange = asyncio.create_task(member.consumer.exchange_handler(other, HandlerSection(), never))
    await asyncio.sleep(0)
    former.let_go()
    group.broker.append("t", 0, b"two")
    assert await exchange is None
    await group.until(lambda: other.seen == [b"two"])
    assert (former.seen, former.cancelled, former.stops, other.starts) == ([b"one"], 0, 1, 1)
    # The former handler's position is committed before the new handler begins, and the owner node stays.
    assert group.journal.of(OWNER, OFFSET, "a t/0-0", "b t/0-0") == [
        ("created", OWNER),
        ("position", "a t/0-0"),
        ("begin", "a t/0-0"),
        ("end", "a t/0-0"),
        ("created", OFFSET),
        ("position", "b t/0-0"),
        ("begin", "b t/0-0"),
        ("end", "b t/0-0"),
    ]
    await member.stop()
    assert (former.stops, other.stops) == (1, 1)


async def test_new_handler_gets_what_the_former_one_did_not_finish_in_time(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member(membership=MembershipSettings(drain_timeout=0.05))
    member.handler.hold()
    await group.until(lambda: member.handler.holding == 1)
    other = group.recorder("b")
    assert await member.consumer.exchange_handler(other, HandlerSection(), never) is None
    await group.until(lambda: other.seen == [b"one"])
    assert (member.handler.cancelled, member.handler.seen) == (1, [])


async def test_new_handler_that_keeps_positions_is_asked_for_them(group: Any) -> None:
    group.topic("t", 1)
    start = group.broker.append("t", 0, b"one")
    group.broker.append("t", 0, b"two")
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one", b"two"])
    other = group.recorder("b")
    other.positions[TP] = start
    assert await member.consumer.exchange_handler(other, HandlerSection(), never) is None
    await group.until(lambda: other.seen == [b"two"])


async def test_former_handler_goes_on_when_the_new_one_does_not_start(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(member.consumer.ready.is_set)
    broken, again = group.recorder("broken"), group.recorder("again")

    async def fail(_: Any) -> None:
        raise HandlerFailedError("no database")

    broken.start = fail
    error = await member.consumer.exchange_handler(broken, HandlerSection(), lambda: again)
    assert str(error) == "no database"
    group.broker.append("t", 0, b"one")
    await group.until(lambda: again.seen == [b"one"])
    assert (broken.stops, again.starts) == (1, 1)
    await member.stop()


async def test_member_stops_when_neither_handler_starts(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(member.consumer.ready.is_set)
    broken = group.recorder("broken")

    async def fail(_: Any) -> None:
        raise HandlerFailedError("no database")

    def refuse() -> Any:
        raise ConfigError("the disk is gone")

    broken.start = fail
    assert str(await member.consumer.exchange_handler(broken, HandlerSection(), refuse)) == "no database"
    with pytest.raises(ConfigError, match="the disk is gone"):
        await member.ended()
    assert group.owner(TP) is None


async def test_partition_lost_during_an_exchange_does_not_come_back(group: Any) -> None:
    """Another member joins while the handler is exchanged, and gets its share."""
    group.topic("t", 2)
    a = await group.member("a")
    await group.until(lambda: len(a.owned) == 2)
    other, starting, go = group.recorder("other"), asyncio.Event(), asyncio.Event()

    async def start(_: Any) -> None:
        starting.set()
        await go.wait()

    other.start = start
    exchange = asyncio.create_task(a.consumer.exchange_handler(other, HandlerSection(), never))
    await starting.wait()
    b = await group.member("b")
    await group.until(lambda: len(b.owned) == 1)
    go.set()
    assert await exchange is None
    group.broker.append("t", 0, b"for a")
    group.broker.append("t", 1, b"for b")
    await group.until(lambda: other.seen == [b"for a"] and b.handler.seen == [b"for b"])
    assert a.owned == [TP]


async def test_partition_assigned_during_an_exchange_waits_for_the_new_handler(group: Any) -> None:
    group.topic("t", 2)
    a = await group.member("a")
    await group.until(lambda: len(a.owned) == 2)
    b = await group.member("b")
    await group.until(lambda: len(a.owned) == len(b.owned) == 1)
    (gained,) = b.owned
    other, starting, go = group.recorder("other"), asyncio.Event(), asyncio.Event()

    async def start(_: Any) -> None:
        starting.set()
        await go.wait()
        group.journal.note("started", "other")

    other.start = start
    exchange = asyncio.create_task(a.consumer.exchange_handler(other, HandlerSection(), never))
    await starting.wait()
    await b.stop()
    group.broker.append("t", gained.partition, b"gained")
    await group.until(lambda: a.consumer.settled and len(a.owned) == 2)
    go.set()
    assert await exchange is None
    await group.until(lambda: other.seen == [b"gained"])
    assert group.journal.of("other", f"other {gained}") == [
        ("started", "other"),
        ("position", f"other {gained}"),
        ("begin", f"other {gained}"),
        ("end", f"other {gained}"),
    ]


async def test_partition_drained_when_an_exchange_begins_does_not_come_back(group: Any) -> None:
    """Another member joins while the exchange still waits for the former handler."""
    group.topic("t", 2)
    for number in range(2):
        group.broker.append("t", number, b"one")
    a = await group.member("a")
    a.handler.hold()
    await group.until(lambda: a.handler.holding == 2)
    other = group.recorder("other")
    exchange = asyncio.create_task(a.consumer.exchange_handler(other, HandlerSection(), never))
    b = await group.member("b")
    await group.until(lambda: a.consumer.assigned == [TP] and not a.consumer.settled)
    a.handler.let_go()
    assert await exchange is None
    await group.until(lambda: a.consumer.settled and len(b.owned) == 1)
    assert a.owned == [TP]
    group.broker.append("t", 0, b"for a")
    group.broker.append("t", 1, b"for b")
    await group.until(lambda: other.seen == [b"for a"] and b.handler.seen == [b"for b"])
    assert (a.handler.seen, a.handler.cancelled) == ([b"one", b"one"], 0)


async def test_session_lost_during_an_exchange_is_followed_by_a_new_claim(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: member.owned == [TP])
    other, starting, go = group.recorder("other"), asyncio.Event(), asyncio.Event()

    async def start(_: Any) -> None:
        starting.set()
        await go.wait()

    other.start = start
    exchange = asyncio.create_task(member.consumer.exchange_handler(other, HandlerSection(), never))
    await starting.wait()
    group.zookeeper.expire(member.zk)
    await group.until(lambda: group.journal.of(OWNER)[1:] == [("deleted", OWNER), ("created", OWNER)])
    go.set()
    assert await exchange is None
    group.broker.append("t", 0, b"one")
    await group.until(lambda: other.seen == [b"one"])


async def test_exchange_commits_nothing_unasked_without_auto_commit(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member(auto_commit=False)
    await group.until(lambda: member.handler.seen == [b"one"])
    other = group.recorder("other")
    assert await member.consumer.exchange_handler(other, HandlerSection(), never) is None
    group.broker.append("t", 0, b"two")
    await group.until(lambda: bool(other.seen))
    assert other.seen == [b"two"]
    assert group.offset(TP) is None


class Hooks:
    """Notes its calls in the journal."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    async def run(self) -> None:
        """Nothing waits to be called."""

    async def assigned(self, partition: TopicPartition) -> None:
        self._journal.note("assigned", str(partition))

    async def revoked(self, partition: TopicPartition) -> None:
        self._journal.note("revoked", str(partition))

    async def lost(self, partition: TopicPartition) -> None:
        self._journal.note("lost", str(partition))


async def test_exchange_revokes_partitions_and_assigns_them_again(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    member.consumer.hooks = Hooks(group.journal)
    await group.until(lambda: ("assigned", "t/0-0") in group.journal.entries)
    other = group.recorder("b")
    assert await member.consumer.exchange_handler(other, HandlerSection(), never) is None
    await group.until(lambda: len(group.journal.of("t/0-0")) == 3)
    assert group.journal.of("t/0-0", "b t/0-0") == [
        ("assigned", "t/0-0"),
        ("revoked", "t/0-0"),
        ("position", "b t/0-0"),
        ("assigned", "t/0-0"),
    ]
    await member.stop()


async def test_partition_stays_paused_through_an_exchange(group: Any) -> None:
    group.topic("t", 2)
    member = await group.member()
    await group.until(lambda: member.consumer.owned == {TP: 0, TopicPartition("t", 0, 1): 0})
    member.consumer.controls.pause(TP)
    other = group.recorder("other")
    assert await member.consumer.exchange_handler(other, HandlerSection(), never) is None
    group.broker.append("t", 0, b"paused")
    group.broker.append("t", 1, b"flows")
    await group.until(lambda: bool(other.seen))
    assert other.seen == [b"flows"]
    assert [view.paused for view in member.consumer.views()] == [True, False]
    member.consumer.controls.resume(TP)
    await group.until(lambda: other.seen == [b"flows", b"paused"])


async def test_stop_during_an_exchange_releases_and_stops_the_handler_once(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: member.owned == [TP])
    other, starting = group.recorder("other"), asyncio.Event()

    async def start(_: Any) -> None:
        starting.set()
        await asyncio.Event().wait()

    other.start = start
    exchange = asyncio.create_task(member.consumer.exchange_handler(other, HandlerSection(), never))
    await starting.wait()
    await member.stop()
    await exchange
    assert (member.handler.stops, other.stops) == (1, 1)
    assert group.owner(TP) is None


async def test_batches_of_new_size_after_an_exchange(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: member.owned == [TP])
    other = group.recorder("b")
    assert await member.consumer.exchange_handler(other, HandlerSection(max_batch=1), never) is None
    group.broker.append("t", 0, b"one", b"two")
    await group.until(lambda: other.seen == [b"one", b"two"])
    assert [len(batch) for batch in other.batches] == [1, 1]


async def test_changed_subscription_replaces_the_id_node_and_moves_on(group: Any) -> None:
    group.topic("t", 1)
    group.topic("u", 1)
    member = await group.member()
    await group.until(lambda: member.owned == [TP])
    identity = "/consumers/g/ids/g_a"
    assert group.data(identity) == b'{ "t": 1 }'
    member.consumer.change_subscription(StaticSubscription({"u": 1}))
    await group.until(lambda: member.owned == [TopicPartition("u", 0, 0)])
    assert member.consumer.settings.subscription == StaticSubscription({"u": 1})
    assert group.data(identity) == b'{ "u": 1 }'
    assert group.owner(TP) is None
    # Deleted and created in one transaction: no member sees the group without it.
    assert group.journal.of(identity) == [("created", identity), ("set", identity)]


async def test_waits_for_missing_topics_of_a_changed_subscription(group: Any) -> None:
    group.topic("t", 1)
    with capture_logs() as logs:
        member = await group.member()
        await group.until(lambda: member.owned == [TP])
        member.consumer.change_subscription(StaticSubscription({"u": 1}))
        await group.until(lambda: "waiting_for_topics" in [entry["event"] for entry in logs])
    assert [entry["topics"] for entry in logs if entry["event"] == "waiting_for_topics"] == [["u"]]


async def test_peer_learns_of_a_changed_subscription(group: Any) -> None:
    group.topic("t", 2)
    group.topic("u", 1)
    a = await group.member("a")
    b = await group.member("b")
    await group.until(lambda: len(a.owned) == len(b.owned) == 1)
    a.consumer.change_subscription(StaticSubscription({"u": 1}))
    await group.until(lambda: len(b.owned) == 2 and a.owned == [TopicPartition("u", 0, 0)])
