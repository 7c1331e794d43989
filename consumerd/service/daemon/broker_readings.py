"""The numbers of a broker as readings of the catalogue (`consumerd.base.metrics.catalogue`).

Strategy: as `consumerd.service.daemon.readings`: each reading is taken from its counter when it is requested, on the
loop, without an await between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from consumerd import __version__
from consumerd.base.address import parse_address
from consumerd.base.metrics import catalogue as c
from consumerd.base.metrics.catalogue import Metric, Reading
from consumerd.base.metrics.histogram import LATENCIES, Histogram
from consumerd.base.ports import Clock
from consumerd.base.settings.monitoring import TelemetrySection
from consumerd.service.daemon.probes import check_extras, probe_routes
from consumerd.service.daemon.repeats import REPEATS
from consumerd.service.daemon.telemetry import build_telemetry

if TYPE_CHECKING:
    from consumerd.storage.broker.config import BrokerConfig
    from consumerd.storage.broker.server import Broker


# Whether a broker is ready, and how late its event loop is.
#
# Strategy: the broker lives while its event loop answers: disks and ZooKeeper have no part in that, since a restart
# repairs neither.

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


Labels = tuple[str, ...]


def read_broker(monitor: BrokerMonitor) -> Iterator[Reading]:
    """All readings of a broker now; few before there is one."""
    yield Reading(c.BUILD_INFO, (__version__,), 1)
    yield Reading(c.START_TIME, (), monitor.started_wall)
    yield Reading(c.LOOP_LAG, (), monitor.loop_lag)
    yield Reading(c.TASKS, (), len(asyncio.all_tasks()))
    label = (str(monitor.config.broker_id),)
    yield Reading(c.BROKER_READY, label, float(not monitor.unready))
    broker = monitor.broker
    if broker is not None:
        yield from _clients(label, broker)
        yield from _requests(label, broker)
        yield from _logs(label, broker, split=monitor.config.partition_labels)


def _clients(label: Labels, broker: Broker) -> Iterator[Reading]:
    stats, memory = broker.stats, broker.request_memory
    if broker.registered is not None:
        yield Reading(c.BROKER_REGISTERED, label, float(broker.registered))
        if broker.registered_at is not None:
            yield Reading(c.BROKER_REGISTERED_AT, label, broker.registered_at)
    if broker.topics_not_registered is not None:
        yield Reading(c.TOPICS_NOT_REGISTERED, label, broker.topics_not_registered)
    yield Reading(c.CONNECTIONS, label, broker.connections)
    yield Reading(c.ACCEPTED, label, stats.accepted)
    yield Reading(c.CONNECTIONS_REFUSED, label, stats.connections_refused)
    yield Reading(c.RECEIVED_BYTES, label, stats.received_bytes)
    yield Reading(c.SENT_BYTES, label, stats.sent_bytes)
    yield Reading(c.REQUEST_MEMORY_USED, label, memory.used)
    yield Reading(c.REQUEST_MEMORY_LIMIT, label, memory.limit)


def _requests(label: Labels, broker: Broker) -> Iterator[Reading]:
    stats = broker.stats
    for kind, counts in stats.requests.items():
        yield Reading(c.REQUESTS, (*label, kind), counts.count)
        yield Reading(c.REQUEST_SECONDS, (*label, kind), counts.seconds)
    yield Reading(c.REQUESTS_REFUSED, label, stats.refused)
    yield Reading(c.REQUESTS_FAILED, label, stats.failed)
    for code, number in sorted(stats.fetch_errors.items()):
        yield Reading(c.BROKER_FETCH_ERRORS, (*label, str(int(code))), number)
    yield Reading(c.OVERSIZED_SETS, label, stats.oversized_sets)


def _logs(label: Labels, broker: Broker, *, split: bool) -> Iterator[Reading]:
    """Yield the readings of each log, or of all logs of a topic together: then offsets are left out."""
    stats, logs = broker.stats, broker.logs()
    yield Reading(c.LOGS, label, len(logs))
    yield Reading(c.LOGS_OFFLINE, label, broker.logs_offline)
    yield Reading(c.FLUSHES, label, stats.flush_seconds)
    yield Reading(c.ROLLS, label, stats.rolls)
    yield Reading(c.SEGMENTS_DELETED, label, stats.segments_deleted)
    sums: defaultdict[Metric, defaultdict[Labels, int]] = defaultdict(lambda: defaultdict(int))
    for topic, partition, log in sorted(logs, key=lambda each: each[:2]):
        # The name of a folder may not be UTF-8 (a broker with another locale), which no exposition can hold.
        where = (*label, topic.encode(errors="backslashreplace").decode(), str(partition) if split else "")
        counts = stats.of(topic, partition)
        start, end, flushed = log.start_offset, log.end_offset, log.flushed_offset
        sums[c.PRODUCED][where] += counts.messages
        sums[c.PRODUCED_BYTES][where] += counts.bytes
        sums[c.LOG_BYTES][where] += end - start
        sums[c.LOG_SEGMENTS][where] += len(log.segments)
        sums[c.UNFLUSHED_BYTES][where] += end - flushed
        if split:
            sums[c.LOG_START][where] = start
            sums[c.LOG_END][where] = end
    for metric, values in sums.items():
        for where, value in values.items():
            yield Reading(metric, where, value)


# Watches a broker while it runs: its monitor, the HTTP server of the probes, and the sender of its metrics.
#
# Strategy: the server is there before the broker is made, so that probes get an answer while logs are checked and while
# the broker waits for ZooKeeper.


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
