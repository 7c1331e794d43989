"""The handler `forward` from its options, as `[handler.options]` and the mirror's command line have them.

Strategy: the one place that knows both the options' names and the settings of `consumerd.handlers.forward`. Options are
plain values, as TOML has them; each problem with them is a ValueError with one sentence, of which loading makes an
error of the handler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Literal

import structlog

from consumerd.base.errors import ConfigError
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.kind import checked
from consumerd.base.settings.servers import KafkaSection
from consumerd.base.settings.setting import Bytes, Count, Seconds
from consumerd.handlers import Secret
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.keys import key_extractor
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, SourceNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings
from consumerd.handlers.mirror.circles import CircleError, refuse_same_cluster, resolve_address
from consumerd.handlers.mirror.placing import SourceCounts
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.net.cluster import V08ClusterView, read_dialect
from consumerd.net.cluster.entry import require_topics
from consumerd.net.connection import ConnectionSettings
from consumerd.net.zk import Session
from consumerd.service.config.build_v08 import build_bootstrap, build_client, build_client_of, build_mechanism
from consumerd.service.config.model import Config
from consumerd.service.daemon.mirroring import Starting
from consumerd.service.daemon.service import start_client
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import Subscription, is_subscribed
from consumerd.wire.v08.records import RecordCodec


@checked
def forward(
    *,
    bootstrap: Sequence[str],
    client_id: str = "consumerd-forward",
    tls: Mapping[str, Any] | None = None,
    sasl: Secret[Mapping[str, Any] | None] = None,
    topic: str = "{topic}",
    topics: Mapping[str, str] | None = None,
    placing: Literal["keep", "key", "any", "round_robin"] | None = None,
    partitions_per_broker: Count = 1,
    key: Mapping[str, Any] | None = None,
    key_missing: Literal["null", "fail"] = "null",
    headers: bool = True,
    source: str | None = None,
    timestamp: Literal["source", "now"] = "source",
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
    max_message_bytes: Bytes = 1_000_000,
    chunk_bytes: Bytes = 512 * 1024,
    idempotent: bool | None = None,
    resume: Literal["committed", "target"] = "committed",
    exactly_once: bool = False,
    partitions: Count | Mapping[str, Count] | None = None,
    replication_factor: Count | None = None,
    delivery_timeout: Seconds = 120.0,
    request_timeout: Seconds = 30.0,
) -> ForwardHandler:
    """The handler, not started; docs/handlers.md says what each option means. Raises ValueError, ConfigError."""
    _check_shapes(bootstrap, topic, topics)
    if source is not None and (not isinstance(source, str) or not source):
        raise ValueError(f"source must be a non-empty name, not {source!r}")
    if key is not None and not isinstance(key, dict):
        raise ValueError('key must be a table such as { json = "user.id" }')
    settings = ForwardSettings(
        placing=ForwardPlacing(placing or ("keep" if key is None else "key")),
        key=None if key is None else key_extractor(key),
        key_required=key_missing == "fail",
        headers=headers,
        cluster=source,
        codec=RecordCodec[codec.upper()],
        keep_timestamps=timestamp == "source",
        max_message_bytes=max_message_bytes,
        chunk_bytes=chunk_bytes,
        idempotent=idempotent,
        resume=ForwardResume(resume),
        exactly_once=exactly_once,
        partitions=partitions,
        replication_factor=replication_factor,
        delivery_timeout=float(delivery_timeout),
    )
    return make_forward_handler(
        kafka_section(bootstrap, client_id=client_id, tls=tls, sasl=sasl),
        TopicNaming(topic, topics),
        BrokerMajorNumbering(partitions_per_broker),
        settings,
        request_timeout=float(request_timeout),
    )


def make_forward_handler(
    section: KafkaSection,
    naming: TopicNaming,
    numbering: SourceNumbering,
    settings: ForwardSettings,
    *,
    request_timeout: float,
) -> ForwardHandler:
    """Return the handler for a cluster. Raises ConfigError for an invalid `section`."""
    build_bootstrap(section)
    if section.sasl is not None:
        build_mechanism(section.sasl)
    return ForwardHandler(target_client(section, request_timeout), naming, numbering, settings, rng=SystemRandom())


def target_client(section: KafkaSection, request_timeout: float) -> Callable[[Clock, Random], ClusterClient]:
    """Return a function that makes a client of the cluster with a clock."""
    connection = ConnectionSettings(socket_timeout=request_timeout)

    def make(clock: Clock, rng: Random) -> ClusterClient:
        return build_client_of(section, connection, clock=clock, rng=rng)

    return make


def kafka_section(bootstrap: Sequence[str], **keys: Any) -> KafkaSection:
    """A `[kafka]` table out of options. Raises ConfigError."""
    if isinstance(bootstrap, str):
        bootstrap = [bootstrap]
    from pydantic import ValidationError  # noqa: PLC0415 - no other built-in handler validates tables

    from consumerd.service.config.validation import table_of  # noqa: PLC0415

    try:
        given = {name: value for name, value in keys.items() if value}
        return table_of(KafkaSection, bootstrap=tuple(bootstrap), **given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}.") from error


def _check_shapes(bootstrap: object, topic: object, topics: object) -> None:
    if not isinstance(bootstrap, list | tuple | str):
        raise ValueError(f"bootstrap must be a list of host:port, not {bootstrap!r}")
    if not isinstance(topic, str):
        raise ValueError(f"topic must be text, not {topic!r}")
    if topics is not None and not isinstance(topics, dict):
        raise ValueError(f'topics must be a table such as {{ "old events" = "events" }}, not {topics!r}')


# The mirror to a cluster of 0.8 or later: the daemon's member with the handler `forward`.
#
# Strategy: as `consumerd.service.daemon.mirroring`, from a group of any kind. What the command line adds to the handler
# is what only it can know: how many partitions the brokers of a 0.7 source have, which spreads them evenly over the
# target, and whether source and target are one cluster.

log = structlog.get_logger(__name__)

#: Seconds for one answer of the target.
_REQUEST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """The target: how to reach it, what topics are called there, and how messages go."""

    section: KafkaSection
    naming: TopicNaming
    settings: ForwardSettings

    def check(self, config: Config) -> None:
        """As `CopyTarget.check`."""
        build_bootstrap(self.section)

    async def build_handler(self, starting: Starting) -> ForwardHandler:
        """As `CopyTarget.build_handler`."""
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
        return make_forward_handler(
            self.section, self.naming, numbering, self.settings, request_timeout=_REQUEST_TIMEOUT
        )


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
