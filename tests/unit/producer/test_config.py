"""The settings of a producer, by their 0.7 names."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.producer import CallbackHandler, ProducerConfig, ProducerSettings, QueueSettings, WhenFull
from consumerd.wire.v07 import Codec

READ = ProducerConfig.from_properties


def test_maps_every_property_of_0_7_2() -> None:
    config = READ(
        {
            "broker.list": "0:127.0.0.1:9092, 1:kafka:9093",
            "producer.type": "async",
            "serializer.class": "kafka.serializer.StringEncoder",
            "compression.codec": "1",
            "compressed.topics": "a, b,",
            "max.message.size": "1000",
            "num.retries": "3",
            "buffer.size": "4096",
            "connect.timeout.ms": "1500",
            "socket.timeout.ms": "20000",
            "queue.time": "250",
            "queue.size": "99",
            "queue.enqueueTimeout.ms": "1500",
            "batch.size": "7",
            "callback.handler": "my.callbacks:Mine",
            "event.handler": "kafka.producer.async.DefaultEventHandler",
            "reconnect.interval": "30000",
            "zk.synctime.ms": "2000",
        }
    )
    assert config.brokers == (("127.0.0.1", 9092), ("kafka", 9093))
    assert config.background
    assert config.settings == ProducerSettings(
        codec=Codec.GZIP, compressed_topics=frozenset("ab"), max_message_bytes=1000, retries=3, resends=3
    )
    assert config.queue == QueueSettings(
        batch_size=7, queue_time=0.25, queue_size=99, when_full=WhenFull.TIMEOUT, enqueue_timeout=1.5
    )
    assert (config.connection.connect_timeout, config.connection.socket_timeout) == (1.5, 20.0)
    assert config.connection.write_buffer == 4096
    assert (config.callbacks, config.event_handler, config.encoder) == ("my.callbacks:Mine", None, None)
    assert config.ignored == ("reconnect.interval", "zk.synctime.ms")


def test_configures_zookeeper() -> None:
    config = READ(
        {
            "zk.connect": "zk1:2181,zk2:2181/kafka",
            "partitioner.class": "mine:partition",
            "zk.sessiontimeout.ms": "4000",
            "zk.connectiontimeout.ms": "5000",
        }
    )
    assert config.zookeeper == "zk1:2181,zk2:2181/kafka"
    assert config.partitioner == "mine:partition"
    assert (config.session_timeout, config.session_wait) == (4.0, 5.0)
    assert not config.background
    assert READ({"zk.connect": "z:1", "partitioner.class": "kafka.producer.DefaultPartitioner"}).partitioner is None


@pytest.mark.parametrize(
    ("text", "when_full", "seconds"),
    [("-1", WhenFull.BLOCK, 0), ("0", WhenFull.TIMEOUT, 0), ("20", WhenFull.TIMEOUT, 0.02)],
)
def test_configures_the_enqueue_timeout(text: str, when_full: WhenFull, seconds: float) -> None:
    queue = READ({"broker.list": "0:h:1", "queue.enqueueTimeout.ms": text}).queue
    assert (queue.when_full, queue.enqueue_timeout) == (when_full, seconds)
    assert READ({"broker.list": "0:h:1"}).queue.when_full is WhenFull.BLOCK  # ours, where the file says nothing


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("0:h:1", (("h", 1),)),
        ("h:1", (("h", 1),)),
        ("12:3:1", (("3", 1),)),
        ("0:[::1]:9,h:2", (("::1", 9), ("h", 2))),
    ],
)
def test_parses_lists_of_brokers(text: str, addresses: object) -> None:
    assert READ({"broker.list": text}).brokers == addresses


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, "exactly one of brokers .*, zookeeper"),
        ({"broker.list": "0:h:1", "zk.connect": "z:1"}, "exactly one of brokers"),
        ({"broker.list": " , "}, "broker.list is empty: give brokers"),
        ({"broker.list": "0:h"}, "broker.list: '0:h' is not of the form host:port"),
        ({"broker.list": "0:h:1", "partitioner.class": "a:b"}, "a partitioner requires zookeeper"),
        ({"zk.connect": "z:1", "partitioner.class": "com.example.Mine"}, "looks like a Java class"),
        ({"broker.list": "0:h:1", "callback.handler": "a:b"}, "require an asynchronous producer"),
        ({"broker.list": "0:h:1", "producer.type": "asynch"}, "must be sync or async"),
        ({"broker.list": "0:h:1", "compression.codec": "3"}, "must be 0 .none., 1 .gzip. or 2 .snappy."),
        ({"broker.list": "0:h:1", "compression.codec": "gzip"}, "must be 0"),
        ({"broker.list": "0:h:1", "batch.size": "0"}, "batch.size must be a positive whole number, not '0'"),
        (
            {"broker.list": "0:h:1", "queue.time": "soon"},
            "must be 0 or a positive whole number of milliseconds",
        ),
        ({"broker.list": "0:h:1", "batch.sise": "1"}, "producer property of Kafka 0.7, did you mean 'batch.size'?"),
        ({"broker.list": "0:h:1", "xyzzy": "1"}, "xyzzy is not a producer property of Kafka 0.7$"),
        ({"zk.connect": ""}, "zk.connect must be a text that is not empty"),
    ],
)
def test_rejects_invalid_properties(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        READ(properties)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max.message.size", 0),
        ("num.retries", 0),
        ("buffer.size", 1),
        ("connect.timeout.ms", 1),
        ("socket.timeout.ms", 1),
        ("queue.time", 0),
        ("queue.size", 1),
        ("queue.enqueueTimeout.ms", -1),
        ("batch.size", 1),
        ("zk.sessiontimeout.ms", 1),
        ("zk.connectiontimeout.ms", 1),
    ],
)
def test_accepts_numbers_from_the_least_one(name: str, least: int) -> None:
    assert READ({"zk.connect": "z:1", name: str(least)}).ignored == ()
    with pytest.raises(ConfigError, match=rf"^{name} must be .*whole number.*, not '{least - 1}'$"):
        READ({"zk.connect": "z:1", name: str(least - 1)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"session_timeout": 0}, r"^session_timeout must be a positive number of seconds.*, not 0\.$"),
        ({"session_wait": -1.0}, r"^session_wait must be a positive number of seconds.*, not -1\.0\.$"),
        ({"dialect": "0.9"}, r"^dialect must be one of auto, 0\.7, 0\.8, not '0\.9'\.$"),
        ({"background": "yes"}, r"^background must be true or false, not 'yes'\.$"),
    ],
)
def test_rejects_invalid_values(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProducerConfig(zookeeper="z:1", **given)


def test_does_not_show_credentials() -> None:
    secret: Any = partial(print, "secret")
    assert "secret" not in repr(ProducerConfig(bootstrap=["h:1"], sasl=secret))


def test_rejects_impossible_sizes() -> None:
    with pytest.raises(ValueError, match="must be a positive whole number"):
        QueueSettings(batch_size=0)
    with pytest.raises(ValueError, match="must be a positive whole number"):
        QueueSettings(queue_size=0)
    with pytest.raises(ConfigError):
        ProducerConfig(brokers=(("h", 1),), callbacks=CallbackHandler())
