"""The machine's actions in ZooKeeper, against the in-memory one: what is written, and how each failure is answered."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd.base.errors import ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group.rules import V08Rules
from consumerd.member.consumer import coordination
from consumerd.member.consumer.backends import V07Backend
from consumerd.member.consumer.backends_v08 import V08Backend
from consumerd.member.consumer.coordination import LOOK_AGAIN, NODES_PER_MULTI, GroupCoordination
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.connect import Connection
from consumerd.net.zk.errors import MultiFailed, NoAuth, NoNode, NotConnected
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.subscription import StaticSubscription
from tests.support.waiting import turns

TP = TopicPartition("t", 0, 3)
CLAIMED = e.Claimed(5, frozenset({TP}), frozenset())
BLOCKED = e.Claimed(5, frozenset(), frozenset({TP}))
OWNER = "/consumers/g/owners/t/0-3"
ID = "/consumers/g/ids/g_a"
SETTINGS = ConsumerSettings("g", "g_a", StaticSubscription({"t": 1}))


ALL = [TopicPartition("t", 0, number) for number in range(120)]


def owner_of(partition: TopicPartition) -> str:
    return f"/consumers/g/owners/t/{partition.broker}-{partition.partition}"


class Counted:
    """A session that counts what is asked of it."""

    def __init__(self, zk: MemorySession) -> None:
        self._zk = zk
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._zk, name)
        if name in ("get", "exists", "children", "create", "set", "delete", "multi"):
            self.asked[name] += 1
        return found


async def no_connection(host: str, port: int) -> Connection:
    raise AssertionError


class Setup:
    def __init__(self, zookeeper: MemoryZooKeeper, zk: MemorySession, other: MemorySession, clock: FakeClock) -> None:
        self.zookeeper = zookeeper
        self.zk = zk
        self.other = other
        self.triggers = 0
        self.clock = clock
        self.counted = Counted(zk)
        backend = V07Backend(no_connection)
        self.io = GroupCoordination(self.counted, SETTINGS, backend, clock=self.clock, triggered=self.triggered)

    def triggered(self) -> None:
        self.triggers += 1

    def claim(self, stream: int = 0) -> e.Claim:
        return e.Claim(5, self.zk.session_id, {TP: stream})

    def claim_all(self) -> e.Claim:
        return e.Claim(5, self.zk.session_id, dict.fromkeys(ALL, 0))

    def release_all(self) -> e.Release:
        return e.Release(6, self.zk.session_id, frozenset(ALL))

    def asked(self) -> dict[str, int]:
        """The requests to ZooKeeper since the last call."""
        asked = dict(self.counted.asked)
        self.counted.asked.clear()
        return asked

    async def snapshot(
        self, *, list_owners: bool = False, topics: frozenset[str] | None = frozenset({"t"})
    ) -> e.MembershipSnapshot:
        answer = await self.io.take_snapshot(
            e.TakeSnapshot(1, self.zk.session_id, topics, frozenset({TP}), list_owners=list_owners)
        )
        assert isinstance(answer, e.SnapshotTaken)
        return answer.snapshot


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[Setup]:
    clock = FakeClock()
    zookeeper = MemoryZooKeeper(clock)
    async with zookeeper.session() as zk, zookeeper.session() as other:
        yield Setup(zookeeper, zk, other, clock)


async def test_registers_id_node_with_null_parents(setup: Setup) -> None:
    assert await setup.io.register(e.Register(1, setup.zk.session_id)) == e.Registered(1)
    tree = setup.zookeeper.dump()
    assert tree[ID] == b'{ "t": 1 }'
    assert tree["/consumers"] is tree["/consumers/g"] is tree["/consumers/g/ids"] is None
    assert await setup.io.unregister(e.Unregister(2, setup.zk.session_id)) == e.Unregistered(2)
    assert ID not in setup.zookeeper.dump()


async def test_registering_again_leaves_the_id_node_as_it_is(setup: Setup) -> None:
    for ticket in (1, 2):
        assert await setup.io.register(e.Register(ticket, setup.zk.session_id)) == e.Registered(ticket)
    assert setup.asked() == {}  # a single write of the session, and no transaction
    assert await setup.zk.exists(ID)


async def test_other_subscription_replaces_the_id_node_in_one_transaction(setup: Setup) -> None:
    """JVM members watch the names of ids only, and must never see the group without this one."""
    session_id = setup.zk.session_id
    await setup.io.register(e.Register(1, session_id))
    assert (await setup.snapshot()).members == {"g_a": '{ "t": 1 }'}
    seen: list[bool] = []
    await setup.other.children("/consumers/g/ids", watch=True)
    setup.other.watch("/consumers/g/ids", lambda: seen.append(ID in setup.zookeeper.dump()))
    setup.zk.lose_watches = True  # what we wrote is read again without them
    setup.io.change_subscription(StaticSubscription({"u": 2}))
    assert await setup.io.register(e.Register(2, session_id, replace=True)) == e.Registered(2)
    await setup.other.exists("/")
    assert seen == [True]
    assert (await setup.snapshot()).members == {"g_a": '{ "u": 2 }'}
    setup.zookeeper.expire(setup.zk)
    assert ID not in setup.zookeeper.dump()


async def test_replacing_a_missing_id_node_creates_it(setup: Setup) -> None:
    assert await setup.io.register(e.Register(1, setup.zk.session_id, replace=True)) == e.Registered(1)
    assert ID in setup.zookeeper.dump()


@pytest.mark.parametrize("replace", [False, True])
async def test_waits_until_the_session_of_a_dead_process_must_have_ended(setup: Setup, replace: bool) -> None:
    """For one and a half session timeouts, because servers expire sessions in steps, and two seconds."""
    await setup.other.create_ephemeral(ID, b"{ }", wait=0)
    registering = asyncio.create_task(setup.io.register(e.Register(1, setup.zk.session_id, replace=replace)))
    await turns()
    setup.clock.jump(10.75)
    await setup.other.set(ID, b"{  }")  # it is read again
    await turns()
    assert not registering.done()
    setup.clock.jump(0.25)
    await setup.other.set(ID, b"{ }")
    assert await registering == e.RegistrationBlocked(1)
    stat = await setup.zk.exists(ID)
    assert stat is not None
    assert stat.ephemeral_owner == setup.other.session_id


async def test_is_not_registered_if_the_session_ends_with_its_new_node(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = setup.zk.create_ephemeral

    async def then_expire(path: str, data: bytes, *, wait: float) -> None:
        await create(path, data, wait=wait)
        setup.zookeeper.expire(setup.zk)

    monkeypatch.setattr(setup.zk, "create_ephemeral", then_expire)
    assert await setup.io.register(e.Register(1, setup.zk.session_id)) == e.Failed(1)


@pytest.mark.parametrize("end", ["unregister", "close"])
async def test_watches_nothing_after_the_end(setup: Setup, end: str) -> None:
    """Unregistered, it still watches the owner nodes that it has not released."""
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.io.claim(setup.claim())
    await setup.snapshot()
    if end == "close":
        setup.io.close()
    else:
        await setup.io.unregister(e.Unregister(2, setup.zk.session_id))
    before = setup.triggers
    setup.zookeeper.put("/consumers/g/ids/g_b", b"")
    setup.zookeeper.put("/brokers/topics/t/0", b"4")
    await setup.zk.exists("/")
    assert setup.triggers == before
    setup.zookeeper.remove(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before + (0 if end == "close" else 1)


async def test_actions_of_ended_session_fail_without_writing(setup: Setup) -> None:
    before, old = setup.zookeeper.dump(), setup.zk.session_id + 1000
    assert await setup.io.register(e.Register(1, old)) == e.Failed(1)
    assert await setup.io.claim(e.Claim(2, old, {TP: 0})) == e.Claimed(2, frozenset(), frozenset())
    assert await setup.io.release(e.Release(3, old, frozenset({TP}))) == e.Released(3, frozenset())
    assert await setup.io.unregister(e.Unregister(4, old)) == e.Failed(4)
    assert await setup.io.take_snapshot(e.TakeSnapshot(5, old, None, frozenset(), list_owners=False)) == e.Failed(5)
    await setup.io.nudge(e.Nudge(old))
    assert setup.zookeeper.dump() == before


async def test_claim_creates_owner_node_with_stream(setup: Setup) -> None:
    assert await setup.io.claim(setup.claim(2)) == CLAIMED
    assert setup.zookeeper.dump()[OWNER] == b"g_a-2"
    # A reply that was lost: the node is ours already.
    assert await setup.io.claim(setup.claim(2)) == CLAIMED


async def test_neither_claims_nor_releases_node_of_a_sibling_on_the_same_session(setup: Setup) -> None:
    """A topic that moves to another subscription of the process is drained by the first before the second has it."""
    settings = ConsumerSettings("g", "g_a_audit", StaticSubscription({"t": 1}), siblings=frozenset({"g_a"}))
    sibling = GroupCoordination(
        setup.zk, settings, V07Backend(no_connection), clock=setup.clock, triggered=setup.triggered
    )
    assert await setup.io.claim(setup.claim()) == CLAIMED
    assert await sibling.claim(setup.claim()) == BLOCKED
    assert sibling.known_version(TP, setup.zk.session_id) is None
    release = e.Release(6, setup.zk.session_id, frozenset({TP}))
    await sibling.release(release)
    assert setup.zookeeper.dump()[OWNER] == b"g_a-0"
    await setup.io.release(release)
    await setup.clock.advance(LOOK_AGAIN)
    assert await sibling.claim(setup.claim()) == CLAIMED
    assert setup.zookeeper.dump()[OWNER] == b"g_a_audit-0"
    # What a client wrote into its node does not make it another member's.
    setup.zookeeper.put(OWNER, b"junk")
    await sibling.release(release)
    assert OWNER not in setup.zookeeper.dump()


async def test_claim_unites_sets_of_partitions_once_per_round(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per partition: a claim of 10,000 would hold the event loop for longer than a session timeout."""
    unions = 0

    class Counting(set[TopicPartition]):
        def __or__(self, other: Any) -> Any:
            nonlocal unions
            unions += 1
            return super().__or__(other)

    monkeypatch.setattr(coordination, "set", Counting, raising=False)
    answer = await setup.io.claim(setup.claim_all())
    assert answer.claimed == frozenset(ALL)
    assert 0 < unions < 10


async def test_claim_is_blocked_by_node_of_others(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == BLOCKED
    assert setup.zookeeper.dump()[OWNER] == b"g_b-0"


async def test_claim_for_other_stream_does_not_adopt_node(setup: Setup) -> None:
    await setup.io.claim(setup.claim(0))
    before = setup.triggers
    assert await setup.io.claim(setup.claim(1)) == BLOCKED
    assert OWNER not in setup.zookeeper.dump()
    assert setup.triggers == before  # our own deletion causes no event
    assert await setup.io.claim(setup.claim(1)) == CLAIMED


@pytest.mark.parametrize("carried_out", [True, False])
async def test_claim_omits_partitions_of_unknown_outcome(setup: Setup, carried_out: bool) -> None:
    setup.zookeeper.make("/consumers/g/owners/t")
    setup.zookeeper.cut_next_call(setup.zk, carried_out=carried_out)
    assert await setup.io.claim(setup.claim()) == e.Claimed(5, frozenset(), frozenset())
    setup.zookeeper.reconnect(setup.zk)
    assert await setup.io.claim(setup.claim()) == CLAIMED


async def test_release_leaves_nodes_of_others(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.release(e.Release(5, setup.zk.session_id, frozenset({TP}))) == e.Released(5, frozenset({TP}))
    assert setup.zookeeper.dump()[OWNER] == b"g_b-0"
    before = setup.triggers
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before  # it is not watched


async def test_claim_creates_parents_that_were_deleted_since_the_last_one(setup: Setup) -> None:
    assert await setup.io.claim(setup.claim()) == CLAIMED
    await setup.io.release(e.Release(6, setup.zk.session_id, frozenset({TP})))
    setup.zookeeper.remove("/consumers/g/owners/t")
    assert await setup.io.claim(setup.claim()) == CLAIMED


@pytest.mark.parametrize("with_multi", [True, False])
async def test_claims_nothing_on_a_session_that_begins_during_the_claim(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, with_multi: bool
) -> None:
    setup.zk._lifecycle.has_multi = with_multi
    ensure = setup.zk.ensure

    async def then_expire(path: str) -> None:
        await ensure(path)
        setup.zookeeper.expire(setup.zk)

    monkeypatch.setattr(setup.zk, "ensure", then_expire)
    assert await setup.io.claim(setup.claim()) == e.Claimed(5, frozenset(), frozenset())
    assert OWNER not in setup.zookeeper.dump()


async def test_sends_no_nudge_without_multi(setup: Setup) -> None:
    setup.zk._lifecycle.has_multi = False
    await setup.io.nudge(e.Nudge(setup.zk.session_id))
    assert setup.asked() == {}


async def test_repeats_a_failed_nudge_every_second(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    times: list[float] = []

    async def fail(operations: object, *, session_id: int) -> None:
        times.append(setup.clock.now - began)
        raise NotConnected("no server")

    began = setup.clock.now
    with monkeypatch.context() as patched:
        patched.setattr(setup.zk, "multi", fail)
        nudging = asyncio.create_task(setup.io.nudge(e.Nudge(setup.zk.session_id)))
        await turns()
        await setup.clock.advance(2.5)
        assert times == [0.0, 1.0, 2.0]
    await setup.clock.advance(1.0)
    await nudging
    assert setup.asked() == {"multi": 4}


async def test_reads_snapshot_despite_vanishing_nodes(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.io.claim(setup.claim())
    setup.zookeeper.put("/brokers/topics/t/0", b"4")
    setup.zookeeper.put("/brokers/topics/t/1", b"2")
    setup.zookeeper.put("/brokers/topics/t/x", b"2")
    setup.zookeeper.put("/brokers/topics/t/2", b"many")
    setup.zookeeper.put("/brokers/topics/u/0", b"1")
    setup.zookeeper.put("/consumers/g/ids/g_b", b"\xff")
    setup.zookeeper.put("/consumers/g/owners/t/0-1", b"g_b-0")
    setup.zookeeper.put("/consumers/g/owners/t/junk", b"")
    snapshot = await setup.snapshot(list_owners=True)
    assert snapshot.members == {"g_a": '{ "t": 1 }', "g_b": "\ufffd"}
    assert snapshot.own_id_session == setup.zk.session_id
    assert snapshot.topics == {"t": {0: range(4), 1: range(2)}}
    assert snapshot.owner_sessions == {TP: setup.zk.session_id}
    assert snapshot.claimed == frozenset({TP, TopicPartition("t", 0, 1)})
    assert (await setup.snapshot(topics=None)).topics == {"t": {0: range(4), 1: range(2)}, "u": {0: range(1)}}


async def test_reads_and_watches_missing_group_as_empty(setup: Setup) -> None:
    snapshot = await setup.snapshot()
    assert (snapshot.members, snapshot.topics, snapshot.own_id_session) == ({}, {"t": {}}, None)
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t/0", b"1")
    await setup.zk.exists("/")
    assert setup.triggers > before


@pytest.mark.parametrize("path", ["/consumers/g/ids/g_z", "/brokers/topics/t/7", "/brokers/topics/t/0", OWNER, ID])
async def test_watches_every_node_of_snapshot(setup: Setup, path: str) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.io.claim(setup.claim())
    setup.zookeeper.put("/brokers/topics/t/0", b"1")
    await setup.snapshot()
    before = setup.triggers
    if path in setup.zookeeper.dump() and path != "/brokers/topics/t/0":
        setup.zookeeper.remove(path)
    else:
        setup.zookeeper.put(path, b"2")
    await setup.zk.exists("/")
    assert setup.triggers > before
    setup.io.close()


async def test_stops_watching_what_the_last_snapshot_did_not_read(setup: Setup) -> None:
    for topic in "tu":
        setup.zookeeper.put(f"/brokers/topics/{topic}/0", b"1")
    await setup.snapshot(topics=frozenset({"t", "u"}))
    await setup.snapshot()
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/u/0", b"2")
    setup.zookeeper.put("/brokers/topics/u/1", b"1")
    await setup.zk.exists("/")
    assert setup.triggers == before


async def test_watches_claimed_node(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    under_way = asyncio.ensure_future(
        setup.io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), list_owners=False))
    )
    await asyncio.sleep(0)  # its reads are out, and do not include the owner node
    await setup.io.claim(setup.claim())
    await under_way
    before = setup.triggers
    setup.zookeeper.remove(OWNER)  # a peer deletes by path
    await setup.zk.exists("/")
    assert setup.triggers == before + 1


async def test_watches_claimed_node_while_others_are_claimed(setup: Setup) -> None:
    await setup.io.claim(setup.claim())
    await setup.io.claim(e.Claim(6, setup.zk.session_id, {ALL[7]: 0}))
    before = setup.triggers
    setup.zookeeper.remove(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before + 1


@pytest.mark.parametrize("owned_before", [False, True])
async def test_watches_blocking_node_while_claim_is_pending(setup: Setup, owned_before: bool) -> None:
    if owned_before:
        await setup.io.claim(setup.claim())
        await setup.io.release(e.Release(6, setup.zk.session_id, frozenset({TP})))
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == BLOCKED
    await setup.io.take_snapshot(
        e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), list_owners=False)
    )
    before = setup.triggers
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before + 1
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == BLOCKED
    await setup.io.claim(e.Claim(6, setup.zk.session_id, {ALL[7]: 0}))  # that partition is not assigned to us any more
    before = setup.triggers
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before


async def test_blocked_claim_sends_nothing_until_watch_fires_or_timeout(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == BLOCKED
    setup.asked()
    for _ in range(3):
        setup.clock.jump(0.25)
        assert await setup.io.claim(setup.claim()) == BLOCKED
    assert setup.asked() == {}
    setup.clock.jump(0.25)  # a second after it was read
    assert await setup.io.claim(setup.claim()) == BLOCKED
    assert setup.asked() == {"multi": 1, "get": 1}
    assert await setup.io.claim(setup.claim()) == BLOCKED
    assert setup.asked() == {}
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert await setup.io.claim(setup.claim()) == CLAIMED


@pytest.mark.parametrize("with_multi", [True, False])
async def test_claims_many_partitions_in_few_requests(setup: Setup, with_multi: bool) -> None:
    """One write for each `NODES_PER_MULTI` and one read for each node; once more what stood in a refused multi."""
    setup.zk._lifecycle.has_multi = with_multi
    blocked = frozenset(ALL[3:6])
    for partition in blocked:
        await setup.other.create_ephemeral(owner_of(partition), b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim_all()) == e.Claimed(5, frozenset(ALL) - blocked, blocked)
    tree = setup.zookeeper.dump()
    assert {tree[owner_of(partition)] for partition in ALL if partition not in blocked} == {b"g_a-0"}
    assert {tree[owner_of(partition)] for partition in blocked} == {b"g_b-0"}
    again = NODES_PER_MULTI - len(blocked)  # those free in the multi that was refused
    if with_multi:
        assert setup.asked() == {"multi": -(-len(ALL) // NODES_PER_MULTI) + 1, "get": len(ALL) + again}
    else:
        assert setup.asked() == {"create": len(ALL), "get": len(ALL)}
    # Owner nodes that are ours and watched cause no further requests.
    assert (await setup.io.claim(setup.claim_all())).blocked == blocked
    assert setup.asked() == {}


@pytest.mark.parametrize("with_multi", [True, False])
async def test_releases_many_partitions_in_few_requests(setup: Setup, with_multi: bool) -> None:
    setup.zk._lifecycle.has_multi = with_multi
    setup.zookeeper.make("/consumers/g/owners/t")
    await setup.io.claim(setup.claim_all())
    setup.asked()
    before = setup.triggers
    assert await setup.io.release(setup.release_all()) == e.Released(6, frozenset(ALL))
    assert setup.asked() == ({"multi": -(-len(ALL) // NODES_PER_MULTI)} if with_multi else {"delete": len(ALL)})
    assert not any(path.startswith("/consumers/g/owners/t/") for path in setup.zookeeper.dump())
    await setup.zk.exists("/")
    assert setup.triggers == before  # our own deletions cause no event


@pytest.mark.parametrize("with_multi", [True, False])
@pytest.mark.parametrize("told", [True, False], ids=["told", "not told yet"])
async def test_releases_nodes_that_were_changed(setup: Setup, with_multi: bool, told: bool) -> None:
    setup.zk._lifecycle.has_multi = with_multi
    setup.zookeeper.make("/consumers/g/owners/t")
    await setup.io.claim(setup.claim_all())
    setup.zk.lose_watches = not told
    gone, written_to, taken = (owner_of(ALL[number]) for number in (3, 60, 110))
    setup.zookeeper.remove(gone)
    setup.zookeeper.put(written_to, b"g_jvm-0")
    if told:
        setup.zookeeper.remove(taken)
        await setup.other.create_ephemeral(taken, b"g_b-0", wait=0)
        await setup.zk.exists("/")
    assert await setup.io.release(setup.release_all()) == e.Released(6, frozenset(ALL))
    left = {path for path in setup.zookeeper.dump() if path.startswith("/consumers/g/owners/t/")}
    assert left == ({taken} if told else set())


async def test_knows_version_of_owner_node_until_watch_fires(setup: Setup) -> None:
    session_id = setup.zk.session_id
    assert setup.io.known_version(TP, session_id) is None
    await setup.io.claim(setup.claim())
    assert setup.io.known_version(TP, session_id) == 0
    assert setup.io.known_version(TP, session_id + 1) is None
    setup.zookeeper.put(OWNER, b"g_jvm-0")
    await setup.zk.exists("/")
    assert setup.io.known_version(TP, session_id) is None
    setup.io.look_again([TP])
    await setup.snapshot()
    assert setup.io.known_version(TP, session_id) == 1
    setup.io.look_again([TP])
    assert setup.io.known_version(TP, session_id) is None


async def test_only_reconciliation_rereads_unchanged_nodes(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.io.claim(setup.claim())
    setup.zookeeper.put("/brokers/topics/t/0", b"4")
    await setup.snapshot()
    setup.asked()
    before = await setup.snapshot()
    assert setup.asked() == {}
    setup.zk.lose_watches = True
    setup.zookeeper.put("/brokers/topics/t/0", b"5")
    setup.zookeeper.put("/brokers/topics/t/1", b"1")
    setup.zookeeper.put("/consumers/g/ids/g_b", b"")
    setup.zookeeper.remove(OWNER)
    assert await setup.snapshot() == before
    assert setup.asked() == {}
    after = await setup.snapshot(list_owners=True)
    assert after.topics == {"t": {0: range(5), 1: range(1)}}
    assert after.members.keys() == {"g_a", "g_b"}
    assert after.owner_sessions == {TP: None}


async def test_stops_watching_released_node(setup: Setup) -> None:
    await setup.io.claim(setup.claim())
    await setup.io.release(e.Release(6, setup.zk.session_id, frozenset({TP})))
    await setup.io.take_snapshot(
        e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), list_owners=False)
    )
    before = setup.triggers
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before


# ---- Kafka 0.8 and later


def v08(setup: Setup, rules: V08Rules) -> GroupCoordination:
    backend = V08Backend(cast("Any", None), rules)
    return GroupCoordination(setup.zk, SETTINGS, backend, clock=setup.clock, triggered=setup.triggered)


async def look(setup: Setup, io: GroupCoordination, *, topics: frozenset[str] | None) -> e.MembershipSnapshot:
    answer = await io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, topics, frozenset(), list_owners=True))
    assert isinstance(answer, e.SnapshotTaken)
    return answer.snapshot


async def test_reads_v08_topics(setup: Setup) -> None:
    io = v08(setup, V08Rules())
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"1":[0],"0":[0]}}')
    setup.zookeeper.put("/brokers/topics/t/partitions/0/state", b'{"leader":0}')
    setup.zookeeper.put("/brokers/topics/junk", b"4")
    setup.zookeeper.put("/consumers/g/owners/t/1", b"g_b-0")
    with capture_logs() as logs:
        snapshot = await look(setup, io, topics=None)
    assert snapshot.topics == {"t": {-1: (0, 1)}, "junk": {}}
    assert [(entry["event"], entry["topic"]) for entry in logs] == [("topic_node_unreadable", "junk")]
    assert snapshot.claimed == frozenset({TopicPartition.numbered("t", 1)})
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t/partitions/0/state", b'{"leader":1}')  # leaders come and go
    await setup.zk.exists("/")
    assert setup.triggers == before
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}')
    await setup.zk.exists("/")
    assert setup.triggers == before + 1
    io.close()


async def test_registers_with_the_time_in_milliseconds_since_v08(setup: Setup) -> None:
    await v08(setup, V08Rules()).register(e.Register(1, setup.zk.session_id))
    node = setup.zookeeper.dump()[ID]
    assert node is not None
    assert json.loads(node)["timestamp"] == f"{setup.clock.wall() * 1000:.0f}"


async def test_watches_missing_v08_topic(setup: Setup) -> None:
    io = v08(setup, V08Rules())
    assert (await look(setup, io, topics=frozenset({"t"}))).topics == {"t": {}}
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
    await setup.zk.exists("/")
    assert setup.triggers > before
    io.close()


async def test_reads_topics_of_all_members_for_roundrobin(setup: Setup) -> None:
    io = v08(setup, V08Rules("roundrobin"))
    for topic in "tuv":
        setup.zookeeper.put(f"/brokers/topics/{topic}", b'{"version":1,"partitions":{"0":[0]}}')
    setup.zookeeper.put("/consumers/g/ids/g_b", b'{"version":1,"subscription":{"u":1},"pattern":"static"}')
    setup.zookeeper.put("/consumers/g/ids/g_c", b"junk")
    assert (await look(setup, io, topics=frozenset({"t"}))).topics.keys() == {"t", "u"}
    setup.zookeeper.put("/consumers/g/ids/g_d", b'{"version":1,"subscription":{"x.*":1},"pattern":"white_list"}')
    assert (await look(setup, io, topics=frozenset({"t"}))).topics.keys() == {"t", "u", "v"}
    io.close()


async def test_ignores_late_watch_event_of_own_node(setup: Setup) -> None:
    """The event of a peer's deletion may come while ours is being read: called blocked, ours would stand for ever."""
    get = setup.zk.get

    async def with_late_news(path: str, *, watch: bool = False) -> Any:
        found = await get(path, watch=watch)
        setup.zk._watches.fire(path)
        return found

    setup.zk.get = with_late_news  # type: ignore[method-assign]
    assert await setup.io.claim(setup.claim()) == CLAIMED
    assert setup.triggers > 0


async def test_omits_node_missing_on_every_read(setup: Setup) -> None:
    """It may be made at any moment, by a write that a changed connection has overtaken."""
    get = setup.zk.get

    async def too_early(path: str, *, watch: bool = False) -> Any:
        if path == OWNER:
            raise NoNode(path)
        return await get(path, watch=watch)

    setup.zk.get = too_early  # type: ignore[method-assign]
    assert await setup.io.claim(setup.claim()) == e.Claimed(5, frozenset(), frozenset())


async def test_creates_the_parent_of_owner_nodes_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    ensured: list[str] = []
    ensure = setup.zk.ensure

    async def note(path: str) -> None:
        ensured.append(path)
        await ensure(path)

    monkeypatch.setattr(setup.zk, "ensure", note)
    for _ in range(2):
        assert await setup.io.claim(setup.claim_all()) == e.Claimed(5, frozenset(ALL), frozenset())
        await setup.io.release(setup.release_all())
        assert ensured == ["/consumers/g/owners/t"]


async def test_does_not_look_for_the_parent_of_owner_nodes_where_it_exists(setup: Setup) -> None:
    setup.zookeeper.make("/consumers/g/owners/t")
    assert await setup.io.claim(setup.claim()) == CLAIMED
    assert setup.asked() == {"multi": 1, "get": 1}


async def test_creates_the_parents_of_owner_nodes_of_all_topics_together(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = most = 0
    ensure = setup.zk.ensure

    async def note(path: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await ensure(path)
        under_way -= 1

    monkeypatch.setattr(setup.zk, "ensure", note)
    partitions = frozenset(TopicPartition(f"t{number}", 0, 0) for number in range(20))
    claim = e.Claim(5, setup.zk.session_id, dict.fromkeys(partitions, 0))
    assert await setup.io.claim(claim) == e.Claimed(5, partitions, frozenset())
    assert most == len(partitions)


async def test_unregisters_by_one_request_where_the_watch_shows_its_node(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.snapshot()
    setup.asked()
    assert await setup.io.unregister(e.Unregister(2, setup.zk.session_id)) == e.Unregistered(2)
    assert setup.asked() == {"multi": 1}
    assert ID not in setup.zookeeper.dump()


async def test_unregisters_a_node_that_a_peer_wrote_into_before_the_watch_fired(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    await setup.snapshot()
    setup.zk.lose_watches = True
    await setup.other.set(ID, b"{ }")
    assert await setup.io.unregister(e.Unregister(2, setup.zk.session_id)) == e.Unregistered(2)
    assert ID not in setup.zookeeper.dump()


async def test_leaves_an_id_node_of_another_session_that_it_knows_alone(setup: Setup) -> None:
    setup.zookeeper.put(ID, b"{ }", session_id=setup.other.session_id)
    await setup.snapshot()
    assert await setup.io.unregister(e.Unregister(2, setup.zk.session_id)) == e.Unregistered(2)
    assert ID in setup.zookeeper.dump()


async def test_session_that_is_over_fails_an_action_without_a_warning(setup: Setup) -> None:
    """The machine hears of its end anyway."""
    register = e.Register(1, setup.zk.session_id)
    setup.zookeeper.expire(setup.zk)
    with capture_logs() as logs:
        assert isinstance(await setup.io.register(register), e.Failed)
    assert [entry for entry in logs if entry["event"] == "group_action_failed"] == []


@pytest.mark.parametrize("action", ["register", "unregister", "claim", "release", "snapshot"])
async def test_logs_an_action_that_the_server_refuses(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    async def refuse(path: object, *others: object, **options: object) -> None:
        raise (ZooKeeperError if action == "claim" else NoAuth)("/consumers/g")  # a claim of what is denied is blocked

    for call in ("get", "children", "multi", "create_ephemeral", "delete_owned"):
        monkeypatch.setattr(setup.zk, call, refuse)
    session_id, partitions = setup.zk.session_id, frozenset({TP})
    with capture_logs() as logs:
        match action:
            case "register":
                assert await setup.io.register(e.Register(1, session_id)) == e.Failed(1)
            case "unregister":
                assert await setup.io.unregister(e.Unregister(1, session_id)) == e.Failed(1)
            case "claim":
                assert await setup.io.claim(setup.claim()) == e.Claimed(5, frozenset(), frozenset())
            case "release":
                assert await setup.io.release(e.Release(1, session_id, partitions)) == e.Released(1, frozenset())
            case "snapshot":
                taken = e.TakeSnapshot(1, session_id, None, frozenset(), list_owners=False)
                assert await setup.io.take_snapshot(taken) == e.Failed(1)
    [entry] = [entry for entry in logs if entry["event"] == "group_action_failed"]
    assert (entry["action"], entry["group"]) == (action, "g")
    assert "/consumers/g" in entry["reason"]


@pytest.mark.parametrize("has_multi", [True, False])
@pytest.mark.parametrize("parent_exists", [True, False])
async def test_topic_whose_owner_nodes_may_not_be_created_keeps_no_other_one_from_being_claimed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, has_multi: bool, parent_exists: bool
) -> None:
    setup.zk._lifecycle.has_multi = has_multi
    if parent_exists:
        setup.zookeeper.put("/consumers/g/owners/u", None)
    denied = True
    multi, create, ensure = setup.zk.multi, setup.zk.create, setup.zk.ensure

    def check(path: str) -> None:
        if denied and path.startswith("/consumers/g/owners/u"):
            raise NoAuth(path)

    async def checked_multi(operations: Sequence[Any], **options: Any) -> Any:
        for index, operation in enumerate(operations):
            try:
                check(operation.path)
            except NoAuth as error:
                raise MultiFailed(index, error) from error
        return await multi(operations, **options)

    async def checked_create(path: str, *arguments: Any, **options: Any) -> Any:
        check(path)
        return await create(path, *arguments, **options)

    async def checked_ensure(path: str) -> Any:
        check(path)
        return await ensure(path)

    monkeypatch.setattr(setup.zk, "multi", checked_multi)
    monkeypatch.setattr(setup.zk, "create", checked_create)
    monkeypatch.setattr(setup.zk, "ensure", checked_ensure)
    other = TopicPartition("u", 0, 0)
    claim = e.Claim(5, setup.zk.session_id, {**dict.fromkeys(ALL, 0), other: 0})
    with capture_logs() as logs:
        assert await setup.io.claim(claim) == e.Claimed(5, frozenset(ALL), frozenset({other}))
        owner, session_id, reason = setup.io.holder(other)
        assert (owner, session_id) == (None, None)
        assert reason is not None
        assert "/consumers/g/owners/u" in reason
        assert setup.io.holder(TP).denied is None
        denied = False
        assert await setup.io.claim(claim) == e.Claimed(5, frozenset({*ALL, other}), frozenset())
    assert setup.io.holder(other).denied is None
    assert logs == []


async def test_owner_node_that_may_not_be_read_keeps_no_other_partition_from_being_claimed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, get = f"/consumers/g/owners/t/{TP.name}", setup.zk.get
    await setup.other.ensure("/consumers/g/owners/t")
    await setup.other.create(hidden, b"g_other-0", ephemeral=True)

    async def checked(path: str, **options: Any) -> Any:
        if path == hidden:
            raise NoAuth(path)
        return await get(path, **options)

    monkeypatch.setattr(setup.zk, "get", checked)
    assert await setup.io.claim(setup.claim_all()) == e.Claimed(5, frozenset({*ALL} - {TP}), frozenset({TP}))
    assert hidden in (setup.io.holder(TP).denied or "")
    await setup.other.delete(hidden)
    monkeypatch.setattr(setup.zk, "get", get)
    assert (await setup.io.claim(setup.claim_all())).claimed == {*ALL}
    assert setup.io.holder(TP).denied is None
