"""The broker's settings under their 0.7 names (golden notes, 8).

Strategy: each field says which property of 0.7.2, or of our own, fills it. An unknown name is refused with the nearest
one; a known name without effect here is in `ignored`, so that the caller can report it.
"""

from __future__ import annotations

from collections.abc import (
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from consumerd.base.address import parse_address
from consumerd.base.errors import ConfigError
from consumerd.base.settings.kind import Ge, Le
from consumerd.base.settings.properties import Milliseconds, Natural, Positive, prop, read_properties
from consumerd.storage import DeletePolicy, LogSettings, MaxAge, MaxBytes
from consumerd.storage.broker.policies import PolicyFactory, load_policies
from consumerd.wire.registry.values import MAX_PARTITIONS

_INT64 = (1 << 63) - 1


def _address(name: str, text: str) -> str:
    parse_address(text, name, lowest=0)
    return text


def _url(name: str, text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"{name} must be a URL such as http://127.0.0.1:4318, not {text!r}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker. Defaults are those of 0.7.2, except port 9092 (spec 000) and the broker id."""

    log_dir: Path = prop("log.dir")
    broker_id: Natural = prop("brokerid", 0)
    #: Address to listen on.
    host: str = "127.0.0.1"
    #: 0: the system chooses a free one.
    port: Annotated[int, Ge(0), Le(65535)] = prop("port", 9092)
    #: The address that is registered in ZooKeeper for clients; by default the one to listen on.
    advertised_host: str | None = prop("hostname", None)
    partitions: Annotated[int, Ge(1), Le(MAX_PARTITIONS)] = prop("num.partitions", 1)
    topic_partitions: Mapping[str, Annotated[int, Ge(1), Le(MAX_PARTITIONS)]] = prop(
        "topic.partition.count.map", factory=dict
    )
    segment_bytes: Positive = prop("log.file.size", 1 << 30)
    topic_segment_bytes: Mapping[str, Positive] = prop("topic.log.file.size", factory=dict)
    roll_hours: Positive = prop("log.roll.hours", 168)
    topic_roll_hours: Mapping[str, Positive] = prop("topic.log.roll.hours", factory=dict)
    flush_messages: Positive = prop("log.flush.interval", 500)
    topic_flush_messages: Mapping[str, Positive] = prop("topic.log.flush.interval", factory=dict)
    flush_check_ms: Milliseconds = prop("log.default.flush.scheduler.interval.ms", 3000)
    #: None: at each run of the scheduler.
    flush_ms: Milliseconds | None = prop("log.default.flush.interval.ms", None)
    topic_flush_ms: Mapping[str, Milliseconds] = prop("topic.flush.intervals.ms", factory=dict)
    #: None: segments are kept for ever; 0.7.2 deletes after 168 hours by default.
    retention_hours: Positive | None = prop("log.retention.hours", None)
    topic_retention_hours: Mapping[str, Positive] = prop("topic.log.retention.hours", factory=dict)
    #: -1: logs may grow without bound.
    retention_bytes: Annotated[int, Ge(-1), Le(_INT64)] = prop("log.retention.size", -1)
    topic_retention_bytes: Mapping[str, Annotated[int, Ge(-1), Le(_INT64)]] = prop(
        "topic.log.retention.size", factory=dict
    )
    #: Applied after age and size.
    delete_policies: tuple[PolicyFactory, ...] = prop("log.delete.policies", (), read=load_policies)
    cleanup_minutes: Positive = prop("log.cleanup.interval.mins", 10)
    #: Largest payload of an outer message; sets with a larger one are dropped (golden notes, 1).
    max_message_bytes: Natural = prop("max.message.size", 1_000_000)
    max_request_bytes: Positive = prop("max.socket.request.bytes", 100 << 20)
    max_topic_length: Annotated[int, Ge(1), Le(255)] = prop("max.topic.name.length", 255)
    #: Limit of logs created by producers; 0: any number, as in 0.7.2.
    max_logs: Natural = prop("max.logs", 10_000)
    #: Bytes of requests that are received or handled, of all connections; at least `max_request_bytes`.
    queued_bytes: Annotated[int, Ge(1), Le(_INT64)] = prop("queued.max.request.bytes", 256 << 20)
    #: Time after which an incomplete request ends its connection; 0: no limit, as in 0.7.2.
    request_timeout_ms: Natural = prop("socket.request.timeout.ms", 60_000)
    #: Limit of simultaneous connections; 0: as many as the system allows, as in 0.7.2.
    max_connections: Natural = prop("max.connections", 10_000)
    #: Time after which an idle connection is closed, unless it has produced; 0: never, as in 0.7.2.
    max_idle_ms: Natural = prop("connections.max.idle.ms", 3_600_000)
    #: Threads that wait for the disk; None: asyncio's default.
    threads: Positive | None = prop("num.threads", None)
    #: 0 leaves the size of socket buffers to the operating system, which tunes them; 0.7.2 sets 102400.
    send_buffer: Positive = prop("socket.send.buffer", 0)
    receive_buffer: Positive = prop("socket.receive.buffer", 0)
    use_zookeeper: bool = prop("enable.zookeeper", True)
    #: `host:port[,host:port...][/chroot]`
    zookeeper: str | None = prop("zk.connect", None)
    zk_session_ms: Milliseconds = prop("zk.sessiontimeout.ms", 6000)
    #: None: as long as the session timeout.
    zk_connection_ms: Milliseconds | None = prop("zk.connectiontimeout.ms", None)
    #: `host:port` of the HTTP server for probes and metrics; None: there is none.
    health_listen: str | None = prop("health.listen", None, read=_address)
    #: Whether that server serves /metrics.
    health_metrics: bool = prop("health.metrics", False)
    #: Base URL of an OpenTelemetry collector that receives the metrics; None: from OTEL_* in the environment.
    otlp_endpoint: str | None = prop("telemetry.otlp.endpoint", None, read=_url)
    #: Whether metrics of logs have a label for the partition; else they are summed up by topic.
    partition_labels: bool = prop("metrics.partition.labels", True)
    #: Configured properties of 0.7.2 without effect here; `WITHOUT_EFFECT` has the reasons.
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], **overrides: Any) -> BrokerConfig:
        """Read `key=value` texts by their 0.7 names. `overrides` are fields of this class and win.

        Raises ConfigError for an unknown name (with the nearest), a value of the wrong form, and missing log.dir.
        """
        found, ignored = read_properties(properties, {"": cls}, WITHOUT_EFFECT, "broker property")
        values = found[""]
        values.update((key, value) for key, value in overrides.items() if value is not None)
        if not values.get("log_dir"):
            raise ConfigError("the broker needs a directory for its logs: give --log-dir or log.dir")
        config = cls(**values, ignored=ignored)
        if config.use_zookeeper and not config.zookeeper:
            raise ConfigError(
                "the broker needs ZooKeeper: give --zookeeper HOST:PORT, or --no-zookeeper to run without it"
            )
        return config

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of `topic` on this broker."""
        return self.topic_partitions.get(topic, self.partitions)

    def log_settings(self, topic: str) -> LogSettings:
        """Return the log settings of `topic`. Raises StorageError when a delete policy rejects the topic."""
        flush_ms = self.flush_check_ms if self.flush_ms is None else self.flush_ms
        return LogSettings(
            delete_policies=tuple(self._policies(topic)),
            segment_bytes=self.topic_segment_bytes.get(topic, self.segment_bytes),
            roll_seconds=self.topic_roll_hours.get(topic, self.roll_hours) * 3600.0,
            flush_messages=self.topic_flush_messages.get(topic, self.flush_messages),
            flush_seconds=self.topic_flush_ms.get(topic, flush_ms) / 1000,
        )

    def _policies(self, topic: str) -> Iterator[DeletePolicy]:
        hours = self.topic_retention_hours.get(topic, self.retention_hours)
        if hours is not None:
            yield MaxAge(hours * 3600.0)
        most = self.topic_retention_bytes.get(topic, self.retention_bytes)
        if most >= 0:
            yield MaxBytes(most)
        for factory in self.delete_policies:
            yield factory.policy(topic)


#: Properties of 0.7.2 without effect on this broker, and the reasons.
WITHOUT_EFFECT = {
    "monitoring.period.secs": "0.7.2 resets its JMX statistics at this interval, and this broker has no JMX",
    "zk.synctime.ms": "no part of this broker waits for other ZooKeeper servers to catch up",
}
