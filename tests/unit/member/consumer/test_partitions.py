"""The flow of owned partitions when things overlap: commits in line, commits that fail, drains that are overtaken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import tracemalloc
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Create, Operation, SetData
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers import Batch, Handler, PartitionTakenError
from consumerd.member.consumer import partitions
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.store import CommitResult
from consumerd.net.zk.errors import ConnectionLost, NoAuth
from consumerd.wire.errors import EncodeError

TP = TopicPartition("t", 0, 0)
OWNER = "/consumers/g/owners/t/0-0"
OFFSET = "/consumers/g/offsets/t/0-0"


class Commits:
    """Stands in the way of a member's commits: holds them while `hold` is set, or raises `error`."""

    def __init__(self, member: Any) -> None:
        self.sent: list[int] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self._multi = member.zk.multi
        member.zk.multi = self.multi

    async def multi(self, operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        offsets = [each for each in operations if isinstance(each, SetData | Create) and "/offsets/" in each.path]
        if offsets:
            self.sent.append(int(offsets[0].data or b""))
            await self.go.wait()
            if self.error is not None:
                raise self.error
        await self._multi(operations, session_id=session_id)


async def consuming(group: Any, *payloads: bytes, **settings: Any) -> tuple[Any, int]:
    group.topic("t", 1)
    end = group.broker.append("t", 0, *payloads)
    member = await group.member(**settings)
    await group.until(lambda: len(member.handler.seen) == len(payloads))
    return member, end


async def test_shows_owned_partitions_and_what_handlers_have(group: Any) -> None:
    group.topic("t", 2)
    other = TopicPartition("t", 0, 1)
    group.broker.away = True
    member = await group.member()
    await group.until(lambda: ("position", "a t/0-1") in group.journal.entries)
    # No start is known yet.
    assert [(view.partition, view.position) for view in member.consumer.views()] == [(TP, None), (other, None)]
    assert member.consumer.in_hand() == {}
    member.handler.hold()
    group.broker.append("t", 1, b"one", b"two")
    group.broker.away = False
    await group.until(lambda: member.handler.holding == 1 and member.consumer.owned[TP] == 0)
    batches = member.consumer.in_hand()
    assert {each: batch[1:] for each, batch in batches.items()} == {other: (0, 0, 2)}
    assert [(view.position, view.in_hand) for view in member.consumer.views()] == [(0, None), (0, batches[other])]
    member.handler.let_go()
    await member.stop()


async def test_begins_a_thousand_partitions_in_parts_so_that_heartbeats_pass(group: Any) -> None:
    """Begun in one turn of the loop on a busy core, ten thousand outlast a session of 6 s, again and again."""
    loop = asyncio.get_running_loop()
    looked_up = [0]

    def turn() -> None:
        looked_up.append(sum(what == "position" for what, _ in group.journal.entries))
        loop.call_soon(turn)

    turn()
    group.topic("t", 1000)
    member = await group.member()
    await group.until(lambda: looked_up[-1] == 1000)
    assert max(now - before for before, now in itertools.pairwise(looked_up)) <= 200
    await member.stop()


async def test_partitions_that_begin_together_are_one_line(group: Any) -> None:
    """One line for each of a thousand hides what else the log says."""
    group.topic("t", 1)
    with capture_logs() as logs:

        def started() -> list[MutableMapping[str, Any]]:
            return [entry for entry in logs if entry["event"] == "partition_started"]

        member = await group.member()
        await group.until(lambda: bool(started()))
        group.topic("t", 1000)
        await group.until(lambda: sum(entry.get("partitions", 1) for entry in started()) == 1000, 60)
        await member.stop()
    first, *others = started()
    assert first == {"event": "partition_started", "log_level": "info", "partition": "t/0-0", "offset": 0}
    assert len(others) <= 5
    assert max(len(entry["offsets"]) for entry in others) == 20
    assert others[0]["offsets"].items() >= {"t/0-1": 0}.items()


async def test_holds_less_than_10_kib_for_each_idle_partition(group: Any) -> None:
    """Partitions are idle by the thousand, and each has two tasks, a lane, and several events."""
    count = 250
    group.topic("t", count)
    tracemalloc.start()
    try:
        member = await group.member()
        await group.until(lambda: len(member.consumer._partitions._pool.partitions) == count, 60)
        gc.collect()
        # All but the cluster in memory, and the requests that it has received.
        others = [tracemalloc.Filter(False, f"*/{each}/*") for each in ("tests", "consumerd/testing", "consumerd/wire")]
        held = tracemalloc.take_snapshot().filter_traces(others).statistics("filename")
    finally:
        tracemalloc.stop()
    await member.stop()
    largest = {each.traceback[0].filename: each.size // count for each in held[:12]}
    assert sum(each.size for each in held) / count < 10 * 1024, largest


async def test_stops_when_zookeeper_refuses_commit(group: Any) -> None:
    member, _ = await consuming(group, b"one", commit_interval=0.01)
    commits = Commits(member)
    commits.error = NoAuth(OFFSET)
    with pytest.raises(NoAuth, match=OFFSET):
        await member.ended()
    assert group.owner(TP) is None  # it left in order all the same


async def test_releases_partition_when_last_commit_hangs(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "COMMIT_GRACE", 0.05)
    with capture_logs() as logs:
        member, end = await consuming(group, b"one", membership=MembershipSettings(drain_timeout=0.05))
        Commits(member).go.clear()
        await member.stop()
    assert [entry["partitions"] for entry in logs if entry["event"] == "last_commit_timed_out"] == [1]
    assert [entry["positions"] for entry in logs if entry["event"] == "positions_not_committed"] == [{"t/0-0": end}]
    assert group.owner(TP) is None
    assert group.offset(TP) is None


async def test_leaves_while_finding_start(group: Any) -> None:
    group.topic("t", 1)
    group.broker.away = True
    member = await group.member()
    await group.until(lambda: ("position", "a t/0-0") in group.journal.entries)
    await member.stop()
    assert group.journal.of(OWNER, OFFSET) == [("created", OWNER), ("deleted", OWNER)]
    assert member.handler.seen == []


async def test_commits_others_when_one_partition_is_lost(group: Any) -> None:
    group.topic("t", 2)
    ends = [group.broker.append("t", number, b"one") for number in range(2)]
    member = await group.member()
    await group.until(lambda: len(member.handler.seen) == 2)
    member.zk.lose_watches = True
    group.zookeeper.remove(OWNER)
    await member.consumer._partitions.commit_all()
    assert (group.offset(TP), group.offset(TopicPartition("t", 0, 1))) == (None, ends[1])
    # It is still ours, and claimed again.
    await group.until(lambda: group.journal.entries.count(("position", "a t/0-0")) == 2)
    await group.until(lambda: member.consumer.owned.get(TP) is not None)
    assert group.owner(TP) == "g_a-0"
    assert member.consumer.stats.lost_partitions == 1
    await member.stop()
    assert group.offset(TP) == ends[0]
    assert len(member.handler.seen) == 2  # on the same session nothing is forgotten


async def test_prefers_offset_committed_by_other_member_to_memory(group: Any) -> None:
    member, first = await consuming(group, b"one")
    member.handler.hold()
    second = group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.holding == 1)
    async with group.zookeeper.session() as peer:
        group.zookeeper.remove(OWNER)
        await peer.create_ephemeral(OWNER, b"g_z-0", wait=0)
        await group.until(lambda: member.handler.cancelled == 1)
        group.zookeeper.put(OFFSET, b"%d" % second)
    member.handler.let_go()
    group.broker.append("t", 0, b"three")
    await group.until(lambda: len(member.handler.seen) == 2)
    assert member.handler.seen == [b"one", b"three"]
    assert first < second


class Stuck:
    """A handler that obeys no cancellation while it holds `stuck`."""

    def __init__(self, recorder: Any) -> None:
        self.start, self.stop, self.position = recorder.start, recorder.stop, recorder.position
        self._recorder = recorder
        self.cancelled = 0
        self.holding = asyncio.Event()
        self.free = asyncio.Event()

    async def handle(self, batch: Any) -> None:
        while b"stuck" in batch.payloads and not self.free.is_set():
            self.holding.set()
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        await self._recorder.handle(batch)


async def test_commits_beside_handler_of_former_session(group: Any) -> None:
    group.topic("t", 2, b"one")
    end = group.broker.append("t", 1, b"one")
    recorder = group.recorder()
    handler = Stuck(recorder)
    member = await group.member(handler=handler)
    await group.until(lambda: len(recorder.seen) == 2)
    group.broker.append("t", 0, b"stuck")
    other = TopicPartition("t", 0, 1)
    async with asyncio.timeout(60):
        await handler.holding.wait()
    flow = member.consumer._partitions
    before = flow._owned[other]
    try:
        group.zookeeper.expire(member.zk)
        await group.until(lambda: handler.cancelled >= 1)
        await group.until(lambda: flow._owned.get(other) not in (None, before))
        await group.until(lambda: member.consumer.owned.get(other) == end)
        await flow.commit_all()
        assert group.offset(other) == end
        assert not handler.free.is_set()
    finally:
        # When it lets go, having swallowed its cancellation, the partition comes back.
        handler.free.set()
    await group.until(lambda: recorder.seen.count(b"one") == 4)
    assert group.owner(TP) == "g_a-0"
    await member.stop()


class Moving:
    """A store whose coordinator has moved: the first commit fails, and reports it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.load, self.changed, self.keeps_for = store.load, store.changed, store.keeps_for
        self.trace = store.trace
        self.failures = 1

    async def commit(self, positions: Any, *, session_id: int, notes: Any = None) -> Any:
        if self.failures:
            self.failures -= 1
            raise OffsetsUnavailableError("it was another broker")
        return await self._store.commit(positions, session_id=session_id)


async def test_repeats_last_commit_while_coordinator_moves(group: Any) -> None:
    member, end = await consuming(group, b"one")
    flow = member.consumer._partitions
    flow._commits._store = Moving(flow._commits._store)
    await member.stop()
    assert group.offset(TP) == end


async def test_pauses_between_attempts_of_last_commit(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_COMMIT_PAUSE", 3600.0)
    member, _ = await consuming(group, b"one")
    flow = member.consumer._partitions
    moving = flow._commits._store = Moving(flow._commits._store)
    drain = asyncio.create_task(flow.drain([TP], flow._clock.monotonic() + 60.0, lambda _: None))
    await group.until(lambda: moving.failures == 0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert group.offset(TP) is None
    drain.cancel()
    await asyncio.wait([drain])


async def test_commit_returns_offsets_of_partitions_that_have_one(group: Any) -> None:
    group.topic("t", 2)
    end = group.broker.append("t", 0, b"one")

    def refuse(request: Any) -> Exception | None:
        return BrokerError("no such partition yet") if getattr(request, "partition", 0) == 1 else None

    group.broker.on_request = refuse
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one"])
    assert await member.consumer.controls.commit() == {TP: end}
    assert member.owned == [TP, TopicPartition("t", 0, 1)]
    await member.cancel()


class Late:
    """A store that finds out late, and only once, that a partition is not ours."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.load, self.changed, self.keeps_for = store.load, store.changed, store.keeps_for
        self.trace = store.trace
        self.go = asyncio.Event()
        self.asked = 0

    async def commit(self, positions: Any, *, session_id: int, notes: Any = None) -> CommitResult:
        self.asked += 1
        await self.go.wait()
        return CommitResult(frozenset(), frozenset(positions))


async def test_abandons_only_after_last_commit_ended(group: Any) -> None:
    """Or the next flow would read an offset that is about to change, and lose the partition by an old answer."""
    member, _ = await consuming(group, b"one")
    flow = member.consumer._partitions
    store = flow._commits._store
    late = flow._commits._store = Late(store)
    commit = asyncio.create_task(flow.commit_all())
    await group.until(lambda: late.asked == 1)
    before = flow._owned[TP]
    group.zookeeper.remove(OWNER)
    await group.until(lambda: before.abandoned)
    await asyncio.sleep(0.05)
    assert flow._owned[TP] is before
    flow._commits._store = store
    late.go.set()
    await commit
    await group.until(lambda: flow._owned.get(TP) not in (None, before) and member.consumer.owned[TP] is not None)
    now = flow._owned[TP]
    assert member.consumer.stats.lost_partitions == 1
    await asyncio.sleep(0.05)
    assert flow._owned[TP] is now
    await member.stop()


async def test_reports_no_loss_of_partition_that_was_released_before(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "COMMIT_GRACE", 0.01)
    member, _ = await consuming(group, b"one")
    flow = member.consumer._partitions
    late = flow._commits._store = Late(flow._commits._store)
    commit = asyncio.create_task(flow.commit_all())
    await group.until(lambda: late.asked == 1)
    with capture_logs() as logs:
        await flow.drain([TP], flow._clock.monotonic(), lambda _: None)
        late.go.set()
        await commit
    told = [entry["event"] for entry in logs]
    assert "last_commit_timed_out" in told
    assert "ownership_lost" not in told
    await member.cancel()


class Taken:
    """A handler that finds the partition in other hands, once."""

    def __init__(self, recorder: Any) -> None:
        self.start, self.stop, self.position = recorder.start, recorder.stop, recorder.position
        self._recorder = recorder
        self.refusing = asyncio.Event()
        self.taken = True

    async def handle(self, batch: Any) -> None:
        if self.taken:
            await self.refusing.wait()
            self.taken = False
            raise PartitionTakenError("another sink writes there")
        await self._recorder.handle(batch)


@pytest.mark.parametrize("cause", ["expired", "taken"])
async def test_releases_memory_of_abandoned_partitions(group: Any, cause: str) -> None:
    """Else each session that ends takes a part of the budget with it, until nothing is fetched any more."""
    group.topic("t", 1)
    payloads = [b"%04d" % number + bytes(3000) for number in range(40)]
    group.broker.append("t", 0, *payloads)
    recorder = group.recorder()
    handler = Taken(recorder) if cause == "taken" else recorder
    if cause == "expired":
        recorder.hold()
    fetch = group.fetch_settings(size=8192, poll_bytes=8192)
    member = await group.member(handler=handler, fetch=fetch, budget=65536, partition_budget=65536)
    budget = member.consumer._partitions._budget
    await group.until(lambda: budget.used > 40_000)  # the lane is full
    if cause == "expired":
        await group.until(lambda: recorder.holding == 1)
        group.zookeeper.expire(member.zk)
        await group.until(lambda: recorder.cancelled == 1)
        recorder.let_go()
    else:
        handler.refusing.set()
    await group.until(lambda: len(recorder.seen) == len(payloads))
    await member.stop()
    assert budget.used == 0


async def test_stops_in_order_when_commit_cannot_be_built(group: Any) -> None:
    class Broken(Moving):
        async def commit(self, positions: Any, *, session_id: int, notes: Any = None) -> Any:
            raise EncodeError("there is no such field")

    member, _ = await consuming(group, b"one")
    flow = member.consumer._partitions
    flow._commits._store = Broken(flow._commits._store)
    with pytest.raises(EncodeError):
        await member.stop()
    assert group.owner(TP) is None


# ---- pauses and seeks


def polled(group: Any, since: int = 0) -> list[set[int]]:
    """The numbers of the partitions of each request for messages."""
    each = [getattr(request, "fetches", [request]) for request in group.broker.requests[since:]]
    return [{fetch.partition for fetch in fetches if hasattr(fetch, "offset")} for fetches in each]


async def test_pause_stops_fetching_until_resume(group: Any) -> None:
    group.topic("t", 2)
    member = await group.member()
    await group.until(lambda: polled(group).count({0, 1}) > 0)
    member.consumer.controls.pause(TP)
    assert [view.paused for view in member.consumer.views()] == [True, False]
    since = len(group.broker.requests)
    await group.until(lambda: polled(group, since).count({1}) >= 3)
    assert sum(0 in numbers for numbers in polled(group, since)) <= 1  # the one under way
    member.consumer.controls.resume(TP)
    assert [view.paused for view in member.consumer.views()] == [False, False]
    since = len(group.broker.requests)
    await group.until(lambda: any(0 in numbers for numbers in polled(group, since)))
    await member.stop()


async def test_neither_pauses_nor_seeks_partition_without_position(group: Any) -> None:
    group.topic("t", 1)
    group.broker.away = True
    member = await group.member()
    await group.until(lambda: ("position", "a t/0-0") in group.journal.entries)
    flow = member.consumer._partitions
    for partition in (TP, TopicPartition("t", 0, 9)):
        assert flow.pause(partition, True) is False
        assert flow.seek(partition, 5) is False
    await member.cancel()


# ---- the end of flows


async def test_answers_drain_in_parts_as_handlers_end(group: Any) -> None:
    group.zookeeper.make("/consumers/g/offsets/t")
    group.topic("t", 3)
    for number in range(3):
        group.broker.append("t", number, b"one")
    member = await group.member()
    await group.until(lambda: len(member.handler.seen) == 3)
    member.handler.hold()
    group.broker.append("t", 1, b"slow")
    await group.until(lambda: member.handler.holding == 1)
    slow = TopicPartition("t", 0, 1)
    others = frozenset({TP, TopicPartition("t", 0, 2)})
    flow = member.consumer._partitions
    parts: list[frozenset[TopicPartition]] = []
    commits = Commits(member)
    drain = asyncio.create_task(flow.drain([*others, slow], flow._clock.monotonic() + 60.0, parts.append))
    await group.until(lambda: frozenset().union(*parts) == others)
    assert all(group.offset(partition) for partition in others)
    assert flow.partitions == {slow}
    assert len(commits.sent) == 1  # together
    member.handler.let_go()
    await drain
    assert frozenset().union(*parts) == others | {slow}
    assert sum(map(len, parts)) == 3
    assert flow.partitions == frozenset()
    assert group.offset(slow) == group.broker.end("t", 1)


async def test_drain_commits_partitions_together_that_end_shortly_after_each_other(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_GATHER", 60.0)  # both have ended before
    gates = {TP: asyncio.Event(), TopicPartition("t", 0, 1): asyncio.Event()}

    class Gated(Handler):
        async def handle(self, batch: Batch) -> None:
            await gates[batch.partition].wait()

    group.zookeeper.make("/consumers/g/offsets/t")
    group.topic("t", 2)
    for number in range(2):
        group.broker.append("t", number, b"one")
    member = await group.member(handler=Gated())
    await group.until(lambda: member.consumer.in_hand().keys() == gates.keys())
    flow = member.consumer._partitions
    parts: list[frozenset[TopicPartition]] = []
    commits = Commits(member)
    drain = asyncio.create_task(flow.drain(gates, flow._clock.monotonic() + 60.0, parts.append))
    first, second = gates.values()
    first.set()
    await group.until(lambda: TP not in member.consumer.in_hand())
    for _ in range(100):
        await asyncio.sleep(0)
    assert (parts, commits.sent) == ([], [])
    second.set()
    await drain
    assert parts == [gates.keys()]
    assert len(commits.sent) == 1
    assert all(group.offset(partition) for partition in gates)


async def test_drain_stops_fetching_before_the_handler_has_ended(group: Any) -> None:
    group.topic("t", 2, b"slow")
    member = await group.member()
    member.handler.hold()
    await group.until(lambda: member.handler.holding == 1 and {0, 1} in polled(group))
    flow = member.consumer._partitions
    drain = asyncio.create_task(flow.drain([TP], flow._clock.monotonic() + 60.0, lambda _: None))
    await asyncio.sleep(0)
    since = len(group.broker.requests)
    await group.until(lambda: polled(group, since).count({1}) >= 3)
    assert sum(0 in numbers for numbers in polled(group, since)) <= 1  # the one under way
    assert member.handler.holding == 1
    member.handler.let_go()
    await drain


async def test_cancels_handler_again_that_swallows_its_cancellation(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_CANCEL_AGAIN", 0.01)
    group.topic("t", 1, b"stuck")
    handler = Stuck(group.recorder())
    member = await group.member(handler=handler)
    await group.until(handler.holding.is_set)
    cancellation = asyncio.create_task(member.cancel())
    try:
        await group.until(lambda: handler.cancelled >= 3)
    finally:
        handler.free.set()
        await cancellation


async def test_abandon_replaces_drain_during_last_commit(group: Any) -> None:
    member, end = await consuming(group, b"one")
    flow = member.consumer._partitions
    commits = Commits(member)
    commits.go.clear()
    drained: list[frozenset[TopicPartition]] = []
    abandoned: list[frozenset[TopicPartition]] = []
    drain = asyncio.create_task(flow.drain([TP], flow._clock.monotonic() + 60.0, drained.append))
    await group.until(lambda: commits.sent == [end])
    abandon = asyncio.create_task(flow.abandon([TP], abandoned.append))
    await asyncio.sleep(0.05)
    assert (drained, abandoned) == ([], [])
    commits.go.set()
    await asyncio.gather(drain, abandon)
    assert frozenset().union(*drained) == frozenset()
    assert abandoned == [{TP}]
    assert group.offset(TP) == end


async def holding(group: Any) -> tuple[Any, int, Commits]:
    """A member whose handler has a batch and holds it, the end of what was handled before, and its commits."""
    member, end = await consuming(group, b"one")
    member.handler.hold()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.holding == 1)
    return member, end, Commits(member)


@pytest.mark.parametrize("ending", ["drain", "interruption"])
async def test_commits_nothing_of_partition_abandoned_during(group: Any, ending: str) -> None:
    member, end, commits = await holding(group)
    flow = member.consumer._partitions
    drained: list[frozenset[TopicPartition]] = []
    abandoned: list[frozenset[TopicPartition]] = []
    deadline = flow._clock.monotonic() + 60.0
    begun = flow.drain([TP], deadline, drained.append) if ending == "drain" else flow.interrupt(deadline)
    other = asyncio.create_task(begun)
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await asyncio.gather(other, flow.abandon([TP], abandoned.append))
    assert (member.handler.cancelled, commits.sent) == (1, [])
    assert frozenset().union(*drained) == frozenset()
    assert abandoned == [{TP}]
    assert [entry["positions"] for entry in logs if entry["event"] == "positions_not_committed"] == [{"t/0-0": end}]


async def test_commits_nothing_when_cancelled_during_drain(group: Any) -> None:
    member, _, commits = await holding(group)
    flow = member.consumer._partitions
    drained: list[frozenset[TopicPartition]] = []
    drain = asyncio.create_task(flow.drain([TP], flow._clock.monotonic() + 60.0, drained.append))
    await asyncio.sleep(0)
    await member.cancel()
    await drain
    assert (member.handler.cancelled, commits.sent) == (1, [])
    assert frozenset().union(*drained) == frozenset()


@pytest.mark.parametrize("by", ["drain", "abandon"])
async def test_partition_that_leaves_during_last_commit_of_interruption_is_not_kept(group: Any, by: str) -> None:
    member, end = await consuming(group, b"one")
    flow = member.consumer._partitions
    commits = Commits(member)
    commits.go.clear()
    deadline = flow._clock.monotonic() + 60.0
    interruption = asyncio.create_task(flow.interrupt(deadline))
    await group.until(lambda: commits.sent == [end])
    ended: list[frozenset[TopicPartition]] = []
    leaving = flow.drain([TP], deadline, ended.append) if by == "drain" else flow.abandon([TP], ended.append)
    other = asyncio.create_task(leaving)
    await asyncio.sleep(0)
    commits.go.set()
    await asyncio.gather(interruption, other)
    assert ended == [{TP}]
    assert flow.partitions == frozenset()


async def test_answers_each_of_two_that_abandon_a_partition(group: Any) -> None:
    member, _ = await consuming(group, b"one")
    flow = member.consumer._partitions
    abandoned: list[frozenset[TopicPartition]] = []
    await asyncio.gather(*(flow.abandon([TP], abandoned.append) for _ in range(2)))
    assert abandoned == [{TP}, {TP}]
    assert flow.partitions == frozenset()


async def test_abandon_delivers_nothing_more_at_once(group: Any) -> None:
    member, _ = await consuming(group, b"one")
    member.handler.hold()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.holding == 1)
    group.broker.append("t", 0, b"three")
    await group.until(lambda: member.consumer.views()[0].queued == 1)
    abandon = asyncio.create_task(member.consumer._partitions.abandon([TP], lambda _: None))
    member.handler.let_go()
    await abandon
    assert member.handler.seen == [b"one", b"two"]


async def test_logs_uncommitted_partitions_in_one_line(group: Any) -> None:
    group.topic("t", 30)
    for number in range(30):
        group.broker.append("t", number, b"one")
    with capture_logs() as logs:
        member = await group.member()
        await group.until(lambda: len(member.handler.seen) == 30)
        await member.cancel()
    (line,) = [entry for entry in logs if entry["event"] == "positions_not_committed"]
    assert line["partitions"] == 30
    assert len(line["positions"]) == 20
    assert line["positions"]["t/0-0"] == group.broker.end("t", 0)


async def test_logs_nothing_about_committed_partitions(group: Any) -> None:
    with capture_logs() as logs:
        member, _ = await consuming(group, b"one")
        await member.stop()
    assert [entry for entry in logs if entry["event"] == "positions_not_committed"] == []


class Swallowing:
    """A handler that ignores its cancellation once, during the method `where`."""

    def __init__(self, recorder: Any, where: str) -> None:
        self.start, self.stop = recorder.start, recorder.stop
        self.held = asyncio.Event()
        self._recorder = recorder
        self._where = where

    async def _swallow(self, where: str) -> None:
        if where == self._where and not self.held.is_set():
            self.held.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def position(self, partition: Any) -> Any:
        await self._swallow("position")
        return await self._recorder.position(partition)

    async def handle(self, batch: Any) -> None:
        await self._swallow("handle")
        await self._recorder.handle(batch)


@pytest.mark.parametrize(
    ("where", "end", "handed"), [("handle", "cancel", 1), ("position", "cancel", 0), ("position", "stop", 0)]
)
async def test_hands_nothing_to_handler_that_swallows_cancellation(
    group: Any, where: str, end: str, handed: int
) -> None:
    group.topic("t", 1)
    for number in range(100):
        group.broker.append("t", 0, b"%d" % number + bytes(3000))
    recorder = group.recorder()
    handler = Swallowing(recorder, where)
    fetch = group.fetch_settings(size=8192, poll_bytes=8192)
    member = await group.member(handler=handler, fetch=fetch)
    await asyncio.wait_for(handler.held.wait(), 60)
    budget = member.consumer._partitions._budget
    if where == "handle":
        await group.until(lambda: budget.used > 20_000)  # more of it waits in the lane
    await (member.stop() if end == "stop" else member.cancel())
    assert len(recorder.batches) == handed
    assert recorder.stops == 1


# ---- start offsets that the next owner would not find, and offsets that others write


class Fetches:
    """The committed offset at the time of each fetch request."""

    def __init__(self, group: Any) -> None:
        self.seen: list[tuple[int, int | None]] = []
        self._group = group
        group.broker.on_request = self._note

    def _note(self, request: Any) -> None:
        for fetch in getattr(request, "fetches", [request] if type(request).__name__ == "FetchRequest" else []):
            self.seen.append((fetch.offset, self._group.offset(TP)))


async def test_commits_latest_offset_before_fetching_despite_failures(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "RETRY_PAUSE", 0.005)
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"before us")
    fetches = Fetches(group)
    member = await group.member(initial="latest")
    commits = Commits(member)
    commits.error = ConnectionLost("as it were")
    await group.until(lambda: len(commits.sent) >= 3)
    assert fetches.seen == []
    group.broker.append("t", 0, b"meanwhile")
    commits.error = None
    await group.until(lambda: member.handler.seen == [b"meanwhile"])
    assert set(commits.sent[:3]) == {end}
    assert fetches.seen[0] == (end, end)
    await member.stop()


async def test_pauses_after_failed_commit_of_latest_offset(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "RETRY_PAUSE", 3600.0)
    group.topic("t", 1)
    member = await group.member(initial="latest")
    commits = Commits(member)
    commits.error = ConnectionLost("the network is down")
    await group.until(lambda: bool(commits.sent))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(commits.sent) == 1
    await member.cancel()


async def test_writes_no_start_offset_without_commits(group: Any) -> None:
    group.topic("t", 1, b"before us")
    member = await group.member(initial="latest", auto_commit=False)
    await group.until(lambda: member.consumer.owned.get(TP) is not None)
    group.broker.append("t", 0, b"now")
    await group.until(lambda: member.handler.seen == [b"now"])
    assert group.offset(TP) is None


async def test_commits_reset_before_fetching(group: Any) -> None:
    group.topic("t", 1, b"one")
    group.zookeeper.put(OFFSET, b"1000")
    fetches = Fetches(group)
    member = await group.member()
    commits = Commits(member)
    commits.go.clear()
    await group.until(lambda: bool(commits.sent))
    await asyncio.sleep(0.05)
    assert {offset for offset, _ in fetches.seen} == {1000}
    commits.go.set()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: b"two" in member.handler.seen)
    new = commits.sent[0]
    assert new != 1000
    assert next(committed for offset, committed in fetches.seen if offset != 1000) == new
    await member.stop()


async def test_handles_what_was_fetched_before_a_reset_first(group: Any) -> None:
    member, first = await consuming(group, b"one")
    member.handler.hold()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.holding == 1)
    group.broker.logs["t", 0].clear()  # the topic is created again
    fetches = Fetches(group)
    await group.until(lambda: member.consumer.fetched.resets == 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert min(offset for offset, _ in fetches.seen) > first
    member.handler.let_go()
    group.broker.append("t", 0, b"new")
    await group.until(lambda: member.handler.seen == [b"one", b"two", b"new"])
    assert next(committed for offset, committed in fetches.seen if offset == 0) == 0
    await member.stop()


async def test_rewrites_offset_that_was_set_back(group: Any) -> None:
    member, first = await consuming(group, b"one")
    flow = member.consumer._partitions
    await flow.commit_all()
    assert group.offset(TP) == first
    commits = Commits(member)
    end = group.broker.append("t", 0, b"two")
    await group.until(lambda: member.consumer.owned[TP] == end)
    await flow.check_committed()
    assert commits.sent == []  # that is up to the interval of commits
    group.zookeeper.put(OFFSET, b"3")
    await flow.check_committed()
    assert group.offset(TP) == end
    await member.stop()
