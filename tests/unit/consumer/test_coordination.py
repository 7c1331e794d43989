"""The machine's actions in ZooKeeper, against the in-memory one: what is written, and how each failure is answered."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from consumerd.clock import SystemClock
from consumerd.consumer.coordination import GroupCoordination
from consumerd.consumer.snapshot import V07SnapshotReader, V08SnapshotReader
from consumerd.embedded.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.group import V07Rules, V08Rules
from consumerd.group import events as e
from consumerd.partition import TopicPartition

TP = TopicPartition("t", 0, 3)
OWNER = "/consumers/g/owners/t/0-3"
ID = "/consumers/g/ids/g_a"


class Setup:
    def __init__(self, zookeeper: MemoryZooKeeper, zk: MemorySession, other: MemorySession) -> None:
        self.zookeeper = zookeeper
        self.zk = zk
        self.other = other
        self.triggers = 0
        self.io = GroupCoordination(
            zk, "g", "g_a", '{ "t": 1 }', V07Rules(), V07SnapshotReader, clock=SystemClock(), triggered=self.triggered
        )

    def triggered(self) -> None:
        self.triggers += 1

    def claim(self, stream: int = 0) -> e.Claim:
        return e.Claim(TP, 5, self.zk.session_id, stream)

    async def snapshot(
        self, *, survey: bool = False, topics: frozenset[str] | None = frozenset({"t"})
    ) -> e.GroupSnapshot:
        answer = await self.io.take_snapshot(
            e.TakeSnapshot(1, self.zk.session_id, topics, frozenset({TP}), survey=survey)
        )
        assert isinstance(answer, e.SnapshotTaken)
        return answer.snapshot


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[Setup]:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session() as zk, zookeeper.session() as other:
        yield Setup(zookeeper, zk, other)


@pytest.mark.asyncio
async def test_registering_writes_the_id_node_and_null_parents(setup: Setup) -> None:
    assert await setup.io.register(e.Register(1, setup.zk.session_id)) == e.Registered(1)
    tree = setup.zookeeper.dump()
    assert tree[ID] == b'{ "t": 1 }'
    assert tree["/consumers"] is tree["/consumers/g"] is tree["/consumers/g/ids"] is None
    assert await setup.io.unregister(e.Unregister(2, setup.zk.session_id)) == e.Unregistered(2)
    assert ID not in setup.zookeeper.dump()


@pytest.mark.asyncio
async def test_actions_for_a_session_that_is_over_fail_and_write_nothing(setup: Setup) -> None:
    before, old = setup.zookeeper.dump(), setup.zk.session_id + 1000
    assert await setup.io.register(e.Register(1, old)) == e.Failed(1)
    assert await setup.io.claim(e.Claim(TP, 2, old, 0)) == e.Failed(2)
    assert await setup.io.release(e.Release(TP, 3, old)) == e.Failed(3)
    assert await setup.io.unregister(e.Unregister(4, old)) == e.Failed(4)
    assert await setup.io.take_snapshot(e.TakeSnapshot(5, old, None, frozenset(), survey=False)) == e.Failed(5)
    await setup.io.nudge(e.Nudge(old))
    assert setup.zookeeper.dump() == before


@pytest.mark.asyncio
async def test_a_claim_creates_the_owner_node_with_its_stream(setup: Setup) -> None:
    assert await setup.io.claim(setup.claim(2)) == e.Claimed(TP, 5)
    assert setup.zookeeper.dump()[OWNER] == b"g_a-2"
    # A reply that was lost: the node is ours already.
    assert await setup.io.claim(setup.claim(2)) == e.Claimed(TP, 5)


@pytest.mark.asyncio
async def test_a_claim_is_blocked_by_anybody_elses_node(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == e.ClaimBlocked(TP, 5)
    assert setup.zookeeper.dump()[OWNER] == b"g_b-0"


@pytest.mark.asyncio
async def test_a_claim_for_another_stream_does_not_adopt_the_old_node(setup: Setup) -> None:
    await setup.io.claim(setup.claim(0))
    assert await setup.io.claim(setup.claim(1)) == e.ClaimBlocked(TP, 5)
    assert OWNER not in setup.zookeeper.dump()
    assert await setup.io.claim(setup.claim(1)) == e.Claimed(TP, 5)


@pytest.mark.asyncio
async def test_a_lost_connection_answers_failed(setup: Setup) -> None:
    await setup.io.claim(setup.claim())
    setup.zookeeper.cut_next_call(setup.zk, carried_out=False)
    assert await setup.io.claim(setup.claim()) == e.Failed(5)


@pytest.mark.asyncio
async def test_a_release_leaves_the_nodes_of_others(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.release(e.Release(TP, 5, setup.zk.session_id)) == e.Released(TP, 5)
    assert setup.zookeeper.dump()[OWNER] == b"g_b-0"


@pytest.mark.asyncio
async def test_a_nudge_comes_and_goes_and_is_seen(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    seen: list[str] = []
    await setup.other.children("/consumers/g/ids", watch=True)
    setup.other.watch("/consumers/g/ids", lambda: seen.append("changed"))
    await setup.io.nudge(e.Nudge(setup.zk.session_id))
    await setup.other.exists("/")
    assert seen
    assert await setup.other.children("/consumers/g/ids") == ["g_a"]


@pytest.mark.asyncio
async def test_a_snapshot_holds_members_topics_owners_and_survives_vanishing_nodes(setup: Setup) -> None:
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
    snapshot = await setup.snapshot(survey=True)
    assert snapshot.members == {"g_a": '{ "t": 1 }', "g_b": "\ufffd"}
    assert snapshot.own_id_session == setup.zk.session_id
    assert snapshot.topics == {"t": {0: range(4), 1: range(2)}}
    assert snapshot.owner_sessions == {TP: setup.zk.session_id}
    assert snapshot.claimed == frozenset({TP, TopicPartition("t", 0, 1)})
    assert (await setup.snapshot(topics=None)).topics == {"t": {0: range(4), 1: range(2)}, "u": {0: range(1)}}


@pytest.mark.asyncio
async def test_a_group_that_does_not_exist_yet_is_empty_and_watched(setup: Setup) -> None:
    snapshot = await setup.snapshot()
    assert (snapshot.members, snapshot.topics, snapshot.own_id_session) == ({}, {"t": {}}, None)
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t/0", b"1")
    await setup.zk.exists("/")
    assert setup.triggers > before


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/consumers/g/ids/g_z", "/brokers/topics/t/7", "/brokers/topics/t/0", OWNER, ID])
async def test_every_read_of_a_snapshot_is_watched(setup: Setup, path: str) -> None:
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


@pytest.mark.asyncio
async def test_a_claimed_node_is_watched_from_the_claim_on(setup: Setup) -> None:
    await setup.io.register(e.Register(1, setup.zk.session_id))
    under_way = asyncio.ensure_future(
        setup.io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), survey=False))
    )
    await asyncio.sleep(0)  # its reads are out, and do not include the owner node
    await setup.io.claim(setup.claim())
    await under_way
    before = setup.triggers
    setup.zookeeper.remove(OWNER)  # a peer deletes by path
    await setup.zk.exists("/")
    assert setup.triggers == before + 1


@pytest.mark.asyncio
async def test_a_blocked_claim_watches_nothing_beyond_the_next_snapshot(setup: Setup) -> None:
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    assert await setup.io.claim(setup.claim()) == e.ClaimBlocked(TP, 5)
    await setup.io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), survey=False))
    before = setup.triggers
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before


@pytest.mark.asyncio
async def test_a_released_node_is_not_watched_any_more(setup: Setup) -> None:
    await setup.io.claim(setup.claim())
    await setup.io.release(e.Release(TP, 6, setup.zk.session_id))
    await setup.io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, frozenset({"t"}), frozenset(), survey=False))
    before = setup.triggers
    await setup.other.create_ephemeral(OWNER, b"g_b-0", wait=0)
    await setup.other.delete(OWNER)
    await setup.zk.exists("/")
    assert setup.triggers == before


# ---- Kafka 0.8 and later


def v08(setup: Setup, rules: V08Rules) -> GroupCoordination:
    return GroupCoordination(
        setup.zk, "g", "g_a", "", rules, V08SnapshotReader, clock=SystemClock(), triggered=setup.triggered
    )


async def look(setup: Setup, io: GroupCoordination, *, topics: frozenset[str] | None) -> e.GroupSnapshot:
    answer = await io.take_snapshot(e.TakeSnapshot(1, setup.zk.session_id, topics, frozenset(), survey=True))
    assert isinstance(answer, e.SnapshotTaken)
    return answer.snapshot


@pytest.mark.asyncio
async def test_topics_of_later_kafka_are_nodes_that_name_their_partitions(setup: Setup) -> None:
    io = v08(setup, V08Rules())
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"1":[0],"0":[0]}}')
    setup.zookeeper.put("/brokers/topics/t/partitions/0/state", b'{"leader":0}')
    setup.zookeeper.put("/brokers/topics/junk", b"4")
    setup.zookeeper.put("/consumers/g/owners/t/1", b"g_b-0")
    snapshot = await look(setup, io, topics=None)
    assert snapshot.topics == {"t": {-1: (0, 1)}, "junk": {}}
    assert snapshot.claimed == frozenset({TopicPartition.numbered("t", 1)})
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t/partitions/0/state", b'{"leader":1}')  # leaders come and go
    await setup.zk.exists("/")
    assert setup.triggers == before
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}')
    await setup.zk.exists("/")
    assert setup.triggers == before + 1
    io.close()


@pytest.mark.asyncio
async def test_a_topic_of_later_kafka_that_is_not_there_yet_is_watched(setup: Setup) -> None:
    io = v08(setup, V08Rules())
    assert (await look(setup, io, topics=frozenset({"t"}))).topics == {"t": {}}
    before = setup.triggers
    setup.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
    await setup.zk.exists("/")
    assert setup.triggers > before
    io.close()


@pytest.mark.asyncio
async def test_where_topics_are_dealt_together_those_of_all_members_are_read(setup: Setup) -> None:
    io = v08(setup, V08Rules("roundrobin"))
    for topic in "tuv":
        setup.zookeeper.put(f"/brokers/topics/{topic}", b'{"version":1,"partitions":{"0":[0]}}')
    setup.zookeeper.put("/consumers/g/ids/g_b", b'{"version":1,"subscription":{"u":1},"pattern":"static"}')
    setup.zookeeper.put("/consumers/g/ids/g_c", b"junk")
    assert (await look(setup, io, topics=frozenset({"t"}))).topics.keys() == {"t", "u"}
    setup.zookeeper.put("/consumers/g/ids/g_d", b'{"version":1,"subscription":{"x.*":1},"pattern":"white_list"}')
    assert (await look(setup, io, topics=frozenset({"t"}))).topics.keys() == {"t", "u", "v"}
    io.close()
