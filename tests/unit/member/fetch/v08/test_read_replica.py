"""Reading from the replica in our rack: what a leader names, and what ends it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.member.fetch.v08.read_replica import PAUSES, ReadReplica
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.net.client.settings import ClientSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import EARLIEST
from consumerd.wire.v08.apis import FETCH, LIST_OFFSETS
from consumerd.wire.v08.records import encode_record_batch

P = TopicPartition.numbered("t", 0)
LEADER, NEAR, OTHER = 1, 2, 3
#: A fetch at a broker: its id, and our rack as it has it.
Fetch = tuple[int, str]


class Replica:
    """A broker with a replica of the log, and its channel."""

    def __init__(self, node_id: int, cluster: Racks) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.versions = SimpleNamespace(pick=lambda *_, **__: 12)
        self.address, self.closed = f"h:{node_id}", False
        #: What it answers a FETCH in place of messages, or raises.
        self.trouble: dict[str, Any] | BrokerError | None = None
        self.throttle = 0
        #: The first offset, and the end, of its log.
        self.start, self.end = 0, 10**6

    def post(self, *_: Any, **__: Any) -> bool:
        return False  # all go through `call`

    async def call(self, api: Any, body: dict[str, Any], *, version: int, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        cluster = self.cluster
        if api is LIST_OFFSETS:
            first = body["topics"][0]["partitions"][0]["timestamp"] == EARLIEST
            offset = self.start if first else len(cluster.payloads)
            answer: dict[str, Any] = {"partition_index": 0, "error_code": 0, "offset": offset}
            return {"topics": [{"name": "t", "partitions": [answer]}]}
        if api is not FETCH:  # the position is of this log
            (part,) = body["topics"][0]["partitions"]
            answer = {"partition": 0, "error_code": 0, "leader_epoch": part["leader_epoch"], "end_offset": 10**6}
            return {"topics": [{"topic": "t", "partitions": [answer]}]}
        if not body["topics"]:
            return {"error_code": 0, "responses": []}
        (part,) = body["topics"][0]["partitions"]
        cluster.fetches.append((self.node_id, body.get("rack_id", "")))
        if self.throttle:
            return {"throttle_time_ms": self.throttle, "error_code": 0, "responses": []}
        if isinstance(self.trouble, BrokerError):
            self.closed = True
            raise self.trouble
        answer = {"partition_index": 0, "error_code": 0, "high_watermark": len(cluster.payloads), "records": b""}
        offset = part["fetch_offset"]
        if self.node_id == cluster.led_by and (body.get("rack_id") or cluster.by_address) and cluster.named:
            answer["preferred_read_replica"] = cluster.named
        elif self.trouble is not None:
            answer |= self.trouble
        elif not self.start <= offset <= self.end:
            answer["error_code"] = 1
        else:
            sent = cluster.payloads[offset : min(self.end, offset + 2)]
            if not sent:
                await cluster.clock.sleep(body["max_wait_ms"] / 1000)
            answer["records"] = encode_record_batch(sent, base_offset=offset) if sent else b""
        return {"error_code": 0, "responses": [{"topic": "t", "partitions": [answer]}]}

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Racks:
    """A client of a cluster with a replica in each rack; we are in the one of broker 2."""

    def __init__(self, rack: str = "ours") -> None:
        self.settings = ClientSettings(rack=rack)
        self.clock = FakeClock(auto=True)
        self.brokers = {number: Replica(number, self) for number in (LEADER, NEAR, OTHER)}
        self.payloads = [b"%d" % number for number in range(10)]
        self.fetches: list[Fetch] = []
        self.resets: list[tuple[int, int]] = []
        #: The broker that the leader names, 0 for none; whether it does so by the address and not by rack.
        self.named, self.by_address = NEAR, False
        self.led_by, self.epoch = LEADER, 4
        self.alive = set(self.brokers)

    # -- the client

    @property
    def metadata(self) -> ClusterMetadata:
        known = PartitionMetadata(self.led_by, self.epoch, tuple(self.brokers), tuple(self.brokers), 0)
        nodes = {number: Node(number, "h", number) for number in self.alive}
        return ClusterMetadata(nodes, {"t": TopicMetadata(0, {0: known})})

    def stale(self, topics: Any = ()) -> None:
        pass

    def is_fresh(self, topic: str) -> bool:
        return True

    async def leader(self, topic: str, partition: int) -> Node:
        return Node(self.led_by, "h", self.led_by)

    async def node_channel(self, node_id: int) -> Replica:
        self.brokers[node_id].closed = False
        return self.brokers[node_id]

    private_channel = node_channel

    # -- the listener

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        self.resets.append((old, new))

    def failed(self, partition: TopicPartition, *told: Any) -> None:
        raise AssertionError(told)

    log_changed = skipped = parked = failed

    # -- reading

    @asynccontextmanager
    async def reading(self, offset: int = 0) -> AsyncIterator[Callable[[int], Any]]:
        """Fetch from `offset` on; yields what takes a number of messages and returns the fetches that this took."""
        brokers = V08Brokers(cast("Any", self), FetchSettings(), self.clock, random.Random(1), cast("Any", self))
        self.pool = FetchPool(brokers)
        lane = Lane(P, ByteBudget(1 << 30), max_bytes=1)
        task = asyncio.create_task(self.pool.run())
        self.pool.add(P, offset, lane)

        async def take(count: int) -> list[Fetch]:
            self.fetches.clear()
            found: list[bytes | None] = []
            async with asyncio.timeout(20):
                while len(found) < count:
                    batch = await lane.get()
                    found += batch.payloads
                    lane.finished(batch)
            self.taken = found
            return list(self.fetches)

        try:
            yield take
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_reads_from_the_follower_that_the_leader_names() -> None:
    racks = Racks()
    async with racks.reading() as take:
        fetches = await take(10)
        assert racks.taken == racks.payloads
        assert fetches[0] == (LEADER, "ours")
        assert {broker for broker, _ in fetches[1:]} == {NEAR}
        assert racks.pool.counters.follower_bytes == racks.pool.counters.received_bytes > 0


async def test_idle_partition_moves_to_a_follower_that_the_leader_names_later() -> None:
    racks = Racks()
    racks.named = 0
    async with racks.reading() as take:
        assert set(await take(10)) == {(LEADER, "ours")}
        racks.named = NEAR
        async with asyncio.timeout(20):
            while (NEAR, "ours") not in racks.fetches:
                await asyncio.sleep(0)


async def test_without_a_rack_the_leader_is_read_from() -> None:
    racks = Racks(rack="")
    async with racks.reading() as take:
        assert set(await take(10)) == {(LEADER, "")}


async def test_waits_at_the_follower_and_moves_when_the_lease_ends() -> None:
    racks = Racks()
    async with racks.reading() as take:
        await take(10)
        began = racks.clock.now
        racks.fetches.clear()
        racks.named = OTHER
        async with asyncio.timeout(20):
            while (OTHER, "ours") not in racks.fetches:
                await asyncio.sleep(0)
        lease = racks.settings.metadata_max_age
        assert lease - 1 <= racks.clock.now - began <= lease + 10
        assert [each for each in racks.fetches if each[0] == LEADER] == [(LEADER, "ours")]


@pytest.mark.parametrize(
    "trouble",
    [
        {"error_code": 1},
        {"error_code": 6},
        {"error_code": 9},
        {"error_code": 75},
        {"error_code": 29},
        {"diverging_epoch": {"epoch": 3, "end_offset": 2}},
        {"records": b"\0" * 8 + b"\0\0\0\x40" + b"\xff" * 64},
        BrokerError("broken"),
    ],
    ids=["out of range", "moved", "gone", "behind", "denied", "diverging", "damaged", "disconnected"],
)
async def test_failure_of_a_follower_is_the_leaders_to_confirm(trouble: Any) -> None:
    racks = Racks()
    async with racks.reading() as take:
        await take(4)
        racks.brokers[NEAR].trouble = trouble
        fetches = await take(6)
        assert racks.taken == racks.payloads[4:]
        assert [each for each in fetches if each[0] == LEADER] == [(LEADER, "")] * 3
        assert racks.resets == []
        racks.brokers[NEAR].trouble = None
        racks.payloads += [b"later"]
        await take(1)
        async with asyncio.timeout(20):  # after a pause the follower is read from again
            while racks.fetches[-1] != (NEAR, "ours"):
                await asyncio.sleep(0)


async def test_offset_that_the_leader_does_not_have_either_is_reset() -> None:
    racks = Racks()
    racks.brokers[NEAR].start = racks.brokers[LEADER].start = 6
    async with racks.reading(offset=2) as take:
        fetches = await take(2)
        assert racks.taken == [b"6", b"7"]
        assert racks.resets == [(2, 6)]
        assert fetches[:3] == [(LEADER, "ours"), (NEAR, "ours"), (LEADER, "")]


async def test_follower_that_is_not_in_the_cluster_is_not_waited_for() -> None:
    racks = Racks()
    racks.alive.remove(NEAR)
    async with racks.reading() as take:
        assert set(await take(10)) == {(LEADER, "ours"), (LEADER, "")}


async def test_leader_serves_while_the_follower_is_silent_because_of_a_quota() -> None:
    racks = Racks()
    async with racks.reading() as take:
        await take(4)
        racks.brokers[NEAR].throttle = 60_000
        began = racks.clock.now
        fetches = await take(6)
        assert racks.clock.now - began < 1
        assert fetches[-1] == (LEADER, "")


async def test_new_leader_is_asked_which_replica_to_read_from() -> None:
    racks = Racks()
    async with racks.reading() as take:
        await take(4)
        racks.led_by, racks.epoch, racks.named = OTHER, 5, LEADER
        fetches = await take(6)
        assert fetches[-2:] == [(LEADER, "ours")] * 2
        assert (OTHER, "ours") in fetches


async def test_leader_that_names_a_failed_follower_by_other_means_is_asked_with_pauses() -> None:
    racks = Racks(rack="")
    racks.by_address = True
    racks.brokers[NEAR].trouble = BrokerError("broken")
    async with racks.reading() as take:
        task = asyncio.create_task(take(1))
        until = racks.clock.now + 20
        async with asyncio.timeout(20):
            while racks.clock.now < until:
                await asyncio.sleep(0)
        assert len(racks.fetches) < 60
        racks.brokers[NEAR].trouble = None
        await task


async def test_end_of_the_log_as_a_follower_has_it_is_not_taken_for_the_leaders() -> None:
    for named, known in ((NEAR, None), (0, 10)):
        racks = Racks()
        racks.named = named
        async with racks.reading() as take:
            await take(10)
            until = racks.clock.now + 1
            while racks.clock.now < until:
                await asyncio.sleep(0)
            assert racks.pool.known_end(P) == known


def test_pauses_double_until_a_follower_answers() -> None:
    replica = ReadReplica(random.Random(1))
    shortest, longest = PAUSES
    for expected in (shortest, 2 * shortest, 4 * shortest):
        replica.failed(0.0)
        assert replica.paused(expected / 2 - 0.01)
        assert not replica.paused(expected)
    for _ in range(20):
        replica.failed(0.0)
        assert not replica.paused(longest)
    assert replica.paused(longest / 2 - 0.01)
    replica.answered()
    replica.failed(0.0)
    assert not replica.paused(shortest)


def test_follower_is_read_from_until_its_lease_ends() -> None:
    replica = ReadReplica(random.Random(1))
    replica.named(NEAR, until=5.0)
    assert (replica.follower(4.9), replica.paused(4.9), replica.stays(4.9)) == (NEAR, False, True)
    assert (replica.stays(5.0), replica.follower(5.0), replica.paused(5.0)) == (False, None, False)
