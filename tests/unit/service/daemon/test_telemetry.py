"""Telemetry is sent; a collector that is down, slow or refuses it delays neither the loop nor the stop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.monitoring import TelemetrySection
from consumerd.demo.ports import free_port
from consumerd.handlers import Batch
from consumerd.handlers.builtin.null import NullHandler
from consumerd.member.consumer.stats import Rebalance
from consumerd.service.config.model import parse
from consumerd.service.daemon.otel import Telemetry
from consumerd.service.daemon.telemetry import build_telemetry, check_telemetry
from consumerd.service.daemon.telemetry_signals import Destination, Signals, find_signals
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.support.collector import Collector, attributes, running_collector

GAUGE = Metric("consumerd_x", Kind.GAUGE, "X.", ("topic",))
BASE = "http://127.0.0.1:4318"


@pytest.fixture(autouse=True)
def threads_end_with_the_test() -> Iterator[None]:
    """Wait for threads that a stop left behind: they would log during the next test."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("telemetry"):
            thread.join(60)
            assert not thread.is_alive()


def batch(*payloads: bytes) -> Batch:
    return Batch(TopicPartition("t", 0, 0), decode_batch(encode_message_set(payloads), 0))


def telemetry(url: str, *, interval: float = 3600.0) -> Telemetry:
    signals = Signals(Destination(f"{url}/v1/traces"), Destination(f"{url}/v1/metrics"), interval)
    return Telemetry(signals, lambda: [Reading(GAUGE, ("t",), 5)], SystemClock(), instance="me")


# -- whether


@pytest.mark.parametrize(
    ("section", "environment", "expected"),
    [
        ({}, {}, None),
        (
            {"otlp_endpoint": f"{BASE}/"},
            {},
            Signals(Destination(f"{BASE}/v1/traces"), Destination(f"{BASE}/v1/metrics"), 60.0),
        ),
        (
            {"otlp_endpoint": BASE, "traces": False, "metrics_interval": 5.0},
            {"OTEL_METRIC_EXPORT_INTERVAL": "1000"},
            Signals(None, Destination(f"{BASE}/v1/metrics"), 5.0),
        ),
        ({"otlp_endpoint": BASE}, {"OTEL_SDK_DISABLED": "true"}, None),
        ({"otlp_endpoint": BASE, "traces": False, "metrics": False}, {}, None),
        (
            {},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": BASE, "OTEL_METRIC_EXPORT_INTERVAL": "1500"},
            Signals(Destination(None), Destination(None), 1.5),
        ),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": BASE}, Signals(Destination(None), None, 60.0)),
        (
            {},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": BASE, "OTEL_TRACES_EXPORTER": "none"},
            Signals(None, Destination(None), 60.0),
        ),
    ],
)
def test_configuration_and_environment_say_what_is_sent(
    section: dict[str, Any], environment: dict[str, str], expected: Signals | None
) -> None:
    assert find_signals(TelemetrySection(**section), environment) == expected


def test_rejects_an_interval_that_is_not_a_number() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": BASE, "OTEL_METRIC_EXPORT_INTERVAL": "1m"}
    with pytest.raises(ConfigError, match=r"OTEL_METRIC_EXPORT_INTERVAL must be a positive number .*, not '1m'"):
        find_signals(TelemetrySection(), environment)


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://127.0.0.1", "http://"])
def test_rejects_an_endpoint_that_is_not_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint must be a URL such as"):
        parse({"group": {"id": "g", "topics": {"t": 1}}, "telemetry": {"otlp_endpoint": url}}, "x", environment=False)


def test_names_the_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "consumerd.service.daemon.otel", None)  # as the import of a missing package fails
    with pytest.raises(ConfigError, match=r"needs the extra `otel`: pip install 'consumerd\[otel\]'\."):
        check_telemetry(TelemetrySection(otlp_endpoint=BASE))
    check_telemetry(TelemetrySection())
    # If only the environment asks for telemetry, the daemon starts without it.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", BASE)
    with capture_logs() as logs:
        assert build_telemetry(TelemetrySection(), list, SystemClock(), instance="me") is None
    assert [event["event"] for event in logs] == ["telemetry_unavailable"]


def test_ignores_an_environment_that_asks_for_another_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", BASE)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with capture_logs() as logs:
        assert build_telemetry(TelemetrySection(), list, SystemClock(), instance="me") is None
    assert logs[0]["reason"].startswith("OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and only http/protobuf is supported")


# -- sending


async def test_sends_spans_and_metrics_and_what_is_left_at_the_end() -> None:
    async with running_collector() as collector:
        async with telemetry(collector.url, interval=0.01) as running:
            handler = running.traced(NullHandler())
            await collector.until(lambda: collector.metrics)
            await handler.handle(batch(b"one", b"two"))
        await_end = list(collector.names())
    assert await_end == ["process t"]
    (point,) = collector.metrics[-1]["consumerd_x"].gauge.data_points
    assert (attributes(point), point.as_int) == ({"topic": "t"}, 5)
    for resource in collector.resources:
        assert resource["service.name"] == "consumerd"
        assert resource["service.instance.id"] == "me"


async def test_spans_of_a_further_subscription_have_its_group() -> None:
    group = {"messaging.consumer.group.name": "h"}
    async with running_collector() as collector, telemetry(collector.url) as running:
        await running.traced(NullHandler(), group).handle(batch(b"one"))
        spans = running.spans(group)
        assert spans is not None
        spans.rebalanced(Rebalance(1.0, 0.5, 1, (), ()))
        await running.traced(NullHandler()).handle(batch(b"two"))
    found = [(span.name, attributes(span).get("messaging.consumer.group.name")) for span in collector.spans]
    assert found == [("process t", "h"), ("rebalance", "h"), ("process t", None)]


async def test_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    async with running_collector() as collector, telemetry(collector.url):
        pass
    assert [resource["service.name"] for resource in collector.resources] == ["orders"]


def events(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [event["event"] for event in logs if event["log_level"] in ("warning", "error")]


async def test_unavailable_collector_costs_one_line_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as logs:
        async with telemetry(f"http://127.0.0.1:{free_port()}") as running:
            await running.traced(NullHandler()).handle(batch(b"one"))
            running.end_seconds = 0.2
    assert events(logs) == ["telemetry_dropped"]
    assert capfd.readouterr().err == ""  # nothing of the SDK's own log


async def test_refused_exports_are_logged_once_until_they_succeed(capfd: pytest.CaptureFixture[str]) -> None:
    async with running_collector() as collector:
        collector.status = 400
        with capture_logs() as logs:
            async with telemetry(collector.url, interval=0.01):
                await collector.until(lambda: collector.requests >= 4)
                collector.status = 200
                await collector.until(lambda: collector.metrics)
    # On a busy machine metrics are dropped, too, because the export before is still under way.
    exports = [event for event in logs if event["event"].startswith("telemetry_export")]
    assert [(event["event"], event.get("signal")) for event in exports] == [
        ("telemetry_export_failed", "metrics"),
        ("telemetry_export_resumed", None),
    ]
    reason = next(event["reason"] for event in logs if event["event"] == "telemetry_export_failed")
    assert "400" in reason
    assert capfd.readouterr().err == ""


async def test_silent_collector_holds_neither_the_loop_nor_the_end() -> None:
    async with running_collector() as collector:
        collector.silent = True
        with capture_logs() as logs:
            running = telemetry(collector.url, interval=0.01)
            await running.__aenter__()
            await collector.until(lambda: collector.requests)
            handler = running.traced(NullHandler())
            for _ in range(3000):  # more than the queue of the SDK holds
                await handler.handle(batch(b"one"))
            running.end_seconds = 0.2
            began = time.monotonic()
            await asyncio.wait_for(running.__aexit__(), 60)
            seconds = time.monotonic() - began
        assert events(logs) == ["telemetry_dropped"]
        assert seconds < 5  # the exporter itself waits for 10 s
        assert isinstance(collector, Collector)
