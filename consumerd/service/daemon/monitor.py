"""Watches one daemon while it runs: health, lag, throughput, the summary in the log, and the HTTP server.

Strategy: tasks in one TaskGroup, from before the first connection is made until the members have left, so that probes
get an answer while the daemon waits for ZooKeeper and while it drains. It only reads: no path of a message leads
through here. A watcher that fails is a defect; it is logged, and takes neither the members nor their messages with it.
What belongs to one subscription is in `consumerd.service.daemon.subscription_monitor`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from consumerd.base.clock import Interval
from consumerd.base.errors import reason_of
from consumerd.base.metrics.histogram import LATENCIES, Histogram
from consumerd.base.metrics.own import HandlerMetrics
from consumerd.base.ports import Clock
from consumerd.handlers import Handler
from consumerd.member.consumer.running_member import RunningMember
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.build_subscriptions import errors_of
from consumerd.service.config.model import Config
from consumerd.service.daemon.group_view import ReadGroup
from consumerd.service.daemon.repeats import REPEATS
from consumerd.service.daemon.subscription_monitor import Point, SubscriptionMonitor

if TYPE_CHECKING:
    from consumerd.handlers.counts import TargetCounts
    from consumerd.service.daemon.otel import Telemetry

log = structlog.get_logger(__name__)

#: Seconds between looks at the health.
_LOOK: Final = 1.0
#: Seconds between points of the history, and how many are kept: ten minutes.
HISTORY_INTERVAL: Final = 5.0
_POINTS: Final = 120


class Monitor:
    """The monitor of one daemon, from `__aenter__` to `__aexit__`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.partition_labels = config.metrics.partition_labels
        self.started = clock.monotonic()
        self.started_wall = clock.wall()
        #: In the order of the configuration, the main one first.
        self.subscriptions = [SubscriptionMonitor(name, own, clock) for name, own in config.by_subscription().items()]
        #: The sender of traces and metrics, if there is one.
        self.telemetry: Telemetry | None = None
        #: Of the handlers that this daemon has had, by group and name: a reload may bring another.
        self.handler_metrics: dict[tuple[str, str], HandlerMetrics] = {}
        #: Of a mirror: the counts of messages sent, and the mirrors that it found to copy back.
        self.target_counts: TargetCounts | None = None
        self.reverse_mirrors = 0
        self.loop_lag = Histogram(LATENCIES)
        self.history: deque[Point] = deque(maxlen=_POINTS)
        self._tasks: list[asyncio.Task[None]] = []
        self._lag_interval = Interval(config.metrics.lag_interval, clock)
        self._summary_interval = Interval(config.metrics.summary_interval or None, clock)

    @property
    def main(self) -> SubscriptionMonitor:
        """The main subscription, that of `[group]`: of mirrors the only one."""
        return self.subscriptions[0]

    @property
    def sick(self) -> str | None:
        """As `Probed.sick`: of any member."""
        return next((each.health.sick for each in self.subscriptions if each.health.sick is not None), None)

    @property
    def unready(self) -> list[str]:
        """As `Probed.unready`: the reasons of all members, each once."""
        return [*dict.fromkeys(reason for each in self.subscriptions for reason in each.health.unready)]

    @property
    def stopping_since(self) -> float | None:
        """The time on the clock at which the first member began to leave; None while none does."""
        moments = [each.member.stopping_since for each in self.subscriptions if each.member is not None]
        return min((moment for moment in moments if moment is not None), default=None)

    def watch(
        self,
        member: RunningMember[Any],
        read_group: ReadGroup | None = None,
        subscription: SubscriptionMonitor | None = None,
    ) -> None:
        """Watch this member from now on: that of the main subscription, or of `subscription`."""
        part = subscription or self.main
        part.watch(member, read_group)
        if self.telemetry is not None:
            member.stats.observer = self.telemetry.spans(part.attributes)

    def traced(self, handler: Handler, subscription: SubscriptionMonitor | None = None) -> Handler:
        """The handler of `subscription` (by default the main one), with a span for each call where traces are sent."""
        if self.telemetry is None:
            return handler
        return self.telemetry.traced(handler, (subscription or self.main).attributes)

    def build_handler(self, part: SubscriptionMonitor, config: Config, rng: Random) -> Handler:
        """The handler of a subscription that has `config`, not started, its failures and metrics counted here.

        Raises HandlerLoadError, ConfigError.
        """
        # Of the handlers of one name in a group, the metrics are one.
        name = config.handler.name
        metrics = self.handler_metrics.setdefault((part.group, name), HandlerMetrics(name))
        with errors_of(part.name):
            return build_handler(config, clock=self.clock, rng=rng, counts=part.handler_counts, metrics=metrics)

    def logged_as(self, part: SubscriptionMonitor) -> AbstractContextManager[None]:
        """Within it, events of the log name the subscription, if there are several."""
        if len(self.subscriptions) == 1:
            return nullcontext()
        return structlog.contextvars.bound_contextvars(subscription=part.name)

    def wall_of(self, moment: float) -> float:
        """Seconds since 1970 of a moment of the clock."""
        return self.clock.wall() - (self.clock.monotonic() - moment)

    async def __aenter__(self) -> Self:
        self._start(self._look_after_health)
        if self.config.health.listen is not None:
            self._start(self._keep_history)
        if self._looks_at_lag:
            self._start(self._look_at_lag)
        self._start(self._summarise)
        return self

    def reconfigure(self, config: Config) -> None:
        """Watch by another configuration from now on: its metrics, and when a handler counts as hung."""
        self.config = config
        self._lag_interval.change(config.metrics.lag_interval)
        self._summary_interval.change(config.metrics.summary_interval or None)
        self.partition_labels = config.metrics.partition_labels
        for part, own in zip(self.subscriptions, config.by_subscription().values(), strict=True):
            part.reconfigure(own)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for part in self.subscriptions:
            if part.group_watch is not None:
                await part.group_watch.close()

    @property
    def _looks_at_lag(self) -> bool:
        """Whether the lag is read between summaries."""
        return self.config.health.listen is not None or self.telemetry is not None

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._guarded(work), name=work.__name__.strip("_")))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                log.exception("monitor_failed", task=work.__name__.strip("_"), reason=reason_of(error))
            await self.clock.sleep(_LOOK)

    async def _look_after_health(self) -> None:
        while True:
            before = self.clock.monotonic()
            await self.clock.sleep(_LOOK)
            self.loop_lag.observe(max(0.0, self.clock.monotonic() - before - _LOOK))
            for part in self.subscriptions:
                with self.logged_as(part):
                    part.look_after_health()
            REPEATS.flush()

    async def _look_at_lag(self) -> None:
        while True:
            for part in self.subscriptions:
                with self.logged_as(part):
                    await part.look_at_lag()
            await self._lag_interval.wait()

    async def _keep_history(self) -> None:
        while True:
            self.history.append(self.point())
            await self.clock.sleep(HISTORY_INTERVAL)

    def point(self) -> Point:
        """The totals of all subscriptions at this moment."""
        points = [part.point() for part in self.subscriptions]
        lags = [point.lag for point in points if point.lag is not None]
        return Point(
            points[0].at,
            sum(point.messages for point in points),
            sum(lags) if len(lags) == len(points) else None,
        )

    async def _summarise(self) -> None:
        while True:
            await self._summary_interval.wait()
            for part in self.subscriptions:
                with self.logged_as(part):
                    if not self._looks_at_lag:
                        await part.look_at_lag()
                    part.log_summary()
