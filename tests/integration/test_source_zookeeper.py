"""The data source's planner and a real ZooKeeper: which partitions there are, and offsets for lag tools."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError, ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.net.zk.session import Session
from consumerd.operate.admin.errors import RefusedError
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import read_options
from consumerd.spark.source.v07 import origin
from consumerd.spark.source.v07.commits import ZooKeeperCommitter
from consumerd.spark.source.v07.zookeeper import ask_zookeeper
from consumerd.testing.plugin import BrokerFactory
from consumerd.wire.registry.paths import id_path, offset_path, owner_path

PARTITION = TopicPartition("clicks", 0, 1)


def look(zookeeper: str, **chosen: str) -> Any:
    return open_origin(read_options({"zookeeper": zookeeper, **chosen}))


def wait_for(place: Any, wanted: set[str]) -> list[tuple[str, str]]:
    """The partitions, once brokers have registered these topics, which they do in their own time."""
    deadline = time.monotonic() + 60
    while True:
        found = sorted(place.snapshot())
        if {topic for topic, _ in found} == wanted:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stored(zookeeper: str, group: str) -> bytes | None:
    async def get(session: Session) -> bytes | None:
        return (await session.get(offset_path(group, PARTITION)))[0]

    return ask_zookeeper(zookeeper, 60, get)


def test_reads_the_registered_partitions(
    consumerd_broker_factory: BrokerFactory, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = [consumerd_broker_factory(broker_id=number, partitions=2, zookeeper=zk_root) for number in (0, 10)]
    for broker in brokers:
        broker.produce("clicks", [b"one"])
    brokers[0].produce("views", [b"two"])
    monkeypatch.setattr(origin, "REGISTRY_AGE", 0.0)
    every = look(zk_root, subscribePattern=".*s")
    assert wait_for(every, {"clicks", "views"}) == [
        ("clicks", "0-0"), ("clicks", "0-1"), ("clicks", "10-0"), ("clicks", "10-1"), ("views", "0-0"), ("views", "0-1")
    ]  # fmt: skip
    some = look(zk_root, assign='{"clicks": ["10-1"], "views": ["10-1"]}')
    found = some.snapshot()
    assert list(found) == [("clicks", "10-1")]
    assert some.missing(found) == "partition views/10-1 does not exist"
    named = look(zk_root, subscribe="view,clicks")
    assert named.missing(named.snapshot()) == "topic view does not exist, did you mean 'views'?"

    brokers[0].produce("sales", [b"three"])
    brokers[1].stop()
    assert ("clicks", "10-0") not in wait_for(every, {"clicks", "sales", "views"})
    brokers[0].stop()
    assert named.snapshot() == {}
    assert named.missing({}) == "topic view does not exist, did you mean 'views'?"
    host = zk_root.partition("/")[0]
    with pytest.raises(NotFoundError, match="node /none does not exist in ZooKeeper at"):
        look(f"{host}/none", subscribe="t").snapshot()


def test_writes_offsets_only_to_groups_without_members(zk_root: str) -> None:
    async def prepare(session: Session) -> None:
        await session.ensure("/consumers")

    hosts, _, chroot = zk_root.partition("/")
    ask_zookeeper(hosts, 10, lambda session: session.ensure(f"/{chroot}"))
    ask_zookeeper(zk_root, 10, prepare)
    fresh, offsets = ZooKeeperCommitter(zk_root, "fresh"), {PARTITION.topic: {PARTITION.name: 71}}
    fresh.check()
    assert fresh.commit(offsets) == 1
    assert fresh.commit(offsets) == 0, "nothing has moved"
    assert stored(zk_root, "fresh") == b"71"
    fresh.commit_if_possible({PARTITION.topic: {PARTITION.name: 99}})
    assert stored(zk_root, "fresh") == b"99"
    fresh.check()

    async def join(session: Session) -> None:
        await session.ensure("/consumers/used/ids")
        await session.create(id_path("used", "used_host-1"), b'{ "other": 1 }', ephemeral=True)
        await refused("used", "member used_host-1 is alive")

    async def own(session: Session) -> None:
        await session.ensure(owner_path("owned", PARTITION).rpartition("/")[0])
        await session.create(owner_path("owned", PARTITION), b"owned_host-1-0", ephemeral=True)
        await refused("owned", "an owner of clicks/0-1 is alive")

    async def refused(group: str, who: str) -> None:
        used = ZooKeeperCommitter(zk_root, group)
        for call in (used.check, lambda: used.commit_if_possible(offsets)):
            with pytest.raises(RefusedError, match=f"the group {group} is in use \\({who}\\), so its offsets are not"):
                await asyncio.to_thread(call)

    ask_zookeeper(zk_root, 10, join)
    ask_zookeeper(zk_root, 10, own)
    with pytest.raises(OptionError, match="invalid option groupId: "):
        ZooKeeperCommitter(zk_root, "a/b").check()


def test_stream_continues_while_zookeeper_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    offsets = {PARTITION.topic: {PARTITION.name: 1}}
    away = ZooKeeperCommitter(f"127.0.0.1:{free_port()}", "g", timeout=0.5)
    with pytest.raises(ZooKeeperError):
        away.commit(offsets)
    away.commit_if_possible(offsets)
    assert "cannot commit the offsets of group g, which the next batch will retry: " in caplog.text
