"""JVM members of Jafka and daemons of ours in one group, which join, leave and die while messages are produced.

`tests.interop.zk_group_account` describes the assertions on each run, message by message.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess
from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory
from tests.interop.jafka_group_harness import JVM_TIMES, PARTITIONS, TOPIC, MixedGroup
from tests.interop.zk_group_scenes import come_and_go, give_up_slowly

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]


async def all_ways(group: MixedGroup, streams: int) -> None:
    async with group.producing():
        await come_and_go(group, streams)
        await group.kill("q")
        await group.settled("b", "x")
    await group.account()


@pytest.mark.long  # every day: the same group on our broker, with two streams, and two members in test_consumer_jafka
async def test_mixed_group_shares_a_jafka_broker(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_broker: JafkaBrokerFactory,
    jafka_consumer: JafkaConsumerFactory,
) -> None:
    """With the times of 0.7.2: sessions of 6 s, four looks 2 s apart."""
    broker = await jafka_broker(zk_root, partitions=PARTITIONS)
    async with AsyncExitStack() as stack:
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=6.0,
            jvm=JVM_TIMES,
        )  # fmt: skip
        await all_ways(group, streams=1)


async def test_mixed_group_shares_our_broker(
    zk: KazooClient, zk_root: str, tmp_path: Path, jafka_consumer: JafkaConsumerFactory
) -> None:
    """With shorter times, and two streams in each JVM."""
    broker = BrokerProcess(
        tmp_path / "broker", zk_root, partitions=PARTITIONS, settings={"log.flush.interval": 1, "log.file.size": 20_000}
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=2.0,
            jvm={"zk.sessiontimeout.ms": 2000, "zk.synctime.ms": 500, "rebalance.backoff.ms": 1000},
        )  # fmt: skip
        await all_ways(group, streams=2)


@pytest.mark.parametrize("obeys", [True, False], ids=["in time", "too late"])
async def test_slow_handler_releases_partitions_to_a_jvm_member(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_consumer: JafkaConsumerFactory,
    monkeypatch: pytest.MonkeyPatch,
    obeys: bool,
) -> None:
    broker = BrokerProcess(tmp_path / "broker", zk_root, partitions=5, settings={"log.flush.interval": 1})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        group = MixedGroup(
            tmp_path, zk_root, zk, jafka_consumer, stack,
            log_directory=broker.log_directory, port=broker.port, session_timeout=6.0, jvm=JVM_TIMES, partitions=5,
        )  # fmt: skip
        await give_up_slowly(group, TopicPartition(TOPIC, 0, 2), tmp_path, monkeypatch, obeys=obeys)
