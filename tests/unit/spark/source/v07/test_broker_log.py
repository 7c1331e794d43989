"""Splits of live brokers: the same rows as of their files; deaths, trimmed logs and lies."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.errors import BrokerReadError, DataLossError, SplitBoundaryError
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import BrokerRange, FileRange, V07Split
from consumerd.spark.source.v07.reading import read_split
from consumerd.testing.fault_proxy import Direction
from consumerd.testing.plugin import BrokerFactory
from consumerd.testing.proxy import LoopbackProxy
from consumerd.wire.v07 import Codec

if TYPE_CHECKING:
    from consumerd.testing.brokers import LoopbackBroker

    class ProxyFactory(Protocol):
        def __call__(self, host: str, port: int, **arguments: Any) -> LoopbackProxy: ...


ALL = tuple(column.name for column in COLUMNS)
LINES = [b"line %d of the log" % number for number in range(300)]


def read_rows(split: V07Split, **arguments: Any) -> list[dict[str, Any]]:
    request = ReadRequest(ALL, **arguments)
    return [row for batch in read_split(split, request) for row in batch.to_pylist()]


def filled(broker: LoopbackBroker) -> V07Split:
    """All of partition 1."""
    broker.produce("events", LINES, partition=1)
    broker.produce("events", [b"a", b"b"], partition=1, codec=Codec.GZIP)
    broker.produce("events", [b"x" * 5000], partition=1)
    end = broker.produce("events", LINES, partition=1, magic=0)
    return V07Split("events", broker.broker_id, 1, 0, end, BrokerRange(broker.host, broker.port))


@pytest.mark.parametrize("fetch_size", [1, 7, 1000, 1 << 20, 1 << 30])
def test_broker_and_files_give_the_same_rows(consumerd_broker: LoopbackBroker, fetch_size: int) -> None:
    """However small the fetches are: messages larger than one are put together."""
    split = filled(consumerd_broker)
    file = consumerd_broker.log_directory / "events-1" / f"{0:020d}.kafka"
    expected = read_rows(replace(split, location=FileRange(str(file), 0)))
    if fetch_size < 100:
        split = replace(split, end=expected[20]["next_offset"])
        expected = expected[:21]
    assert read_rows(split, fetch_size=fetch_size) == expected
    assert len(expected) > 20


def test_rejects_a_split_that_ends_inside_a_message(consumerd_broker: LoopbackBroker) -> None:
    split = filled(consumerd_broker)
    with pytest.raises(SplitBoundaryError, match="ends inside the message at offset 0"):
        read_rows(replace(split, end=20))


def test_reports_an_unreachable_broker(consumerd_broker: LoopbackBroker) -> None:
    split = filled(consumerd_broker)
    consumerd_broker.kill()
    with pytest.raises(BrokerReadError, match=r"cannot connect to broker .* reachable from executors"):
        read_rows(split, fail_on_data_loss=False)


def test_reports_a_broker_that_dies_during_a_read(
    consumerd_broker: LoopbackBroker, consumerd_proxy_factory: ProxyFactory
) -> None:
    split = filled(consumerd_broker)
    answers = 0

    def die(direction: Direction, data: bytes) -> bytes:
        nonlocal answers
        if direction is Direction.TO_CLIENT:
            answers += 1
            if answers == 3:
                proxy.cut()
        return data

    proxy = consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port, hook=die, frames=True)
    split = replace(split, location=BrokerRange(proxy.host, proxy.port))
    with pytest.raises(BrokerReadError, match=r"closed the connection before it responded to .* events/1 from"):
        read_rows(split, fetch_size=1000, fail_on_data_loss=False)


def test_closes_connections_of_abandoned_reads(
    consumerd_broker: LoopbackBroker, consumerd_proxy_factory: ProxyFactory
) -> None:
    split = filled(consumerd_broker)
    proxy = consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port)
    reading = read_split(replace(split, location=BrokerRange(proxy.host, proxy.port)), ReadRequest(("value",)))
    next(reading)
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert proxy.accepted == 1
    with pytest.raises(StopIteration):
        next(reading)


# -- what retention took


@pytest.fixture
def trimmed(consumerd_broker_factory: BrokerFactory) -> tuple[LoopbackBroker, V07Split]:
    """A broker whose first segment is deleted, and a split of it."""
    broker = consumerd_broker_factory(partitions=2, settings={"log.file.size": 2000})
    for line in LINES:
        broker.produce("events", [line])
    first, second, *_ = sorted((broker.log_directory / "events-0").glob("*.kafka"))
    broker.stop()
    first.unlink()
    broker.start()
    return broker, V07Split("events", 0, 0, 0, int(second.stem), BrokerRange(broker.host, broker.port))


def test_a_trimmed_log_fails_the_read(trimmed: tuple[LoopbackBroker, V07Split]) -> None:
    _, split = trimmed
    with pytest.raises(DataLossError, match=f"the offsets 0 to {split.end} of events/0-0 .* failOnDataLoss=false"):
        read_rows(split)


def test_reads_a_trimmed_log_from_its_start(
    trimmed: tuple[LoopbackBroker, V07Split], caplog: pytest.LogCaptureFixture
) -> None:
    broker, split = trimmed
    assert read_rows(split, fail_on_data_loss=False) == []
    longer = replace(split, end=broker.end("events"))
    values = [row["value"] for row in read_rows(longer, fail_on_data_loss=False)]
    assert values == broker.payloads("events")
    assert 0 < len(values) < len(LINES)
    assert caplog.text.count(f"the offsets 0 to {split.end} of events/0-0 are no longer in") == 2


def test_reports_a_log_that_became_shorter(consumerd_broker: LoopbackBroker) -> None:
    split = filled(consumerd_broker)
    longer = replace(split, end=split.end + 1000)
    with pytest.raises(DataLossError, match=f"the offsets {split.end} to {longer.end} of"):
        read_rows(longer)
    assert read_rows(longer, fail_on_data_loss=False) == read_rows(split)
    nowhere = replace(split, topic="nothing")
    assert read_rows(nowhere, fail_on_data_loss=False) == []


def test_does_not_loop_on_a_broker_with_a_wrong_log_start(
    consumerd_broker: LoopbackBroker, consumerd_proxy_factory: ProxyFactory
) -> None:
    """Each time it is asked, the log begins one byte further on, and never has anything."""
    split = filled(consumerd_broker)
    asked = 0

    def lie(direction: Direction, data: bytes) -> bytes:
        nonlocal asked
        if direction is Direction.TO_SERVER:
            return data
        asked += 1
        if data[4:6] == b"\0\0" and len(data) == 4 + 6 + 8:
            return struct.pack(">ihiq", 14, 0, 1, asked)
        return struct.pack(">ih", 2, 1)

    proxy = consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port, hook=lie, frames=True)
    split = replace(split, location=BrokerRange(proxy.host, proxy.port))
    assert read_rows(split, fail_on_data_loss=False) == []
    assert asked < 10
