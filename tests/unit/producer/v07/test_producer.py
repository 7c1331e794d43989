"""The synchronous producer of 0.7, and what its settings allow."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer import CallbackHandler, ProducerData, ProducerSettings, QueueSettings, Route, Router, WhenFull
from consumerd.producer.errors import EncodingError, NoBrokerError, NoPartitionError, UncertainError
from consumerd.producer.v07.routing import ANY_PARTITION, ZooKeeperRouter
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import Codec, FetchRequest


async def test_confirms_by_a_fetch_of_a_partition_that_every_broker_has(world: Any) -> None:
    async with world.producer() as producer:
        await producer.send("t", [b"x"], partition=3)
    probes = [request for request in world.broker.requests if isinstance(request, FetchRequest)]
    assert [(probe.topic, probe.partition, probe.offset, probe.max_size) for probe in probes] == [("t", 0, 0, 0)]


@pytest.mark.parametrize("given", [{"headers": (("h", b"v"),)}, {"timestamp": 7}])
async def test_sends_nothing_of_data_that_0_7_cannot_store(world: Any, given: dict[str, Any]) -> None:
    async with world.producer() as producer:
        for data in ([b"x"], [None]):
            with pytest.raises(EncodingError, match="do not support headers or timestamps"):
                await producer.send("t", data, **given)
        with pytest.raises(InvalidTopicError):
            await producer.send_all([ProducerData("t", [b"x"]), ProducerData("a/b", [b"x"])])
        assert world.produced == []


async def test_end_of_the_block_confirms_what_was_sent(world: Any) -> None:
    async with world.producer(confirm=False) as producer:
        await producer.send("t", [b"x"])
        assert not any(isinstance(request, FetchRequest) for request in world.broker.requests)
    assert isinstance(world.broker.requests[-1], FetchRequest)
    assert not world.broker.connections

    async def lose() -> None:
        async with world.producer(confirm=False) as producer:
            await producer.send("t", [b"x"])
            world.broker.abort()

    with pytest.raises(UncertainError):
        await lose()


async def test_error_of_the_block_matters_more_than_unconfirmed_messages(world: Any) -> None:
    async def fail() -> None:
        async with world.producer(confirm=False) as producer:
            await producer.send("t", [b"x"], partition=0)
            world.broker.abort()
            await producer.send("t", [b"y"], partition=0)
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert not world.broker.connections
    assert not any(isinstance(request, FetchRequest) for request in world.broker.requests)


async def test_sends_nothing_of_an_empty_batch(world: Any) -> None:
    async with world.producer() as producer:
        await producer.send("t", [])
        assert world.broker.requests == []
        await producer.send_all([ProducerData("t", []), ProducerData("t", [b"x"]), ProducerData("u", [])])
    assert world.produced == [[("t", ANY_PARTITION, [b"x"])]]


class Highest(random.Random):
    """Every pause is the longest that may be drawn."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0.0
        return b


async def test_tries_an_unavailable_broker_again_after_growing_pauses(world: Any) -> None:
    world.rng, world.clock.auto, world.broker.away = Highest(1), True, True
    async with world.producer(retries=6) as producer:
        with capture_logs() as logs, pytest.raises(ConnectError):
            await producer.send("t", [b"x"])
    assert world.clock.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert [(each["event"], each["attempt"]) for each in logs] == [("send_retried", n) for n in range(1, 7)]
    assert all("cannot connect to broker memory:1" in each["reason"] for each in logs)


def cut(world: Any, confirmations: int, then_away: bool = False) -> None:
    """Lose the connection instead of so many confirmations; the broker may be away afterwards."""
    left = confirmations

    def answer(request: Any) -> Exception | None:
        nonlocal left
        if left and isinstance(request, FetchRequest):
            left -= 1
            world.broker.away = then_away and not left
            return ConnectionClosedError("cut", blamed=True)
        return None

    world.broker.on_request = answer


async def test_batch_whose_fate_is_unknown_is_sent_again_as_often_as_the_settings_say(world: Any) -> None:
    world.clock.auto = True
    async with world.producer(resends=2, retries=0) as producer:
        cut(world, 2)
        with capture_logs() as logs:
            await producer.send("t", [b"a"])
        assert [(each["event"], each["attempt"]) for each in logs] == [("send_retried", 1), ("send_retried", 2)]
        assert all("it may have stored the messages" in each["reason"] for each in logs)
        cut(world, 3)
        with pytest.raises(UncertainError, match="it may have stored the messages"):
            await producer.send("t", [b"b"])
    assert world.stored("t") == [b"a"] * 3 + [b"b"] * 3


async def test_tries_after_an_uncertain_one_and_those_without_a_broker_are_counted_apart(world: Any) -> None:
    world.clock.auto = True
    connect, attempts = world.broker.connect, 0

    async def counted(host: str, port: int) -> Any:
        nonlocal attempts
        attempts += 1
        return await connect(host, port)

    world.broker.connect = counted
    async with world.producer(resends=1, retries=2) as producer:
        cut(world, 1, then_away=True)
        with pytest.raises(UncertainError, match="an earlier attempt may have stored") as caught:
            await producer.send("t", [b"a"])
        assert isinstance(caught.value.__cause__, ConnectError)
    assert attempts == 1 + 3
    assert world.stored("t") == [b"a"]


class Numbered(Router):
    """Each batch without a key goes to the next partition, one with a key to partition 100; all brokers have all."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, int | None]] = []

    async def route(self, topic: str, key: Any, partition: int | None) -> Route:
        self.asked.append((topic, key, partition))
        return Route("memory", 1, len(self.asked) if key is None else 100)

    async def close(self) -> None:
        return


@pytest.mark.parametrize("merge", [False, True])
async def test_merging_joins_what_goes_to_one_partition(world: Any, merge: bool) -> None:
    data = [
        ProducerData("t", [b"a"]),
        ProducerData("t", [b"b"], key="k"),
        ProducerData("t", [b"c"]),
        ProducerData("u", [b"d"], key="k"),
        ProducerData("t", [b"e"], key="l"),
    ]
    router = Numbered()
    async with world.producer(router) as producer:
        await producer.send_all(data, merge=merge)
    assert len(router.asked) == (4 if merge else 5)
    joined = [("t", 1, [b"a", b"c"]), ("t", 100, [b"b", b"e"]), ("u", 100, [b"d"])]
    alone = [("t", 1, [b"a"]), ("t", 100, [b"b"]), ("t", 3, [b"c"]), ("u", 100, [b"d"]), ("t", 100, [b"e"])]
    assert world.produced == [joined if merge else alone]


async def test_sends_two_batches_in_one_request_and_closes_the_router(world: Any) -> None:
    closed = []

    class Closed(Numbered):
        async def close(self) -> None:
            closed.append(True)

    async with world.producer(Closed()) as producer:
        await producer.send_all([ProducerData("t", [b"a"]), ProducerData("t", [b"b"])])
    assert world.produced == [[("t", 1, [b"a"]), ("t", 2, [b"b"])]]
    assert closed == [True]


async def test_defaults_are_those_of_0_7_2_where_it_has_the_setting() -> None:
    assert asdict(ProducerSettings()) == {
        "codec": Codec.NONE,
        "compressed_topics": frozenset(),
        "magic": 1,
        "max_message_bytes": 1_000_000,
        "max_request_bytes": 104_857_600,
        "confirm": True,
        "verify": False,
        "verify_timeout": 15.0,
        "retries": 5,
        "resends": 2,
        "initial_backoff": 0.1,
        "max_backoff": 2.0,
    }
    assert asdict(QueueSettings()) == {
        "batch_size": 200,
        "queue_time": 5.0,
        "queue_size": 10_000,
        "when_full": WhenFull.BLOCK,
        "enqueue_timeout": 0.0,
    }


class Silent(CallbackHandler):
    def before_sending_data(self, events: Any) -> Any:
        return []


async def test_batch_of_which_callbacks_leave_nothing_is_not_sent(world: Any) -> None:
    async with world.queued(callbacks=Silent()) as producer:
        await producer.send("t", [b"x"])
        await producer.flush()
        assert (producer.stats.batches, producer.stats.sent) == (0, 0)
    assert world.produced == []


async def test_codec_is_for_all_topics_or_those_that_are_named() -> None:
    assert ProducerSettings(codec=Codec.GZIP).codec_for("t") is Codec.GZIP
    named = ProducerSettings(codec=Codec.GZIP, compressed_topics=frozenset({"t"}))
    assert [named.codec_for(topic) for topic in ("t", "u")] == [Codec.GZIP, Codec.NONE]


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"queue_size": 0}])
async def test_rejects_queues_without_room(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a positive whole number, not 0"):
        QueueSettings(**given)
    least: dict[str, Any] = dict.fromkeys(given, 1)
    QueueSettings(**least)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"magic": 2}, "magic must be a whole number from 0 to 1, not 2"),
        ({"retries": -1}, "retries must be 0 or a positive whole number, not -1"),
        ({"verify_timeout": -1.0}, "verify_timeout must be 0 or a positive number of seconds, not -1.0"),
        ({"max_request_bytes": 0}, "max_request_bytes must be a positive whole number of bytes, not 0"),
    ],
)
async def test_rejects_settings_out_of_bounds(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        ProducerSettings(**given)


async def routes(zookeeper: MemoryZooKeeper, key: Any, partition: int | None) -> set[tuple[str, int]]:
    """The hosts and partitions that a router chooses, in many attempts."""
    session = zookeeper.session()
    await session.start()
    try:
        router = ZooKeeperRouter(session, rng=random.Random(1))
        found = [await router.route("t", key, partition) for _ in range(60)]
        await router.close()
        return {(route.host, route.partition) for route in found}
    finally:
        await session.close()


async def test_routes_to_the_partitions_of_live_brokers_and_to_the_first_of_those_without_the_topic() -> None:
    zookeeper = MemoryZooKeeper()
    for broker in (1, 2, 3):
        zookeeper.put(f"/brokers/ids/{broker}", b"creator:h%d:9092" % broker)
    assert await routes(zookeeper, None, None) == {("h1", 0), ("h2", 0), ("h3", 0)}
    assert await routes(zookeeper, None, 5) == {("h1", 5), ("h2", 5), ("h3", 5)}
    for broker, count in ((1, b"2"), (2, b"1"), (4, b"3")):  # 4 is not alive
        zookeeper.put(f"/brokers/topics/t/{broker}", count)
    assert await routes(zookeeper, None, None) == {("h1", 0), ("h1", 1), ("h2", 0), ("h3", 0)}
    assert await routes(zookeeper, None, ANY_PARTITION) == {(f"h{n}", ANY_PARTITION) for n in (1, 2, 3)}
    assert await routes(zookeeper, None, 1) == {("h1", 1)}
    with pytest.raises(NoPartitionError, match="no partition 3: its brokers have 3 each"):
        await routes(zookeeper, None, 3)
    with pytest.raises(NoBrokerError, match="broker 4"):  # a key does not move to another broker
        await routes(zookeeper, b"k", 2)
