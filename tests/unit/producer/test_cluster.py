"""The producer for brokers of 0.8 and later by the methods of the others, on brokers in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.clock import SystemClock
from consumerd.embedded import free_port
from consumerd.errors import BrokerError, ConfigError
from consumerd.producer import (
    CallbackHandler,
    ClusterProducer,
    EncodingError,
    NotSentError,
    PartitionerError,
    ProducerConfig,
    ProducerData,
    ProducerSettings,
    V08Producer,
    V08ProducerSettings,
    load_partitioner,
    open_producer,
)
from consumerd.producer.v08.murmur2 import key_partition
from consumerd.wire.v07 import Codec
from consumerd.wire.v08.records import RecordCodec
from tests.unit.producer.v08.test_producer import PARTITIONS, MemoryCluster

AT: dict[str, Any] = {"bootstrap": ["kafka1:9092"]}


def producer(cluster: Any, *, partitioner: Any = None, background: bool = False, **settings: Any) -> ClusterProducer:
    v08 = V08Producer(cluster, V08ProducerSettings(**settings), clock=SystemClock(), rng=random.Random(1))
    chosen = None if partitioner is None else load_partitioner(partitioner)
    return ClusterProducer(v08, partitioner=chosen, background=background)


@pytest.mark.asyncio
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
        for wrong in ({"payloads": [5]}, {"payloads": [b"x"], "key": 5}):
            with pytest.raises(EncodingError):
                await ours.send("t", **wrong)
        with pytest.raises(TypeError, match="brackets"):
            await ours.send("t", b"x")
        assert sum(map(len, cluster.log.values())) == 6


@pytest.mark.asyncio
async def test_partitioner_chooses_among_the_partitions_of_the_topic() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, partitioner=lambda key, count: int(key) % count) as ours:
        await ours.send("t", [b"x"], key="5")
        assert [len(cluster.log[n]) for n in range(PARTITIONS)] == [0, 0, 1]
    async with producer(cluster, partitioner=lambda key, count: count) as ours:
        with pytest.raises(PartitionerError, match="must return a number from 0 to 2, not 3"):
            await ours.send("t", [b"x"], key="5")


@pytest.mark.asyncio
async def test_background_send_reports_a_failed_batch_once() -> None:
    class Refusing(MemoryCluster):
        async def node_channel(self, node_id: int) -> MemoryCluster:
            raise BrokerError("not today")

    ours = producer(Refusing(), background=True, delivery_timeout=0.05)
    async with ours:
        await ours.send("t", [b"1", b"2"], partition=0)
        await ours.send("t", [b"3"], partition=1)
        with pytest.raises(NotSentError, match=r"3 queued messages were not sent.*not today") as caught:
            await ours.flush()
        assert caught.value.count == 3
        await ours.flush()
        await ours.send("t", [b"4"])
        with pytest.raises(NotSentError):
            await ours.close()


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
        ({"zookeeper": "zk1", "dialect": "0.9"}, "dialect must be one of auto, 0.7, 0.8, not '0.9'"),
    ],
)
def test_rejects_contradicting_settings(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProducerConfig(**given)


def test_takes_codec_and_acks_from_the_common_settings() -> None:
    config = ProducerConfig(**AT, settings=ProducerSettings(codec=Codec.GZIP, confirm=False))
    assert config.v08_settings() == V08ProducerSettings(codec=RecordCodec.GZIP, acks=0)
    own = V08ProducerSettings(codec=RecordCodec.ZSTD, keyless="round_robin")
    assert ProducerConfig(**AT, v08=own).v08_settings() is own


@pytest.mark.asyncio
async def test_names_unreachable_bootstrap_brokers() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"no broker of {address} answered within 0.2 s"):
        async with open_producer(ProducerConfig(bootstrap=[address], session_wait=0.2)):
            pass


@pytest.mark.asyncio
@pytest.mark.parametrize("background", [False, True])
async def test_rejects_headers_and_timestamps_for_0_7(background: bool) -> None:
    config = ProducerConfig(brokers=(("127.0.0.1", 1),), background=background)
    async with open_producer(config) as ours:
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await ours.send("t", [b"x"], headers=(("h", b"v"),))
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await ours.send_all([ProducerData("t", [b"x"], timestamp=1)])
