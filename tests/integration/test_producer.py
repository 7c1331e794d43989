"""The producer against a real broker, through broken connections, and with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.demo.ports import free_port
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import ConnectError
from consumerd.net.zk import NotConnected, Session
from consumerd.producer import (
    MessageSizeTooLargeError,
    NoBrokerError,
    NoPartitionError,
    Producer,
    ProducerData,
    ProducerSettings,
    Router,
    StaticRouter,
    UncertainError,
    ZooKeeperRouter,
    key_index,
)
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.fault_proxy import Direction, FaultProxy
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import Codec, FetchRequest, decode_batch, decode_fetch_response, iter_outer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


class Impatient:
    """The system's clock, whose pauses are recorded and end at once."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    def wall(self) -> float:
        return SystemClock().wall()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


def make_broker(log_dir: Path, *, zookeeper: ZooKeeper | None = None, **settings: Any) -> Broker:
    values = {"log_dir": log_dir, "port": 0, "use_zookeeper": False, "flush_messages": 1, "partitions": 2, **settings}
    return Broker(BrokerConfig(**values), clock=SystemClock(), rng=random.Random(1), zookeeper=zookeeper)


def make_producer(router: Router | int, *, clock: Clock | None = None, **settings: Any) -> Producer:
    if isinstance(router, int):
        router = StaticRouter([("127.0.0.1", router)], rng=random.Random(2))
    return Producer(
        router,
        connect=connect,
        clock=clock or SystemClock(),
        rng=random.Random(3),
        settings=ProducerSettings(**settings),
    )


async def stored(port: int, topic: str, partition: int) -> list[bytes]:
    """The payloads of a partition, from the broker."""
    connection = await connect("127.0.0.1", port)
    try:
        answer = decode_fetch_response(await connection.request(FetchRequest(topic, partition, 0, 50_000_000).encode()))
    finally:
        await connection.close()
    return list(decode_batch(answer.data, 0).payloads)


LINES = [b"", b"one", b"\xff\x00\n", b"one", "привет".encode(), b"x" * 100_000]


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, Codec.NONE), (1, Codec.NONE), (1, Codec.GZIP), (1, Codec.SNAPPY), (0, Codec.SNAPPY)],
)
async def test_stores_what_is_sent(tmp_path: Path, magic: int, codec: Codec) -> None:
    async with make_broker(tmp_path) as broker:
        async with make_producer(broker.port, magic=magic, codec=codec) as producer:
            await producer.send("t", LINES, partition=1)
            assert await stored(broker.port, "t", 1) == LINES  # at once: send waits for the broker
            await producer.send("t", [], partition=1)
            await producer.send_all([])
            await producer.send("t", [b"more"], partition=1)
        assert await stored(broker.port, "t", 1) == [*LINES, b"more"]
        connection = await connect("127.0.0.1", broker.port)
        data = decode_fetch_response(await connection.request(FetchRequest("t", 1, 0, 1 << 20).encode())).data
        await connection.close()
        outer = list(iter_outer(data))
        assert {m.codec for m in outer} == {codec}
        assert len(outer) == (7 if codec is Codec.NONE else 2)


async def test_lets_the_broker_choose_a_partition(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker, make_producer(broker.port) as producer:
        for n in range(20):
            await producer.send("t", [b"%d" % n])
        both = [await stored(broker.port, "t", p) for p in (0, 1)]
        assert all(both)
        assert sorted(both[0] + both[1]) == sorted(b"%d" % n for n in range(20))


async def test_sends_several_batches_in_one_request_or_merged(tmp_path: Path) -> None:
    data = [ProducerData("t", [b"%d" % n], partition=n % 2) for n in range(6)] + [
        ProducerData("u", [b"x"], partition=0)
    ]
    for merge in (False, True):
        async with make_broker(tmp_path / str(merge)) as broker:
            async with make_producer(broker.port, codec=Codec.GZIP) as producer:
                await producer.send_all(data, merge=merge)
            assert await stored(broker.port, "t", 0) == [b"0", b"2", b"4"]
            assert await stored(broker.port, "t", 1) == [b"1", b"3", b"5"]
            assert await stored(broker.port, "u", 0) == [b"x"]
            connection = await connect("127.0.0.1", broker.port)
            answer = decode_fetch_response(await connection.request(FetchRequest("t", 0, 0, 1 << 20).encode()))
            await connection.close()
            assert len(list(iter_outer(answer.data))) == (1 if merge else 3)


async def test_rejects_messages_that_a_broker_would_drop(tmp_path: Path) -> None:
    async with make_broker(tmp_path, max_message_bytes=1000) as broker:
        async with make_producer(broker.port, max_message_bytes=1000) as producer:
            with pytest.raises(MessageSizeTooLargeError, match="has 1001 bytes and the limit is 1000"):
                await producer.send_all([ProducerData("t", [b"ok"]), ProducerData("t", [b"x" * 1001])])
            for topic in ("", "..", "a/b"):
                with pytest.raises(InvalidTopicError):
                    await producer.send(topic, [b"x"])
            with pytest.raises(NoPartitionError):
                await producer.send("t", [b"x"], partition=-2)
            await producer.send("t", [b"x" * 1000], partition=0)
        assert [len(p) for p in await stored(broker.port, "t", 0)] == [1000]


async def test_splits_a_batch_that_exceeds_a_request(tmp_path: Path) -> None:
    payloads = [b"%03d" % n * 100 for n in range(200)]
    async with make_broker(tmp_path, max_request_bytes=5000) as broker:
        async with make_producer(broker.port, max_request_bytes=5000) as producer:
            await producer.send("t", payloads, partition=0)
        assert await stored(broker.port, "t", 0) == payloads


async def test_raises_an_uncertain_error_after_all_resends(tmp_path: Path) -> None:
    clock = Impatient()
    async with make_broker(tmp_path) as broker:
        async with make_producer(broker.port, clock=clock) as producer:
            with pytest.raises(UncertainError, match=r"closed the connection.*it may have stored the messages"):
                await producer.send("t", [b"x"], partition=99)
            assert len(clock.pauses) == 2
            await producer.send("t", [b"y"], partition=0)  # it is usable after that
        async with make_producer(broker.port, clock=clock, resends=0) as producer:
            with pytest.raises(UncertainError):
                await producer.send("t", [b"x"], partition=99)
        assert len(clock.pauses) == 2
        assert await stored(broker.port, "t", 0) == [b"y"]


async def test_flush_reports_errors_without_confirmation(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        producer = make_producer(broker.port, confirm=False)
        await producer.send("t", [b"x"], partition=99)
        with pytest.raises(UncertainError):
            await producer.flush()
        await producer.send("t", [b"a"], partition=0)
        await producer.flush()
        assert await stored(broker.port, "t", 0) == [b"a"]
        await producer.flush()  # nothing is open
        await producer.send("t", [b"x"], partition=99)
        await _refused(producer)
        await producer.send("t", [b"b"], partition=0)
        with pytest.raises(UncertainError, match="some may be lost"):
            await producer.close()
        assert await stored(broker.port, "t", 0) == [b"a", b"b"]


async def _refused(producer: Producer) -> None:
    """Wait until the FIN for an unconfirmed request is here."""
    (link,) = producer.sender.links._links.values()
    assert link.connection is not None
    await link.connection.wait_closed()


@pytest.mark.parametrize("confirm", [True, False])
async def test_notices_a_closed_connection_before_the_next_send(tmp_path: Path, confirm: bool) -> None:
    port = free_port()
    async with make_producer(port, confirm=confirm) as producer:
        for life in range(3):
            async with make_broker(tmp_path, port=port):
                await producer.send("t", [b"%d" % life], partition=0)
                await producer.flush()
    async with make_broker(tmp_path, port=port):
        assert await stored(port, "t", 0) == [b"0", b"1", b"2"]


async def test_retries_and_then_names_an_unreachable_broker() -> None:
    clock = Impatient()
    port = free_port()
    async with make_producer(port, clock=clock, retries=4, initial_backoff=0.5, max_backoff=1.0) as producer:
        with pytest.raises(ConnectError, match=f"cannot connect to broker 127.0.0.1:{port}"):
            await producer.send("t", [b"x"])
    assert len(clock.pauses) == 4
    assert all(0 <= pause <= bound for pause, bound in zip(clock.pauses, (0.5, 1.0, 1.0, 1.0), strict=True))


async def test_sends_the_batch_to_a_restarted_broker(tmp_path: Path) -> None:
    port = free_port()
    broker = make_broker(tmp_path, port=port)

    class Reviving(Impatient):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if len(self.pauses) == 3:
                await broker.start()

    async with make_producer(port, clock=Reviving()) as producer:
        await producer.send("t", [b"x"], partition=0)
        assert await stored(port, "t", 0) == [b"x"]
    await broker.stop()


async def test_resends_a_batch_whose_response_is_lost(tmp_path: Path) -> None:
    cuts = iter([True, True, False])

    def cut_answers(direction: Direction, data: bytes) -> bytes:
        if direction is Direction.TO_CLIENT and next(cuts, False):
            proxy.cut(rst=True)
            return b""
        return data

    async with make_broker(tmp_path) as broker:
        proxy = FaultProxy("127.0.0.1", broker.port, hook=cut_answers)
        async with proxy, make_producer(proxy.port, clock=Impatient()) as producer:
            await producer.send("t", [b"a", b"b"], partition=0)
        # At least once: the two tries whose answers were lost had been stored.
        assert await stored(broker.port, "t", 0) == [b"a", b"b"] * 3


async def test_reports_a_batch_as_uncertain_when_the_broker_dies(tmp_path: Path) -> None:
    def die(direction: Direction, data: bytes) -> bytes:
        if direction is Direction.TO_CLIENT:
            proxy.refuse()
            proxy.cut()
        return b"" if direction is Direction.TO_CLIENT else data

    async with make_broker(tmp_path) as broker:
        proxy = FaultProxy("127.0.0.1", broker.port, hook=die)
        async with proxy, make_producer(proxy.port, clock=Impatient()) as producer:
            with pytest.raises(
                UncertainError, match="an earlier attempt may have stored some or all of the messages"
            ) as caught:
                await producer.send("t", [b"a"], partition=0)
            assert isinstance(caught.value.__cause__, ConnectError)
        assert await stored(broker.port, "t", 0) == [b"a"]


async def test_resends_a_request_that_was_lost_half_way(tmp_path: Path) -> None:
    cuts = iter([True])

    def lose_the_end(direction: Direction, data: bytes) -> bytes:
        if direction is Direction.TO_SERVER and next(cuts, False):
            proxy.cut()
            return b""
        return data

    payload = b"x" * 500_000
    async with make_broker(tmp_path) as broker:
        proxy = FaultProxy("127.0.0.1", broker.port, hook=lose_the_end)
        async with proxy, make_producer(proxy.port, clock=Impatient()) as producer:
            await producer.send("t", [payload], partition=0)
        assert await stored(broker.port, "t", 0) == [payload]


async def test_times_out_on_a_hanging_broker(tmp_path: Path) -> None:
    async def hasty(host: str, port: int) -> Any:
        return await connect(host, port, settings=ConnectionSettings(socket_timeout=0.2))

    async with make_broker(tmp_path) as broker, FaultProxy("127.0.0.1", broker.port) as proxy:
        router = StaticRouter([("127.0.0.1", proxy.port)], rng=random.Random(2))
        settings = ProducerSettings(resends=1)
        async with Producer(
            router, connect=hasty, clock=Impatient(), rng=random.Random(3), settings=settings
        ) as producer:
            await producer.send("t", [b"a"], partition=0)
            proxy.stall()
            with pytest.raises(UncertainError, match=r"did not answer within 0\.2 s"):
                await producer.send("t", [b"b"], partition=0)
            proxy.heal()
            await producer.send("t", [b"c"], partition=0)
        payloads = await stored(broker.port, "t", 0)
        assert payloads[0] == b"a"
        assert payloads[-1] == b"c"


async def test_concurrent_sends_share_a_connection_and_survive_a_cancelled_one(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker, FaultProxy("127.0.0.1", broker.port) as proxy:
        async with make_producer(proxy.port) as producer:
            tasks = [asyncio.create_task(producer.send("t", [b"%02d" % n], partition=0)) for n in range(50)]
            tasks[25].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(o) for n, o in enumerate(outcomes) if n != 25] == [type(None)] * 49
        assert proxy.accepted == 1
        payloads = await stored(broker.port, "t", 0)
        assert [p for p in payloads if p != b"25"] == [b"%02d" % n for n in range(50) if n != 25]


# ZooKeeper.


@asynccontextmanager
async def session(connect_string: str, **settings: Any) -> AsyncIterator[Session]:
    async with Session(connect_string, clock=SystemClock(), rng=random.Random(), session_timeout=4.0, **settings) as zk:
        yield zk


async def test_sends_to_partition_0_until_a_new_topic_is_registered(zk_root: str, tmp_path: Path) -> None:
    async with (
        session(zk_root) as zk,
        session(zk_root) as mine,
        make_broker(tmp_path / "0", zookeeper=zk, broker_id=0) as zero,
        make_broker(tmp_path / "1", zookeeper=zk, broker_id=1) as one,
    ):
        router = ZooKeeperRouter(mine, rng=random.Random(5))
        async with make_producer(router) as producer:
            first = await router.route("t", "hello", None)
            assert first == ("127.0.0.1", [zero.port, one.port][key_index("hello", 2)], 0)
            assert {(await router.route("t", None, None))[1:] for _ in range(50)} == {(zero.port, 0), (one.port, 0)}
            sent = 0

            async def known() -> bool:
                """Sends one message for each look, so that one broker registers the topic before the other has it."""
                nonlocal sent
                sent += 1
                await producer.send("t", [b"early"])
                return len({await router.route("t", None, None) for _ in range(100)}) == 4

            await until(known)
            candidates = [(zero.port, 0), (zero.port, 1), (one.port, 0), (one.port, 1)]
            for key in ("a", "hello", "polygenelubricants", "ключ", b"\xff"):
                assert (await router.route("t", key, None))[1:] == candidates[key_index(key, 4)]
            assert {(await router.route("t", None, 1))[1:] for _ in range(50)} == {(zero.port, 1), (one.port, 1)}
            assert {(await router.route("t", None, -1))[1:] for _ in range(50)} == {(zero.port, -1), (one.port, -1)}
            with pytest.raises(NoPartitionError, match="topic 't' has no partition 2: its brokers have 2 each"):
                await producer.send("t", [b"x"], partition=2)
            for n in range(40):
                await producer.send("t", [b"%d" % n], key=str(n))
            by_candidate = [await stored(port, "t", p) for port, p in candidates]
            for n in range(40):
                assert b"%d" % n in by_candidate[key_index(str(n), 4)]
            assert sum(map(len, by_candidate)) == 40 + sent


async def test_follows_a_broker_to_another_port(zk_root: str, tmp_path: Path) -> None:
    async with session(zk_root) as zk, session(zk_root) as mine:
        router = ZooKeeperRouter(mine, rng=random.Random(5))
        async with make_producer(router, clock=Impatient(), retries=3) as producer:
            with pytest.raises(NoBrokerError, match="no live broker is registered in ZooKeeper"):
                await producer.send("t", [b"x"])
            for life in range(3):
                port = free_port()
                async with make_broker(tmp_path, zookeeper=zk, port=port):

                    async def there(port: int = port) -> bool:
                        try:
                            return (await router.route("t", None, 0)).port == port
                        except NoBrokerError:
                            return False

                    await until(there)
                    await producer.send("t", [b"%d" % life], partition=0)
                    assert (await stored(port, "t", 0))[-1] == b"%d" % life


async def test_uses_the_last_known_brokers_without_zookeeper(zookeeper: Any, zk_root: str, tmp_path: Path) -> None:
    through = f"127.0.0.1:{free_port()}/{zk_root.partition('/')[2]}"
    proxy = FaultProxy("127.0.0.1", zookeeper.port, port=int(through.partition("/")[0].partition(":")[2]))
    async with (
        session(zk_root) as zk,
        make_broker(tmp_path, zookeeper=zk) as broker,
        proxy,
        session(through, wait_connected=0.1) as mine,
    ):
        router = ZooKeeperRouter(mine, rng=random.Random(5))
        async with make_producer(router, clock=Impatient()) as producer:
            await producer.send("t", [b"a"], partition=0)
            await zk.create("/brokers/ids/7", b"127.0.0.1:1")  # a change that cannot be read any more
            proxy.stall()
            suspended = asyncio.Event()
            mine.subscribe(lambda *_: suspended.set())
            proxy.refuse()
            proxy.cut()
            await suspended.wait()
            router._brokers._changed()
            await producer.send("t", [b"b"], partition=0)
            with pytest.raises(NotConnected):  # nothing is known of this one
                await producer.send("u", [b"c"], partition=0)
            proxy.heal()
            assert await stored(broker.port, "t", 0) == [b"a", b"b"]
