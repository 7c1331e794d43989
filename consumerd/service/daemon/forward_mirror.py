"""The mirror to a cluster of 0.8 or later: the daemon's member with the handler `forward`.

Strategy: as `consumerd.service.daemon.mirroring`, from a group of any kind. What the command line adds to the handler
is what only it can know: how many partitions the brokers of a 0.7 source have, which spreads them evenly over the
target, and whether source and target are one cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import structlog

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.servers import KafkaSection
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, SourceNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardSettings
from consumerd.handlers.mirror.circles import CircleError, refuse_same_cluster, resolve_address
from consumerd.handlers.mirror.placing import SourceCounts
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.net.cluster.dialects import read_dialect
from consumerd.net.cluster.entry import require_topics
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.net.zk.session import Session
from consumerd.service.config.build_v08 import build_bootstrap, build_client
from consumerd.service.config.model import Config
from consumerd.service.daemon.forwarding import make_forward_handler, target_client
from consumerd.service.daemon.mirroring import Starting
from consumerd.service.daemon.service import start_client
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import Subscription, is_subscribed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """The target: how to reach it, what topics are called there, and how messages go."""

    section: KafkaSection
    naming: TopicNaming
    settings: ForwardSettings

    def check(self, config: Config) -> None:
        build_bootstrap(self.section)

    async def build_handler(self, starting: Starting) -> ForwardHandler:
        config, settings, _, _, session, clock, rng = starting
        numbering, v08 = _BY_BROKER, True
        if session is not None and config.group.coordination == "zookeeper":
            v08 = await read_dialect(session, settings.group) is Dialect.V08
            numbering = CountedNumbering(SourceCounts(session))
        if session is not None and not v08:
            await refuse_same_cluster(session, None, build_bootstrap(self.section))
            if settings.stop_at_end:
                await require_topics(session, config.group.topics)
        else:
            addresses, known = await _source(config, session, clock, rng)
            await _refuse_circle(addresses, known, self, settings.subscription, clock, rng)
        return make_forward_handler(self.section, self.naming, numbering, self.settings)


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
    async with target_client(target.section)(clock, rng) as client:
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
