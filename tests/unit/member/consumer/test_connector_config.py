"""Choices and errors of a connector's configuration, and the conditions for which it waits before it joins."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from consumerd import DigestMd5, Scram
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.member.consumer.composition import AssignedStreams
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.member.consumer.connector import ConsumerConnector
from consumerd.member.consumer.errors import ConnectorStateError, GroupRefusedError
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.offsets.choice import OffsetSettings
from consumerd.net.client.errors import NoBrokerReachedError
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import ConnectError
from consumerd.testing.clock import FakeClock
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import Whitelist

KAFKA: dict[str, Any] = {"bootstrap": ["kafka1:9092"]}
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SASL = partial(Scram, "SCRAM-SHA-512", "alice", "secret")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bootstrap": "kafka1:9092"}, "bootstrap must be a list of brokers"),
        ({"bootstrap": ["kafka1"]}, "'kafka1' is not of the form host:port"),
        ({"bootstrap": ["kafka1:99999"]}, "is not of the form host:port"),
        ({"coordination": "kafka"}, "requires bootstrap"),
        ({"coordination": "kafak"}, "coordination must be zookeeper or kafka, not 'kafak'"),
        ({"dialect": "0.9"}, "dialect must be one of auto, 0.7, 0.8, not '0.9'"),
        ({**KAFKA, "dialect": "0.8"}, 'dialect needs coordination = "zookeeper"'),
        ({**KAFKA, "offsets": "zookeeper"}, "only Kafka knows whose a partition is"),
        ({**KAFKA, "heartbeat_interval": 60.0}, "must be at least twice heartbeat_interval"),
        ({"instance_id": "a"}, 'instance_id needs coordination = "kafka"'),
        ({"protocol": "consumer"}, 'protocol = "consumer" needs coordination = "kafka"'),
        ({**KAFKA, "broker_filter": True}, 'remote_assignor and broker_filter need protocol = "consumer"'),
        ({"dialect": "0.7", "assignor": "roundrobin"}, "assignor = 'roundrobin' is not supported by Kafka 0.7"),
        ({"dialect": "0.7", "offsets": "both"}, "offsets = 'both' is not supported by Kafka 0.7"),
        ({"max_wait": 0.0}, "max_wait"),
        ({"min_bytes": 0}, "min_bytes"),
    ],
)
def test_rejects_conflicting_settings_in_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConsumerConfig(group="g", **given)


def configured(**given: Any) -> ConsumerConfig:
    return ConsumerConfig(group="g", **given)


_SIZES = ("fetch_size", "max_fetch_size", "min_bytes", "budget", "partition_budget")
_TIMES = ("commit_interval", "idle_backoff", "listener_timeout", "stop_timeout", "socket_timeout")


@pytest.mark.parametrize("name", [*_SIZES, *_TIMES])
@pytest.mark.parametrize("value", [0, -1, "1", True])
def test_limits_must_be_positive_numbers(name: str, value: Any) -> None:
    words = "positive whole number of bytes" if name in _SIZES else "positive number of seconds"
    with pytest.raises(ConfigError, match=f"{name} must be a {words}, not {value!r}"):
        configured(**{name: value})
    configured(**{name: 1})


@pytest.mark.parametrize("name", ["drain_timeout", "consumer_timeout"])
def test_waits_must_not_be_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be 0 or a positive number of seconds, not -0.5"):
        configured(**{name: -0.5})
    configured(**{name: 0})


@pytest.mark.parametrize("name", ["initial", "out_of_range", "log_changed", "corrupt", "oversize", "isolation"])
def test_errors_about_choices_name_the_keyword(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be (one of .*|.* or .*), not 'somewhere'.$"):
        configured(**{name: "somewhere"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"group_session_timeout": 4.0}, "group_session_timeout must be at least twice heartbeat_interval."),
        (
            {"rebalance_timeout": 7.0},
            "rebalance_timeout must be at least as long as group_session_timeout (7 s and 45 s here).",
        ),
        ({"min_bytes": 11, "fetch_size": 10}, "min_bytes must be at most 10, which one fetch can return, not 11."),
        ({"max_wait": 61.0}, "max_wait must be a number of seconds from 0.01 to 60, not 61.0."),
    ],
)
def test_rules_about_several_keywords_name_them(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(**KAFKA, **given)
    assert str(raised.value) == sentence


def test_rejects_names_and_positions_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="group"):
        ConsumerConfig(group="a/b")
    with pytest.raises(ConfigError, match=r"initial must be earliest, latest, a time .*, not 'first'"):
        ConsumerConfig(group="g", initial="first")
    with pytest.raises(ConfigError, match="initial_by_topic of 't' must be earliest, latest"):
        ConsumerConfig(group="g", initial_by_topic={"t": "first"})
    assert made("g", initial="7d", initial_by_topic={"t": "1h"}).fetch.initial_by_topic == {"t": "1h"}
    with pytest.raises(ConfigError, match="a/b"):
        made("g", consumer_id="a/b")


@pytest.mark.parametrize(
    ("subscription", "remedy"),
    [
        (StaticSubscription({"events": 1}), "write 'events'"),
        (FilterSubscription(Whitelist("event.*"), 1), "correct the name"),
    ],
)
def test_rejects_a_start_of_a_topic_that_is_not_consumed(subscription: Subscription, remedy: str) -> None:
    config = ConsumerConfig(group="g", initial_by_topic={"evnets": "7d"})
    with pytest.raises(ConfigError) as raised:
        config.settings(subscription, clock=SystemClock(), rng=random.Random(1))
    assert str(raised.value) == (
        f"initial_by_topic has the topic 'evnets', which is not consumed: {remedy}, or remove it."
    )


@pytest.mark.parametrize(
    "given", [{"offsets": "kafka"}, {"isolation": "read_committed"}, {"metadata": "m"}, {"assignor": "roundrobin"}]
)
def test_0_7_has_no_settings_of_later_releases(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=f"{name} = .* is not supported by Kafka 0.7"):
        ConsumerConfig(group="g", dialect="0.7", **given)
    ConsumerConfig(group="g", dialect="0.8", **given).offset_settings()
    ConsumerConfig(group="g", dialect="0.7", offsets="zookeeper")


def made(group: str, **given: Any) -> ConsumerSettings:
    subscription = StaticSubscription({"t": 1})
    return ConsumerConfig(group=group, **given).settings(subscription, clock=SystemClock(), rng=random.Random(1))


def test_member_gets_the_settings_of_the_connector() -> None:
    settings = made(
        "g",
        consumer_id="a",
        initial="latest",
        commit_interval=3.0,
        auto_commit=False,
        drain_timeout=2.5,
        listener_timeout=0.5,
        budget=1000,
        partition_budget=2000,
        idle_backoff=0.001,
        fetch_size=100,
        max_fetch_size=50,
        isolation="read_committed",
    )
    assert (settings.group, settings.consumer_id, settings.fixed_id) == ("g", "g_a", True)
    assert settings.subscription == StaticSubscription({"t": 1})
    assert (settings.fetch.initial, settings.commit.interval, settings.auto_commit) == ("latest", 3.0, False)
    assert (settings.membership.drain_timeout, settings.listener_timeout) == (2.5, 0.5)
    fetch = settings.fetch
    assert (fetch.budget, fetch.partition_budget) == (1000, 1000)  # one partition takes no more than all
    assert (fetch.size, fetch.poll_bytes, fetch.max_size) == (100, 100, 100)
    assert (fetch.poll_backoff_min, fetch.idle_backoff) == (0.001, 0.001)
    assert fetch.read_committed
    assert not made("g").fixed_id
    assert not made("g").fetch.read_committed


def test_id_has_host_time_and_random_digits_by_default() -> None:
    settings = ConsumerConfig(group="g").settings(
        StaticSubscription({"t": 1}), clock=FakeClock(wall=1_700_000_000.25), rng=random.Random(1)
    )
    digits = random.Random(1).getrandbits(64) >> 32
    assert settings.consumer_id == f"g_{socket.gethostname()}-1700000000250-{digits:08x}"


def test_shows_no_credentials() -> None:
    shown = repr(
        configured(
            **KAFKA,
            sasl=SASL,
            zookeeper_sasl=partial(DigestMd5, "alice", "secret"),
            auth=[("digest", "alice:secret")],
        )
    )
    assert "kafka1:9092" in shown
    assert "secret" not in shown


def test_frames_of_brokers_have_room_for_the_largest_fetch() -> None:
    config = ConsumerConfig(group="g", max_fetch_size=1 << 30, socket_timeout=7.0, connect_timeout=3.0)
    settings = config.connection_settings()
    assert settings.max_frame_bytes == (1 << 30) + (1 << 20)
    assert (settings.socket_timeout, settings.connect_timeout) == (7.0, 3.0)
    small = ConsumerConfig(group="g", fetch_size=1000, max_fetch_size=1000).connection_settings()
    assert small.max_frame_bytes == ConnectionSettings().max_frame_bytes


def test_defaults_are_those_of_0_7_2_and_of_the_documentation() -> None:
    settings = made("g")
    assert (settings.commit.interval, settings.auto_commit, settings.fetch.initial) == (10, True, "earliest")
    assert (settings.fetch.budget, settings.fetch.partition_budget) == (128 * 1024**2, 16 * 1024**2)
    assert (settings.listener_timeout, settings.lease_margin, settings.stop_at_end) == (1, 0.5, False)
    config = ConsumerConfig(group="g")
    assert (config.stop_timeout, config.session_timeout, config.connection_timeout) == (20, 6, 6)
    assert (config.zookeeper, config.consumer_timeout) == ("127.0.0.1:2181", None)


def test_bootstrap_brokers_choose_coordinator_by_default() -> None:
    assert ConsumerConfig(group="g").by_zookeeper
    assert ConsumerConfig(group="g").offset_settings() == OffsetSettings(storage="zookeeper")
    broker = ConsumerConfig(group="g", **KAFKA, metadata="by me", assignor="roundrobin", instance_id="a")
    assert not broker.by_zookeeper
    assert broker.offset_settings() == OffsetSettings(storage="kafka", metadata="by me")
    assert broker.coordination_settings().assignors == ("roundrobin", "range")
    assert broker.coordination_settings().instance_id == "a"
    assert broker.coordination_settings().protocol == "classic"
    by_broker: dict[str, Any] = {"protocol": "consumer", "remote_assignor": "uniform", "broker_filter": True}
    settings = ConsumerConfig(group="g", **KAFKA, **by_broker).coordination_settings()
    assert {name: getattr(settings, name) for name in by_broker} == by_broker
    assert ConsumerConfig(group="g", **KAFKA, coordination="zookeeper", offsets="both").by_zookeeper


async def test_rejects_a_pattern_that_the_broker_cannot_match_before_it_is_asked() -> None:
    by_broker: dict[str, Any] = {"protocol": "consumer", "broker_filter": True}
    connector = ConsumerConnector(ConsumerConfig(group="g", **KAFKA, **by_broker))
    with pytest.raises(ConfigError, match="cannot be matched by a broker"):
        await connector.create_message_streams_by_filter(Whitelist("(?!test).*"))


class Member:
    """The methods of a member that `AssignedStreams` calls."""

    def __init__(self, *assigned: TopicPartition) -> None:
        self.fence = SimpleNamespace(session_id=1)
        self.assigned = list(assigned)


def test_spreads_partitions_evenly_over_streams() -> None:
    t = [TopicPartition.numbered("t", number) for number in range(6)]
    u, v = ([TopicPartition.numbered(topic, number) for number in range(2)] for topic in "uv")
    dealt = AssignedStreams(lambda *_: None, StaticSubscription({"t": 2, "u": 2, "v": 1}))  # type: ignore[arg-type]
    member = Member(*t[::2], *u, *v)
    dealt.member = member  # type: ignore[assignment]
    assert [dealt.number(each) for each in (*t[::2], *u, *v)] == [0, 1, 0, 0, 1, 0, 0]
    assert dealt.number(t[1]) == 0  # of another member: a stream that exists
    member.assigned = [*t[:3], t[4]]  # one more in the same session: the others keep their streams
    assert [dealt.number(each) for each in member.assigned] == [0, 1, 1, 0]
    member.assigned = t[2:4]
    member.fence.session_id += 1
    assert [dealt.number(each) for each in t[2:4]] == [0, 1]
    together = AssignedStreams(lambda *_: None, FilterSubscription(Whitelist(".*"), 3))  # type: ignore[arg-type]
    together.member = Member(t[0], t[1], *u)  # type: ignore[assignment]
    assert [together.number(each) for each in (t[0], t[1], *u)] == [0, 1, 2, 0]


async def test_registers_nothing_before_dialect_is_known(group: Any) -> None:
    config = ConsumerConfig(group="g", consumer_id="a")
    group.zookeeper.remove("/brokers/ids/0")
    async with group.zookeeper.session(session_timeout=6.0) as zk:
        made = ConsumerConnector(config, zk=zk, connect=group.broker.connect, rng=random.Random(1))
        joining = asyncio.create_task(made.create_message_streams({"t": 1}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        assert not [path for path in group.zookeeper.dump() if path.startswith("/consumers")]
        group.topic("t", 1)
        group.register_broker(0)
        await joining
        assert group.data("/consumers/g/ids/g_a") is not None
        with pytest.raises(ConnectorStateError, match="already has its streams"):
            await made.create_message_streams({"t": 1})
        await made.shutdown()


async def test_shutdown_ends_wait_for_first_broker(group: Any) -> None:
    group.zookeeper.remove("/brokers/ids/0")
    async with group.zookeeper.session(session_timeout=6.0) as zk:
        made = ConsumerConnector(ConsumerConfig(group="g"), zk=zk, rng=random.Random(1))
        joining = asyncio.create_task(made.create_message_streams({"t": 1}))
        for _ in range(20):
            await asyncio.sleep(0)
        await made.shutdown()
        with pytest.raises(ConnectorStateError, match="shut down before it joined"):
            await joining
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_leaves_nothing_when_shut_down_at_any_step_of_joining(group: Any, turns: int) -> None:
    group.topic("t", 1)
    config = ConsumerConfig(group="g", consumer_id="a")
    async with group.zookeeper.session(session_timeout=6.0) as zk:
        made = ConsumerConnector(config, zk=zk, connect=group.broker.connect, rng=random.Random(1))
        joining = asyncio.create_task(made.create_message_streams({"t": 1}))
        for _ in range(turns):
            await asyncio.sleep(0)
        await made.shutdown()
        with suppress(ConnectorStateError):
            await joining
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert group.data("/consumers/g/ids/g_a") is None


async def test_rejects_dialect_that_differs_from_configuration(group: Any) -> None:
    group.topic("t", 1)
    group.zookeeper.put("/brokers/ids/0", b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}')
    config = ConsumerConfig(group="g", consumer_id="a", dialect="0.7")
    async with (
        group.zookeeper.session(session_timeout=6.0) as zk,
        ConsumerConnector(config, zk=zk, connect=group.broker.connect) as made,
    ):
        with pytest.raises(GroupRefusedError, match=r"speak the dialect of Kafka 0\.8\+, and dialect is '0\.7'"):
            await made.create_message_streams({"t": 1})
        group.register_broker(0)
        await made.create_message_streams({"t": 1})  # the refusal did not use up the connector
        assert group.data("/consumers/g/ids/g_a") is not None


@pytest.mark.parametrize(("dialect", "version"), [("0.7", None), ("0.8", 1)])
async def test_joins_in_configured_dialect_before_first_broker(group: Any, dialect: Any, version: int | None) -> None:
    group.zookeeper.remove("/brokers/ids/0")
    config = ConsumerConfig(group="g", consumer_id="a", dialect=dialect)
    async with group.zookeeper.session(session_timeout=6.0) as zk, ConsumerConnector(config, zk=zk) as made:
        await made.create_message_streams({"t": 1})
        assert json.loads(group.data("/consumers/g/ids/g_a")).get("version") == version


async def test_names_settings_that_registered_brokers_do_not_support(group: Any) -> None:
    config = ConsumerConfig(group="g", assignor="roundrobin")
    async with group.zookeeper.session(session_timeout=6.0) as zk, ConsumerConnector(config, zk=zk) as made:
        with pytest.raises(ConfigError, match="assignor = 'roundrobin' is not supported by"):
            await made.create_message_streams({"t": 1})
        assert group.data("/consumers/g/ids") is None


@pytest.mark.parametrize(
    ("given", "listener"),
    [
        ({}, "PLAINTEXT"),
        ({"broker_tls": TLS}, "SSL"),
        ({"sasl": SASL}, "SASL_PLAINTEXT"),
        ({"broker_tls": TLS, "sasl": SASL}, "SASL_SSL"),
        ({"bootstrap": ["bootstrap:9092"], "coordination": "zookeeper"}, "bootstrap"),
    ],
)
async def test_connects_to_listener_for_its_security_protocol(group: Any, given: dict[str, Any], listener: str) -> None:
    attempts: asyncio.Queue[str] = asyncio.Queue()

    async def refuse(host: str, port: int) -> Any:
        attempts.put_nowait(host)
        raise ConnectError(f"cannot connect to {host}:{port}")

    endpoints = [f"{name}://{name}:9092" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")]
    broker = {"jmx_port": -1, "timestamp": "1", "host": None, "port": -1, "version": 2, "endpoints": endpoints}
    group.zookeeper.put("/brokers/ids/0", json.dumps(broker).encode())
    group.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
    config = ConsumerConfig(group="g", consumer_id="a", **given)
    async with (
        group.zookeeper.session(session_timeout=6.0) as zk,
        ConsumerConnector(config, zk=zk, connect=refuse) as made,
    ):
        await made.create_message_streams({"t": 1})
        assert json.loads(group.data("/consumers/g/ids/g_a"))["subscription"] == {"t": 1}
        assert await asyncio.wait_for(attempts.get(), 60) == listener


async def test_names_bootstrap_broker_that_does_not_respond() -> None:
    address = f"127.0.0.1:{free_port()}"
    made = ConsumerConnector(ConsumerConfig(group="g", bootstrap=[address], connection_timeout=0.2))
    with pytest.raises(NoBrokerReachedError, match=f"no broker of {address} answered within 0.2 s; check bootstrap"):
        await made.start()
    with pytest.raises(ConnectorStateError, match="is not running"):
        await made.create_message_streams({"t": 1})
    await made.shutdown()
