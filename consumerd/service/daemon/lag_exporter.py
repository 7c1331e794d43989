"""The lag of the groups of a cluster, of which none has a member here: looked at in rounds, and served as metrics.

Strategy: a scrape asks nothing of the cluster: it gets the result of the last round. A round asks for the names of the
groups, for each group that matches, a few at a time, and once for the ends of all partitions that they have in common.
So its requests are bounded by the number of groups and brokers, however many scrapes there are; rounds never overlap.
What could not be read in the last round is absent, and so is each sum that it belongs to.

The lag in seconds is that of `LagTimes`; where messages have no timestamps, what was committed before the first round
is not known yet.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from consumerd import __version__
from consumerd.base.address import parse_address
from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.metrics import catalogue as c
from consumerd.base.metrics.catalogue import Reading
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.operate.admin.lag import GroupLag, LagTimes, PartitionLag, known_lag, total_lag
from consumerd.operate.admin.logs import ReadTimestamps
from consumerd.service.daemon.probes import check_extras, probe_routes
from consumerd.wire.errors import WireError

log = structlog.get_logger(__name__)

#: Reads the names of all groups, and the lag of some: a group that could not be read has an error in its place.
Names = Callable[[], Awaitable[list[str]]]
Lags = Callable[[Sequence[str]], Awaitable[Mapping[str, GroupLag | Exception]]]
#: The result of a round is served for this number of intervals, and these seconds more.
_MISSED: Final = 3
_PATIENCE: Final = 60.0


class LagExporter:
    """The lag of the groups whose whole name matches `pattern`. `run` must be running. As `Probed` for probes."""

    def __init__(
        self,
        names: Names,
        lags: Lags,
        read_timestamps: ReadTimestamps | None,
        *,
        cluster: str,
        pattern: re.Pattern[str],
        interval: float,
        clock: Clock,
    ) -> None:
        self._names = names
        self._lags = lags
        self._cluster = cluster
        self._pattern = pattern
        self._interval = interval
        self._clock = clock
        self._started_wall = clock.wall()
        self._groups: dict[str, GroupLag] = {}
        self._unread: set[str] = set()
        self._times = LagTimes(clock, read_timestamps)
        #: The time of the last complete round, and how long it took, in seconds; None before it.
        self._looked_at: float | None = None
        self._seconds: float | None = None
        self._failing = False

    @property
    def sick(self) -> str | None:
        """As `Probed.sick`: a restart does not help where a cluster does not answer."""
        return None

    @property
    def unready(self) -> list[str]:
        """As `Probed.unready`: starting, cluster_unreadable or round_overdue."""
        if self._failing:
            return ["cluster_unreadable"]
        if self._looked_at is None:
            return ["starting"]
        return ["round_overdue"] if self._is_overdue(self._looked_at) else []

    def _is_overdue(self, looked_at: float) -> bool:
        return self._clock.monotonic() - looked_at > _MISSED * self._interval + _PATIENCE

    async def run(self) -> None:
        """Look at the groups at each interval, until cancelled."""
        while True:
            began = self._clock.monotonic()
            await self.look()
            await self._clock.sleep(max(0.0, began + self._interval - self._clock.monotonic()))

    async def look(self) -> None:
        """Look at all groups once. A failure is logged once, until a round succeeds."""
        began = self._clock.monotonic()
        try:
            groups = [name for name in await self._names() if self._pattern.fullmatch(name)]
            found = await self._lags(groups)
            known = {name: each for name, each in found.items() if not isinstance(each, Exception)}
            await self._times.look(partition for each in known.values() for partition in each.partitions)
        except (ConsumerdError, WireError) as error:
            if not self._failing:
                log.warning("groups_unreadable", reason=reason_of(error))
            self._failing = True
            return
        if self._failing:
            log.info("groups_readable", groups=len(found))
        failed = {name: each for name, each in found.items() if isinstance(each, Exception)}
        for name in sorted(failed.keys() - self._unread):
            log.warning("group_unreadable", group=name, reason=reason_of(failed[name]))
        self._failing, self._unread = False, set(failed)
        self._groups = known
        now = self._looked_at = self._clock.monotonic()
        self._seconds = now - began

    def readings(self) -> Iterator[Reading]:
        """The result of the last round."""
        cluster = self._cluster
        yield Reading(c.BUILD_INFO, (__version__,), 1)
        yield Reading(c.START_TIME, (), self._started_wall)
        if self._seconds is None or self.unready:
            return
        yield Reading(c.POLL_MILLISECONDS, (cluster,), 1000 * self._seconds)
        yield Reading(c.GROUPS_UNREAD, (cluster,), len(self._unread))
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for name, group in sorted(self._groups.items()):
            yield from self._of_group(name, group)
            for each in group.partitions:
                if each.earliest is not None and each.end is not None:
                    ranges[each.partition] = each.earliest, each.end
        for partition, (earliest, end) in sorted(ranges.items()):
            labels = cluster, partition.topic, partition.name
            yield Reading(c.PARTITION_EARLIEST, labels, earliest)
            yield Reading(c.PARTITION_LATEST, labels, end)

    def _of_group(self, name: str, group: GroupLag) -> Iterator[Reading]:
        topics: defaultdict[str, list[PartitionLag]] = defaultdict(list)
        ages: list[float | None] = []
        for each in group.partitions:
            if each.gone:
                continue
            topics[each.partition.topic].append(each)
            client, host = group.client_of(each.owner)
            owner = each.owner or ""
            labels = self._cluster, name, each.partition.topic, each.partition.name, host, owner, client
            if each.committed is not None:
                yield Reading(c.GROUP_OFFSET, labels, each.committed)
            if each.lag is not None:
                yield Reading(c.GROUP_LAG, labels, each.lag)
            ages.append(self._times.age(each))
            if (age := ages[-1]) is not None:
                yield Reading(c.GROUP_LAG_SECONDS, labels, age)
        for topic, of_topic in topics.items():
            if total_lag(of_topic) is not None:
                yield Reading(c.GROUP_TOPIC_SUM_LAG, (self._cluster, name, topic), known_lag(of_topic))
        partitions = [each for of_topic in topics.values() for each in of_topic]
        if not partitions or (total := total_lag(partitions)) is None:
            return
        yield Reading(c.GROUP_SUM_LAG, (self._cluster, name), total)
        yield Reading(c.GROUP_MAX_LAG, (self._cluster, name), max(each.lag or 0 for each in partitions))
        known = [age for age in ages if age is not None]
        if len(known) == len(partitions):
            yield Reading(c.GROUP_MAX_LAG_SECONDS, (self._cluster, name), max(known))


async def serve(exporter: LagExporter, listen: str, stop: asyncio.Event, listening: Callable[[int], None]) -> None:
    """Look at the groups and serve the result at `listen` until `stop` is set; `listening` is called with the port.

    Raises ConfigError where it cannot listen, or an extra is not installed.
    """
    check_extras(metrics=True, listen="--listen", served="/metrics")
    from consumerd.net.http.server import HttpServer  # noqa: PLC0415 - the extra `http`

    host, port = parse_address(listen, "--listen", lowest=0)
    async with HttpServer(host, port, probe_routes(exporter, exporter.readings)) as server:
        listening(server.port)
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(exporter.run(), name="lag exporter")
            await stop.wait()
            looking.cancel()
