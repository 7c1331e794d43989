"""Brokers for tests, in this process: what goes in, what is in the logs, what faults do to them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.net.errors import ConnectError
from consumerd.storage.broker.errors import ListenError
from consumerd.testing import BrokerFactory, Codec, HarnessError, LoopbackBroker
from consumerd.wire.errors import InvalidTopicError


def test_stores_what_is_produced(consumerd_broker: LoopbackBroker) -> None:
    broker = consumerd_broker
    first = broker.produce("t", [b"a", b"bc"])
    end = broker.produce("t", [b"d", b"e"], codec=Codec.SNAPPY)
    broker.produce("t", [b"f"], partition=3, magic=0)
    assert broker.end("t") == end
    assert broker.end("t", 1) == broker.end("unknown") == 0
    messages = broker.messages("t")
    assert [message.payload for message in messages] == broker.payloads("t") == [b"a", b"bc", b"d", b"e", b"f"]
    assert [(m.offset, m.index, m.next_offset) for m in messages] == [
        (0, 0, 11),
        (11, 0, first),
        (first, 0, first),
        (first, 1, end),
        (0, 0, 10),
    ]
    assert {message.partition for message in messages} == {TopicPartition("t", 0, 0), TopicPartition("t", 0, 3)}
    assert broker.payloads("t", 3) == [b"f"]
    assert broker.messages("unknown") == []


async def test_serves_beside_a_blocked_loop(consumerd_broker: LoopbackBroker) -> None:
    await asyncio.sleep(0)
    consumerd_broker.produce("t", [b"a"])
    assert consumerd_broker.payloads("t") == [b"a"]


def test_rejects_what_the_broker_would_refuse(consumerd_broker: LoopbackBroker) -> None:
    with pytest.raises(HarnessError, match="'t' has partitions 0 to 3 on broker 0, and no 4"):
        consumerd_broker.produce("t", [b"a"], partition=4)
    with pytest.raises(InvalidTopicError):
        consumerd_broker.produce("a/b", [b"a"])


def test_applies_broker_settings(consumerd_broker_factory: BrokerFactory) -> None:
    settings: dict[str, str | int] = {"topic.partition.count.map": "few:1", "log.file.size": 20}
    broker = consumerd_broker_factory(broker_id=7, partitions=3, settings=settings)
    for payload in (b"a", b"b", b"c"):
        broker.produce("many", [payload], partition=2)
    assert len(list((broker.log_directory / "many-2").glob("*.kafka"))) > 1
    assert broker.payloads("many") == [b"a", b"b", b"c"]
    assert broker.messages("many")[0].broker == 7
    with pytest.raises(HarnessError, match="'few' has partitions 0 to 0 on broker 7, and no 1"):
        broker.produce("few", [b"a"], partition=1)
    with pytest.raises(ConfigError, match="did you mean 'log"):
        consumerd_broker_factory(settings={"log.flle.size": 20})


def test_restarts_on_its_port_and_logs(consumerd_broker: LoopbackBroker) -> None:
    broker = consumerd_broker
    broker.produce("t", [b"a"])
    port = broker.port
    with socket.create_connection((broker.host, port)) as client:
        broker.kill()
        assert client.recv(1) == b""
    with pytest.raises(ConnectError):
        broker.produce("t", [b"b"])
    assert broker.payloads("t") == [b"a"]
    broker.start()
    broker.start()
    broker.restart()
    assert broker.address == f"127.0.0.1:{port}"
    broker.produce("t", [b"b"])
    assert broker.running
    broker.stop()
    broker.stop()
    assert broker.payloads("t") == [b"a", b"b"]


def test_restart_after_a_kill_truncates_at_a_wrong_crc(consumerd_broker: LoopbackBroker) -> None:
    broker = consumerd_broker
    ends = [broker.produce("t", [payload]) for payload in (b"a", b"b", b"c")]
    assert broker.corrupt("t", offset=ends[0]) == ends[0]
    assert broker.payloads("t") == [b"a", b"c"]
    assert broker.corrupt("t") == ends[1]
    assert broker.payloads("t") == [b"a"]
    assert broker.end("t") == ends[2]
    broker.kill()
    broker.start()
    assert broker.end("t") == ends[0]


def test_impossible_length_ends_the_readable_log(consumerd_broker: LoopbackBroker) -> None:
    ends = [consumerd_broker.produce("t", [payload]) for payload in (b"a", b"b", b"c")]
    consumerd_broker.corrupt("t", offset=ends[0], how="length")
    assert consumerd_broker.payloads("t") == [b"a"]
    assert consumerd_broker.end("t") == ends[2]


def test_truncation_requires_a_stopped_broker(consumerd_broker: LoopbackBroker) -> None:
    ends = [consumerd_broker.produce("t", [payload]) for payload in (b"a", b"b")]
    with pytest.raises(HarnessError, match="`kill` or `stop` it first"):
        consumerd_broker.corrupt("t", how="cut")
    consumerd_broker.kill()
    consumerd_broker.corrupt("t", how="cut")
    assert ends[0] < consumerd_broker.end("t") < ends[1]
    consumerd_broker.start()
    assert consumerd_broker.end("t") == ends[0]


def test_rejects_damage_outside_messages(consumerd_broker: LoopbackBroker) -> None:
    with pytest.raises(HarnessError, match="t-0 has no message to damage"):
        consumerd_broker.corrupt("t")
    consumerd_broker.produce("t", [b"a"])
    with pytest.raises(HarnessError, match="no message at offset 5"):
        consumerd_broker.corrupt("t", offset=5)


def test_failed_start_names_the_reason_and_can_be_repeated(consumerd_broker: LoopbackBroker) -> None:
    broker = consumerd_broker
    broker.produce("t", [b"a"])
    broker.kill()
    with socket.create_server((broker.host, broker.port)):
        with pytest.raises(ListenError, match="in use"):
            broker.start()
        assert not broker.running
    broker.start()
    assert broker.payloads("t") == [b"a"]


def test_gives_each_broker_its_own_log(consumerd_broker_factory: BrokerFactory) -> None:
    one, other = consumerd_broker_factory(), consumerd_broker_factory(broker_id=1)
    one.produce("t", [b"a"])
    assert other.messages("t") == []
    assert one.port != other.port
