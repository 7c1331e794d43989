"""Watches a broker while it runs: whether it is ready, how late its event loop is, and the HTTP server of both.

Strategy: the server is there before the broker is made, so that probes get an answer while logs are checked and while
the broker waits for ZooKeeper. The broker lives while its event loop answers: disks and ZooKeeper have no part in
that, since a restart repairs neither.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from consumerd.base.address import parse_address
from consumerd.base.metrics import LATENCIES, Histogram
from consumerd.service.config.monitoring import TelemetrySection
from consumerd.service.daemon.broker_readings import read_broker
from consumerd.service.daemon.probes import check_extras, probe_routes
from consumerd.service.daemon.repeats import REPEATS
from consumerd.service.daemon.telemetry import build_telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from consumerd.base.ports import Clock
    from consumerd.storage.broker import Broker, BrokerConfig

#: Seconds between looks at how late the event loop is.
_LOOK: Final = 1.0


class BrokerMonitor:
    """The monitor of one broker, which it knows as soon as `watch` was called."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.config = config
        self.started_wall = clock.wall()
        self.broker: Broker | None = None
        self.loop_lag = Histogram(LATENCIES)
        self._clock = clock

    def watch(self, broker: Broker) -> None:
        """Watch this broker from now on."""
        self.broker = broker

    @property
    def sick(self) -> str | None:
        """None: an event loop that does not come round does not get as far as this."""
        return None

    @property
    def unready(self) -> list[str]:
        """The reasons for which clients are not served now: starting, not_registered, stopping."""
        broker = self.broker
        if broker is None:
            return ["starting"]
        if broker.stopping:
            return ["stopping"]
        if not broker.ready.is_set():
            return ["starting"]
        return ["not_registered"] if broker.registered is False else []

    async def look_at_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_LOOK)
            self.loop_lag.observe(max(0.0, self._clock.monotonic() - before - _LOOK))
            REPEATS.flush()


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
