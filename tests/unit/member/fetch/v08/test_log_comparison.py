"""Positions compared with the leader's log: when, by what, and what follows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.settings.processing import LogChangePolicy
from consumerd.member.fetch.errors import LogChangedError
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.log_changes import LogChangeKind
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.member.offsets.metadata import OffsetNotes, format_metadata, parse_metadata
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.net.client.settings import ClientSettings
from consumerd.wire.v07 import EARLIEST
from consumerd.wire.v08.apis import FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.schema import NO_UUID, Api

P = TopicPartition.numbered("t", 0)
OLD, NEW = b"o" * 16, b"n" * 16
FAST = FetchSettings(retry_backoff_min=0.001, retry_backoff_max=0.002, max_wait=0.01)
#: The versions of FETCH of brokers: before epochs, with epochs but not in metadata, with epochs, and with topic ids.
PLAIN, OLD_EPOCHS, EPOCHS, IDS = 4, 6, 12, 13


class Leader:
    """A client of one broker, and its channel: a log of (epoch, messages), as a broker of some version serves it."""

    def __init__(self, fetch: int, topic_id: bytes = NO_UUID) -> None:
        self.fetch = fetch
        self.topic_id = topic_id
        self.settings = ClientSettings()
        self.versions = SimpleNamespace(pick=self._pick)
        self.address, self.closed = "h:9", False
        self.epochs: list[tuple[int, int]] = [(0, 0)]  # epoch, first offset
        self.records: list[bytes] = []
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.metadata = ClusterMetadata()
        self.stale(())
        self.fails: BrokerError | None = None

    def _pick(self, api: Api[Any, Any], *, at_most: int | None = None, **_: Any) -> int:
        if api is OFFSET_FOR_LEADER_EPOCH and self.fetch < OLD_EPOCHS:
            raise UnsupportedApiError("the broker does not serve OffsetForLeaderEpoch")
        return min(self.fetch, at_most or self.fetch) if api is FETCH else 4

    def append(self, *payloads: bytes, epoch: int | None = None) -> None:
        if epoch is not None:
            self.epochs.append((epoch, len(self.records)))
            self.stale(())
        self.records += payloads

    def cut(self, offset: int, epoch: int) -> None:
        """An unclean election: the log ends at `offset`."""
        del self.records[offset:]
        self.epochs = [each for each in self.epochs if each[1] <= offset]
        self.append(epoch=epoch)

    def recreate(self, topic_id: bytes, *payloads: bytes) -> None:
        self.topic_id, self.records, self.epochs = topic_id, list(payloads), [(0, 0)]

    # -- the client

    def stale(self, topics: Any = ()) -> None:
        known = PartitionMetadata(1, self.epochs[-1][0] if self.fetch >= EPOCHS else -1, (1,), (1,), 0)
        self.metadata = ClusterMetadata({1: Node(1, "h", 9)}, {"t": TopicMetadata(0, {0: known}, id=self.topic_id)})

    def is_fresh(self, topic: str) -> bool:
        return True

    async def leader(self, topic: str, partition: int) -> Node:
        return Node(1, "h", 9)

    async def node_channel(self, node_id: int) -> Leader:
        return self

    private_channel = node_channel

    async def close(self) -> None:
        self.closed = True

    # -- the channel

    def post(self, *_: Any, **__: Any) -> bool:
        return False  # all go through `call`

    async def call(self, api: Api[Any, Any], body: dict[str, Any], *, version: int, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        part = body["topics"][0]["partitions"][0]
        self.asked.append((api.key, part))
        answer: dict[str, Any]
        if api is LIST_OFFSETS:
            offset = 0 if part["timestamp"] == EARLIEST else len(self.records)
            answer = {"partition_index": 0, "error_code": 0, "offset": offset}
            return {"topics": [{"name": "t", "partitions": [answer]}]}
        if api is OFFSET_FOR_LEADER_EPOCH:
            if self.fails is not None:
                raise self.fails
            epoch, end = self._end(part["leader_epoch"])
            answer = {"partition": 0, "error_code": 0, "leader_epoch": epoch, "end_offset": end}
            return {"topics": [{"topic": "t", "partitions": [answer]}]}
        topic = body["topics"][0]
        named = {"topic": "t"} if version < IDS else {"topic_id": topic["topic_id"]}
        answer = {
            "partition_index": 0,
            "high_watermark": len(self.records),
            "records": b"",
            **self._fetch(part, version),
        }
        if version >= IDS and topic["topic_id"] != self.topic_id:
            answer |= {"error_code": 100, "records": b""}
        return {"responses": [{**named, "partitions": [answer]}]}

    def _end(self, asked: int) -> tuple[int, int]:
        if asked > self.epochs[-1][0]:
            return -1, -1
        for number, (epoch, _) in reversed(list(enumerate(self.epochs))):
            if epoch <= asked:
                return epoch, self.epochs[number + 1][1] if number + 1 < len(self.epochs) else len(self.records)
        return -1, -1

    def _fetch(self, part: dict[str, Any], version: int) -> dict[str, Any]:
        offset, last = part["fetch_offset"], part.get("last_fetched_epoch", -1)
        if version >= EPOCHS and last >= 0:
            epoch, end = self._end(last)
            if epoch < 0:
                return {"error_code": 1}
            if epoch < last or end < offset:
                return {"error_code": 0, "diverging_epoch": {"epoch": epoch, "end_offset": end}}
        if offset > len(self.records):
            return {"error_code": 1}
        data = b"".join(
            encode_record_batch([payload], base_offset=offset + number, leader_epoch=self._epoch(offset + number))
            for number, payload in enumerate(self.records[offset:])
        )
        return {"error_code": 0, "records": data}

    def _epoch(self, offset: int) -> int:
        return max(epoch for epoch, first in self.epochs if first <= offset)


class TopicNodes:
    """The creations of topics in ZooKeeper, as the tests say."""

    def __init__(self, zxid: int) -> None:
        self.created = zxid
        self.subscribers: list[Callable[[str], None]] = []

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self.subscribers.append(changed)

    def refresh(self, topic: str) -> None:
        pass

    async def zxid(self, topic: str) -> int:
        return self.created


class Events:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def failed(self, partition: TopicPartition, *told: Any) -> None:
        self.events.append(("failed", *told))

    def reset(self, partition: TopicPartition, *told: Any) -> None:
        self.events.append(("reset", *told))

    def log_changed(self, partition: TopicPartition, *told: Any) -> None:
        self.events.append(("log_changed", *told))

    skipped = parked = failed


class Reading:
    """A pool that fetches one partition, and what came of it."""

    def __init__(self, leader: Leader, nodes: TopicNodes | None, **settings: Any) -> None:
        self.events = Events()
        brokers = V08Brokers(
            leader,  # type: ignore[arg-type]
            FAST.replace(**settings),
            SystemClock(),
            random.Random(1),
            self.events,
            nodes,
        )
        self.pool = FetchPool(brokers)
        self.lane = Lane(P, ByteBudget(1 << 30), max_bytes=1 << 30)
        self.last: Any = None

    def begin(self, offset: int, log: LogId = UNKNOWN_LOG) -> None:
        self.pool.add(P, offset, self.lane, log)

    async def take(self, count: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                self.last = await self.lane.get()
                found += self.last.payloads
                self.lane.finished(self.last)
        return found

    async def event(self) -> tuple[Any, ...]:
        async with asyncio.timeout(60):
            while not self.events.events:
                await asyncio.sleep(0.001)
        (event,) = self.events.events
        return event


@pytest_asyncio.fixture
async def reading() -> AsyncIterator[Callable[..., Reading]]:
    tasks = []

    def make(leader: Leader, nodes: TopicNodes | None = None, **settings: Any) -> Reading:
        made = Reading(leader, nodes, **settings)
        tasks.append(asyncio.create_task(made.pool.run()))
        return made

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


async def test_batches_know_the_log_that_they_are_of(reading: Any) -> None:
    leader = Leader(IDS, OLD)
    leader.append(*numbered("a", 3))
    leader.append(*numbered("b", 2), epoch=4)
    r = reading(leader)
    r.begin(0)
    assert await r.take(3) == numbered("a", 3)
    assert r.last.log == LogId(OLD, 0)
    assert await r.take(2) == numbered("b", 2)
    assert r.last.log == LogId(OLD, 4, epoch_start=3)


@pytest.mark.parametrize("fetch", [EPOCHS, IDS])
async def test_stored_position_of_a_truncated_log_continues_where_the_logs_part(reading: Any, fetch: int) -> None:
    leader = Leader(fetch, OLD if fetch == IDS else NO_UUID)
    leader.append(*numbered("a", 100))
    leader.append(*numbered("new", 150), epoch=5)
    r = reading(leader)
    r.begin(150, LogId(None, 4))
    assert await r.take(150) == numbered("new", 150)
    kind, change, new = await r.event()
    assert (kind, change.kind, change.offset, new) == ("log_changed", LogChangeKind.TRUNCATED, 150, 100)
    assert change.messages_gone == 50
    assert r.pool.counters.truncated_logs == 1


async def test_log_that_was_emptied_in_a_later_epoch_is_truncated(reading: Any) -> None:
    leader = Leader(OLD_EPOCHS)
    leader.append(*numbered("a", 3), epoch=4)
    leader.cut(0, epoch=5)
    r = reading(leader)
    r.begin(2, LogId(None, 4))
    _, change, new = await r.event()
    assert (change.kind, change.offset, new) == (LogChangeKind.TRUNCATED, 2, 0)
    asked = [part for key, part in leader.asked if key == OFFSET_FOR_LEADER_EPOCH.key]
    assert [(part["current_leader_epoch"], part["leader_epoch"]) for part in asked[:2]] == [(-1, 4), (-1, 5)]


async def test_position_at_the_end_of_its_epoch_needs_no_second_look(reading: Any) -> None:
    leader = Leader(OLD_EPOCHS)
    leader.append(*numbered("a", 3))
    r = reading(leader)
    r.begin(2, LogId(None, 0))
    assert await r.take(1) == [b"a2"]
    leader.asked.clear()
    for source in r.pool._brokers._fetched.values():
        source.doubt()
    async with asyncio.timeout(10):
        while FETCH.key not in [key for key, _ in leader.asked]:  # it was compared
            await asyncio.sleep(0.001)
    assert [key for key, _ in leader.asked].count(OFFSET_FOR_LEADER_EPOCH.key) == 1


@pytest.mark.parametrize("fetch", [EPOCHS, IDS])
async def test_log_that_is_truncated_under_a_reader_repeats_nothing(reading: Any, fetch: int) -> None:
    leader = Leader(fetch, OLD if fetch == IDS else NO_UUID)
    leader.append(*numbered("a", 150))
    r = reading(leader)
    r.begin(0)
    assert len(await r.take(150)) == 150
    leader.cut(100, epoch=3)
    leader.append(*numbered("new", 20))
    assert await r.take(20) == numbered("new", 20)
    _, change, new = await r.event()
    assert (change.kind, change.offset, new) == (LogChangeKind.TRUNCATED, 150, 100)


@pytest.mark.parametrize("fetch", [OLD_EPOCHS, EPOCHS, IDS])
@pytest.mark.parametrize(
    ("begin", "log", "parts_at"),
    [(3, LogId(None, 0), 3), (3, UNKNOWN_LOG, 3), (4, LogId(None, 2), 4), (5, LogId(None, 2), 5)],
)
async def test_log_of_a_former_leader_that_is_elected_again_is_read_where_the_logs_part(
    reading: Any, fetch: int, begin: int, log: LogId, parts_at: int
) -> None:
    """It has messages of a lower epoch up to the position and behind it; nobody saw them, or they were cut off."""
    leader = Leader(fetch, OLD if fetch == IDS else NO_UUID)
    leader.append(*numbered("a", 3))
    leader.append(*numbered("b", 2), epoch=2)
    leader.append(b"c", epoch=3)
    r = reading(leader)
    r.begin(begin, log)
    await r.take(6 - begin)
    leader.cut(3, epoch=5)
    lost = numbered("lost", 5)
    leader.records[3:], leader.epochs = lost, [(0, 0), (5, 8)]
    leader.append(*numbered("new", 2))
    leader.stale()
    if fetch == OLD_EPOCHS:  # neither the metadata nor the response show it: the connection was lost
        for source in r.pool._brokers._fetched.values():
            source.doubt()
    expected = [*lost[parts_at - 3 :], *numbered("new", 2)]
    assert await r.take(len(expected)) == expected
    _, change, new = await r.event()
    assert (change.kind, change.offset, change.messages_gone, new) == (
        LogChangeKind.TRUNCATED, 6, 6 - parts_at, parts_at
    )  # fmt: skip


@pytest.mark.parametrize("fetch", [EPOCHS, IDS])
async def test_committed_log_tells_where_its_last_epoch_began(reading: Any, fetch: int) -> None:
    """As above, with a restart between the elections: the next fetcher knows what was committed."""
    leader = Leader(fetch, OLD if fetch == IDS else NO_UUID)
    leader.append(*numbered("a", 3))
    first = reading(leader)
    first.begin(0)
    assert await first.take(3) == numbered("a", 3)
    assert first.last.log.epoch_start is None, "nobody saw where that epoch began"
    leader.append(*numbered("b", 2), epoch=2)
    assert await first.take(2) == numbered("b", 2)
    committed = first.last.log
    assert (committed.leader_epoch, committed.epoch_start) == (2, 3)
    leader.cut(3, epoch=5)
    lost = numbered("lost", 5)
    leader.records[3:], leader.epochs = lost, [(0, 0), (5, 8)]
    leader.append(*numbered("new", 2))
    again = reading(leader)
    again.begin(5, parse_metadata(format_metadata("", OffsetNotes(committed), with_epoch=True)).log)
    assert await again.take(7) == [*lost, *numbered("new", 2)]
    _, change, new = await again.event()
    assert (change.kind, change.offset, change.messages_gone, new) == (LogChangeKind.TRUNCATED, 5, 2, 3)


async def test_offset_out_of_range_of_another_log_does_not_reset_the_position(reading: Any) -> None:
    leader = Leader(EPOCHS)
    leader.append(*numbered("a", 100), epoch=5)
    r = reading(leader, max_wait=60.0)
    r.begin(0)
    assert len(await r.take(100)) == 100
    leader.recreate(NO_UUID, *numbered("new", 3))
    leader.stale(())
    assert await r.take(3) == numbered("new", 3)
    event, change, new = await r.event()
    assert (event, change.kind, new) == ("log_changed", LogChangeKind.REPLACED, 0)
    assert r.pool.counters.resets == 0


async def test_topic_that_is_created_again_is_read_from_its_beginning(reading: Any) -> None:
    leader = Leader(IDS, OLD)
    leader.append(*numbered("a", 100))
    r = reading(leader)
    r.begin(0)
    assert len(await r.take(100)) == 100
    leader.recreate(NEW, *numbered("new", 300))
    assert await r.take(300) == numbered("new", 300)
    _, change, new = await r.event()
    assert (change.kind, change.former.topic_id, change.now.topic_id, new) == (LogChangeKind.REPLACED, OLD, NEW, 0)
    assert change.messages_gone == 0  # all of the former log was read, to the end that was seen
    assert r.last.log == LogId(NEW, 0)
    assert r.pool.counters.replaced_logs == 1


async def test_never_fetches_a_position_under_the_id_of_another_topic(reading: Any) -> None:
    """The metadata may know the new topic before the broker refuses the old id."""
    leader = Leader(IDS, OLD)
    leader.append(*numbered("a", 10))
    r = reading(leader)
    r.begin(0)
    await r.take(10)
    leader.recreate(NEW, *numbered("new", 30))
    leader.stale()
    assert await r.take(30) == numbered("new", 30)
    assert len(r.events.events) == 1


async def test_without_topic_ids_the_leader_of_a_restarted_epoch_leads_another_log(reading: Any) -> None:
    leader = Leader(EPOCHS)
    leader.append(*numbered("new", 100))
    r = reading(leader)
    r.begin(300, LogId(None, 2))
    assert await r.take(100) == numbered("new", 100)
    _, change, new = await r.event()
    assert (change.kind, new) == (LogChangeKind.REPLACED, 0)


@pytest.mark.parametrize("later", [True, False])
async def test_looks_for_a_later_epoch_where_metadata_name_none(reading: Any, later: bool) -> None:
    """That tells a log that a later leader had less of from one of another topic."""
    leader = Leader(OLD_EPOCHS)
    leader.append(*numbered("a", 20))
    if later:
        leader.append(*numbered("b", 10), epoch=2)
    r = reading(leader)
    r.begin(40, LogId(None, 0))
    assert await r.take(10 if later else 20) == (numbered("b", 10) if later else numbered("a", 20))
    _, change, new = await r.event()
    assert (change.kind, new) == ((LogChangeKind.TRUNCATED, 20) if later else (LogChangeKind.REPLACED, 0))


@pytest.mark.parametrize("when", ["stopped", "running"])
async def test_node_of_the_topic_in_zookeeper_shows_that_it_was_created_again(reading: Any, when: str) -> None:
    """Brokers without epochs or ids answer as if the log were the former one."""
    leader, nodes = Leader(PLAIN), TopicNodes(5)
    leader.append(*numbered("a", 50))
    r = reading(leader, nodes)
    if when == "running":
        r.begin(0, LogId(zxid=9))
        await r.take(50)
    leader.recreate(NO_UUID, *numbered("new", 200))
    nodes.created = 20
    if when == "running":
        nodes.subscribers[0]("t")
    else:
        r.begin(50, LogId(zxid=19))
    assert await r.take(200) == numbered("new", 200)
    _, change, new = await r.event()
    assert (change.kind, new) == (LogChangeKind.REPLACED, 0)


@pytest.mark.parametrize("policy", ["stop", "park"])
async def test_policy_ends_the_fetching_of_a_changed_log(reading: Any, policy: LogChangePolicy) -> None:
    leader = Leader(IDS, NEW)
    leader.append(*numbered("new", 300))
    r = reading(leader, log_changed=policy)
    r.begin(100, LogId(OLD))
    _, told = await r.event()
    if policy == "stop":
        assert isinstance(told, LogChangedError)
        assert "is another one (topic id bm5u" in str(told)
    else:
        assert "its log is another one (topic id bm5u" in told
    assert FETCH.key not in [key for key, _ in leader.asked]


async def test_position_of_a_broker_that_tells_no_epochs_stays(reading: Any) -> None:
    leader = Leader(PLAIN)
    leader.append(*numbered("a", 10))
    r = reading(leader)
    r.begin(4, LogId(None, 7))
    assert await r.take(6) == numbered("a", 10)[4:]
    assert r.events.events == []


async def test_compares_again_after_a_failed_comparison(reading: Any) -> None:
    leader = Leader(IDS, OLD)
    leader.append(*numbered("a", 10))
    leader.fails = BrokerError("the connection ended")
    r = reading(leader)
    r.begin(4, LogId(OLD, 0))
    async with asyncio.timeout(60):
        while len(leader.asked) < 3:
            await asyncio.sleep(0.001)
    assert {key for key, _ in leader.asked} == {OFFSET_FOR_LEADER_EPOCH.key}  # nothing is fetched unseen
    leader.fails = None
    assert await r.take(6) == numbered("a", 10)[4:]


async def test_seek_keeps_the_topic_and_forgets_the_epoch(reading: Any) -> None:
    leader = Leader(IDS, OLD)
    leader.append(*numbered("a", 10))
    r = reading(leader)
    r.begin(0)
    await r.take(10)
    r.pool.seek(P, 2)
    assert await r.take(8) == numbered("a", 10)[2:]
    fetched = [
        part["last_fetched_epoch"] for key, part in leader.asked if key == FETCH.key and part["fetch_offset"] == 2
    ]
    assert fetched[0] == -1
