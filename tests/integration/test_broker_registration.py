"""A broker registers, keeps and gives back its place in a real ZooKeeper."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from consumerd.base.clock import SystemClock
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk import Session
from consumerd.net.zk.errors import NoNode
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.fault_proxy import FaultProxy
from consumerd.wire.v07 import ProduceRequest, encode_message
from tests.support.waiting import until


@asynccontextmanager
async def session(connect: str, timeout: float = 4.0) -> AsyncIterator[Session]:
    async with Session(connect, clock=SystemClock(), rng=random.Random(), session_timeout=timeout) as zk:
        yield zk


def make(log_dir: Path, zk: Session, broker_id: int = 0) -> Broker:
    config = BrokerConfig(
        log_dir=log_dir, port=0, broker_id=broker_id, partitions=3, topic_partitions={"few": 1}, flush_messages=1
    )
    return Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=zk)


async def produce(broker: Broker, topic: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(ProduceRequest(topic, 0, encode_message(b"a")).encode())
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def value(zk: Session, path: str) -> str | None:
    try:
        data, _ = await zk.get(path)
    except NoNode:
        return None
    return None if data is None else data.decode()


async def _is(zk: Session, path: str, expected: str | None) -> bool:
    return await value(zk, path) == expected


async def test_registers_everything_again_after_the_session_expired(
    zookeeper: ZooKeeperServer, zk_root: str, tmp_path: Path
) -> None:
    """behaviour/session_expiry.json: the nodes vanish while the broker is cut off, and come back with a new creator."""
    chroot = zk_root[zk_root.index("/") :]
    async with (
        FaultProxy("127.0.0.1", zookeeper.port) as proxy,
        session(zk_root) as observer,
        session(proxy.connect + chroot, 1.0) as zk,
        make(tmp_path, zk) as broker,
    ):
        await produce(broker, "alpha")
        await until(lambda: _is(observer, "/brokers/topics/alpha/0", "3"))
        before = await value(observer, "/brokers/ids/0")
        old_session = zk.session_id
        proxy.blackhole()
        await until(lambda: _is(observer, "/brokers/ids/0", None))
        await until(lambda: _is(observer, "/brokers/topics/alpha/0", None))
        await produce(broker, "beta")  # served and stored all the while
        proxy.heal()
        await until(lambda: _is(observer, "/brokers/topics/alpha/0", "3"))
        await until(lambda: _is(observer, "/brokers/topics/beta/0", "3"))
        after = await value(observer, "/brokers/ids/0")
        assert after is not None
        assert after != before
        assert zk.session_id != old_session


async def test_stops_without_zookeeper(zookeeper: ZooKeeperServer, zk_root: str, tmp_path: Path) -> None:
    chroot = zk_root[zk_root.index("/") :]
    async with FaultProxy("127.0.0.1", zookeeper.port) as proxy, session(proxy.connect + chroot, 1.0) as zk:
        broker = make(tmp_path, zk)
        await broker.start()
        proxy.refuse()
        proxy.cut()
        async with asyncio.timeout(60):
            await broker.stop()
        proxy.heal()
