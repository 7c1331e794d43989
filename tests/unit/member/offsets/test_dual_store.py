"""Two stores of one group: which offset counts, what goes first, and what a failure of either leaves behind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import Check, Create, Delete
from consumerd.member.offsets.choice import NoOffsets, OffsetSettings, make_store
from consumerd.member.offsets.dual_store import DualOffsetStore
from consumerd.member.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.member.offsets.guards import GuardFailure, OwnedGuard, VacantGuard
from consumerd.member.offsets.kafka_store import ClaimedStore, KafkaOffsetStore
from consumerd.member.offsets.store import (
    NO_NOTES,
    CommitResult,
    Trace,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)
from consumerd.net.zk.errors import NoAuth, NodeExists, NoNode, NotConnected, SessionChanged
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.paths import offset_path, owner_path, owners_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from consumerd.member.offsets.store import Notes

GROUP = "g"
A, B, C = (TopicPartition.numbered("t", number) for number in range(3))


class Memory:
    """A store in memory that can fail, refuse, and lose the answer."""

    keeps_for: float | None = None

    def __init__(self, held: Mapping[TopicPartition, int] | None = None) -> None:
        self.held = dict(held or {})
        self.lost: set[TopicPartition] = set()
        self.rewritten: set[TopicPartition] = set()
        self.fails: Exception | None = None
        self.fails_after: Exception | None = None
        self.commits: list[dict[TopicPartition, int]] = []
        self.before: Callable[[], None] = lambda: None
        self.denied: set[TopicPartition] = set()

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.fails is not None:
            raise self.fails
        return {each: self.held[each] for each in partitions if each in self.held}

    async def is_new(self, partition: TopicPartition) -> bool:
        return False

    def log(self, partition: TopicPartition) -> LogId:
        return UNKNOWN_LOG

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.load(partitions)

    def trace(self, partition: TopicPartition) -> Trace | None:
        return Trace(3, self.held[partition]) if partition in self.held else None

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.rewritten & set(partitions))

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        assert session_id == 7
        self.before()
        if self.fails is not None:
            raise self.fails
        self.commits.append(dict(positions))
        taken = {each: offset for each, offset in positions.items() if each not in self.lost | self.denied}
        self.held.update(taken)
        if self.fails_after is not None:
            raise self.fails_after
        refused = {each: BrokerError("not allowed") for each in positions.keys() & self.denied}
        return CommitResult(frozenset(taken), frozenset(positions.keys() & self.lost), refused)


async def test_uses_shorter_retention_of_both_stores() -> None:
    keeping, forgetting = Memory(), Memory()
    forgetting.keeps_for = 60.0
    assert DualOffsetStore(GROUP, keeping, forgetting, "Kafka").keeps_for == 60.0
    assert DualOffsetStore(GROUP, keeping, keeping, "Kafka").keeps_for is None


async def test_loads_larger_offset_of_both_stores() -> None:
    store = DualOffsetStore(GROUP, Memory({A: 5, B: 9}), Memory({A: 7, C: 1}), "Kafka")
    assert await store.load([A, B, C]) == await store.peek([A, B, C]) == {A: 7, B: 9, C: 1}
    assert await store.load([]) == {}


@pytest.mark.parametrize("which", [0, 1])
async def test_fails_load_while_either_store_is_unavailable(which: int) -> None:
    stores = Memory({A: 5}), Memory({A: 7})
    stores[which].fails = NotConnected("away")
    with pytest.raises(NotConnected):
        await DualOffsetStore(GROUP, *stores, "Kafka").load([A])


async def test_traces_guarding_store_unless_other_has_larger_offset() -> None:
    first, other = Memory({A: 5, B: 5}), Memory({A: 4, B: 6, C: 7})
    store = DualOffsetStore(GROUP, first, other, "Kafka")
    await store.load([A, B, C])
    assert [store.trace(each) for each in (A, B, C)] == [Trace(3, 5), None, None]
    other.held[B] = 5
    await store.load([B])
    assert store.trace(B) == Trace(3, 5)


async def test_commits_to_second_store_what_first_accepted() -> None:
    first, other = Memory(), Memory()
    first.lost = {B}
    store = DualOffsetStore(GROUP, first, other, "Kafka")
    assert await store.commit({A: 1, B: 2}, session_id=7) == CommitResult(frozenset({A}), frozenset({B}))
    assert (first.held, other.held) == ({A: 1}, {A: 1})
    first.lost = {A, B}
    assert await store.commit({A: 3, B: 4}, session_id=7) == CommitResult(frozenset(), frozenset({A, B}))
    assert other.commits == [{A: 1}]


@pytest.mark.parametrize("which", [0, 1])
async def test_passes_on_what_either_store_refuses(which: int) -> None:
    stores = Memory(), Memory()
    stores[which].denied = {B}
    result = await DualOffsetStore(GROUP, *stores, "Kafka").commit({A: 1, B: 2}, session_id=7)
    assert (set(result.committed), set(result.lost), list(result.refused)) == ({A}, set(), [B])
    assert stores[1].held == {A: 1}


async def test_stops_member_when_second_store_refuses() -> None:
    first, other = Memory(), Memory()
    other.lost = {B}
    with pytest.raises(OffsetsHeldError, match="cannot commit the offset of t/1 to ZooKeeper for group 'g'"):
        await DualOffsetStore(GROUP, first, other, "ZooKeeper").commit({A: 1, B: 2}, session_id=7)


async def test_never_loses_or_runs_ahead_when_either_store_fails() -> None:
    """Committed is at most what was handled, in both; what a commit confirmed is in both."""
    rng = random.Random(2)
    for _ in range(300):
        first, other = Memory(), Memory()
        store = DualOffsetStore(GROUP, first, other, "Kafka")
        handled = confirmed = 0
        for _ in range(20):
            handled += rng.randrange(3)
            for each in (first, other):
                each.fails = OffsetsUnavailableError("away") if rng.random() < 0.2 else None
                each.fails_after = OffsetsUnavailableError("no answer") if rng.random() < 0.2 else None
            try:
                assert (await store.commit({A: handled}, session_id=7)).committed == {A}
                confirmed = handled
            except OffsetsUnavailableError:
                pass
            first.fails = other.fails = None
            found = (await store.load([A])).get(A, 0)
            assert confirmed <= found <= handled
            assert other.held.get(A, 0) <= first.held.get(A, 0)


def claim(server: MemoryZooKeeper, zk: MemorySession, partition: TopicPartition) -> None:
    server.put(owner_path(GROUP, partition), b"g_me-0", session_id=zk.session_id)


async def test_unclaimed_store_writes_only_unclaimed_partitions(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        store = UnclaimedZooKeeperOffsetStore(zk, GROUP)
        for offset in (5, 6):  # creates what is missing, then sets
            assert await store.commit({A: offset, B: offset}, session_id=-1) == CommitResult(
                frozenset({A, B}), frozenset()
            )
        assert await store.load([A, B, C]) == {A: 6, B: 6}
        assert await zk.children(owners_path(GROUP, "t")) == []
        claim(server, peer, B)
        assert await store.commit({A: 7, B: 7}, session_id=-1) == CommitResult(frozenset({A}), frozenset({B}))
        assert server.tree.data(offset_path(GROUP, B)) == b"6"


async def test_chooses_store_by_name() -> None:
    async with MemoryZooKeeper().session() as zk:
        client = object()

        def make(storage: str, **more: object) -> object:
            return make_store(OffsetSettings(storage=storage, version=1), GROUP, client=client, zk=zk, **more)  # type: ignore[arg-type]

        assert isinstance(make("none"), NoOffsets)
        assert isinstance(make("kafka"), KafkaOffsetStore)
        assert isinstance(make("kafka", claimed=True), ClaimedStore)
        assert type(make("zookeeper", claimed=True)) is ZooKeeperOffsetStore
        assert isinstance(make("zookeeper"), UnclaimedZooKeeperOffsetStore)
        for claimed in (True, False):
            assert isinstance(make("both", claimed=claimed), DualOffsetStore)
        with pytest.raises(ValueError, match="does not carry the member"):
            make_store(OffsetSettings(version=0), GROUP, client=client, membership=object())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="need a session"):
            make_store(OffsetSettings(storage="both"), GROUP, client=client)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="need a client"):
            make_store(OffsetSettings(storage="kafka"), GROUP, zk=zk)


async def test_reports_changes_in_either_store() -> None:
    first, second = Memory(), Memory()
    first.rewritten, second.rewritten = {A}, {B}
    assert await DualOffsetStore(GROUP, first, second, "Kafka").changed([A, B, C]) == {A, B}


def claimed_store(zk: MemorySession, inner: Memory, monkeypatch: pytest.MonkeyPatch) -> ClaimedStore:
    """A store of claimed partitions whose commits to Kafka go to `inner`."""

    async def commit(
        _: KafkaOffsetStore, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes
    ) -> CommitResult:
        del session_id
        return await inner.commit(positions, session_id=7, notes=notes)

    monkeypatch.setattr(KafkaOffsetStore, "commit", commit)
    return ClaimedStore(cast("Any", None), GROUP, zk)


async def test_checks_claims_before_commit_to_kafka(
    server: MemoryZooKeeper, zk: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server.session() as peer:
        claim(server, zk, A)
        claim(server, peer, B)
        inner = Memory({C: 4})
        session_id = zk.session_id

        store = claimed_store(zk, inner, monkeypatch)
        assert await store.commit({A: 1, B: 2, C: 3}, session_id=session_id) == CommitResult(
            frozenset({A}), frozenset({B, C})
        )
        assert inner.commits == [{A: 1}]
        assert await store.commit({B: 3}, session_id=session_id) == CommitResult(frozenset(), frozenset({B}))
        with pytest.raises(SessionChanged):
            await store.commit({A: 2}, session_id=session_id - 1)
        assert inner.commits == [{A: 1}]


async def test_stops_member_when_group_has_coordinated_members(
    server: MemoryZooKeeper, zk: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(server, zk, A)
    inner = Memory()
    inner.lost = {A}
    store = claimed_store(zk, inner, monkeypatch)
    with pytest.raises(OffsetsHeldError, match="to Kafka for group 'g': a group of this name has other members"):
        await store.commit({A: 1, B: 2}, session_id=zk.session_id)


async def test_stores_nothing_where_offsets_are_not_kept() -> None:
    store = NoOffsets()
    assert await store.load([A, B]) == await store.peek([A, B]) == {}
    assert await store.changed([A]) == frozenset()
    assert await store.commit({A: 1, B: 2}, session_id=7) == CommitResult(frozenset({A, B}), frozenset())
    assert store.keeps_for is None


@pytest.mark.parametrize(
    ("claimed", "stores"),
    [(True, (ZooKeeperOffsetStore, KafkaOffsetStore)), (False, (KafkaOffsetStore, UnclaimedZooKeeperOffsetStore))],
)
async def test_first_of_two_stores_is_the_one_that_knows_owners(claimed: bool, stores: tuple[type, type]) -> None:
    async with MemoryZooKeeper().session() as zk:
        store = make_store(OffsetSettings(storage="both"), GROUP, client=object(), zk=zk, claimed=claimed)  # type: ignore[arg-type]
        assert isinstance(store, DualOffsetStore)
        assert (type(store._guarding), type(store._following)) == stores


async def test_claims_need_a_session_where_offsets_are_in_kafka() -> None:
    with pytest.raises(ValueError, match="claimed in ZooKeeper need a session"):
        make_store(OffsetSettings(storage="kafka"), GROUP, client=object(), claimed=True)  # type: ignore[arg-type]


async def test_logs_offsets_that_differ_between_stores() -> None:
    store = DualOffsetStore(GROUP, Memory({A: 5, B: 9}), Memory({A: 7, B: 9, C: 1}), "Kafka")
    with capture_logs() as logs:
        await store.load([A, B, C])
    assert [(entry["event"], entry["partition"], entry["offsets"]) for entry in logs] == [
        ("stored_offsets_differ", "t/0", [5, 7])
    ]


async def test_guard_repairs_what_can_be_repaired() -> None:
    """An owner node means lost; a missing folder of owner nodes is made; anything else is for a person to mend."""
    async with MemoryZooKeeper().session() as zk:
        guard = VacantGuard(zk, GROUP)
        assert await guard.resolve(A, 0, NodeExists("/n")) is GuardFailure.LOST
        assert await guard.resolve(A, 0, NoAuth("/n")) is GuardFailure.REFUSED
        assert await zk.exists(owners_path(GROUP, "t")) is None
        assert await guard.resolve(A, 0, NoNode("/n")) is GuardFailure.RETRY
        assert await zk.exists(owners_path(GROUP, "t")) is not None


async def test_owned_guard_checks_the_version_that_it_read_last(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        guard = OwnedGuard(zk, GROUP)
        claim(server, zk, A)
        path = owner_path(GROUP, A)
        assert guard.operations(A) == ((Check(path, 0),), ())
        await peer.set(path, b"touched")
        assert await guard.find_lost([A, B], zk.session_id) == {B}
        assert guard.operations(A).before == (Check(path, 1),)
        assert await guard.resolve(A, zk.session_id, NoNode(path)) is GuardFailure.RETRY
        assert await guard.resolve(B, zk.session_id, NoNode(path)) is GuardFailure.LOST
        server.remove(path)
        assert await guard.holds(A, zk.session_id) is False
        assert guard.operations(A).before == (Check(path, 0),)


async def test_owned_guard_does_not_look_at_what_its_watch_confirms(zk: MemorySession) -> None:

    class Watching:
        """Knows the owner node of A alone."""

        def known_version(self, partition: TopicPartition, session_id: int) -> int | None:
            assert session_id == 7
            return 3 if partition == A else None

    guard = OwnedGuard(zk, GROUP, Watching())
    assert await guard.find_lost([A, B], 7) == {B}
    assert guard.operations(A).before == (Check(owner_path(GROUP, A), 3),)


async def test_vacant_guard_looks_only_where_no_multi_checks(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        claim(server, peer, B)
        path = owner_path(GROUP, A)
        assert VacantGuard(zk, GROUP).operations(A) == ((Create(path, b""),), (Delete(path),))
        assert await VacantGuard(zk, GROUP).find_lost([A, B], 0) == set()

        class Old:
            """A session with a server before 3.4."""

            has_multi = False
            exists = zk.exists

        assert await VacantGuard(Old(), GROUP).find_lost([A, B], 0) == {B}  # type: ignore[arg-type]
