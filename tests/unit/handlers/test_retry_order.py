"""The order of keys through retry topics: topics in memory, stages that are killed at any moment, and the bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, DeadLetters, Handler, HandlerContext, Letter, RetryPolicy, retrying
from consumerd.handlers.messages import KeyedMessage
from consumerd.handlers.retry_order import Bounds, RetryLogs, RetryOrder, Waiting
from consumerd.handlers.sparse_content import SparseContent
from consumerd.testing.clock import FakeClock

#: A message: its key, and its number among those of the key.
Sent = tuple[bytes | None, int]
WAY = ("t", "later-1", "later-2")


class Cluster:
    """Topics of one partition each, with the group's offsets. `settled`: what was handled, or failed for good."""

    def __init__(self, *sent: Sent) -> None:
        self.logs: dict[str, list[tuple[Sent, float]]] = {name: [] for name in WAY}
        self.logs["t"] = [(each, 0.0) for each in sent]
        self.committed = dict.fromkeys(WAY, 0)
        self.settled: list[Sent] = []
        self.handled: list[tuple[str, Sent]] = []
        self.fails: set[bytes | None] = set()

    def batch(self, topic: str, count: int) -> Batch | None:
        start = self.committed[topic]
        place = TopicPartition.numbered(topic, 0)
        messages = [
            KeyedMessage(place, start + n, 0, start + n + 1, b"%d" % sent[1], sent[0], -1, -1, ())
            for n, (sent, _) in enumerate(self.logs[topic][start : start + count])
        ]
        return Batch(place, SparseContent(messages, contiguous=True)) if messages else None


class Logs(RetryLogs):
    """What the cluster tells of its retry topics. `fails`: how often it does not answer; `reads` are counted.

    `behind`: says how old the committed offsets are, as those of a ZooKeeper server that lags behind; 0 for none.
    """

    def __init__(self, cluster: Cluster, behind: Callable[[], int] = lambda: 0) -> None:
        self.cluster, self.fails, self.reads, self.bounded = cluster, 0, 0, 0
        self.behind = behind
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        self.bounded += 1
        if self.fails:
            self.fails -= 1
            raise BrokerError("no broker answers")
        start = max(0, self.cluster.committed[topic] - self.behind())
        await asyncio.sleep(0)
        return {TopicPartition.numbered(topic, 0): Bounds(start, len(self.cluster.logs[topic]))}

    async def read(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[list[Waiting]]:
        for offset in range(start, end):
            self.reads += 1
            (key, _), failed_at = self.cluster.logs[partition.topic][offset]
            yield [Waiting(offset, key, failed_at)]


class Next(DeadLetters):
    """Writes to the topic behind `topic`, from the last one to the dead letters."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.after = cluster, WAY[WAY.index(topic) + 1 :]
        self.letters: list[Letter] = []

    async def start(self) -> None: ...

    async def write(self, letters: Sequence[Letter]) -> None:
        self.letters += letters
        await asyncio.sleep(0)
        for each in letters:
            sent = each.message.key, int(each.message.payload)
            if self.after:
                self.cluster.logs[self.after[0]].append((sent, each.failed_at or 0.0))
            else:
                self.cluster.settled.append(sent)

    async def stop(self) -> None: ...


class Picky(Handler):
    """Fails for some keys, and counts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def handle(self, batch: Batch) -> None:
        for number, message in enumerate(batch.messages()):
            await asyncio.sleep(0)
            if message.key in self.cluster.fails:
                raise ValueError("not yet")
            sent = message.key, int(message.payload)
            self.cluster.handled.append((message.topic, sent))
            self.cluster.settled.append(sent)
            batch.mark(number + 1)


class Whole(Picky):
    """Fails for a batch with some keys, and does not count."""

    async def handle(self, batch: Batch) -> None:
        if self.cluster.fails & {message.key for message in batch.messages()}:
            raise ValueError("not yet")
        self.cluster.handled += [(each.topic, (each.key, int(each.payload))) for each in batch.messages()]


def stage(
    cluster: Cluster,
    topic: str,
    clock: FakeClock,
    handler: Handler | None = None,
    behind: Callable[[], int] = lambda: 0,
    **settings: Any,
) -> tuple[Handler, RetryOrder | None, Next, Logs]:
    later, logs, place = WAY[WAY.index(topic) + 1 :], Logs(cluster, behind), Next(cluster, topic)
    order = RetryOrder(logs, later, clock, **settings) if later else None
    policy = RetryPolicy(max_attempts=1, on_failure="retry_topic" if later else "dead_letter")
    inner = handler or Picky(cluster)
    return (
        retrying(inner, policy, clock=clock, rng=random.Random(1), dead_letters=place, order=order),
        order,
        place,
        logs,
    )


def numbers(cluster: Cluster, key: bytes) -> list[int]:
    """The messages of a key in the order in which they were first handled."""
    return list(dict.fromkeys(sent[1] for _, sent in cluster.handled if sent[0] == key))


async def deliver(cluster: Cluster, handler: Handler, topic: str, count: int = 100) -> None:
    batch = cluster.batch(topic, count)
    assert batch is not None
    await handler.handle(batch)
    cluster.committed[topic] = batch.next_offset


@pytest.mark.parametrize("kind", [Picky, Whole])
async def test_what_follows_a_failed_message_waits_behind_it_and_others_do_not(kind: type[Picky]) -> None:
    cluster, clock = Cluster((b"a", 0), (b"b", 0), (b"a", 1), (None, 0), (b"b", 1), (b"c", 0)), FakeClock(auto=True)
    cluster.fails = {b"a"}
    handler, _, place, _ = stage(cluster, "t", clock, kind(cluster))
    await deliver(cluster, handler, "t", 1)
    await deliver(cluster, handler, "t")
    assert [sent for _, sent in cluster.handled] == [(b"b", 0), (None, 0), (b"b", 1), (b"c", 0)]
    assert [sent for sent, _ in cluster.logs["later-1"]] == [(b"a", 0), (b"a", 1)]
    assert [letter.attempts for letter in place.letters] == [1, 0]
    assert place.letters[1].failed_at == clock.wall()  # it is due when the one that failed is


async def test_a_key_is_free_again_when_its_messages_are_committed_in_all_topics() -> None:
    cluster, clock = Cluster((b"a", 0), (b"a", 1)), FakeClock(auto=True)
    cluster.fails = {b"a"}
    first, order, _, logs = stage(cluster, "t", clock)
    assert order is not None
    second, third = (stage(cluster, topic, clock)[0] for topic in WAY[1:])
    await deliver(cluster, first, "t", 1)
    await deliver(cluster, second, "later-1")
    cluster.fails = set()
    clock.now += 5.0
    await deliver(cluster, first, "t")  # it waits in the second topic
    assert [sent for sent, _ in cluster.logs["later-1"]] == [(b"a", 0), (b"a", 1)]
    await deliver(cluster, second, "later-1")
    assert [sent for sent, _ in cluster.logs["later-2"]] == [(b"a", 0), (b"a", 1)]
    await deliver(cluster, third, "later-2")
    cluster.logs["t"] += [((b"a", 2), 0.0), ((b"a", 3), 0.0)]
    await deliver(cluster, first, "t", 1)  # what the last pass found holds for a second
    assert [sent for sent, _ in cluster.logs["later-1"]][2:] == [(b"a", 2)]
    await deliver(cluster, second, "later-1")
    await deliver(cluster, third, "later-2") if cluster.batch("later-2", 1) else None
    clock.now += 1.0
    looked = logs.bounded
    await deliver(cluster, first, "t")
    assert logs.bounded > looked
    assert numbers(cluster, b"a") == [0, 1, 2, 3]
    assert cluster.handled[-1] == ("t", (b"a", 3))
    read = logs.reads
    await order.begin()
    assert logs.reads == read  # nothing is read twice


async def test_a_partition_begins_with_the_keys_that_a_former_owner_wrote() -> None:
    cluster, clock = Cluster((b"a", 0), (b"a", 1), (b"b", 0)), FakeClock(auto=True)
    mine, _, _, logs = stage(cluster, "t", clock)
    assert await mine.position(TopicPartition.numbered("t", 0)) is None
    cluster.logs["later-2"].append(((b"a", 0), 7.0))
    cluster.committed["t"] = 1
    logs.fails = 2
    with capture_logs() as logged:
        assert await mine.position(TopicPartition.numbered("t", 0)) is None
    assert [each["event"] for each in logged] == ["retry_keys_unavailable"] * 2
    await deliver(cluster, mine, "t")
    assert cluster.handled == [("t", (b"b", 0))]
    assert cluster.logs["later-1"] == [((b"a", 1), 7.0)]


async def test_nothing_is_handled_beyond_the_number_of_keys_until_some_are_done() -> None:
    cluster, clock = Cluster((b"a", 0), (b"b", 0), (b"c", 0), (b"d", 0)), FakeClock()
    cluster.fails = {b"a", b"b"}
    handler, order, _, _ = stage(cluster, "t", clock, most=2)
    assert order is not None
    await deliver(cluster, handler, "t", 2)
    with capture_logs() as logged:
        waits = asyncio.create_task(deliver(cluster, handler, "t"))
        while not clock.sleepers:
            await asyncio.sleep(0)
        assert cluster.handled == []
        cluster.logs["later-2"] += [((b"%d" % n, 0), 0.0) for n in range(3)]
        await clock.advance(1.0)
        while not clock.sleepers:
            await asyncio.sleep(0)
        assert cluster.handled == []
        assert "retry_keys_exceeded" in {each["event"] for each in logged}
    cluster.committed |= {"later-1": 2, "later-2": 2}
    await clock.advance(1.0)
    await waits
    assert cluster.handled == [("t", (b"c", 0)), ("t", (b"d", 0))]
    assert order.failed_at(b"2") is not None
    assert order.failed_at(b"a") is None


async def test_a_key_that_is_added_during_a_pass_waits_after_it() -> None:
    class Adding(Logs):
        async def bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
            found = await super().bounds(topic)
            order.add([b"a", None])
            return found

    clock = FakeClock()
    order = RetryOrder(Adding(Cluster()), WAY[1:], clock)
    await order.begin()
    assert order.failed_at(b"a") == clock.wall()
    assert order.failed_at(None) is None


async def test_begins_and_ends_with_the_handler(clock: Any) -> None:
    handler, _, _, logs = stage(Cluster(), "t", clock)
    await handler.start(HandlerContext("g", "m", clock))
    await handler.stop()
    assert logs.calls == ["start", "stop"]


@pytest.mark.parametrize("seed", range(120))
async def test_keys_keep_their_order_whatever_is_killed(seed: int) -> None:
    """Every second time committed offsets may be old ones, as those that ZooKeeper's servers return."""
    rng, clock = random.Random(seed), FakeClock(auto=True)
    lags = seed % 2 == 1

    def behind() -> int:
        return rng.choice((0, 0, 1, 5)) if lags else 0

    keys = [b"a", b"b", b"c", None]
    counts = dict.fromkeys(keys, 0)
    cluster = Cluster()
    for _ in range(60):
        key = rng.choice(keys)
        cluster.logs["t"].append(((key, counts[key]), 0.0))
        counts[key] += 1
    handlers = {topic: stage(cluster, topic, clock, behind=behind)[0] for topic in WAY}
    for turn in range(400):
        cluster.fails = set(rng.sample(keys, rng.randrange(3))) if turn < 200 else set()
        topic = rng.choice(WAY)
        batch = cluster.batch(topic, rng.randrange(1, 8))
        if batch is None:
            continue
        work = asyncio.create_task(handlers[topic].handle(batch))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
                cluster.committed[topic] = batch.prefix(rng.randint(0, batch.handled))
                handlers[topic] = stage(cluster, topic, clock, behind=behind)[0]  # the next owner's
                continue
        await work
        cluster.committed[topic] = batch.next_offset
        clock.now += rng.random()
    assert cluster.committed["t"] == 60
    for key in (b"a", b"b", b"c"):
        # A copy that a kill left of a message may come after it.
        assert list(dict.fromkeys(number for each, number in cluster.settled if each == key)) == [*range(counts[key])]
