"""A JVM group member finds our broker in ZooKeeper and reads it to the end, through rolls, codecs and a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.base.clock import SystemClock
from consumerd.net.zk import Session
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import Codec, ProduceRequest, encode_message_set
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.interop.conftest import JafkaConsumerFactory

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.asyncio]


@asynccontextmanager
async def our_broker(zk_root: str, log_dir: Path, port: int = 0) -> AsyncIterator[Broker]:
    clock, rng = SystemClock(), random.Random(1)
    config = BrokerConfig(
        log_dir=log_dir, port=port, broker_id=2, partitions=2, flush_messages=1, segment_bytes=5000, zookeeper=zk_root
    )
    async with (
        Session(zk_root, clock=clock, rng=rng, session_timeout=4) as zk,
        Broker(config, clock=clock, rng=rng, zookeeper=zk) as broker,
    ):
        yield broker


async def produce(broker: Broker, partition: int, payloads: list[bytes], codec: Codec) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    for start in range(0, len(payloads), 7):
        messages = encode_message_set(payloads[start : start + 7], codec=codec, magic=1)
        writer.write(ProduceRequest("t", partition, messages).encode())
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def test_jvm_member_reads_our_broker(zk_root: str, tmp_path: Path, jafka_consumer: JafkaConsumerFactory) -> None:
    payloads = [[b"%d:%d" % (partition, i) + b"x" * (i % 50) for i in range(420)] for partition in range(2)]
    async with our_broker(zk_root, tmp_path / "log") as broker:
        for partition in range(2):
            for start, codec in enumerate((Codec.NONE, Codec.GZIP, Codec.NONE)):  # Jafka does not support snappy
                await produce(broker, partition, payloads[partition][start * 100 : start * 100 + 100], codec)
        port = broker.port
        member = await jafka_consumer(zk_root, "g", {"t": 1})
        await until(lambda: len(member.messages()) == 600)
    async with our_broker(zk_root, tmp_path / "log", port) as broker:
        for partition in range(2):
            await produce(broker, partition, payloads[partition][300:], Codec.NONE)
        await until(lambda: len({m.payload for m in member.messages()}) == 840)
    await member.leave()
    for partition in range(2):
        own = [m.payload for m in member.messages() if m.payload.startswith(b"%d:" % partition)]
        assert list(dict.fromkeys(own)) == payloads[partition]  # in order; the rebalance may repeat some
    assert len(list((tmp_path / "log" / "t-0").glob("*.kafka"))) > 2
