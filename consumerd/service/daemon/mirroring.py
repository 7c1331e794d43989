"""The mirror: the daemon's member with another cluster's producer as its handler.

Strategy: as for the console consumer, everything is the daemon's but the handler and the condition to stop. Around it:
both clusters have to be there before anything is made, and must not be one. A batch is tried for as long as the target
is unavailable; only what cannot be mended stops the mirror.
"""

from __future__ import annotations

import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random, SystemRandom
from typing import NamedTuple, Protocol

import structlog

from consumerd import __version__
from consumerd.base import native
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock
from consumerd.base.settings.servers import ZooKeeperSection
from consumerd.handlers import RetryPolicy, retrying
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.mirror.circles import find_reverse_mirrors, mirror_host, refuse_same_cluster, refuse_same_place
from consumerd.handlers.mirror.handler import MirrorHandler
from consumerd.handlers.mirror.placing import KeepingPartitioner, PlacedRouter, SourceCounts
from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.cluster.dialects import read_dialect
from consumerd.net.cluster.entry import require_topics
from consumerd.net.connect import Connector, connect
from consumerd.net.zk.session import Session
from consumerd.producer import Producer, ProducerSettings, Router, StaticRouter, ZooKeeperRouter
from consumerd.service.config.build import build_connection_settings, build_settings, open_session
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon.endpoints import check_http
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.service import Joining, Watching, run_members, start_monitor
from consumerd.service.daemon.telemetry import check_telemetry
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.values import make_consumer_id

log = structlog.get_logger(__name__)

#: A batch is tried for as long as the target is unavailable. Pauses in seconds.
PATIENT = RetryPolicy(max_attempts=sys.maxsize, max_backoff=5.0)
#: What to check where ZooKeeper does not answer.
_WHERE = "the address of the source or target"


class Starting(NamedTuple):
    """A mirror that starts: what a target makes its handler of, and closes with `stack`."""

    config: Config
    settings: ConsumerSettings
    monitor: Monitor
    stack: AsyncExitStack
    #: With the source's ZooKeeper, where the group is or keeps its offsets.
    session: Session | None
    clock: Clock
    rng: Random


class CopyTarget(Protocol):
    """The cluster that a mirror copies to."""

    def check(self, config: Config) -> None:
        """Raise ConfigError and CircleError for what is wrong whatever the servers answer."""
        ...

    async def build_handler(self, starting: Starting) -> MirrorHandler | ForwardHandler:
        """The handler that copies to it. Raises CircleError, NotFoundError, ConsumerdError."""
        ...


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """A cluster of 0.7: `zookeeper` or `brokers`. With `placed` each source partition has one partition there."""

    zookeeper: str | None = None
    brokers: tuple[tuple[str, int], ...] = ()
    placed: bool = True
    settings: ProducerSettings = field(default_factory=ProducerSettings)

    def check(self, config: Config) -> None:
        if config.group.coordination != "zookeeper":
            raise ConfigError(
                f"group.coordination must be 'zookeeper' for a mirror to Kafka 0.7, not {config.group.coordination!r}."
            )
        if self.zookeeper is not None:
            refuse_same_place(config.zookeeper.connect, self.zookeeper)

    async def build_handler(self, starting: Starting) -> MirrorHandler:
        config, settings, monitor, stack, source, clock, rng = starting
        assert source is not None
        other = None
        if self.zookeeper is not None:
            section = ZooKeeperSection(
                connect=self.zookeeper,
                session_timeout=config.zookeeper.session_timeout,
                connection_timeout=config.zookeeper.connection_timeout,
            )
            other = await open_session(stack, section, clock, rng, where=_WHERE)
        await _require_v07(source, other, settings.group, self)
        if settings.stop_at_end:
            await require_topics(source, config.group.topics)
        await refuse_same_cluster(source, other, self.brokers)
        if other is not None:
            reverse = await find_reverse_mirrors(source, other, settings.subscription)
            monitor.reverse_mirrors = len(reverse)
            for member, topics in reverse.items():
                log.warning(
                    "reverse_mirror_detected",
                    member=member,
                    topics=topics,
                    reason="it mirrors these topics from the target; if back to the source, messages loop",
                )
        connector = partial(connect, settings=build_connection_settings(config))
        producer = Producer(
            _router(self, other, connector, rng), connect=connector, clock=clock, rng=rng, settings=self.settings
        )
        return MirrorHandler(
            producer,
            SourceCounts(source) if self.placed else None,
            None if other is None else MirrorTopics(other, connect=connector, clock=clock),
        )


async def mirror(config: Config, target: CopyTarget, *, exit_at_end: bool = False) -> int:
    """Mirror until a signal, a failure or, with `exit_at_end`, the end as it was when partitions were claimed.

    Returns how many messages the target took. Raises CircleError, NotFoundError for a chroot that does not exist, and
    as `consumerd.service.daemon.service.serve`.
    """
    target.check(config)
    clock, rng = SystemClock(), SystemRandom()
    settings = replace(mirror_settings(config, clock, rng), stop_at_end=exit_at_end)
    check_http(config.health)
    check_telemetry(config.telemetry)
    monitor = Monitor(config, clock)
    async with AsyncExitStack() as stack:
        await start_monitor(monitor, stack, settings.consumer_id)
        session = None
        if config.needs_session:
            session = await open_session(stack, config.zookeeper, clock, rng, where=_WHERE)
        inner = await target.build_handler(Starting(config, settings, monitor, stack, session, clock, rng))
        monitor.target_counts = inner.counts
        handler = retrying(inner, PATIENT, clock=clock, rng=rng, name="mirror", counts=monitor.main.handler_counts)
        handler = monitor.traced(handler)
        log.info(
            "starting",
            version=__version__,
            codec=native.describe(),
            group=settings.group,
            consumer=settings.consumer_id,
        )
        joining = [Joining(MAIN, settings, handler)]
        await run_members(config, joining, session, clock=clock, rng=rng, watching=Watching(monitor))
    log.info("stopped", group=settings.group, consumer=settings.consumer_id)
    return inner.sent


async def _require_v07(source: Session, other: Session | None, group: str, target: MirrorTarget) -> None:
    """Raise DialectError where either side has brokers of 0.8 or later, for which there is another mirror."""
    if await read_dialect(source, group) is Dialect.V08:
        raise DialectError(
            "the source's brokers run Kafka 0.8 or later, and Kafka 0.7 supports neither message keys nor tombstones: "
            "mirror to a newer cluster with --to-bootstrap-server."
        )
    if other is not None and await read_dialect(other, group) is Dialect.V08:
        raise DialectError(
            f"the target's brokers (ZooKeeper at {target.zookeeper}) run Kafka 0.8 or later: use --to-bootstrap-server "
            "with one of their addresses."
        )


def mirror_settings(config: Config, clock: Clock, rng: Random) -> ConsumerSettings:
    """Return the member's settings, with an id that marks it as a mirror, unless the configuration has one."""
    settings = build_settings(config, clock=clock, rng=rng)
    if settings.fixed_id:
        return settings
    host = mirror_host(socket.gethostname())
    made = make_consumer_id(settings.group, host, int(clock.wall() * 1000), rng.getrandbits(64))
    return replace(settings, consumer_id=made)


def _router(target: MirrorTarget, zk: Session | None, connector: Connector, rng: Random) -> Router:
    if zk is not None:
        return ZooKeeperRouter(zk, rng=rng, partitioner=KeepingPartitioner())
    if not target.brokers:
        raise ConfigError("a mirror needs a target: give a ZooKeeper or a list of brokers.")
    if target.placed:
        return PlacedRouter(target.brokers, connect=connector)
    return StaticRouter(target.brokers, rng=rng)
