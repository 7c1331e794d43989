"""The mirror to a cluster of 0.8 or later: the daemon's member with the handler `forward`.

Strategy: as `consumerd.service.daemon.mirroring`, from a group of any kind. What the command line adds to the handler
is what only it can know: how many partitions the brokers of a 0.7 source have, which spreads them evenly over the
target, and whether source and target are one cluster.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import TYPE_CHECKING

import structlog

from consumerd import __version__
from consumerd.base.clock import SystemClock
from consumerd.base.partition import NO_BROKER
from consumerd.handlers import retrying
from consumerd.handlers.forward import BrokerMajorNumbering
from consumerd.handlers.mirror import CircleError, SourceCounts, is_subscribed, refuse_same_cluster, resolve_address
from consumerd.net.cluster import V08ClusterView, read_dialect
from consumerd.service.config.build import build_offset_settings
from consumerd.service.config.build_v08 import build_bootstrap, build_client
from consumerd.service.daemon.endpoints import check_http
from consumerd.service.daemon.forwarding import make_forward_handler, target_client
from consumerd.service.daemon.mirroring import PATIENT, mirror_settings, open_session, require_topics
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.service import Watching, run_member, run_on_brokers, start_client, start_monitor
from consumerd.service.daemon.telemetry import check_telemetry
from consumerd.wire.registry import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from consumerd.base.partition import TopicPartition
    from consumerd.base.ports import Clock
    from consumerd.handlers.forward import ForwardSettings, SourceNumbering, TopicNaming
    from consumerd.net.client import ClusterMetadata
    from consumerd.net.zk import Session
    from consumerd.service.config.model import Config
    from consumerd.service.config.servers import KafkaSection
    from consumerd.wire.registry import Subscription

log = structlog.get_logger(__name__)

#: Seconds for one answer of the target.
_REQUEST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """The target: how to reach it, what topics are called there, and how messages go."""

    section: KafkaSection
    naming: TopicNaming
    settings: ForwardSettings


class CountedNumbering:
    """broker * partitions of the topic on that broker + partition, from the source's ZooKeeper."""

    def __init__(self, counts: SourceCounts) -> None:
        self._counts = counts

    async def number(self, partition: TopicPartition) -> int:
        """Raises BrokerError while the partition's broker is unavailable, ZooKeeperError, RegistryError."""
        if partition.broker == NO_BROKER:
            return partition.partition
        source = await self._counts.source(partition)
        return source.broker * source.partitions + source.partition


async def mirror_to_kafka(config: Config, target: ForwardTarget, *, exit_at_end: bool = False) -> int:
    """Mirror until a signal, a failure or, with `exit_at_end`, the end as it was when partitions were claimed.

    Returns how many messages the target took. Raises as `consumerd.service.daemon.mirroring.mirror`.
    """
    clock, rng = SystemClock(), SystemRandom()
    settings = replace(mirror_settings(config, clock, rng), stop_at_end=exit_at_end)
    build_bootstrap(target.section)
    check_http(config.health)
    check_telemetry(config.telemetry)
    monitor = Monitor(config, clock)
    async with AsyncExitStack() as stack:
        await start_monitor(monitor, stack, settings.consumer_id)
        session, numbering, dialect = None, _BY_BROKER, None
        in_zookeeper = config.group.coordination == "zookeeper"
        if in_zookeeper or build_offset_settings(config).in_zookeeper:
            session = await open_session(stack, config.zookeeper, clock, rng)
        if session is not None and in_zookeeper:
            dialect = await read_dialect(session, settings.group)
            numbering = CountedNumbering(SourceCounts(session))
        if dialect is not Dialect.V08 and session is not None and in_zookeeper:
            await refuse_same_cluster(session, None, build_bootstrap(target.section))
            if exit_at_end:
                await require_topics(session, settings.subscription)
        else:
            addresses, known = await _source(config, session, clock, rng)
            await _refuse_circle(addresses, known, target, settings.subscription, clock, rng)
        inner = make_forward_handler(
            target.section, target.naming, numbering, target.settings, request_timeout=_REQUEST_TIMEOUT
        )
        monitor.target_counts = inner.counts
        handler = retrying(inner, PATIENT, clock=clock, rng=rng, name="mirror", counts=monitor.main.handler_counts)
        handler = monitor.traced(handler)
        log.info("starting", version=__version__, group=settings.group, consumer=settings.consumer_id)
        if in_zookeeper:
            assert session is not None
            await run_member(config, settings, handler, session, clock=clock, rng=rng, watching=Watching(monitor))
        else:
            await run_on_brokers(config, settings, handler, session, clock=clock, rng=rng, watching=Watching(monitor))
    log.info("stopped", group=settings.group, consumer=settings.consumer_id)
    return inner.sent


_BY_BROKER: SourceNumbering = BrokerMajorNumbering()


async def _source(
    config: Config, session: Session | None, clock: Clock, rng: Random
) -> tuple[set[tuple[str, int]], ClusterMetadata | None]:
    """Return the addresses of the brokers of a source of 0.8 or later, and their metadata if a broker is queried."""
    if config.group.coordination == "zookeeper":
        assert session is not None
        nodes = await V08ClusterView(session).read_brokers()
        return {(end.host, end.port) for node in nodes.values() for end in node.endpoints}, None
    async with build_client(config, clock=clock, rng=rng) as client:
        await start_client(client, config)
        return {(node.host, node.port) for node in client.metadata.nodes.values()}, client.metadata


async def _refuse_circle(
    addresses: Iterable[tuple[str, int]],
    source: ClusterMetadata | None,
    target: ForwardTarget,
    subscription: Subscription,
    clock: Clock,
    rng: Random,
) -> None:
    """Raise CircleError where both are one cluster and written messages would be read again."""
    async with target_client(target.section, _REQUEST_TIMEOUT)(clock, rng) as client:
        await client.retrying("find the target", lambda: client.refresh(None))
        metadata = client.metadata
    same = source is not None and source.cluster_id is not None and source.cluster_id == metadata.cluster_id
    if not same:
        ours = {place for address in addresses for place in await resolve_address(*address)}
        theirs = {place for node in metadata.nodes.values() for place in await resolve_address(node.host, node.port)}
        same = bool(ours & theirs)
    if not same:
        return
    for topic in metadata.topics:
        if not is_subscribed(subscription, topic):
            continue
        try:
            name = target.naming.target(topic)
        except ValueError:  # it cannot be forwarded at all, and the handler reports that
            continue
        if is_subscribed(subscription, name):
            raise CircleError(
                f"source and target are the same cluster, and {topic!r} would be forwarded to {name!r}, which is "
                "mirrored too: the mirror would copy its own output in a loop; give --rename."
            )
