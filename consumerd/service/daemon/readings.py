"""The numbers of a daemon as readings of the catalogue (`consumerd.base.metrics.catalogue`).

Strategy: nothing is kept here. Each reading is taken from its counter when it is requested, on the
loop, without an await between: so the numbers of one scrape are consistent. Subscriptions are told apart by group and
topic; readings without a topic are added up where several are in one group.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from consumerd import __version__
from consumerd.base.metrics import catalogue as c
from consumerd.base.metrics.catalogue import Metric, Reading
from consumerd.base.metrics.histogram import Histogram
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.member.consumer.owned_partition import OwnedView

if TYPE_CHECKING:
    from consumerd.handlers.counts import TargetCounts
    from consumerd.member.consumer.running_member import RunningMember
    from consumerd.service.daemon.lag import Lag
    from consumerd.service.daemon.monitor import Monitor
    from consumerd.service.daemon.subscription_monitor import SubscriptionMonitor

Labels = tuple[str, ...]
#: The lag of each partition; None where it is unknown.
_Lags: TypeAlias = "Mapping[TopicPartition, Lag | None]"


def read(monitor: Monitor) -> Iterator[Reading]:
    """All readings of a daemon now; few before there is a member."""
    yield Reading(c.BUILD_INFO, (__version__,), 1)
    yield Reading(c.START_TIME, (), monitor.started_wall)
    yield Reading(c.LOOP_LAG, (), monitor.loop_lag)
    yield Reading(c.TASKS, (), len(asyncio.all_tasks()))
    if monitor.target_counts is not None:
        yield from _target(monitor, monitor.target_counts)
    for (group, _), metrics in monitor.handler_metrics.items():
        yield from metrics.readings(group)
    member = monitor.main.member
    if member is not None:  # which shares its budget with all other members
        yield Reading(c.MEMORY_USED, (monitor.main.group,), member.budget.used)
        yield Reading(c.MEMORY_LIMIT, (monitor.main.group,), member.budget.limit)
    if len(monitor.subscriptions) == 1:
        yield from _subscription(monitor, monitor.main)
    else:
        yield from _merged(reading for part in monitor.subscriptions for reading in _subscription(monitor, part))


#: The functions that join readings of several subscriptions with equal labels, where they are not added.
_CHOSEN: Final = {
    **dict.fromkeys((c.READY, c.SESSION_UP, c.BROKERS), min),
    **dict.fromkeys((c.BUSY_SECONDS, c.LAST_HANDLED, c.LAG_SECONDS, c.SINCE_HANDLED, c.POSITION, c.COMMITTED), max),
}


def _merged(readings: Iterable[Reading]) -> Iterator[Reading]:
    """One reading for each metric and its labels: those of a group are the sums of its members in this process."""
    merged: dict[tuple[Metric, Labels], float | Histogram] = {}
    for metric, labels, value in readings:
        before = merged.get((metric, labels))
        if before is None:
            merged[metric, labels] = value
        elif isinstance(before, Histogram) and isinstance(value, Histogram):
            merged[metric, labels] = before.plus(value)
        elif not isinstance(before, Histogram) and not isinstance(value, Histogram):
            merged[metric, labels] = _CHOSEN.get(metric, add)(before, value)
    for (metric, labels), value in merged.items():
        yield Reading(metric, labels, value)


def _subscription(monitor: Monitor, part: SubscriptionMonitor) -> Iterator[Reading]:
    group = (part.group,)
    yield Reading(c.READY, group, float(not part.health.unready))
    yield from _handler(part)
    if part.member is not None:
        views = part.member.views()
        lags = part.lags(part.member, views)
        yield from _member(part, part.member, views, lags)
        yield from _fetching(group, part.member)
        yield from _topics(group, part.member)
        yield from _partitions(monitor, part, part.member, views, lags)


def _handler(part: SubscriptionMonitor) -> Iterator[Reading]:
    group, counts = part.group, part.handler_counts
    yield from _by_topic(part, c.FAILURES, counts.failures)
    yield from _by_topic(part, c.RETRIES, counts.retries)
    yield from _by_topic(part, c.SKIPPED, counts.skipped)
    yield from _by_topic(part, c.DEAD_LETTERED, counts.dead_lettered)
    yield from _by_topic(part, c.DEFERRED, counts.deferred)
    yield from _by_topic(part, c.UNDECODABLE, counts.undecodable)
    yield Reading(c.BUSY_SECONDS, (group,), max(part.health.busy().values(), default=0.0))
    yield Reading(c.DISK_FULL, (group,), counts.disk_full)
    yield Reading(c.HUNG, (group,), len(part.health.hung))


def _target(monitor: Monitor, counts: TargetCounts) -> Iterator[Reading]:
    yield from _by_topic(monitor.main, c.TARGET_SENT, counts.sent)
    yield from _by_topic(monitor.main, c.TARGET_CONFIRMED, counts.confirmed)
    yield Reading(c.REVERSE_MIRRORS, (monitor.main.group,), monitor.reverse_mirrors)


def _by_topic(part: SubscriptionMonitor, metric: Metric, counts: Counter[str]) -> Iterator[Reading]:
    """A counter that begins at 1 has not increased, as Prometheus sees it: it begins at 0, with its topic."""
    consumed = [] if part.member is None else [each.topic for each in part.member.assigned]
    for topic in sorted({*counts, *consumed}):
        yield Reading(metric, (part.group, topic), counts[topic])


def _member(
    part: SubscriptionMonitor, member: RunningMember[Any], views: list[OwnedView], lags: _Lags
) -> Iterator[Reading]:
    group, stats = (part.group,), member.stats
    yield Reading(c.SESSION_UP, group, float(member.in_session))
    yield Reading(c.ASSIGNED, group, len(member.assigned))
    yield Reading(c.OWNED, group, sum(view.position is not None for view in views))
    yield Reading(c.LAG_UNKNOWN, group, sum(lag is None for lag in lags.values()))
    if (brokers := member.brokers()) is not None:
        yield Reading(c.BROKERS, group, brokers)
    if member.blocked is not None:
        yield Reading(c.BLOCKED, group, len(member.blocked))
    yield Reading(c.PAUSED, group, sum(view.paused for view in views))
    yield Reading(c.REBALANCES, group, stats.rebalances)
    yield Reading(c.REBALANCE_SECONDS, group, stats.rebalance_seconds)
    yield Reading(c.LOST, group, stats.lost_partitions)
    yield Reading(c.COMMITS, group, stats.commits)
    yield Reading(c.FAILED_COMMITS, group, stats.failed_commits)


def _fetching(group: Labels, member: RunningMember[Any]) -> Iterator[Reading]:
    counters = member.fetched
    yield Reading(c.FETCHED, group, counters.messages)
    yield Reading(c.FETCHED_BYTES, group, counters.received_bytes)
    yield Reading(c.FOLLOWER_BYTES, group, counters.follower_bytes)
    yield Reading(c.FETCHES, group, counters.fetches + counters.polls)
    yield Reading(c.FETCH_THROTTLED, group, counters.throttled)
    yield Reading(c.FETCH_RESETS, group, counters.resets)
    yield Reading(c.LOGS_CHANGED, (*group, "replaced"), counters.replaced_logs)
    yield Reading(c.LOGS_CHANGED, (*group, "truncated"), counters.truncated_logs)
    yield Reading(c.FETCH_SKIPPED, group, counters.skipped)
    yield Reading(c.FETCH_PARKED, group, counters.parked)
    yield Reading(c.PARTITIONS_DENIED, group, len(counters.denied))
    yield Reading(c.CONNECTS, group, counters.connects)
    yield Reading(c.DISCONNECTS, group, counters.disconnects)
    for code, number in sorted(counters.errors.items()):
        yield Reading(c.FETCH_ERRORS, (*group, str(int(code))), number)


def _topics(group: Labels, member: RunningMember[Any]) -> Iterator[Reading]:
    for topic, stats in sorted(member.stats.topics.items()):
        yield Reading(c.BATCH_SECONDS, (*group, topic), stats.durations)
        yield Reading(c.BATCH_MESSAGES, (*group, topic), stats.sizes)
        if stats.ages.count:
            yield Reading(c.MESSAGE_AGES, (*group, topic), stats.ages)


def _partitions(
    monitor: Monitor, part: SubscriptionMonitor, member: RunningMember[Any], views: list[OwnedView], lags: _Lags
) -> Iterator[Reading]:
    """Yield the readings of each partition, or of all of a topic together: then those without a sum are left out."""
    split = monitor.partition_labels
    sums = _Sums(lambda partition: _labels(part.group, partition, split=split))
    for partition, counts in sorted(member.stats.partitions.items()):
        sums.add(c.HANDLED, partition, counts.messages)
        if partition.broker != NO_BROKER:
            sums.add(c.HANDLED_BYTES, partition, counts.bytes)
    for view in views:
        partition = view.partition
        handled_at = member.stats.of(partition).handled_at
        if handled_at is not None:
            sums.most(c.LAST_HANDLED, partition, monitor.wall_of(handled_at))
        if (lag := part.lag.of(view, handled_at)) is not None:
            sums.add(c.LAG if partition.broker == NO_BROKER else c.LAG_BYTES, partition, lag.amount)
            sums.most(c.SINCE_HANDLED, partition, lag.since_handled)
            if lag.age is not None:
                sums.most(c.LAG_SECONDS, partition, lag.age)
        if split and view.position is not None:
            sums.add(c.POSITION, partition, view.position)
        if split and view.committed is not None:
            sums.add(c.COMMITTED, partition, view.committed)
    for partition, known in lags.items():
        if known is None:  # a sum of the others would look like less
            sums.leave_out((c.LAG, c.LAG_BYTES), partition)
    yield from sums.readings()


class _Sums:
    def __init__(self, labels: Callable[[TopicPartition], Labels]) -> None:
        self._labels = functools.cache(labels)
        self._values: defaultdict[Metric, dict[Labels, float]] = defaultdict(dict)

    def leave_out(self, metrics: Iterable[Metric], partition: TopicPartition) -> None:
        for metric in metrics:
            self._values[metric].pop(self._labels(partition), None)

    def add(self, metric: Metric, partition: TopicPartition, value: float) -> None:
        values, labels = self._values[metric], self._labels(partition)
        values[labels] = values.get(labels, 0) + value

    def most(self, metric: Metric, partition: TopicPartition, value: float) -> None:
        values, labels = self._values[metric], self._labels(partition)
        values[labels] = max(values.get(labels, value), value)

    def readings(self) -> Iterator[Reading]:
        for metric, values in self._values.items():
            for labels, value in values.items():
                yield Reading(metric, labels, value)


def _labels(group: str, partition: TopicPartition, *, split: bool) -> Labels:
    if not split:
        return group, partition.topic, "", ""
    broker = "" if partition.broker == NO_BROKER else str(partition.broker)
    return group, partition.topic, broker, str(partition.partition)
