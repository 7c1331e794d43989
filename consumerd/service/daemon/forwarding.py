"""The handler `forward` from its options, as `[handler.options]` and the mirror's command line have them.

Strategy: the one place that knows both the options' names and the settings of `consumerd.handlers.forward`. Options are
plain values, as TOML has them; each problem with them is a ValueError with one sentence, of which loading makes an
error of the handler's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random, SystemRandom
from typing import Any, Final, Literal

from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock
from consumerd.base.settings.kind import checked
from consumerd.base.settings.servers import KafkaSection
from consumerd.base.settings.setting import Bytes, Count, Seconds
from consumerd.handlers import Secret
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.keys import key_extractor
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, SourceNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.connection import ConnectionSettings
from consumerd.service.config.build_v08 import build_bootstrap, build_client_of, build_mechanism
from consumerd.service.config.problems import problems_of
from consumerd.service.config.validation import InvalidValuesError, table_of
from consumerd.wire.v08.records import RecordCodec

_DEFAULTS: Final = ForwardSettings()
#: Seconds for one answer of the target.
_REQUEST_TIMEOUT: Final = 30.0


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
    headers: bool = _DEFAULTS.headers,
    source: str | None = None,
    timestamp: Literal["source", "now"] = "source",
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
    max_message_bytes: Bytes = _DEFAULTS.max_message_bytes,
    chunk_bytes: Bytes = _DEFAULTS.chunk_bytes,
    idempotent: bool | None = None,
    resume: Literal["committed", "target"] = "committed",
    exactly_once: bool = _DEFAULTS.exactly_once,
    partitions: Count | Mapping[str, Count] | None = None,
    replication_factor: Count | None = None,
    delivery_timeout: Seconds = _DEFAULTS.delivery_timeout,
    request_timeout: Seconds = _REQUEST_TIMEOUT,
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
    request_timeout: float = _REQUEST_TIMEOUT,
) -> ForwardHandler:
    """Return the handler for a cluster. Raises ConfigError for an invalid `section`."""
    build_bootstrap(section)
    if section.sasl is not None:
        build_mechanism(section.sasl)
    return ForwardHandler(target_client(section, request_timeout), naming, numbering, settings, rng=SystemRandom())


def target_client(
    section: KafkaSection, request_timeout: float = _REQUEST_TIMEOUT
) -> Callable[[Clock, Random], ClusterClient]:
    """Return a function that makes a client of the cluster with a clock."""
    connection = ConnectionSettings(socket_timeout=request_timeout)

    def make(clock: Clock, rng: Random) -> ClusterClient:
        return build_client_of(section, connection, clock=clock, rng=rng)

    return make


def kafka_section(bootstrap: Sequence[str], **keys: Any) -> KafkaSection:
    """A `[kafka]` table out of options. Raises ConfigError."""
    if isinstance(bootstrap, str):
        bootstrap = [bootstrap]
    given = {name: value for name, value in keys.items() if value}
    try:
        return table_of(KafkaSection, {"bootstrap": bootstrap, **given})
    except InvalidValuesError as error:
        raise ConfigError(f"{problems_of(error.wrong, KafkaSection, {})[0].sentence}") from error


def _check_shapes(bootstrap: object, topic: object, topics: object) -> None:
    if not isinstance(bootstrap, list | tuple | str):
        raise ValueError(f"bootstrap must be a list of host:port, not {bootstrap!r}")
    if not isinstance(topic, str):
        raise ValueError(f"topic must be text, not {topic!r}")
    if topics is not None and not isinstance(topics, dict):
        raise ValueError(f'topics must be a table such as {{ "old events" = "events" }}, not {topics!r}')
