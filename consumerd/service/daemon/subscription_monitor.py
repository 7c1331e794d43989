"""Watches one subscription of a daemon: its member, the health of that, its lag, throughput and counters.

Strategy: it has no task and reads only; `consumerd.service.daemon.monitor` looks at all subscriptions of the process in
turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import structlog

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers.counts import HandlerCounts
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.running_member import RunningMember
from consumerd.service.config.model import Config
from consumerd.service.daemon.group_view import GroupWatch, ReadGroup
from consumerd.service.daemon.health import Health
from consumerd.service.daemon.lag import Lag, LagWatch

log = structlog.get_logger(__name__)


class Point(NamedTuple):
    """Totals at one moment of the member's clock."""

    at: float
    messages: int
    #: Bytes or messages; None while it is not known.
    lag: int | None


class SubscriptionMonitor:
    """The monitor of subscription `name`; `config` is its configuration, as if it were the only one of the daemon.

    It knows of the member as soon as `watch` was called.
    """

    def __init__(self, name: str, config: Config, clock: Clock) -> None:
        self.name = name
        self.config = config
        self.group = config.group.id
        self._clock = clock
        self.member: RunningMember[Any] | None = None
        self.group_watch: GroupWatch | None = None
        #: Attributes of its spans, where they differ from those of the process.
        self.attributes: dict[str, str] = {}
        self.handler_counts = HandlerCounts()
        self.lag = LagWatch(clock)
        self.health = Health(clock, hung_after=config.health.hung_after, counts=self.handler_counts, lag=self.lag)
        #: The partitions that were ours when the session was seen to hold the last time.
        self._held: list[TopicPartition] = []
        self._before = Point(clock.monotonic(), 0, None)

    def watch(self, member: RunningMember[Any], read_group: ReadGroup | None = None) -> None:
        """Watch this member from now on. `read_group` reads its whole group, if there is one."""
        self.member = member
        self.group_watch = GroupWatch(self._clock, read_group)
        self.health.watch(member)

    def reconfigure(self, config: Config) -> None:
        """Watch by another configuration from now on: when a handler counts as hung."""
        self.config = config
        self.health.hung_after = config.health.hung_after

    def is_this(self, name: str) -> bool:
        """Whether a member of the group is this one."""
        member = self.member
        return member is not None and name in (member.settings.consumer_id, getattr(member, "member_id", None))

    def look_after_health(self) -> None:
        """See what has moved since the last look, about a second ago."""
        self.health.look()
        member = self.member
        if member is not None and member.in_session:
            self._held = member.assigned

    def lags(
        self, member: RunningMember[Any], views: list[OwnedView] | None = None
    ) -> dict[TopicPartition, Lag | None]:
        """The lag of each partition that is this member's to know; None where it is unknown.

        They are those that it owns, those that were its own when its session was lost, and those of brokers of 0.7 that
        are not registered any more. `views`: those of the member now, for a caller that has them.
        """
        lags: dict[TopicPartition, Lag | None] = dict.fromkeys(member.unregistered)
        if not member.in_session:
            lags |= dict.fromkeys(self._held)
        return lags | {view.partition: self.lag.of(view, None) for view in views or member.views()}

    async def look_at_lag(self) -> None:
        """Ask the brokers where the partitions end."""
        if self.member is not None:
            await self.lag.look(self.member)

    def point(self) -> Point:
        """The totals of this moment."""
        now, member = self._clock.monotonic(), self.member
        if member is None:
            return Point(now, 0, None)
        lags = self.lags(member).values()
        known = [lag.amount for lag in lags if lag is not None]
        # A sum of some of them would look like less, and without brokers nothing would.
        lag = None if len(known) < len(lags) or member.brokers() == 0 else sum(known)
        return Point(now, member.stats.messages, lag)

    def log_summary(self) -> None:
        """One line about what happened since the last one; none before there is a member."""
        member = self.member
        if member is None:
            return
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
            lag_unknown=sum(lag is None for lag in self.lags(member).values()),
            handler_failures=counts.failures.total(),
            dead_lettered=counts.dead_lettered.total(),
            deferred=counts.deferred.total(),
            skipped=counts.skipped.total(),
            rebalances=stats.rebalances,
            failed_commits=stats.failed_commits,
            memory_bytes=member.budget.used,
        )
