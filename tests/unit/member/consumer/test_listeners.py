"""Rebalance listeners: their calls, the order of these, and the effect of a slow or failing one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd import ListenerFailedError, RebalanceListener, TopicPartition
from consumerd.member.consumer.listeners import SETTLE, Announcer
from consumerd.testing.clock import FakeClock
from consumerd.wire.registry.paths import owner_path
from tests.support.waiting import cancel
from tests.unit.member.consumer.test_streams import connector

T0, T1 = (TopicPartition("t", 0, number) for number in range(2))


class Journaling(RebalanceListener):
    """Records its calls; `during` is called, and awaited, within each of them."""

    def __init__(self, journal: Any, name: str = "a") -> None:
        self.journal = journal
        self.name = name
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.during: Any = None

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._note("assigned", partitions)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._note("revoked", partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", sorted(partitions)))
        self.journal.tell()

    async def _note(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append((what, sorted(partitions)))
        for partition in sorted(partitions):
            self.journal.note(what, owner_path("g", partition))
        if self.during is not None:
            await self.during(what, partitions)
        for partition in sorted(partitions):
            self.journal.note(f"{what} done", owner_path("g", partition))


def together(calls: list[tuple[str, list[TopicPartition]]]) -> list[tuple[str, set[TopicPartition]]]:
    """Calls of one kind in a row as one: partitions that arrive one after the other may be reported so."""
    merged: list[tuple[str, set[TopicPartition]]] = []
    for what, partitions in calls:
        if not merged or merged[-1][0] != what:
            merged.append((what, set()))
        assert merged[-1][1].isdisjoint(partitions), "a partition is told once"
        merged[-1][1].update(partitions)
    return merged


async def test_calls_listener_once_for_changed_partitions(group: Any) -> None:
    group.topic("t", 2)
    a, b = Journaling(group.journal), Journaling(group.journal, "b")
    async with connector(group, listener=a) as first:
        await first.create_message_streams({"t": 1})
        await group.until(lambda: a.calls == [("assigned", [T0, T1])])
        async with connector(group, "b", listener=b) as second:
            await second.create_message_streams({"t": 1})
            await group.until(lambda: b.calls == [("assigned", [T1])])
            assert a.calls[1:] == [("revoked", [T1])]
        assert b.calls[1:] == [("revoked", [T1])]
        await group.until(lambda: a.calls[2:] == [("assigned", [T1])])
    assert a.calls[3:] == [("revoked", [T0, T1])]


async def test_releases_after_on_revoked_which_may_commit(group: Any) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    listener = Journaling(group.journal)
    async with connector(group, listener=listener, auto_commit=False) as made:

        async def commit(what: str, partitions: object) -> None:
            if what == "revoked":
                assert made.position(T0) == end
                assert await made.commit_offsets() == {T0: end}

        listener.during = commit
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        await anext(stream)
        stream.ack()
    assert group.journal.of(owner_path("g", T0), "/consumers/g/offsets/t/0-0") == [
        ("created", owner_path("g", T0)),
        ("assigned", owner_path("g", T0)),
        ("assigned done", owner_path("g", T0)),
        ("revoked", owner_path("g", T0)),
        ("created", "/consumers/g/offsets/t/0-0"),
        ("revoked done", owner_path("g", T0)),
        ("deleted", owner_path("g", T0)),
    ]


async def test_calls_on_assigned_before_first_message(group: Any) -> None:
    group.topic("t", 2)
    ends = [[group.broker.append("t", number, b"%d" % index) for index in range(4)] for number in range(2)]
    listener = Journaling(group.journal)
    async with connector(group, listener=listener, consumer_timeout=0.2) as made:

        async def adjust(what: str, partitions: object) -> None:
            if what == "assigned":
                assert not [r for r in group.broker.requests if hasattr(r, "offset")]
                await made.seek(T0, ends[0][1])
                made.pause(T1)

        listener.during = adjust
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        assert [(await anext(stream)).payload for _ in range(2)] == [b"2", b"3"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
        assert {request.partition for request in group.broker.requests if hasattr(request, "offset")} == {0}
        made.resume(T1)
        assert (await anext(stream)).partition == T1
        listener.during = None


async def test_calls_on_lost_for_lost_session(group: Any) -> None:
    group.topic("t", 2)
    listener = Journaling(group.journal)
    async with connector(group, listener=listener) as made:
        await made.create_message_streams({"t": 1})
        await group.until(lambda: together(listener.calls) == [("assigned", {T0, T1})])
        group.zookeeper.expire(made._parts._zk)
        await group.until(lambda: together(listener.calls)[2:] == [("assigned", {T0, T1})])
    assert together(listener.calls)[1::2] == [("lost", {T0, T1}), ("revoked", {T0, T1})]


async def test_reports_session_ended_during_on_revoked_once(group: Any) -> None:
    group.topic("t", 2)
    listener = Journaling(group.journal)
    going_on = asyncio.Event()

    async def wait(what: str, partitions: object) -> None:
        if what == "revoked":
            await going_on.wait()

    async with connector(group, listener=listener, listener_timeout=5) as made:
        await made.create_message_streams({"t": 1})
        await group.until(lambda: len(listener.calls) == 1)
        listener.during = wait
        async with connector(group, "b", listener=None) as second:
            await second.create_message_streams({"t": 1})
            await group.until(lambda: len(listener.calls) == 2)
            group.zookeeper.expire(made._parts._zk)
            await group.until(lambda: not made.assignment())
            going_on.set()
            await group.until(lambda: len(made.assignment()) == 1)
            await group.until(lambda: len(listener.calls) == 4)
    assert listener.calls == [
        ("assigned", [T0, T1]),
        ("revoked", [T1]),
        ("lost", [T0]),
        ("assigned", [T0]),
        *listener.calls[4:],
    ]


async def test_cancels_slow_listener(group: Any) -> None:
    group.topic("t", 1, b"one")
    listener = Journaling(group.journal)
    cancelled = []

    async def hang(what: str, partitions: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(what)
            raise

    listener.during = hang
    async with connector(group, listener=listener, listener_timeout=0.03) as made:
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        assert (await anext(stream)).payload == b"one"
        async with asyncio.timeout(0.5):
            await made.shutdown()
    assert cancelled == ["assigned", "revoked"]
    assert group.owner(T0) is None


@pytest.mark.parametrize("error", [ArithmeticError("no"), asyncio.CancelledError(), TimeoutError("its own")])
@pytest.mark.parametrize("call", ["assigned", "revoked"])
async def test_stops_when_listener_fails(group: Any, call: str, error: BaseException) -> None:
    group.topic("t", 1, b"one")
    listener = Journaling(group.journal)

    async def fail(what: str, partitions: object) -> None:
        if what == call:
            raise error

    listener.during = fail

    async def consume() -> None:
        async with connector(group, listener=listener) as made:
            (stream,) = (await made.create_message_streams({"t": 1}))["t"]
            if call == "assigned":
                async for _ in stream:
                    pass
            else:
                await anext(stream)

    with pytest.raises(ListenerFailedError, match=f"on_{call} failed") as raised:
        await consume()
    assert raised.value.__cause__ is error
    assert group.owner(T0) is None
    assert group.data("/consumers/g/ids/g_a") is None


async def test_drains_during_on_assigned(group: Any) -> None:
    """The partition that moves is reported as revoked, after on_assigned has ended, and never fetched."""
    group.topic("t", 1, b"one")
    listener = Journaling(group.journal)
    going_on = asyncio.Event()

    async def wait(what: str, partitions: object) -> None:
        if what == "assigned":
            await going_on.wait()

    listener.during = wait
    with capture_logs() as logs:
        async with connector(group, listener=listener, listener_timeout=5) as made:
            await made.create_message_streams({"t": 1})
            await group.until(lambda: len(listener.calls) == 1)
            stopping = asyncio.create_task(made.shutdown())
            await asyncio.sleep(0.05)
            assert len(listener.calls) == 1
            going_on.set()
            await stopping
    assert listener.calls == [("assigned", [T0]), ("revoked", [T0])]
    assert not [request for request in group.broker.requests if hasattr(request, "offset")]
    assert "partition_started" not in [entry["event"] for entry in logs]


class Recording(RebalanceListener):
    """Records its calls. `on_assigned` ends while `go_on` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", set(partitions)))
        await self.go_on.wait()

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", set(partitions)))

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", set(partitions)))


class Announcing:
    """An announcer at work, whose time a test controls."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.listener = Recording()
        self.failures: list[object] = []
        self.hooks = Announcer(self.listener, timeout=60, clock=self.clock, failed=self.failures.append)
        self.task = asyncio.create_task(self.hooks.run())

    async def pass_time(self) -> None:
        """Let what was reported be called."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.clock.advance(SETTLE)


@pytest_asyncio.fixture
async def announcing() -> AsyncIterator[Announcing]:
    made = Announcing()
    yield made
    await cancel(made.task)


async def test_skips_calls_that_are_obsolete(announcing: Announcing) -> None:
    hooks, calls = announcing.hooks, announcing.listener.calls
    await hooks.revoked(T0)  # was never assigned: returns at once
    await hooks.lost(T0)
    first, second = (asyncio.create_task(hooks.assigned(partition)) for partition in (T0, T1))
    await asyncio.sleep(0)
    first.cancel()
    await announcing.pass_time()
    await second
    assert calls == [("assigned", {T1})]
    await hooks.lost(T0)
    alone = asyncio.create_task(hooks.revoked(T1))
    await asyncio.sleep(0)
    alone.cancel()
    await announcing.pass_time()
    assert calls == [("assigned", {T1})]


async def test_gathers_calls_of_some_milliseconds_and_waits_for_more(announcing: Announcing) -> None:
    first = asyncio.create_task(announcing.hooks.assigned(T0))
    for _ in range(5):
        await asyncio.sleep(0)
    second = asyncio.create_task(announcing.hooks.assigned(T1))
    await announcing.pass_time()
    await asyncio.gather(first, second)
    assert announcing.listener.calls == [("assigned", {T0, T1})]
    await announcing.pass_time()
    assert announcing.clock.sleeps == [SETTLE]  # without anything to report it is idle


async def test_calls_again_after_hook_was_cancelled_during_call(announcing: Announcing) -> None:
    announcing.listener.go_on.clear()
    impatient = asyncio.create_task(announcing.hooks.assigned(T0))
    await announcing.pass_time()
    await cancel(impatient)
    announcing.listener.go_on.set()
    later = asyncio.create_task(announcing.hooks.assigned(T1))
    await announcing.pass_time()
    assert later.done()
    assert announcing.listener.calls == [("assigned", {T0}), ("assigned", {T1})]


async def test_end_during_call_is_not_a_failure_of_the_listener(announcing: Announcing) -> None:
    announcing.listener.go_on.clear()
    hook = asyncio.create_task(announcing.hooks.assigned(T0))
    await announcing.pass_time()
    assert announcing.listener.calls == [("assigned", {T0})]
    announcing.task.cancel()
    await hook
    await asyncio.wait([announcing.task], timeout=60)
    assert announcing.task.cancelled()
    assert announcing.failures == []
