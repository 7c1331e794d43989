"""Watches one daemon while it runs: health, lag, throughput, the summary in the log, and the HTTP server.

Strategy: tasks in one TaskGroup, from before the first connection is made until the member has left, so that probes
get an answer while the daemon waits for ZooKeeper and while it drains. It only reads: no path of a message leads
through here. A watcher that fails is a defect; it is logged, and takes neither the member nor its messages with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from consumerd.daemon.group_view import GroupWatch
from consumerd.daemon.health import Health
from consumerd.daemon.lag import LagWatch
from consumerd.errors import reason_of
from consumerd.handlers.retry import HandlerCounts
from consumerd.metrics import LATENCIES, Histogram, TargetCounts
from consumerd.metrics.own import HandlerMetrics
from consumerd.partition import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from consumerd.config.model import Config
    from consumerd.consumer.running import RunningMember
    from consumerd.daemon.group_view import ReadGroup
    from consumerd.daemon.otel import Telemetry
    from consumerd.handlers import Handler
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)

#: Seconds between looks at the health.
_LOOK: Final = 1.0
#: Seconds between points of the history, and how many are kept: ten minutes.
HISTORY_INTERVAL: Final = 5.0
_POINTS: Final = 120


class Point(NamedTuple):
    """Totals at one moment of the member's clock."""

    at: float
    messages: int
    bytes: int
    #: Bytes or messages; None while it is not known.
    lag: int | None


class Monitor:
    """Of one daemon, from `__aenter__` to `__aexit__`; it knows of the member as soon as `watch` was called."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.group = config.group.id
        self.partition_labels = config.metrics.partition_labels
        self.started = clock.monotonic()
        self.started_wall = clock.wall()
        self.member: RunningMember[Any] | None = None
        self.group_watch: GroupWatch | None = None
        #: What sends traces and metrics, where something does.
        self.telemetry: Telemetry | None = None
        self.handler_counts = HandlerCounts()
        #: Of the handlers that this daemon has had, by name: a reload may bring another.
        self.handler_metrics: dict[str, HandlerMetrics] = {}
        #: Of a mirror: what it sent, and the mirrors that it found to copy back.
        self.target_counts: TargetCounts | None = None
        self.reverse_mirrors = 0
        self.loop_lag = Histogram(LATENCIES)
        self.health = Health(clock, hung_after=config.health.hung_after, counts=self.handler_counts)
        self.lag = LagWatch(clock)
        self.history: deque[Point] = deque(maxlen=_POINTS)
        self._before = Point(self.started, 0, 0, None)
        self._tasks: list[asyncio.Task[None]] = []
        self._summary: asyncio.Task[None] | None = None

    def watch(self, member: RunningMember[Any], read_group: ReadGroup | None = None) -> None:
        """Watch this member from now on. `read_group` reads its whole group, if there is one."""
        self.member = member
        self.group_watch = GroupWatch(self.clock, read_group)
        self.health.watch(member)
        if self.telemetry is not None:
            member.stats.observer = self.telemetry.spans

    def traced(self, handler: Handler) -> Handler:
        """The handler with a span for each call, where traces are sent."""
        return handler if self.telemetry is None else self.telemetry.traced(handler)

    def metrics_of_handler(self, name: str) -> HandlerMetrics:
        """Where the handler that the configuration calls `name` keeps its own metrics."""
        return self.handler_metrics.setdefault(name, HandlerMetrics(name))

    def is_this(self, name: str) -> bool:
        """Whether a member of the group is this one."""
        member = self.member
        return member is not None and name in (member.settings.consumer_id, getattr(member, "member_id", None))

    def wall_of(self, moment: float) -> float:
        """Seconds since 1970 of a moment of the clock."""
        return self.clock.wall() - (self.clock.monotonic() - moment)

    async def __aenter__(self) -> Self:
        self._start(self._look_after_health)
        if self.config.health.listen is not None:
            self._start(self._keep_history)
        if self._looks_at_lag:
            self._start(self._look_at_lag)
        self._begin_summary()
        return self

    def reconfigure(self, config: Config) -> None:
        """Watch by another configuration from now on: its metrics, and when a handler counts as hung."""
        before, self.config = self.config.metrics, config
        self.partition_labels = config.metrics.partition_labels
        self.health.hung_after = config.health.hung_after
        if config.metrics.summary_interval != before.summary_interval:
            self._begin_summary()

    def _begin_summary(self) -> None:
        if self._summary is not None:
            self._summary.cancel()
            self._summary = None
        if self.config.metrics.summary_interval:
            self._summary = self._start(self._summarise)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def _looks_at_lag(self) -> bool:
        """Whether somebody reads it between summaries."""
        return self.config.health.listen is not None or self.telemetry is not None

    def _start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work), name=work.__name__.strip("_"))
        self._tasks.append(task)
        return task

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
            self.health.look()

    async def _look_at_lag(self) -> None:
        while True:
            if self.member is not None:
                await self.lag.look(self.member)
            await self.clock.sleep(self.config.metrics.lag_interval)

    async def _keep_history(self) -> None:
        while True:
            self.history.append(self.point())
            await self.clock.sleep(HISTORY_INTERVAL)

    def point(self) -> Point:
        """The totals of this moment."""
        now, member = self.clock.monotonic(), self.member
        if member is None:
            return Point(now, 0, 0, None)
        lags = [self.lag.of(view, None) for view in member.views()]
        known = [lag.amount for lag in lags if lag is not None]
        lag = sum(known) if known or not lags else None
        return Point(now, member.stats.messages, member.stats.bytes, lag)

    async def _summarise(self) -> None:
        while True:
            await self.clock.sleep(self.config.metrics.summary_interval)
            if self.member is not None:
                if not self._looks_at_lag:
                    await self.lag.look(self.member)
                self._log_summary(self.member)

    def _log_summary(self, member: RunningMember[Any]) -> None:
        before, self._before = self._before, self.point()
        now, counts, stats = self._before, self.handler_counts, member.stats
        seconds = max(now.at - before.at, 1e-3)
        views = member.views()
        in_bytes = any(view.partition.broker != NO_BROKER for view in views)
        log.info(
            "summary",
            group=self.group,
            ready=not self.health.unready,
            partitions=len(views),
            messages=now.messages - before.messages,
            messages_per_second=round((now.messages - before.messages) / seconds, 1),
            **({} if now.lag is None else {"lag_bytes" if in_bytes else "lag": now.lag}),
            handler_failures=counts.failures.total(),
            dead_lettered=counts.dead_lettered.total(),
            skipped=counts.skipped.total(),
            rebalances=stats.rebalances,
            failed_commits=stats.failed_commits,
            memory_bytes=member.budget.used,
        )
