"""Polls of idle partitions in virtual time: a fetch pool, and brokers of the simulation.

How soon a message that was appended is in its lane; what a poll names; and what ends a session of polls.

The network takes half a millisecond each way. An idle partition whose request is at the broker has its message after
one way; one whose request is on the way, or whose response is, after a round trip more.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.response import FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers, V08Source
from consumerd.member.fetch.v08.exchange import Exchange
from consumerd.member.fetch.v08.polls import NEWCOMER_WAIT, Polls
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.wire.v08.apis import OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.fetch_session import PartitionFetch
from tests.simulation.daemon import ProcessClock
from tests.simulation.kafka_broker import ERAS, Era, FetchSession, SimulatedKafka, _Connection
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Network
from tests.simulation.process import ProcessLoop
from tests.support.fetching import Recorder
from tests.support.scenes import Scene, played

#: Without sessions, and with them.
OLDEST_AND_NEWEST = ERAS[0], ERAS[-1]
ONE_WAY = 0.0005
#: One way, and before it a response that is on its way and the request after it; a little for the broker.
SOON = 3 * ONE_WAY + 0.0005


class Nodes:
    """The topics' nodes in ZooKeeper: each was created at `created`."""

    def __init__(self) -> None:
        self.created = 1
        self.changed: Callable[[str], None]

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    def refresh(self, topic: str) -> None:
        pass

    async def zxid(self, topic: str) -> int:
        return self.created


class Reading:
    """A pool that reads some partitions of one broker, and when each message came. `room`: batches in a lane."""

    def __init__(self, era: Era, partitions: int, room: int, brokers: int, **settings: Any) -> None:
        self.room = room
        self.kernel = Kernel()
        network = Network(self.kernel, random.Random(1))
        self.kafka = SimulatedKafka(self.kernel, network, era, metadata_lag=0.0)
        for number in range(brokers):
            self.kafka.add_broker(number, Line(ONE_WAY, jitter=0.0))
        self.partitions = self.kafka.add_partitions("events", partitions, random.Random(1))
        for partition in self.partitions:
            self.kafka.lead(partition, 0)
        self.nodes = Nodes()
        self.loop = ProcessLoop(self.kernel, network, "reader")
        self.lanes: list[Lane] = []
        self.settings = FetchSettings(**settings)
        self.counters: Any = None
        self.appended: dict[tuple[TopicPartition, int], float] = {}
        self.delays: dict[tuple[TopicPartition, int], float] = {}
        self.pool: FetchPool
        self.listener = Recorder()
        #: Seconds for which a batch is handled.
        self.handling = 0.0
        #: The log that the positions are of.
        self.log = UNKNOWN_LOG

    def play(self, scene: Callable[[Reading], Awaitable[None]], seconds: float = 60.0) -> None:
        """Run a scene while the pool fetches."""

        async def run() -> None:
            async with self._running():
                await scene(self)

        self.loop.play(run(), seconds)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        clock, client = ProcessClock(self.loop), ClientSettings()
        opener = ChannelOpener(functools.partial(connect, settings=client.connection), client, clock)
        rng = random.Random(1)
        async with ClusterClient([("kafka0", 9092)], opener, client, clock=clock, rng=rng) as cluster:
            self.client = cluster
            self.pool = FetchPool(V08Brokers(cluster, self.settings, clock, rng, self.listener, self.nodes))
            self.counters = self.pool.counters
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self.pool.run())]
                for partition in self.partitions:
                    lane = Lane(partition, ByteBudget(1 << 30), max_bytes=1 << 24, max_batches=self.room)
                    self.lanes.append(lane)
                    self.pool.add(partition, 0, lane, self.log)
                    running.append(tasks.create_task(self._take(partition, lane)))
                yield
                for task in running:
                    task.cancel()

    async def _take(self, partition: TopicPartition, lane: Lane) -> None:
        while True:
            batch = await lane.get()
            for message in batch.messages():
                key = partition, message.offset
                assert key not in self.delays, "delivered twice"
                self.delays[key] = self.kernel.now - self.appended[key]
            if self.handling:
                await asyncio.sleep(self.handling)
            lane.finished(batch)

    def append(self, *numbers: int, payload: bytes = b"message") -> None:
        for number in numbers:
            partition = self.partitions[number]
            self.appended[partition, self.kafka.append(partition, payload)] = self.kernel.now

    def waits(self, *numbers: int) -> bool:
        """Whether the broker has a request for each of these partitions, or of all."""
        logs = [self.kafka.log(each) for number, each in enumerate(self.partitions) if not numbers or number in numbers]
        return all(log.waiting for log in logs)

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.0001)

    async def ready(self) -> None:
        """All are polled, and both connections for it are open."""
        await self.until(self.waits)
        self.pool.pause(self.partitions[-1])
        await asyncio.sleep(0.6)  # the poll under way ends
        self.pool.resume(self.partitions[-1])
        await asyncio.sleep(0.6)  # the poll names all of them again
        await self.until(self.waits)

    async def all_read(self) -> None:
        await self.until(lambda: len(self.delays) == len(self.appended))

    def slowest(self) -> float:
        assert len(self.delays) == len(self.appended)
        return max(self.delays.values())


@pytest.fixture
def reading() -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(era: Era = ERAS[-1], partitions: int = 8, room: int = 10, brokers: int = 1, **settings: Any) -> Reading:
        made.append(Reading(era, partitions, room, brokers, **settings))
        return made[-1]

    yield make
    for each in made:
        each.loop.unwind()


def reads(**options: Any) -> Callable[[Scene], Callable[..., None]]:
    """A test that is a scene of a `Reading` with these options; with the parameter `era`, of brokers of that era."""

    def decorate(scene: Scene) -> Callable[..., None]:
        def play(reading: Callable[..., Reading], **given: Any) -> None:
            era = {"era": given["era"]} if "era" in given else {}
            reading(**era, **options).play(functools.partial(scene, **given))

        return played(scene, play, "reading", without=1)

    return decorate


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads()
async def test_each_message_of_an_idle_partition_is_there_at_once(read: Reading, era: Era) -> None:
    await read.until(read.waits)
    rng = random.Random(2)
    for _ in range(200):
        read.append(rng.randrange(8))
        await asyncio.sleep(rng.expovariate(200))
    await read.all_read()
    assert read.slowest() < SOON


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
def test_polls_confirm_where_the_logs_of_idle_partitions_end(
    reading: Callable[..., Reading], era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[int | None, int]] = []

    async def scene(read: Reading) -> None:
        def look() -> None:
            seen.append(Counter(map(read.pool.known_end, read.partitions)))

        look()  # nothing is fetched yet
        await asyncio.sleep(1.0)
        look()
        read.append(0, 1)
        await read.all_read()
        await asyncio.sleep(1.0)
        look()
        monkeypatch.setattr(_Connection, "serve", lambda *_: None)  # the broker hangs
        await asyncio.sleep(9.0)
        look()
        await asyncio.sleep(3.0)
        look()

    read = reading(era, read_committed=False)
    read.play(scene)
    assert seen == [{None: 8}, {0: 8}, {0: 6, 1: 2}, {0: 6, 1: 2}, {None: 8}]


@reads(read_committed=True)
async def test_polls_do_not_confirm_where_a_log_with_transactions_ends(read: Reading) -> None:
    await asyncio.sleep(1.0)
    assert set(map(read.pool.known_end, read.partitions)) == {None}


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads()
async def test_an_answered_partition_is_in_the_next_poll(read: Reading, era: Era) -> None:
    await asyncio.sleep(1.0)
    await read.until(read.waits)
    before = read.counters.fetches
    for number in range(20):
        read.append(number % 8)
        await read.all_read()
        await asyncio.sleep(4 * ONE_WAY)
        assert read.waits()
    assert read.counters.fetches - before == 20


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads(poll_bytes=100, size=1000)
async def test_partition_that_becomes_idle_does_not_wait_for_the_poll_under_way(read: Reading, era: Era) -> None:
    await read.ready()
    read.append(0, payload=b"x" * 150)  # more than a poll brings: fetched as a busy one, while the others wait
    for _ in range(5):
        read.append(0)
    await read.all_read()
    await asyncio.sleep(2 * ONE_WAY + 0.0002)
    assert read.waits()
    read.append(0)
    await read.all_read()
    read.append(1)
    await read.all_read()
    assert read.slowest() < 4 * SOON  # the first few took several fetches
    assert max(list(read.delays.values())[-2:]) < SOON


@reads(poll_bytes=100, size=1000)
async def test_more_newcomers_wait_for_one_short_poll_at_most(read: Reading) -> None:
    await read.ready()
    for first in (0, 1, 2, 3):
        for _ in range(3):
            read.append(first, payload=b"x" * 90)
        await read.all_read()
        await asyncio.sleep(NEWCOMER_WAIT + 4 * ONE_WAY)
        assert read.waits(0, 1, 2, 3)
    read.append(*range(8))
    await read.all_read()
    assert read.slowest() < NEWCOMER_WAIT + 3 * SOON


@reads(poll_bytes=100, size=1000)
async def test_newcomers_join_the_poll_when_it_ends(read: Reading) -> None:
    await read.until(read.waits)
    for _ in range(3):
        read.append(0, payload=b"x" * 90)
    await read.all_read()
    await asyncio.sleep(0.6)
    before = read.counters.fetches
    await asyncio.sleep(5.0)
    assert read.counters.fetches - before == 10  # one poll in half a second
    assert read.waits()


@reads(poll_bytes=100, size=1000)
async def test_busy_partition_and_idle_ones_do_not_wait_for_each_other(read: Reading) -> None:
    await read.ready()
    for _ in range(2000):
        read.append(0, payload=b"x" * 90)
    rng = random.Random(3)
    for _ in range(100):
        read.append(rng.randrange(1, 8))
        await asyncio.sleep(rng.expovariate(1000))
    assert len(read.delays) < len(read.appended)  # still busy
    await read.all_read()
    idle = [delay for (partition, _), delay in read.delays.items() if partition.partition]
    assert len(idle) == 100
    assert max(idle) < SOON


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads()
async def test_paused_partition_is_not_asked_for_and_resumes_at_once(read: Reading, era: Era) -> None:
    await read.ready()
    read.pool.pause(read.partitions[0])
    await asyncio.sleep(0.6)  # the poll under way ends
    assert not read.kafka.log(read.partitions[0]).waiting
    read.append(0)
    await asyncio.sleep(1.0)
    assert not read.delays
    paused = read.kernel.now
    read.pool.resume(read.partitions[0])
    await read.all_read()
    assert read.kernel.now - paused < SOON
    read.delays[read.partitions[0], 0] = 0.0
    read.append(*range(8))
    await read.all_read()
    assert read.slowest() < SOON


@reads()
async def test_partition_is_paused_and_resumed_within_one_poll(read: Reading) -> None:
    await read.ready()
    for _ in range(3):
        read.pool.pause(read.partitions[0])
        read.pool.resume(read.partitions[0])
        await asyncio.sleep(0.4)
        read.append(0)
        await read.all_read()
    assert read.slowest() < SOON


@reads(room=1)
async def test_partition_without_room_is_asked_for_again_once_there_is(read: Reading) -> None:
    await read.ready()
    read.handling = 0.1
    read.append(0)
    await read.all_read()
    read.append(0)  # is in the lane, which is full, until the first one is handled
    await asyncio.sleep(0.05)
    assert not read.kafka.log(read.partitions[0]).waiting
    read.append(1)
    await asyncio.sleep(SOON)
    assert (read.partitions[1], 0) in read.delays
    await read.all_read()
    read.handling = 0.0
    await asyncio.sleep(0.1)  # the last batch is handled
    await read.until(read.waits, NEWCOMER_WAIT + SOON)


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads(partitions=100)
async def test_waiting_costs_one_small_request_each_time(read: Reading, era: Era) -> None:
    await asyncio.sleep(1.5)
    assert read.waits()
    before = read.counters.fetches
    tasks = len(asyncio.all_tasks())
    await asyncio.sleep(10.0)
    assert read.counters.fetches - before == 20
    assert len(asyncio.all_tasks()) == tasks
    read.append(*range(100))
    await read.all_read()
    assert read.slowest() < SOON


def test_positions_of_many_partitions_are_compared_in_few_requests_to_each_leader(
    reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, list[int]] = {0: [], 1: []}
    compare = _Connection._handlers[OFFSET_FOR_LEADER_EPOCH.key]

    def count(connection: _Connection, version: int, body: Any, reply: Callable[..., None]) -> None:
        asked[connection.broker.number].append(sum(len(topic["partitions"]) for topic in body["topics"]))
        compare(connection, version, body, reply)

    monkeypatch.setitem(_Connection._handlers, OFFSET_FOR_LEADER_EPOCH.key, count)

    async def scene(read: Reading) -> None:
        for partition in read.partitions[:30]:
            read.kafka.lead(partition, 1)
        await read.until(read.waits)

    read = reading(partitions=100, brokers=2)
    read.log = LogId(None, 0)
    read.play(scene)
    assert [sum(asked[broker]) for broker in (0, 1)] == [70, 30]
    assert all(len(requests) <= 2 for requests in asked.values())  # those of the first, and of all that came meanwhile


# -- sessions

#: Those with sessions: topics are named, and named by their ids.
WITH_SESSIONS = ERAS[2:]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each FETCH within a session names."""
    seen: list[int] = []
    continues = FetchSession.continues

    def count(self: FetchSession, epoch: int, named: Any, forgotten: Any, *, by_id: bool) -> int:
        seen.append(len(named))
        return continues(self, epoch, named, forgotten, by_id=by_id)

    monkeypatch.setattr(FetchSession, "continues", count)
    return seen


def sessions(read: Reading, broker: int = 0) -> dict[int, FetchSession]:
    return read.kafka.brokers[broker].sessions


@pytest.mark.parametrize("era", WITH_SESSIONS, ids=lambda era: era.name)
@reads(partitions=20)
async def test_polls_name_what_has_changed_only(read: Reading, named: list[int], era: Era) -> None:
    await asyncio.sleep(1.5)
    named.clear()
    await asyncio.sleep(5.0)
    assert named == [0] * 10
    named.clear()
    read.append(3, 5)
    await read.all_read()
    await asyncio.sleep(5.0)
    assert (sum(named), set(named[2:])) == (2, {0})
    assert len(named) <= 12
    assert [len(session.parts) for session in sessions(read).values()] == [20]
    assert read.kafka.sessions == 1


def test_empty_response_looks_at_no_partition(reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    hand_out = Polls._hand_out

    class Looked(dict[Any, Any]):
        def get(self, place: Any, default: Any = None) -> Any:
            looked.append(place)
            return super().get(place, default)

    def look(self: Polls, fetched: Any, requests: Any, besides: Any, taken: Any) -> Any:
        return hand_out(self, fetched, Looked(requests), besides, taken)

    monkeypatch.setattr(Polls, "_hand_out", look)
    requests: list[Any] = []
    poll = Polls.poll

    def ask(self: Polls, request: Any) -> Any:
        requests.append(request)
        return poll(self, request)

    monkeypatch.setattr(Polls, "poll", ask)

    async def scene(read: Reading) -> None:
        await asyncio.sleep(1.5)
        looked.clear()
        requests.clear()
        await asyncio.sleep(12.0)
        assert looked == requests == []
        read.kafka.add_partitions("other", 1, random.Random(1))
        await read.client.refresh(["other"])  # what is polled is as it was
        await asyncio.sleep(1.2)
        assert looked == requests == []
        read.append(3)
        await read.all_read()
        assert looked == [("events", 3)]

    reading(partitions=20).play(scene)


@pytest.mark.parametrize("era", ERAS, ids=lambda era: era.name)
def test_a_pool_that_ends_leaves_no_session_at_the_brokers(reading: Callable[..., Reading], era: Era) -> None:
    ended = 0.0

    async def scene(read: Reading) -> None:
        nonlocal ended
        read.kafka.lead(read.partitions[0], 1)
        await asyncio.sleep(1.5)
        assert [len(sessions(read, broker)) for broker in (0, 1)] == [era in WITH_SESSIONS] * 2
        assert read.waits()  # each broker holds a poll back, and would do so for some time
        ended = read.kernel.now

    read = reading(era, brokers=2)
    read.play(scene)
    assert sessions(read, 0) == sessions(read, 1) == {}
    assert read.kernel.now - ended < 8 * ONE_WAY + 0.001


def test_a_pool_ends_soon_where_the_broker_does_not_end_its_session(
    reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0.0

    async def scene(read: Reading) -> None:
        nonlocal ended
        await asyncio.sleep(1.5)
        monkeypatch.setattr(_Connection, "serve", lambda *_: None)  # the broker hangs
        ended = read.kernel.now

    read = reading()
    read.play(scene)
    assert read.kernel.now - ended < ClientSettings().connection.close_timeout + 0.1


@pytest.mark.parametrize("error", [70, 71])
@pytest.mark.parametrize("era", WITH_SESSIONS, ids=lambda era: era.name)
@reads()
async def test_session_that_the_broker_does_not_continue_begins_again(read: Reading, era: Era, error: int) -> None:
    await asyncio.sleep(1.0)
    for _ in range(5):
        (session,) = sessions(read).values()
        if error == 70:
            sessions(read).clear()
        else:
            session.epoch += 5
        read.append(1)
        await read.all_read()
        await asyncio.sleep(SOON + 4 * ONE_WAY)
        assert read.waits()
        read.append(*range(8))
        await read.all_read()
        await asyncio.sleep(0.6)
        assert session not in sessions(read).values()
    assert len(sessions(read)) == 1
    assert read.slowest() < SOON + 2 * ONE_WAY
    assert read.counters.errors == {}
    assert read.counters.disconnects == 0


@pytest.mark.parametrize("era", WITH_SESSIONS, ids=lambda era: era.name)
@reads()
async def test_broker_without_room_for_sessions_is_asked_for_all(read: Reading, named: list[int], era: Era) -> None:
    read.kafka.session_slots = 0
    await read.until(read.waits)
    for number in range(8):
        read.append(number)
        await read.all_read()
        await asyncio.sleep(0.3)
    assert named == []
    read.kafka.session_slots = 1
    await asyncio.sleep(1.2)
    assert set(named) == {0}
    assert read.slowest() < SOON
    assert read.counters.errors == {}


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads()
async def test_fetching_continues_when_the_broker_restarts(read: Reading, era: Era) -> None:
    await asyncio.sleep(1.0)
    read.kafka.stop_broker(0)
    await asyncio.sleep(3.0)
    read.kafka.brokers[0].start()
    read.kafka.take_over(random.Random(1))
    read.append(*range(8))
    await read.all_read()
    await asyncio.sleep(1.0)
    read.delays = dict.fromkeys(read.delays, 0.0)
    read.append(*range(8))
    await read.all_read()
    assert len(sessions(read)) == (era in WITH_SESSIONS)
    assert read.slowest() < SOON


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads(brokers=2)
async def test_partitions_that_move_leave_the_session_of_their_former_leader(read: Reading, era: Era) -> None:
    await asyncio.sleep(1.0)
    for number in (1, 2, 3):
        read.kafka.lead(read.partitions[number], 1)
    await asyncio.sleep(3.0)
    read.append(*range(8))
    await read.all_read()
    await asyncio.sleep(1.0)
    assert read.waits()
    if era in WITH_SESSIONS:
        parts = [sorted(n for _, n in each.parts) for broker in (0, 1) for each in sessions(read, broker).values()]
        assert parts == [[0, 4, 5, 6, 7], [1, 2, 3]]
    assert read.slowest() < SOON


@reads()
async def test_removed_partition_leaves_the_session(read: Reading) -> None:
    await asyncio.sleep(1.0)
    await read.pool.remove(read.partitions[0])
    read.append(0, 1)
    await asyncio.sleep(0.6)
    (session,) = sessions(read).values()
    assert sorted(number for _, number in session.parts) == list(range(1, 8))
    assert list(read.delays) == [(read.partitions[1], 0)]


@reads()
async def test_seek_does_not_wait_for_the_poll(read: Reading) -> None:
    read.append(0, 0, 0)
    await read.all_read()
    await read.ready()
    read.delays.clear()
    began = read.kernel.now
    read.pool.seek(read.partitions[0], 0)
    await read.all_read()
    assert read.kernel.now - began < SOON
    await asyncio.sleep(1.0)
    read.append(0)
    began = read.kernel.now
    await read.all_read()
    assert read.kernel.now - began < SOON


def test_topic_that_was_created_again_is_noticed_while_nothing_comes(reading: Callable[..., Reading]) -> None:
    async def scene(read: Reading) -> None:
        await read.ready()
        read.nodes.created = 2
        began = read.kernel.now
        read.nodes.changed("events")
        await read.until(lambda: len(read.listener.events) == 8)
        assert read.kernel.now - began < SOON + NEWCOMER_WAIT
        assert {(event[0], event[2].kind.value) for event in read.listener.events} == {("log_changed", "replaced")}

    reading(ERAS[0]).play(scene)


@reads()
async def test_new_leader_epoch_in_the_metadata_is_compared_while_nothing_comes(read: Reading) -> None:
    await read.ready()
    before = read.kafka.requests["OffsetForLeaderEpoch"]
    read.append(*range(8))
    await read.all_read()
    for partition in read.partitions:
        log = read.kafka.log(partition)
        log.told = log.leader, log.epoch + 1  # as another broker says
    await read.client.refresh(["events"])
    await asyncio.sleep(0.6)
    assert read.kafka.requests["OffsetForLeaderEpoch"] - before >= 8


@reads()
async def test_stale_metadata_are_requested_while_nothing_comes(read: Reading) -> None:
    await read.ready()
    before = read.kafka.requests["Metadata"]
    read.client.stale(["events"])
    await asyncio.sleep(6.0)
    assert read.kafka.requests["Metadata"] == before + 1
    assert read.client.is_fresh("events")


@reads(poll_bytes=400, size=1000, max_answer_bytes=1000)
async def test_partitions_take_turns_where_a_response_has_no_room_for_all(read: Reading) -> None:
    await read.ready()
    for _ in range(50):
        read.append(*range(8), payload=b"x" * 300)
    await read.all_read()
    last = {partition: delay for (partition, offset), delay in read.delays.items() if offset == 49}
    assert max(last.values()) < 2 * min(last.values())


# -- sizes and memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, list[PartitionFetch]]]:
    """Each FETCH: how long the broker may wait, its size, and the partitions that it names."""
    seen: list[tuple[float, int, list[PartitionFetch]]] = []
    send = Exchange.send

    async def note(self: Exchange, channel: Any, partitions: Any, max_bytes: int, wait: float, *rest: Any) -> Any:
        seen.append((wait, max_bytes, list(getattr(partitions, "named", partitions))))
        return await send(self, channel, partitions, max_bytes, wait, *rest)

    monkeypatch.setattr(Exchange, "send", note)
    return seen


@pytest.mark.parametrize(("poll_bytes", "min_bytes", "size"), [(400, 1, 400), (400, 900, 900)])
def test_sizes_of_fetches(
    reading: Callable[..., Reading],
    asked: list[tuple[float, int, list[PartitionFetch]]],
    poll_bytes: int,
    min_bytes: int,
    size: int,
) -> None:
    async def scene(read: Reading) -> None:
        await read.until(read.waits)
        read.append(0, 1)
        await asyncio.sleep(1.2)

    reading(partitions=3, poll_bytes=poll_bytes, min_bytes=min_bytes, size=1000).play(scene)
    assert {each.max_bytes for wait, _, named in asked if not wait for each in named} == {1000}
    assert {each.max_bytes for wait, _, named in asked if wait for each in named} == {size}
    assert asked[-1][:2] == (0.5, 3 * size)


@reads(partitions=1)
async def test_position_of_a_fetch_tells_the_epoch_of_the_last_message_and_the_topic(
    read: Reading, asked: list[tuple[float, int, list[PartitionFetch]]]
) -> None:
    read.kafka.lead(read.partitions[0], None)
    read.kafka.lead(read.partitions[0], 0)  # in another epoch
    read.append(0)
    await read.all_read()
    await asyncio.sleep(1.0)
    first, last = (named[0] for _, _, named in (asked[0], [each for each in asked if each[2]][-1]))
    epoch, topic_id = read.kafka.log(read.partitions[0]).epoch, (1).to_bytes(16, "big")
    assert epoch > 0
    assert (first.topic, first.partition, first.offset, first.last_epoch) == ("events", 0, 0, -1)
    assert (last.offset, last.leader_epoch, last.topic_id, last.last_epoch) == (1, epoch, topic_id, epoch)


@pytest.mark.parametrize("era", OLDEST_AND_NEWEST, ids=lambda era: era.name)
@reads(poll_bytes=400, size=1000)
async def test_memory_is_released_whatever_ends_a_fetch(read: Reading, era: Era) -> None:
    await read.until(read.waits)
    for number in range(8):
        read.append(*range(8), *range(8), payload=b"x" * 300)
        match number % 4:
            case 0:
                read.kafka.stop_broker(0)
                await asyncio.sleep(0.5)
                read.kafka.brokers[0].start()
                read.kafka.take_over(random.Random(1))
            case 1:
                read.kafka.lead(read.partitions[0], None)
                await asyncio.sleep(0.5)
                read.kafka.lead(read.partitions[0], 0)
            case 2:
                read.pool.seek(read.partitions[1], read.pool.position(read.partitions[1]))
        await read.all_read()
    await asyncio.sleep(1.0)
    assert [lane.budget.used for lane in read.lanes] == [0] * 8
    await read.pool.remove(read.partitions[2])
    assert [lane.budget.used for lane in read.lanes] == [0] * 8


def test_handler_has_the_message_before_its_fetcher_continues(
    reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, classified, seen = reading(), V08Source.classified, list[int]()

    def noted(self: V08Source, outcome: FetchOutcome, response: Any, offset: int) -> None:
        if outcome is FetchOutcome.PROGRESS:
            seen.append(len(read.delays))
        classified(self, outcome, response, offset)

    async def scene(read: Reading) -> None:
        await asyncio.sleep(1.0)
        for _ in range(3):
            read.append(0)
            await read.all_read()
            await asyncio.sleep(0.1)

    monkeypatch.setattr(V08Source, "classified", noted)
    read.play(scene)
    assert seen == [1, 2, 3]


def test_handler_has_the_message_before_the_next_poll_is_sent(
    reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []
    read = reading()
    send = Exchange.send

    async def note(self: Exchange, *arguments: Any) -> Any:
        delivered.append(len(read.delays))
        return await send(self, *arguments)

    async def scene(read: Reading) -> None:
        await asyncio.sleep(1.0)
        monkeypatch.setattr(Exchange, "send", note)
        read.append(3)
        await read.all_read()
        await asyncio.sleep(0.1)

    read.play(scene)
    assert delivered == [1]


@reads(partitions=1, poll_bytes=400, size=4000)
async def test_response_that_is_cut_off_is_asked_for_again_as_a_busy_one(
    read: Reading, asked: list[tuple[float, int, list[PartitionFetch]]]
) -> None:
    await read.until(read.waits)
    asked.clear()
    for _ in range(4):
        read.append(0, payload=b"x" * 300)
    await read.all_read()
    await asyncio.sleep(0.1)
    # The first message is answered alone, the next poll brings a part, one fetch the rest, and there is no empty one.
    assert [wait for wait, _, _ in asked] == [0.5, 0.0, 0.5]
