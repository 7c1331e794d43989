"""Watches a broker while it runs: its monitor, the HTTP server of the probes, and the sender of its metrics.

Strategy: the server is there before the broker is made, so that probes get an answer while logs are checked and while
the broker waits for ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from consumerd.base.address import parse_address
from consumerd.base.ports import Clock
from consumerd.base.settings.monitoring import TelemetrySection
from consumerd.service.daemon.broker_monitor import BrokerMonitor
from consumerd.service.daemon.broker_readings import read_broker
from consumerd.service.daemon.probes import check_extras, probe_routes
from consumerd.service.daemon.telemetry import build_telemetry

if TYPE_CHECKING:
    from consumerd.storage.broker.config import BrokerConfig


@asynccontextmanager
async def monitored(config: BrokerConfig, clock: Clock) -> AsyncIterator[BrokerMonitor]:
    """A monitor, the HTTP server if the configuration has one, and what sends its metrics to a collector.

    Raises ConfigError where it cannot listen, or an extra is not installed.
    """
    monitor = BrokerMonitor(config, clock)
    section = TelemetrySection(otlp_endpoint=config.otlp_endpoint, traces=False)
    telemetry = build_telemetry(section, lambda: read_broker(monitor), clock, instance=f"broker-{config.broker_id}")
    async with AsyncExitStack() as stack:
        if telemetry is not None:
            await stack.enter_async_context(telemetry)
        if config.health_listen is not None:
            check_extras(metrics=config.health_metrics)
            from consumerd.net.http.server import HttpServer  # noqa: PLC0415 - the extra `http`

            host, port = parse_address(config.health_listen, "health.listen", lowest=0)
            source = (lambda: read_broker(monitor)) if config.health_metrics else None
            await stack.enter_async_context(HttpServer(host, port, probe_routes(monitor, source)))
        if config.health_listen is not None or telemetry is not None:
            looking = asyncio.create_task(monitor.look_at_loop(), name="event loop")
            stack.push_async_callback(_end, looking)
        yield monitor


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
