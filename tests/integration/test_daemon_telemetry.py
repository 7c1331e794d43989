"""The daemon, the mirror's parts and the broker send OpenTelemetry to a collector, which may be unavailable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.metrics.catalogue import BROKER_METRICS, MEMBER_METRICS
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import BrokerProcess
from tests.support.collector import attributes, running_collector

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


async def test_daemon_sends_spans_and_metrics(world: Any) -> None:
    await world.broker()
    end = await world.append(TP, b"one", b"two", b"three")
    async with running_collector() as collector:
        daemon = await world.daemon(
            telemetry={"otlp_endpoint": collector.url, "metrics_interval": 0.2}, metrics={"lag_interval": 0.1}
        )
        await world.until_printed(daemon, "one", "two", "three")
        await collector.until(
            lambda: collector.metrics and "consumerd_lag_bytes" in collector.metrics[-1]  # ends are looked up
        )
        daemon.terminate()
        assert await daemon.wait(60) == ExitCode.OK
    spans = {span.name: span for span in collector.spans}
    handled = [attributes(span) for span in collector.spans if span.name == "process t"]
    assert sum(each["messaging.batch.message_count"] for each in handled) == 3
    assert handled[0]["messaging.kafka.offset"] == 0
    assert handled[0]["messaging.destination.partition.id"] == "0-0"
    assert handled[0]["messaging.consumer.group.name"] == "g"
    # The last commit is that of the stop: what happens at the end is sent, too.
    assert any(
        attributes(span)["consumerd.commit.partitions"] == 1 for span in collector.spans if span.name == "commit"
    )
    assert attributes(spans["rebalance"])["messaging.system"] == "kafka"
    gained = [attributes(span)["consumerd.rebalance.gained"] for span in collector.spans if span.name == "rebalance"]
    assert ["t/0-0"] in gained
    last = collector.metrics[-1]
    assert last.keys() <= {metric.name.removesuffix("_total") for metric in MEMBER_METRICS}
    (point,) = last["consumerd_messages_handled"].sum.data_points
    assert (attributes(point), point.as_int) == (
        {"group": "g", "topic": "t", "broker": "0", "partition": "0"},
        3,
    )
    assert last["consumerd_commits"].sum.data_points[0].as_int >= 1
    assert await world.offset(TP) == end
    assert {resource["service.instance.id"] for resource in collector.resources} == {daemon.consumer_id}


async def test_daemon_works_and_stops_without_its_collector(world: Any) -> None:
    await world.broker()
    end = await world.append(TP, b"one", b"two")
    daemon = await world.daemon(telemetry={"otlp_endpoint": f"http://127.0.0.1:{free_port()}", "metrics_interval": 0.1})
    await world.until_printed(daemon, "one", "two")
    daemon.terminate()
    assert await daemon.wait(60) == ExitCode.OK
    assert await world.offset(TP) == end
    noted = [event["event"] for event in daemon.events() if event.get("level") in ("warning", "error")]
    assert [event for event in noted if event.startswith("telemetry")] in (
        ["telemetry_export_failed"],
        ["telemetry_dropped"],
    )


async def test_broker_sends_metrics(tmp_path: Path) -> None:
    async with running_collector() as collector:
        broker = BrokerProcess(tmp_path, None, broker_id=4, settings={"telemetry.otlp.endpoint": collector.url})
        async with broker:
            broker.terminate()
            assert await broker.wait(60) == ExitCode.OK
    (metrics,) = collector.metrics
    assert collector.spans == []
    (point,) = metrics["consumerd_broker_logs"].gauge.data_points
    assert (attributes(point), point.as_int) == ({"broker": "4"}, 0)
    names = {metric.name.removesuffix("_total") for metric in (*BROKER_METRICS, *MEMBER_METRICS)}
    assert metrics.keys() <= names
    assert collector.resources[0]["service.instance.id"] == "broker-4"
