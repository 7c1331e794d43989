"""The producer for brokers of 0.8 and later by the methods of the others, on brokers in memory."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError
from consumerd.demo.ports import free_port
from consumerd.producer import (
    CallbackHandler,
    ClusterProducer,
    DefaultEventHandler,
    EncodingError,
    NotSentError,
    PartitionerError,
    ProducerClosedError,
    ProducerConfig,
    ProducerData,
    ProducerSettings,
    V08Producer,
    V08ProducerSettings,
    load_partitioner,
    open_producer,
)
from consumerd.producer.v08.routing import key_partition
from consumerd.wire.v07 import Codec
from consumerd.wire.v08.records import RecordCodec
from tests.unit.producer.v08.test_producer import PARTITIONS, MemoryCluster

AT: dict[str, Any] = {"bootstrap": ["kafka1:9092"]}


def producer(cluster: Any, *, partitioner: Any = None, background: bool = False, **settings: Any) -> ClusterProducer:
    v08 = V08Producer(cluster, V08ProducerSettings(**settings), clock=SystemClock(), rng=random.Random(1))
    chosen = None if partitioner is None else load_partitioner(partitioner)
    if background:
        return ClusterProducer(v08, partitioner=chosen, background=True)
    return ClusterProducer(v08, partitioner=chosen)


class Refusing(MemoryCluster):
    async def node_channel(self, node_id: int) -> Self:
        raise BrokerError("not today")

    def open_node_channel(self, node_id: int) -> None:
        return None


async def test_send_stores_keys_headers_and_timestamps_before_it_returns() -> None:
    cluster = MemoryCluster()
    async with producer(cluster) as ours:
        await ours.send("t", ["text", b"bytes", None], key="k", headers=(("h", b"v"),), timestamp=7)
        place = key_partition(b"k", PARTITIONS)
        assert [(each.payload, each.key, each.timestamp, each.headers) for each in cluster.log[place]] == [
            (payload, b"k", 7, (("h", b"v"),)) for payload in (b"text", b"bytes", None)
        ]
        await ours.send_all([ProducerData("t", [b"x"], partition=n, timestamp=n) for n in range(PARTITIONS)])
        assert [cluster.log[n][-1].timestamp for n in range(PARTITIONS)] == [0, 1, 2]
        await ours.send("t", [])
        for payload, key, words in (
            (5, None, "a message must be bytes or text, not int"),
            (b"x", 5, "a key must be text or bytes, not int"),
            (b"x", "\ud800", "a key or the name of a header cannot be encoded as UTF-8"),
        ):
            with pytest.raises(EncodingError, match=words):
                await ours.send("t", [payload], key=key)
        invalid: list[dict[str, Any]] = [
            {"timestamp": "now"},
            {"timestamp": 1 << 63},
            {"timestamp": -2},
            {"headers": {"a": b"b"}},
            {"headers": [("a", "b")]},
            {"headers": [(b"a", b"b")]},
            {"headers": [("\ud800", b"b")]},
            {"headers": [("a", b"b", b"c")]},
        ]
        for fields in invalid:
            with pytest.raises(EncodingError, match=r"^a (timestamp must be|header must|key or the name of a header)"):
                await ours.send("t", [b"x"], **fields)
        with pytest.raises(TypeError, match="brackets"):
            await ours.send("t", b"x")
        assert sum(map(len, cluster.log.values())) == 6
        pairs: Any = (pair for pair in (("h", b"v"), ("n", None)))
        await ours.send("t", [b"x"], key=b"\xff", partition=0, headers=pairs)
        assert (cluster.log[0][-1].key, cluster.log[0][-1].headers) == (b"\xff", (("h", b"v"), ("n", None)))


async def test_partitioner_chooses_among_the_partitions_of_the_topic() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, partitioner=lambda key, count: int(key) % count) as ours:
        await ours.send("t", [b"x"], key="5")
        assert [len(cluster.log[n]) for n in range(PARTITIONS)] == [0, 0, 1]
    async with producer(cluster, partitioner=lambda key, count: count) as ours:
        with pytest.raises(PartitionerError, match="must return a number from 0 to 2, not 3"):
            await ours.send("t", [b"x"], key="5")


async def test_background_send_reports_a_failed_batch_once() -> None:
    ours = producer(Refusing(), background=True, delivery_timeout=0.05)
    async with ours:
        await ours.send("t", [b"1", b"2"], partition=0)
        await ours.send("t", [b"3"], partition=0)
        await ours.send("t", [b"4"], partition=1)
        with pytest.raises(NotSentError, match=r"4 queued messages were not sent.*not today") as caught:
            await ours.flush()
        assert caught.value.count == 4
        await ours.flush()
        await ours.send("t", [b"5"])
        with pytest.raises(NotSentError):
            await ours.close()


async def test_background_send_logs_a_failed_batch_before_the_next_flush() -> None:
    async with producer(Refusing(), background=True, delivery_timeout=0.01, linger=0) as ours, asyncio.timeout(60):
        with capture_logs() as logs:
            await ours.send("t", [b"1", b"2"], partition=0)
            await asyncio.wait(ours._producer._sender.unsettled())
            await asyncio.sleep(0)
        assert [(each["messages"], each["topics"]) for each in logs if each["event"] == "messages_not_sent"] == [
            (2, ["t"])
        ]
        with pytest.raises(NotSentError, match="2 queued messages"):
            await ours.flush()


async def test_foreground_send_raises_an_error_that_flush_does_not_repeat() -> None:
    with capture_logs() as logs:
        async with producer(Refusing(), delivery_timeout=0.05) as ours:
            with pytest.raises(BrokerError, match="not today"):
                await ours.send("t", [b"1", b"2"], partition=0)
            await ours.flush()
    assert "messages_not_sent" not in [each["event"] for each in logs]


class SlowSecond(MemoryCluster):
    """Takes a batch of partition 1 when `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()

    async def call(self, api: Any, body: dict[str, Any], **rest: Any) -> dict[str, Any]:
        if self.asked.is_set():
            await self.open.wait()
        return await super().call(api, body, **rest)


async def test_flush_returns_while_a_later_batch_is_on_its_way() -> None:
    cluster = SlowSecond()
    cluster.taking.clear()
    async with producer(cluster, background=True, linger=3600) as ours, asyncio.timeout(10):
        await ours.send("t", [b"1"], partition=0)
        flushing = asyncio.create_task(ours.flush())
        await cluster.asked.wait()
        await ours.send("t", [b"2"], partition=1)
        cluster.taking.set()
        await flushing
        assert (len(cluster.log[0]), len(cluster.log[1])) == (1, 0)
        cluster.open.set()
    assert len(cluster.log[1]) == 1


@pytest.mark.parametrize(
    ("background", "error", "stored"),
    [
        (False, None, 1),
        (True, None, 1),
        (True, ValueError, 1),
        (True, asyncio.CancelledError, 0),
        (False, ValueError, 0),
        (False, asyncio.CancelledError, 0),
    ],
)
async def test_end_of_the_block_sends_what_was_accepted_or_nothing_more(
    background: bool, error: type[BaseException] | None, stored: int
) -> None:
    """An error in the block ends what waits in the foreground; in the background only a cancellation does."""
    cluster = MemoryCluster()
    ours = producer(cluster, background=background, linger=3600)
    with pytest.raises(error) if error else nullcontext():
        async with asyncio.timeout(60), ours:
            sending = asyncio.create_task(ours.send("t", [b"x"], partition=0))
            while not ours._producer.buffered_bytes and not sending.done():
                await asyncio.sleep(0)
            if error is not None:
                raise error
    async with asyncio.timeout(60):
        (result,) = await asyncio.gather(sending, return_exceptions=True)
        assert len(cluster.log[0]) == stored
        assert result is None if background or stored else isinstance(result, ProducerClosedError)
        with pytest.raises(ProducerClosedError):
            await ours.send("t", [b"y"], partition=0)


async def test_failed_last_flush_is_logged_beside_the_error_of_the_block() -> None:
    ours = producer(Refusing(), background=True, delivery_timeout=0.01)
    await ours.__aenter__()
    await ours.send("t", [b"1"])
    error = ValueError("mine")
    with capture_logs() as logs:
        await ours.__aexit__(ValueError, error, None)
    assert logs[-1]["event"] == "producer_close_failed"
    assert "1 queued message was not sent" in logs[-1]["reason"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**AT, "zookeeper": "zk1"}, "exactly one of brokers .* and bootstrap"),
        ({}, "exactly one of brokers .* and bootstrap"),
        ({"bootstrap": "kafka1:9092"}, "bootstrap must be a list of brokers"),
        (
            {**AT, "settings": ProducerSettings(verify=True)},
            "settings.verify is supported by brokers of Kafka 0.7 only",
        ),
        (
            {**AT, "background": True, "callbacks": CallbackHandler()},
            "callbacks is supported by brokers of Kafka 0.7 only",
        ),
        (
            {**AT, "background": True, "event_handler": DefaultEventHandler()},
            "event_handler is supported by brokers of Kafka 0.7 only",
        ),
        (
            {**AT, "settings": ProducerSettings(compressed_topics=frozenset("t"))},
            "settings.compressed_topics is supported by brokers of Kafka 0.7 only",
        ),
        ({"zookeeper": "zk1", "dialect": "0.9"}, "dialect must be one of auto, 0.7, 0.8, not '0.9'"),
    ],
)
def test_rejects_contradicting_settings(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProducerConfig(**given)


def test_takes_codec_and_acks_from_the_common_settings() -> None:
    config = ProducerConfig(**AT, settings=ProducerSettings(codec=Codec.GZIP, confirm=False))
    assert config.v08_settings() == V08ProducerSettings(codec=RecordCodec.GZIP, acks=0)
    assert ProducerConfig(**AT).v08_settings() == V08ProducerSettings(acks=-1)
    own = V08ProducerSettings(codec=RecordCodec.ZSTD, keyless="round_robin")
    assert ProducerConfig(**AT, v08=own).v08_settings() is own


async def test_names_unreachable_bootstrap_brokers() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"no broker of {address} answered within 0.2 s"):
        async with open_producer(ProducerConfig(bootstrap=[address], session_wait=0.2)):
            pass


@pytest.mark.parametrize("background", [False, True])
async def test_rejects_headers_and_timestamps_for_0_7(background: bool) -> None:
    config = ProducerConfig(brokers=(("127.0.0.1", 1),), background=background)
    async with open_producer(config) as ours:
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await ours.send("t", [b"x"], headers=(("h", b"v"),))
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await ours.send_all([ProducerData("t", [b"x"], timestamp=1)])
