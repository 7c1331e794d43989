"""Fenced commits, refusal by refusal, against a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import Check, Create, Delete, NodeStat, Operation, SetData
from consumerd.member.offsets.metadata import OffsetNotes
from consumerd.member.offsets.store import (
    LATE_COMMIT_MS,
    CommitResult,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)
from consumerd.net.cluster.topic_nodes import TopicNodes
from consumerd.net.zk.errors import (
    BadVersion,
    ConnectionLost,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionChanged,
)
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import offset_path, offsets_path, owner_path

GROUP = "g"


class Multis:
    """Passes everything on to a session, counts multis, and lets a test act before each."""

    def __init__(
        self, zk: MemorySession, before: Callable[[Sequence[Operation]], None] = lambda operations: None
    ) -> None:
        self._zk = zk
        self.before = before
        self.sent: list[Sequence[Operation]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zk, name)

    async def multi(self, operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        self.sent.append(operations)
        self.before(operations)
        await self._zk.multi(operations, session_id=session_id)


class Calls:
    """Passes everything on to a session, and counts calls."""

    def __init__(self, zk: MemorySession) -> None:
        self._zk = zk
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._zk, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return await found(*arguments, **options)

        return call


def many(count: int) -> list[TopicPartition]:
    return [TopicPartition(f"t{number % 2}", number % 3, number) for number in range(count)]


def claim(server: MemoryZooKeeper, zk: MemorySession | Calls, partitions: list[TopicPartition]) -> None:
    for partition in partitions:
        server.put(owner_path(GROUP, partition), b"g_me-0", session_id=zk.session_id)


def stored(server: MemoryZooKeeper, partition: TopicPartition) -> bytes | None:
    path = offset_path(GROUP, partition)
    return server.tree.data(path) if server.tree.has(path) else None


async def test_creates_node_on_first_commit_and_sets_it_later(server: MemoryZooKeeper, zk: MemorySession) -> None:
    partitions = many(120)
    claim(server, zk, partitions)
    multis = Multis(zk)
    store = ZooKeeperOffsetStore(multis, GROUP)
    assert await store.load(partitions) == {}
    result = await store.commit(dict.fromkeys(partitions, 5), session_id=zk.session_id)
    assert result == CommitResult(frozenset(partitions), frozenset())
    assert len(multis.sent) == 3
    assert max(map(len, multis.sent)) == 100
    assert server.tree.data(offsets_path(GROUP, "t0")) is None
    multis.sent.clear()
    await store.commit(dict.fromkeys(partitions, 6), session_id=zk.session_id)
    assert len(multis.sent) == 3
    assert await store.load(partitions) == dict.fromkeys(partitions, 6)
    assert stored(server, partitions[0]) == b"6"


async def test_first_commit_of_many_partitions_reads_nothing_again() -> None:
    server = MemoryZooKeeper()
    async with server.session() as session:
        zk = Calls(session)
        partitions = many(200)
        claim(server, zk, partitions)
        store = ZooKeeperOffsetStore(zk, GROUP)
        assert await store.load(partitions) == {}
        zk.counts.clear()
        await store.commit(dict.fromkeys(partitions, 7), session_id=zk.session_id)
        assert zk.counts == {
            "exists": 200,
            "ensure": 2,
            "multi": 4,
        }  # each owner node is read once, if its version is unknown
        assert {stored(server, partition) for partition in partitions} == {b"7"}


async def test_checks_for_changes_a_hundred_nodes_at_once() -> None:
    server = MemoryZooKeeper()
    async with server.session() as session:
        zk = Calls(session)
        partitions = many(300)
        claim(server, zk, partitions)
        store = ZooKeeperOffsetStore(zk, GROUP)
        await store.load(partitions)
        await store.commit(dict.fromkeys(partitions[:250], 7), session_id=zk.session_id)
        zk.counts.clear()
        assert await store.changed([*partitions, TopicPartition("other", 0, 0)]) == frozenset()
        assert zk.counts == {"multi": 3, "exists": 50}  # those that have no node yet
        server.put(offset_path(GROUP, partitions[3]), b"1")
        server.put(offset_path(GROUP, partitions[260]), b"1")
        await session.delete(offset_path(GROUP, partitions[240]))
        zk.counts.clear()
        assert await store.changed(partitions) == {partitions[3], partitions[240], partitions[260]}
        assert zk.counts == {"multi": 3, "exists": 50 + 100 + 50}


async def test_reports_lost_partitions_by_owner_node(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        kept, gone, taken, persistent = many(4)
        claim(server, zk, [kept])
        claim(server, peer, [taken])
        server.put(owner_path(GROUP, persistent), b"g_odd-0")
        positions = dict.fromkeys((kept, gone, taken, persistent), 5)
        result = await ZooKeeperOffsetStore(zk, GROUP).commit(positions, session_id=zk.session_id)
        assert result == CommitResult(frozenset({kept}), frozenset({gone, taken, persistent}))
        assert [stored(server, each) for each in positions] == [b"5", None, None, None]


async def test_sends_nothing_when_all_partitions_are_lost(zk: MemorySession) -> None:
    multis = Multis(zk)
    result = await ZooKeeperOffsetStore(multis, GROUP).commit({many(1)[0]: 5}, session_id=zk.session_id)
    assert result == CommitResult(frozenset(), frozenset(many(1)))
    assert multis.sent == []


async def test_server_rejects_commit_of_partition_lost_since_read(server: MemoryZooKeeper, zk: MemorySession) -> None:
    """Deleted, or claimed by a peer that has committed: its owner node looks like ours was, so its offset tells."""
    async with server.session() as peer:
        partitions = many(5)
        claim(server, zk, partitions)
        times = iter([False, True])

        def meddle(operations: Sequence[Operation]) -> None:
            if next(times, False):
                server.remove(owner_path(GROUP, partitions[1]))
                server.remove(owner_path(GROUP, partitions[3]))
                claim(server, peer, [partitions[3]])
                server.put(offset_path(GROUP, partitions[3]), b"9")

        store = ZooKeeperOffsetStore(Multis(zk, meddle), GROUP)
        for partition in partitions:
            server.put(offset_path(GROUP, partition), b"1")
        await store.load(partitions)
        await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)
        result = await store.commit(dict.fromkeys(partitions, 5), session_id=zk.session_id)
        assert result.lost == {partitions[1], partitions[3]}
        assert result.committed == {partitions[0], partitions[2], partitions[4]}
        assert [stored(server, each) for each in partitions] == [b"5", b"2", b"5", b"9", b"5"]


async def test_retries_once_when_many_owner_nodes_are_lost(server: MemoryZooKeeper, zk: MemorySession) -> None:
    """Not one for each: far from ZooKeeper, those that are still owned would not be committed in time."""
    partitions = many(20)
    claim(server, zk, partitions)

    def delete(operations: Sequence[Operation]) -> None:
        for partition in partitions[:18]:
            server.remove(owner_path(GROUP, partition))

    multis = Multis(zk)
    store = ZooKeeperOffsetStore(multis, GROUP)
    await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)
    multis.sent.clear()
    multis.before = delete
    result = await store.commit(dict.fromkeys(partitions, 5), session_id=zk.session_id)
    assert result == CommitResult(frozenset(partitions[18:]), frozenset(partitions[:18]))
    assert len(multis.sent) == 2


async def test_keeps_partition_when_peer_wrote_to_owner_node(server: MemoryZooKeeper, zk: MemorySession) -> None:
    partitions = many(3)
    claim(server, zk, partitions)
    times = iter([True])

    def scribble(operations: Sequence[Operation]) -> None:
        if next(times, False):
            server.put(owner_path(GROUP, partitions[1]), b"g_peer-0")

    store = ZooKeeperOffsetStore(Multis(zk, scribble), GROUP)
    for position in (5, 6):
        result = await store.commit(dict.fromkeys(partitions, position), session_id=zk.session_id)
        assert result == CommitResult(frozenset(partitions), frozenset())
        assert stored(server, partitions[1]) == b"%d" % position


async def test_retries_when_offset_node_was_created_meanwhile(server: MemoryZooKeeper, zk: MemorySession) -> None:
    (partition,) = many(1)
    claim(server, zk, [partition])

    def race(operations: Sequence[Operation]) -> None:
        if isinstance(operations[1], Create):
            server.put(offset_path(GROUP, partition), b"1")

    multis = Multis(zk, race)
    result = await ZooKeeperOffsetStore(multis, GROUP).commit({partition: 5}, session_id=zk.session_id)
    assert result.committed == {partition}
    assert [type(operations[1]) for operations in multis.sent] == [Create, SetData]
    assert stored(server, partition) == b"5"


class Commits:
    """One partition that is ours, on a server with multi or without, and the lines of the log."""

    def __init__(self, server: MemoryZooKeeper, zk: MemorySession, *, with_multi: bool) -> None:
        zk._lifecycle.has_multi = with_multi
        (self.partition,) = many(1)
        claim(server, zk, [self.partition])
        self.server = server
        self.zk = Multis(zk)
        self.store = ZooKeeperOffsetStore(self.zk, GROUP)
        self.with_multi = with_multi

    async def commit(self, position: int) -> CommitResult:
        result = await self.store.commit({self.partition: position}, session_id=self.zk.session_id)
        assert bool(self.zk.sent) is self.with_multi
        return result

    def foreign(self, offset: bytes) -> None:
        self.server.put(offset_path(GROUP, self.partition), offset)

    @property
    def stored(self) -> bytes | None:
        return stored(self.server, self.partition)


@pytest_asyncio.fixture(params=[True, False], ids=["multi", "no multi"])
async def commits(request: pytest.FixtureRequest) -> AsyncIterator[Commits]:
    server = MemoryZooKeeper()
    async with server.session() as zk:
        yield Commits(server, zk, with_multi=request.param)


async def test_overwrites_lower_offset_of_former_owner(commits: Commits) -> None:
    await commits.commit(10)
    commits.foreign(b"3")
    assert await commits.store.changed([commits.partition, TopicPartition("unknown", 0, 0)]) == {commits.partition}
    with capture_logs() as logs:
        assert (await commits.commit(10)).committed == {commits.partition}
    assert commits.stored == b"10"
    assert [(entry["offset"], entry["position"]) for entry in logs] == [(3, 10)]
    assert await commits.store.changed([commits.partition]) == frozenset()
    commits.foreign(b"junk")
    await commits.commit(11)
    assert commits.stored == b"11"


async def test_never_lowers_offset_of_others_except_by_seek(commits: Commits) -> None:
    await commits.commit(10)
    commits.foreign(b"20")
    for position in (12, 12, 15):
        assert (await commits.commit(position)).committed == {commits.partition}
        assert commits.stored == b"20"
    assert await commits.store.changed([commits.partition]) == frozenset()
    await commits.commit(14)
    assert commits.stored == b"14"
    commits.foreign(b"20")
    await commits.commit(16)
    assert commits.stored == b"20"
    await commits.commit(21)
    assert commits.stored == b"21"
    await commits.commit(4)
    assert commits.stored == b"4"


@pytest.mark.parametrize("loaded", [False, True], ids=["committed", "loaded"])
async def test_seek_back_overwrites_larger_offset_first_met_by_commit(commits: Commits, loaded: bool) -> None:
    await commits.commit(10)
    if loaded:
        commits.store = ZooKeeperOffsetStore(commits.zk, GROUP)
        assert await commits.store.load([commits.partition]) == {commits.partition: 10}
    commits.foreign(b"20")
    with capture_logs() as logs:
        await commits.commit(4)
    assert commits.stored == b"4"
    assert [(entry["offset"], entry["position"]) for entry in logs] == [(20, 4)]
    await commits.commit(6)
    assert commits.stored == b"6"
    commits.foreign(b"20")  # after the seek: another process has handled more
    await commits.commit(8)
    assert commits.stored == b"20"


async def test_first_commit_keeps_the_larger_offset_written_since_the_load(commits: Commits) -> None:
    commits.foreign(b"10")
    assert await commits.store.load([commits.partition]) == {commits.partition: 10}
    commits.foreign(b"20")
    assert (await commits.commit(12)).committed == {commits.partition}
    assert commits.stored == b"20"
    await commits.commit(21)
    assert commits.stored == b"21"


async def test_peek_does_not_affect_next_commit(commits: Commits) -> None:
    await commits.commit(10)
    commits.foreign(b"20")
    assert await commits.store.peek([commits.partition, TopicPartition("none", 0, 0)]) == {commits.partition: 20}
    assert await commits.store.changed([commits.partition]) == {commits.partition}
    await commits.commit(12)
    assert commits.stored == b"20"


async def test_seek_back_wins_until_written(commits: Commits) -> None:
    await commits.commit(10)
    commits.foreign(b"20")
    commits.server.cut_next_call(commits.zk._zk, carried_out=False)
    with pytest.raises(ConnectionLost):
        await commits.commit(4)
    commits.server.reconnect(commits.zk._zk)
    await commits.commit(6)
    assert commits.stored == b"6"


async def lose_reply(commits: Commits, position: int, *, carried_out: bool = True) -> None:
    """Commit over a connection that breaks before the reply."""
    real = commits.zk._zk
    name = "multi" if commits.with_multi else "set"
    call = getattr(real, name)

    async def lose(*args: Any, **options: Any) -> Any:
        setattr(real, name, call)
        commits.server.cut_next_call(real, carried_out=carried_out)
        return await call(*args, **options)

    setattr(real, name, lose)
    with pytest.raises(ConnectionLost):
        await commits.commit(position)
    commits.server.reconnect(real)


@pytest.mark.parametrize("later", [5, 6])
async def test_recognises_own_write_after_lost_reply(commits: Commits, later: int) -> None:
    await commits.commit(1)
    await lose_reply(commits, 5)
    assert commits.stored == b"5"
    with capture_logs() as logs:
        assert (await commits.commit(later)).committed == {commits.partition}
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == []
    assert commits.stored == b"%d" % later


async def test_recreates_deleted_offset_node(commits: Commits) -> None:
    await commits.commit(5)
    commits.server.remove("/consumers/g/offsets")
    assert await commits.store.changed([commits.partition]) == {commits.partition}
    with capture_logs() as logs:
        assert (await commits.commit(5)).committed == {commits.partition}
    assert commits.stored == b"5"
    await commits.commit(6)
    assert commits.stored == b"6"
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [], "it is not a write of others"


async def test_rejects_late_commit_without_multi(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        commits = Commits(server, zk, with_multi=False)
        await commits.commit(5)
        write = zk.set

        async def late(path: str, data: bytes, *, version: int = -1) -> NodeStat:
            server.remove(owner_path(GROUP, commits.partition))
            claim(server, peer, [commits.partition])
            commits.foreign(b"9")
            zk.set = write  # type: ignore[method-assign]
            return await write(path, data, version=version)

        zk.set = late  # type: ignore[method-assign]
        assert (await commits.commit(7)).lost == {commits.partition}
        assert commits.stored == b"9"


async def test_recreates_deleted_parents(server: MemoryZooKeeper, zk: MemorySession) -> None:
    (partition,) = many(1)
    claim(server, zk, [partition])
    times = iter([True, True])

    def sweep(operations: Sequence[Operation]) -> None:
        if isinstance(operations[1], Create) and next(times, False):
            server.remove(offsets_path(GROUP, partition.topic))

    result = await ZooKeeperOffsetStore(Multis(zk, sweep), GROUP).commit({partition: 5}, session_id=zk.session_id)
    assert result.committed == {partition}
    assert stored(server, partition) == b"5"


@pytest.mark.parametrize("refusal", [NodeExists, NoNode])
async def test_commits_others_when_one_node_cannot_be_written(
    refusal: type[ZooKeeperError], server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """It keeps conflicting: the other offsets are stored, then the error is raised."""
    partitions = many(4)
    claim(server, zk, partitions)
    await ZooKeeperOffsetStore(zk, GROUP).commit(dict.fromkeys(partitions, 1), session_id=zk.session_id)
    bad = offset_path(GROUP, partitions[2])

    def refuse(operations: Sequence[Operation]) -> None:
        for index, operation in enumerate(operations):
            if operation.path == bad:
                raise MultiFailed(index, refusal(bad))

    with pytest.raises(refusal):
        await ZooKeeperOffsetStore(Multis(zk, refuse), GROUP).commit(
            dict.fromkeys(partitions, 2), session_id=zk.session_id
        )
    assert [stored(server, partition) for partition in partitions] == [b"2", b"2", b"1", b"2"]


@pytest.mark.parametrize("has_multi", [True, False])
async def test_node_that_may_not_be_written_is_refused_alone_and_committed_once_it_may(
    has_multi: bool, server: MemoryZooKeeper, zk: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk._lifecycle.has_multi = has_multi
    partitions = many(4)
    claim(server, zk, partitions)
    denied = {offset_path(GROUP, partitions[2])}

    def refuse(operations: Sequence[Operation]) -> None:
        for index, operation in enumerate(operations):
            if operation.path in denied and not isinstance(operation, Check):
                raise MultiFailed(index, NoAuth(operation.path))

    create = zk.create

    async def create_allowed(path: str, *arguments: Any, **options: Any) -> Any:
        if path in denied:
            raise NoAuth(path)
        return await create(path, *arguments, **options)

    monkeypatch.setattr(zk, "create", create_allowed)
    store = ZooKeeperOffsetStore(Multis(zk, refuse), GROUP)
    result = await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)
    assert result.committed == {*partitions} - {partitions[2]}
    assert not result.lost
    assert {partition: type(error) for partition, error in result.refused.items()} == {partitions[2]: NoAuth}
    assert [stored(server, partition) for partition in partitions] == [b"2", b"2", None, b"2"]
    denied.clear()
    assert (await store.commit({partitions[2]: 3}, session_id=zk.session_id)).committed == {partitions[2]}
    assert stored(server, partitions[2]) == b"3"


async def test_reports_partitions_lost_with_session(server: MemoryZooKeeper, zk: MemorySession) -> None:
    partitions = many(2)
    claim(server, zk, partitions)
    old = zk.session_id
    expired = Multis(zk, lambda operations: server.expire(zk))
    with pytest.raises(SessionChanged):
        await ZooKeeperOffsetStore(expired, GROUP).commit(dict.fromkeys(partitions, 5), session_id=old)
    with pytest.raises(SessionChanged):
        await ZooKeeperOffsetStore(zk, GROUP).commit(dict.fromkeys(partitions, 5), session_id=old)
    with pytest.raises(SessionChanged):
        await ZooKeeperOffsetStore(zk, GROUP).commit(dict.fromkeys(partitions, 5), session_id=0)
    assert await ZooKeeperOffsetStore(zk, GROUP).load(partitions) == {}


async def test_raises_session_changed_instead_of_reporting_loss(server: MemoryZooKeeper, zk: MemorySession) -> None:
    """On the new session every owner node looks foreign; that must not be reported as lost partitions."""
    partitions = many(2)
    claim(server, zk, partitions)
    old = zk.session_id

    class Expiring(Multis):
        async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None:
            if zk.session_id == old:
                server.expire(zk)
            return await zk.exists(path, watch=watch)

    with pytest.raises(SessionChanged):
        await ZooKeeperOffsetStore(Expiring(zk), GROUP).commit(dict.fromkeys(partitions, 5), session_id=old)


@pytest.mark.parametrize("carried_out", [False, True])
async def test_raises_connection_loss_unchanged(carried_out: bool, server: MemoryZooKeeper, zk: MemorySession) -> None:
    partitions = many(120)
    claim(server, zk, partitions)
    store = ZooKeeperOffsetStore(zk, GROUP)
    await store.commit(dict.fromkeys(partitions, 1), session_id=zk.session_id)
    cut = iter([True])

    def once(operations: Sequence[Operation]) -> None:
        if next(cut, False):
            server.cut_next_call(zk, carried_out=carried_out)

    with pytest.raises(ConnectionLost):
        await ZooKeeperOffsetStore(Multis(zk, once), GROUP).commit(
            dict.fromkeys(partitions, 2), session_id=zk.session_id
        )
    server.reconnect(zk)
    assert (await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)).lost == frozenset()
    assert await store.load(partitions) == dict.fromkeys(partitions, 2)


@pytest.mark.parametrize("data", [None, b"", b"-1", b"12x", b"\xff", b"9" * 30])
async def test_rejects_invalid_stored_offsets(data: bytes | None, server: MemoryZooKeeper, zk: MemorySession) -> None:
    (partition,) = many(1)
    server.put(offset_path(GROUP, partition), data)
    with pytest.raises(RegistryError):
        await ZooKeeperOffsetStore(zk, GROUP).load([partition])


@pytest.mark.parametrize("turns", range(12))
async def test_propagates_cancellation_during_failure(turns: int, server: MemoryZooKeeper, zk: MemorySession) -> None:
    partitions = many(120)
    claim(server, zk, partitions)
    task = asyncio.create_task(
        ZooKeeperOffsetStore(zk, GROUP).commit(dict.fromkeys(partitions, 1), session_id=zk.session_id)
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    server.disconnect(zk)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_reads_and_creates_nothing_that_is_known() -> None:
    """Nodes that were loaded need no parents, and the parents of a topic are created once."""
    server = MemoryZooKeeper()
    async with server.session() as session:
        zk = Calls(session)
        one, two, three = (TopicPartition("t", 0, number) for number in range(3))
        claim(server, zk, [one, two, three])
        server.put(offset_path(GROUP, one), b"1")
        store = ZooKeeperOffsetStore(zk, GROUP)
        await store.load([one])
        await store.commit({one: 2}, session_id=zk.session_id)
        assert zk.counts["ensure"] == 0
        for partition in (two, three):
            await store.commit({partition: 2}, session_id=zk.session_id)
            assert zk.counts["ensure"] == 1


async def test_commits_many_partitions_without_multi(server: MemoryZooKeeper, zk: MemorySession) -> None:
    zk._lifecycle.has_multi = False
    partitions = many(5)
    claim(server, zk, partitions)
    store = ZooKeeperOffsetStore(zk, GROUP)
    for position in (5, 6):
        result = await store.commit(dict.fromkeys(partitions, position), session_id=zk.session_id)
        assert result.committed == frozenset(partitions)
        assert [stored(server, each) for each in partitions] == [b"%d" % position] * 5


async def test_asks_nothing_for_a_session_that_is_over() -> None:
    server = MemoryZooKeeper()
    async with server.session() as session:
        zk = Calls(session)
        old = zk.session_id
        server.expire(session)
        with pytest.raises(SessionChanged):
            await ZooKeeperOffsetStore(zk, GROUP).commit({many(1)[0]: 5}, session_id=old)
        assert zk.counts == {}


async def test_writes_nothing_without_multi_when_the_session_ends_after_the_look_at_owners(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    commits = Commits(server, zk, with_multi=False)
    await commits.commit(5)
    look = zk.exists

    async def then_expire(path: str, *, watch: bool = False) -> NodeStat | None:
        stat = await look(path, watch=watch)
        server.expire(zk)
        return stat

    zk.exists = then_expire  # type: ignore[method-assign]
    with pytest.raises(SessionChanged):
        await commits.commit(7)
    assert commits.stored == b"5"


async def test_reports_what_was_committed_before_the_session_ended(server: MemoryZooKeeper, zk: MemorySession) -> None:
    commits = Commits(server, zk, with_multi=True)
    send = zk.multi

    async def then_expire(operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        await send(operations, session_id=session_id)
        server.expire(zk)

    zk.multi = then_expire  # type: ignore[method-assign]
    assert (await commits.commit(7)).committed == {commits.partition}


async def test_offset_that_another_process_writes_is_not_taken_for_an_old_one_of_ours(commits: Commits) -> None:
    await commits.commit(20)
    await commits.commit(4)
    commits.foreign(b"20")
    await commits.commit(6)
    assert commits.stored == b"20"


async def test_seek_back_with_a_lost_reply_ends_when_it_is_found_written(commits: Commits) -> None:
    """It is not written twice, and what others write afterwards is later than the seek."""
    await commits.commit(10)
    real = commits.zk._zk
    await lose_reply(commits, 4)
    before = await real.exists(offset_path(GROUP, commits.partition))
    assert (await commits.commit(4)).committed == {commits.partition}
    assert await real.exists(offset_path(GROUP, commits.partition)) == before
    commits.foreign(b"20")
    await commits.commit(6)
    assert commits.stored == b"20"


async def test_conflict_of_one_partition_concerns_no_other() -> None:
    """The owner of that one is looked at again, its write is reported, and no parents are created."""
    server = MemoryZooKeeper()
    async with server.session() as session:
        zk = Calls(session)
        partitions = many(3)
        claim(server, zk, partitions)
        store = ZooKeeperOffsetStore(zk, GROUP)
        await store.commit(dict.fromkeys(partitions, 5), session_id=zk.session_id)
        server.put(offset_path(GROUP, partitions[1]), b"3")
        zk.counts.clear()
        with capture_logs() as logs:
            await store.commit(dict.fromkeys(partitions, 6), session_id=zk.session_id)
        assert [entry["partition"] for entry in logs] == [str(partitions[1])]
        assert zk.counts == {"exists": 3 + 1, "multi": 2, "get": 3}
        assert [stored(server, each) for each in partitions] == [b"6"] * 3


async def test_forgets_lost_partition(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        commits = Commits(server, zk, with_multi=True)
        await commits.commit(10)
        server.remove(owner_path(GROUP, commits.partition))
        claim(server, peer, [commits.partition])
        commits.foreign(b"20")
        assert (await commits.commit(12)).lost == {commits.partition}
        assert await commits.store.changed([commits.partition]) == frozenset()


@pytest.mark.parametrize(("index", "cause"), [(0, BadVersion), (1, BadVersion), (1, NodeExists)])
async def test_gives_up_a_write_after_four_repairs(
    index: int, cause: type[ZooKeeperError], server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """Whether the check of the owner fails, though the node is ours, or the write."""
    commits = Commits(server, zk, with_multi=True)

    def refuse(operations: Sequence[Operation]) -> None:
        raise MultiFailed(index, cause(operations[index].path))

    commits.zk.before = refuse
    with pytest.raises(cause):
        await commits.commit(5)
    assert len(commits.zk.sent) == 1 + 4


async def test_unclaimed_partition_is_refused_at_once_where_owner_nodes_may_not_be_created(zk: MemorySession) -> None:

    def refuse(operations: Sequence[Operation]) -> None:
        raise MultiFailed(0, NoAuth(operations[0].path))

    multis = Multis(zk, refuse)
    with pytest.raises(NoAuth):
        await UnclaimedZooKeeperOffsetStore(multis, GROUP).commit({many(1)[0]: 5}, session_id=0)
    assert len(multis.sent) == 1


async def test_unclaimed_partition_is_lost_though_its_owner_has_gone_again(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """What the owner has handled in the meantime is not known."""
    async with server.session() as peer:
        (partition,) = many(1)
        claim(server, peer, [partition])

        class Leaving(Multis):
            async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None:
                if path == owner_path(GROUP, partition):
                    server.remove(path)
                return await zk.exists(path, watch=watch)

        result = await UnclaimedZooKeeperOffsetStore(Leaving(zk), GROUP).commit({partition: 5}, session_id=0)
        assert result.lost == {partition}
        assert stored(server, partition) is None


async def leads_to_load(commits: Commits) -> bool:
    """Whether the node is, by its trace, as we left it ourselves."""
    before = commits.store.trace(commits.partition)
    await commits.store.load([commits.partition])
    after = commits.store.trace(commits.partition)
    assert before is not None
    assert after is not None
    return before.leads_to(after)


@pytest.mark.parametrize("carried_out", [True, False])
async def test_trace_leads_to_own_writes_with_lost_replies(commits: Commits, carried_out: bool) -> None:
    await commits.commit(1)
    assert await leads_to_load(commits)
    await lose_reply(commits, 5, carried_out=carried_out)
    await lose_reply(commits, 6, carried_out=False)
    assert await leads_to_load(commits)
    assert await leads_to_load(commits)
    assert (await commits.commit(7)).committed == {commits.partition}
    assert await leads_to_load(commits)


@pytest.mark.parametrize("offset", [b"5", b"6", b"1", b"0", b"?"])
async def test_trace_does_not_lead_past_the_write_of_another(commits: Commits, offset: bytes) -> None:
    """Also if it wrote what we had sent, or what was there before."""
    await commits.commit(1)
    await lose_reply(commits, 5)
    before = commits.store.trace(commits.partition)
    commits.foreign(b"9")
    commits.foreign(offset)
    if offset == b"?":
        with pytest.raises(RegistryError):
            await commits.store.load([commits.partition])
        return
    await commits.store.load([commits.partition])
    after = commits.store.trace(commits.partition)
    assert before is not None
    assert after is not None
    assert not before.leads_to(after)


async def test_trace_remembers_the_write_of_another_that_a_commit_met(commits: Commits) -> None:
    """A larger offset stays: what we handled before it has no effect. Our own write ends that."""
    await commits.commit(1)
    commits.foreign(b"9")
    await commits.commit(5)
    assert commits.stored == b"9"
    assert not await leads_to_load(commits)
    await commits.commit(10)
    assert await leads_to_load(commits)


async def test_trace_does_not_lead_to_a_node_that_was_deleted_and_created_again(commits: Commits) -> None:
    await commits.commit(5)
    before = commits.store.trace(commits.partition)
    commits.server.remove(offset_path(GROUP, commits.partition))
    await commits.store.load([commits.partition])
    assert commits.store.trace(commits.partition) is None
    commits.server.put(offset_path(GROUP, commits.partition), b"3")
    await commits.store.load([commits.partition])
    after = commits.store.trace(commits.partition)
    assert before is not None
    assert after is not None
    assert not before.leads_to(after)


async def test_trace_leads_to_a_first_write_whose_reply_was_lost() -> None:
    server = MemoryZooKeeper()
    async with server.session() as session:
        commits = Commits(server, session, with_multi=True)
        await commits.store.load([commits.partition])
        assert commits.store.trace(commits.partition) is None
        await lose_reply(commits, 5)
        assert commits.stored == b"5"
        assert await leads_to_load(commits)


async def test_trace_outlives_the_loss_of_the_partition(server: MemoryZooKeeper, zk: MemorySession) -> None:
    """A peer deletes our owner node by its path, and nobody takes the partition."""
    commits = Commits(server, zk, with_multi=True)
    await commits.commit(10)
    server.remove(owner_path(GROUP, commits.partition))
    assert (await commits.commit(12)).lost == {commits.partition}
    assert await leads_to_load(commits)


class Creations:
    """The creation of every topic: the transaction and the time in ms, or an error."""

    def __init__(self) -> None:
        self.found: tuple[int, int | None] | BrokerError = (0, None)

    async def creation(self, topic: str) -> tuple[int, int | None]:
        if isinstance(self.found, BrokerError):
            raise self.found
        return self.found


def recreate_topic(server: MemoryZooKeeper, creations: Creations) -> NodeStat:
    """Create the node of a topic, after which the offset nodes that are there are older."""
    server.put("/brokers/topics/t", b"{}")
    stat = server.tree.stat("/brokers/topics/t")
    creations.found = stat.created_zxid, stat.modified_ms
    return stat


async def test_commit_that_arrived_after_the_topic_was_created_again_is_of_the_former_topic() -> None:
    server, creations = MemoryZooKeeper(), Creations()
    partition = TopicPartition.numbered("t", 0)
    path = offset_path(GROUP, partition)
    server.put(path, b"50")
    async with server.session() as zk:
        store = ZooKeeperOffsetStore(zk, GROUP, topics=cast("TopicNodes", creations))
        await store.load([partition])
        assert store.log(partition).zxid == server.tree.stat(path).modified_zxid
        topic = recreate_topic(server, creations)
        server.put(path, b"60")  # the commit that was on its way
        stat = server.tree.stat(path)
        assert await store.load([partition]) == {partition: 60}
        assert store.log(partition).zxid == stat.created_zxid < topic.created_zxid
        zxid = topic.created_zxid
        unknown: list[tuple[int, int | None] | BrokerError] = [
            (zxid, stat.modified_ms - LATE_COMMIT_MS - 1),  # a JVM member has written it since
            (zxid, None),
            (stat.created_zxid - 1, stat.modified_ms),  # the topic is older than the node
            BrokerError("the topic has no node"),
        ]
        for found in unknown:
            creations.found = found
            await store.load([partition])
            assert store.log(partition).zxid == stat.modified_zxid


async def test_first_commit_of_a_position_in_a_younger_topic_creates_the_node_again() -> None:
    server, creations = MemoryZooKeeper(), Creations()
    ours, other = TopicPartition.numbered("t", 0), TopicPartition.numbered("t", 1)
    for partition in (ours, other):
        server.put(offset_path(GROUP, partition), b"50")
    async with server.session() as zk:
        claim(server, zk, [ours, other])
        store = ZooKeeperOffsetStore(zk, GROUP, topics=cast("TopicNodes", creations))
        await store.load([ours, other])
        former = server.tree.stat("/").created_zxid
        topic = recreate_topic(server, creations)
        notes = {ours: OffsetNotes(LogId(zxid=topic.created_zxid)), other: OffsetNotes(LogId(zxid=former))}
        path = offset_path(GROUP, ours)
        for version, position in ((0, 7), (1, 8)):
            result = await store.commit({ours: position, other: 60}, session_id=zk.session_id, notes=notes)
            assert result.committed == {ours, other}
            assert (stored(server, ours), server.tree.stat(path).version) == (b"%d" % position, version)
            assert server.tree.stat(path).created_zxid > topic.created_zxid
        assert server.tree.stat(offset_path(GROUP, other)).created_zxid < topic.created_zxid
        assert await store.load([ours]) == {ours: 8}
        assert store.log(ours).zxid == server.tree.stat(path).modified_zxid, (
            "soon after the topic was created, and of it"
        )


async def test_position_whose_log_no_fetch_has_compared_is_written_into_its_node(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """A node that is created again begins to count its versions again, which fence a former owner off."""
    partition = TopicPartition.numbered("t", 0)
    path = offset_path(GROUP, partition)
    for text in (b"40", b"50"):
        server.put(path, text)
    claim(server, zk, [partition])
    store = ZooKeeperOffsetStore(zk, GROUP)
    await store.load([partition])
    notes = {partition: OffsetNotes(store.log(partition))}
    created, version = server.tree.stat(path).created_zxid, server.tree.stat(path).version
    server.put(path, b"55")  # so that the node is read again
    for position in (60, 70):
        assert (await store.commit({partition: position}, session_id=zk.session_id, notes=notes)).committed
    assert stored(server, partition) == b"70"
    assert (server.tree.stat(path).created_zxid, server.tree.stat(path).version) == (created, version + 3)


async def test_node_that_is_written_meanwhile_is_created_again_over_the_commit_of_a_former_owner() -> None:
    server, creations = MemoryZooKeeper(), Creations()
    partition = TopicPartition.numbered("t", 0)
    path = offset_path(GROUP, partition)
    server.put(path, b"50")
    async with server.session() as zk:
        claim(server, zk, [partition])
        store = ZooKeeperOffsetStore(zk, GROUP, topics=cast("TopicNodes", creations))
        await store.load([partition])
        topic = recreate_topic(server, creations)
        server.put(path, b"60")
        notes = {partition: OffsetNotes(LogId(zxid=topic.created_zxid))}
        await store.commit({partition: 7}, session_id=zk.session_id, notes=notes)
        assert stored(server, partition) == b"7"
        assert server.tree.stat(path).created_zxid > topic.created_zxid


@pytest.mark.parametrize("refusal", [NoAuth, NotEmpty])
async def test_older_node_that_may_not_be_deleted_is_written(refusal: type[ZooKeeperError]) -> None:
    server = MemoryZooKeeper()
    partition = TopicPartition.numbered("t", 0)
    path = offset_path(GROUP, partition)
    server.put(path, b"50")
    topic = recreate_topic(server, Creations())

    def refuse(operations: Sequence[Operation]) -> None:
        for index, operation in enumerate(operations):
            if isinstance(operation, Delete):
                raise MultiFailed(index, refusal(path))

    async with server.session() as session:
        claim(server, session, [partition])
        zk = Multis(session, refuse)
        store = ZooKeeperOffsetStore(zk, GROUP)
        await store.load([partition])
        notes = {partition: OffsetNotes(LogId(zxid=topic.created_zxid))}
        for position in (7, 8):
            result = await store.commit({partition: position}, session_id=session.session_id, notes=notes)
            assert result.committed == {partition}
            assert stored(server, partition) == b"%d" % position
        assert len(zk.sent) == 3, "the deletion is tried once"
