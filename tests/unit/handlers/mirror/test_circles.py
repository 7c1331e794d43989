from __future__ import annotations

import pytest

from consumerd.base.errors import ConfigError, ExitCode
from consumerd.handlers.mirror.circles import (
    CircleError,
    find_reverse_mirrors,
    mirror_host,
    refuse_same_cluster,
    refuse_same_place,
)
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.values import make_consumer_id


@pytest.mark.parametrize(
    ("source", "target"),
    [("zk:2181", "zk:2181"), ("zk", "zk:2181/"), ("a:1,b:2/kafka", "b:2,c:3/kafka")],
)
def test_rejects_the_same_zookeeper(source: str, target: str) -> None:
    with pytest.raises(CircleError, match=r"the same cluster .ZooKeeper at") as caught:
        refuse_same_place(source, target)
    assert caught.value.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("source", "target"), [("zk/a", "zk/b"), ("zk", "zk/a"), ("a:1/kafka", "b:1/kafka"), ("a:1", "a:2")]
)
def test_allows_different_zookeepers_or_chroots(source: str, target: str) -> None:
    refuse_same_place(source, target)


def test_rejects_an_invalid_connect_string() -> None:
    with pytest.raises(ConfigError):
        refuse_same_place("zk", "a b")


async def test_rejects_a_broker_on_both_sides() -> None:
    one, other = MemoryZooKeeper(), MemoryZooKeeper()
    one.put("/brokers/ids/0", b"here-1:10.0.0.1:9092")
    one.put("/brokers/ids/1", b"here-2:127.0.0.1:9093")
    one.put("/brokers/ids/2", b"nonsense")
    other.put("/brokers/ids/0", b"there-1:10.0.0.1:9092")  # the same address behind two networks: another broker
    async with one.session() as source, other.session() as target:
        await refuse_same_cluster(source, target)
        await refuse_same_cluster(source, None, [("10.0.0.1", 9093), ("no.such.host.invalid", 9092)])
        for address in (("10.0.0.1", 9092), ("localhost", 9093)):
            with pytest.raises(CircleError, match="of the source listens on"):
                await refuse_same_cluster(source, None, [address])
        other.put("/brokers/ids/1", b"here-2:127.0.0.1:9093")
        with pytest.raises(CircleError, match=r"broker 1 .127\.0\.0\.1:9093. is registered in both"):
            await refuse_same_cluster(source, target)


async def test_rejects_a_mirror_in_the_other_direction() -> None:
    one, other = MemoryZooKeeper(), MemoryZooKeeper()
    for topic in ("a", "b", "c"):
        one.put(f"/brokers/topics/{topic}/0", b"1")
    back = make_consumer_id("back", mirror_host("there"), 1, 2 << 32)
    plain = make_consumer_id("plain", "there", 1, 2 << 32)
    other.put(f"/consumers/back/ids/{back}", b'{ "a": 1,"c": 1 }')
    other.put(f"/consumers/plain/ids/{plain}", b'{ "a": 1 }')
    other.put(f"/consumers/broken/ids/{make_consumer_id('broken', mirror_host('x'), 1, 1)}", b"what")
    other.put(f"/consumers/elsewhere/ids/{make_consumer_id('elsewhere', mirror_host('x'), 1, 1)}", b'{ "z": 1 }')
    other.put(f"/consumers/all/ids/{make_consumer_id('all', mirror_host('y'), 1, 1)}", b"!1!b")
    other.make("/consumers/empty")
    async with one.session() as source, other.session() as target:
        found = await find_reverse_mirrors(source, target, StaticSubscription({"a": 1, "b": 1}))
        assert {name.partition("_")[0]: topics for name, topics in found.items()} == {"back": ["a"], "all": ["a"]}
        whitelist = FilterSubscription(TopicFilter(FilterKind.WHITELIST, "[ac]"), 1)
        assert (await find_reverse_mirrors(source, target, whitelist))[back] == ["a", "c"]
