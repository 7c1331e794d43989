"""The broker's settings under their 0.7 names (golden notes, 8).

Strategy: one table says for every property of 0.7.2, and a few of our own, which field it fills and how its text is
read. A name outside the table is refused with the nearest one; a known name without effect here is in
`ignored`, so that the caller can report it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from consumerd.base.address import parse_address
from consumerd.base.errors import ConfigError, did_you_mean
from consumerd.storage import LogSettings, MaxAge, MaxBytes
from consumerd.storage.broker.policies import load_policies
from consumerd.wire.registry.values import MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from consumerd.storage import DeletePolicy
    from consumerd.storage.broker.policies import PolicyFactory

_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker. Defaults are those of 0.7.2, except port 9092 (spec 000) and the broker id."""

    log_dir: Path
    broker_id: int = 0
    #: Address to listen on.
    host: str = "127.0.0.1"
    #: 0: the system chooses a free one.
    port: int = 9092
    #: The address that is registered in ZooKeeper for clients; by default the one to listen on.
    advertised_host: str | None = None
    partitions: int = 1
    topic_partitions: Mapping[str, int] = field(default_factory=dict)
    segment_bytes: int = 1 << 30
    topic_segment_bytes: Mapping[str, int] = field(default_factory=dict)
    roll_hours: int = 168
    topic_roll_hours: Mapping[str, int] = field(default_factory=dict)
    flush_messages: int = 500
    topic_flush_messages: Mapping[str, int] = field(default_factory=dict)
    flush_check_ms: int = 3000
    #: None: at each run of the scheduler.
    flush_ms: int | None = None
    topic_flush_ms: Mapping[str, int] = field(default_factory=dict)
    #: None: segments are kept for ever; 0.7.2 deletes after 168 hours by default.
    retention_hours: int | None = None
    topic_retention_hours: Mapping[str, int] = field(default_factory=dict)
    #: -1: logs may grow without bound.
    retention_bytes: int = -1
    topic_retention_bytes: Mapping[str, int] = field(default_factory=dict)
    #: Applied after age and size.
    delete_policies: tuple[PolicyFactory, ...] = ()
    cleanup_minutes: int = 10
    #: Largest payload of an outer message; sets with a larger one are dropped (golden notes, 1).
    max_message_bytes: int = 1_000_000
    max_request_bytes: int = 100 << 20
    max_topic_length: int = 255
    #: Limit of logs created by producers; 0: any number, as in 0.7.2.
    max_logs: int = 10_000
    #: Bytes of requests that are received or handled, of all connections; at least `max_request_bytes`.
    queued_bytes: int = 256 << 20
    #: Time after which an incomplete request ends its connection; 0: no limit, as in 0.7.2.
    request_timeout_ms: int = 60_000
    #: Limit of simultaneous connections; 0: as many as the system allows, as in 0.7.2.
    max_connections: int = 10_000
    #: Time after which an idle connection is closed, unless it has produced; 0: never, as in 0.7.2.
    max_idle_ms: int = 3_600_000
    #: Threads that wait for the disk; None: asyncio's default.
    threads: int | None = None
    #: 0 leaves the size of socket buffers to the operating system, which tunes them; 0.7.2 sets 102400.
    send_buffer: int = 0
    receive_buffer: int = 0
    use_zookeeper: bool = True
    #: `host:port[,host:port...][/chroot]`
    zookeeper: str | None = None
    zk_session_ms: int = 6000
    #: None: as long as the session timeout.
    zk_connection_ms: int | None = None
    #: `host:port` of the HTTP server for probes and metrics; None: there is none.
    health_listen: str | None = None
    #: Whether that server serves /metrics.
    health_metrics: bool = False
    #: Base URL of an OpenTelemetry collector that receives the metrics; None: from OTEL_* in the environment.
    otlp_endpoint: str | None = None
    #: Whether metrics of logs have a label for the partition; else they are summed up by topic.
    partition_labels: bool = True
    #: Configured properties of 0.7.2 without effect here; `WITHOUT_EFFECT` has the reasons.
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], **overrides: Any) -> BrokerConfig:
        """Read `key=value` texts by their 0.7 names. `overrides` are fields of this class and win.

        Raises ConfigError for an unknown name (with the nearest), a value of the wrong form, and missing log.dir.
        """
        values: dict[str, Any] = {}
        ignored = []
        for name, text in properties.items():
            if name in WITHOUT_EFFECT:
                ignored.append(name)
            elif name in PROPERTIES:
                field_name, read = PROPERTIES[name]
                values[field_name] = read(name, text.strip())
            else:
                hint = did_you_mean(name, [*PROPERTIES, *WITHOUT_EFFECT], "")
                raise ConfigError(f"{name} is not a broker property{hint}")
        values.update((key, value) for key, value in overrides.items() if value is not None)
        if not values.get("log_dir"):
            raise ConfigError("the broker needs a directory for its logs: give --log-dir or log.dir")
        config = cls(**values, ignored=tuple(ignored))
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


def _text(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"{name} is empty")
    return text


def _address(name: str, text: str) -> str:
    parse_address(text, name, lowest=0)
    return text


def _url(name: str, text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"{name} must be a URL such as http://127.0.0.1:4318, not {text!r}")
    return text


def _path(name: str, text: str) -> Path:
    return Path(_text(name, text))


def _integer(low: int, high: int = _INT32) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"{name} must be a whole number, not {text!r}") from None
        if not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, not {value}")
        return value

    return read


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _per_topic(low: int, high: int = _INT32) -> Callable[[str, str], dict[str, int]]:
    read_value = _integer(low, high)

    def read(name: str, text: str) -> dict[str, int]:
        out = {}
        for pair in filter(None, (piece.strip() for piece in text.split(","))):
            topic, colon, value = pair.rpartition(":")
            if not colon or not topic:
                raise ConfigError(f"{name} must look like topic:number,topic:number, not {text!r}")
            out[topic.strip()] = read_value(f"{name} of topic {topic.strip()}", value.strip())
        return out

    return read


#: property -> (field here, reader of its text)
PROPERTIES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "brokerid": ("broker_id", _integer(0)),
    "port": ("port", _integer(0, 65535)),
    "hostname": ("advertised_host", _text),
    "log.dir": ("log_dir", _path),
    "num.partitions": ("partitions", _integer(1, MAX_PARTITIONS)),
    "topic.partition.count.map": ("topic_partitions", _per_topic(1, MAX_PARTITIONS)),
    "log.file.size": ("segment_bytes", _integer(1)),
    "topic.log.file.size": ("topic_segment_bytes", _per_topic(1)),
    "log.roll.hours": ("roll_hours", _integer(1)),
    "topic.log.roll.hours": ("topic_roll_hours", _per_topic(1)),
    "log.flush.interval": ("flush_messages", _integer(1)),
    "log.default.flush.interval.ms": ("flush_ms", _integer(1)),
    "log.default.flush.scheduler.interval.ms": ("flush_check_ms", _integer(1)),
    "topic.flush.intervals.ms": ("topic_flush_ms", _per_topic(1)),
    "log.retention.hours": ("retention_hours", _integer(1)),
    "topic.log.retention.hours": ("topic_retention_hours", _per_topic(1)),
    "log.retention.size": ("retention_bytes", _integer(-1, _INT64)),
    "topic.log.retention.size": ("topic_retention_bytes", _per_topic(-1, _INT64)),
    "log.cleanup.interval.mins": ("cleanup_minutes", _integer(1)),
    "max.message.size": ("max_message_bytes", _integer(0)),
    "max.socket.request.bytes": ("max_request_bytes", _integer(1)),
    "max.topic.name.length": ("max_topic_length", _integer(1, 255)),
    "socket.send.buffer": ("send_buffer", _integer(1)),
    "socket.receive.buffer": ("receive_buffer", _integer(1)),
    "enable.zookeeper": ("use_zookeeper", _boolean),
    "zk.connect": ("zookeeper", _text),
    "zk.sessiontimeout.ms": ("zk_session_ms", _integer(1)),
    "zk.connectiontimeout.ms": ("zk_connection_ms", _integer(1)),
    "num.threads": ("threads", _integer(1)),
    # not of 0.7.2
    "topic.log.flush.interval": ("topic_flush_messages", _per_topic(1)),
    "log.delete.policies": ("delete_policies", load_policies),
    "max.logs": ("max_logs", _integer(0)),
    "queued.max.request.bytes": ("queued_bytes", _integer(1, _INT64)),
    "socket.request.timeout.ms": ("request_timeout_ms", _integer(0)),
    "max.connections": ("max_connections", _integer(0)),
    "connections.max.idle.ms": ("max_idle_ms", _integer(0)),
    "health.listen": ("health_listen", _address),
    "health.metrics": ("health_metrics", _boolean),
    "telemetry.otlp.endpoint": ("otlp_endpoint", _url),
    "metrics.partition.labels": ("partition_labels", _boolean),
}

#: Properties of 0.7.2 without effect on this broker, and the reasons.
WITHOUT_EFFECT = {
    "monitoring.period.secs": "0.7.2 resets its JMX statistics at this interval, and this broker has no JMX",
    "zk.synctime.ms": "no part of this broker waits for other ZooKeeper servers to catch up",
}

assert {name for name, _ in PROPERTIES.values()} <= {item.name for item in fields(BrokerConfig)}
