"""The numbers of a broker as readings of the catalogue (`consumerd.base.metrics.catalogue`).

Strategy: as `consumerd.service.daemon.readings`: each reading is taken from its counter when it is requested, on the
loop, without an await between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from consumerd import __version__
from consumerd.base.metrics import catalogue as c
from consumerd.base.metrics.catalogue import Metric, Reading

if TYPE_CHECKING:
    from consumerd.service.daemon.broker_monitor import BrokerMonitor
    from consumerd.storage.broker.server import Broker

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
