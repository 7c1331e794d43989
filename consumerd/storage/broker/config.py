"""The broker's settings under their 0.7 names (golden notes, 8).

Strategy: a table declares each property of 0.7.2, and of our own. An unknown name is refused with the nearest one; a
known name without effect here is in `ignored`, so that the caller can report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from consumerd.base.address import parse_address
from consumerd.base.errors import ConfigError
from consumerd.base.settings.kind import Ge, Le
from consumerd.base.settings.properties import Milliseconds, Natural, Positive, read_properties
from consumerd.base.settings.setting import Field, Names, Section, Tuned
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


def _property(name: str, about: str, **said: Any) -> Any:
    """A property. `about` is Markdown of docs/broker.md; `own`: 0.7.2 does not have it; `shown`: words for the default;
    `text` reads it, if its type does not say how.
    """
    return Field(description=about, names=Names(v07=name), **said)


class BrokerConfig(Section):
    """Settings of one broker. Defaults are those of 0.7.2, except port 9092 (spec 000) and the broker id."""

    log_dir: Path = _property("log.dir", "the directory of the logs, also `--log-dir`", shown="-")
    broker_id: Natural = _property("brokerid", "also `--broker-id`", default=0)
    #: Address to listen on.
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = _property("port", "also `--port`; 0 is a free one", default=9092)
    advertised_host: str | None = _property(
        "hostname", "the address that is registered in ZooKeeper for clients; also `--host`, where it listens",
        default=None, shown="the address listened on",
    )  # fmt: skip
    partitions: Annotated[int, Ge(1), Le(MAX_PARTITIONS)] = _property(
        "num.partitions", "also `--partitions`", default=1
    )
    topic_partitions: Mapping[str, Annotated[int, Ge(1), Le(MAX_PARTITIONS)]] = _property(
        "topic.partition.count.map", "the same by topic: `topic:n,topic:n`", default_factory=dict
    )
    segment_bytes: Positive = _property(
        "log.file.size", "a larger segment is rolled before the next append", default=1 << 30
    )
    topic_segment_bytes: Mapping[str, Positive] = _property(
        "topic.log.file.size", "the same by topic", default_factory=dict
    )
    roll_hours: Positive = _property(
        "log.roll.hours", "counts from the first append since the file was opened", default=168
    )
    topic_roll_hours: Mapping[str, Positive] = _property(
        "topic.log.roll.hours", "the same by topic", default_factory=dict
    )
    flush_messages: Positive = _property(
        "log.flush.interval", "messages; those inside compressed ones are counted", default=500
    )
    topic_flush_messages: Mapping[str, Positive] = _property(
        "topic.log.flush.interval", "`log.flush.interval` by topic: `topic:n,topic:n`", default_factory=dict, own=True
    )
    flush_check_ms: Milliseconds = _property(
        "log.default.flush.scheduler.interval.ms", "how often the scheduler looks for logs that are due for a flush",
        default=3000,
    )  # fmt: skip
    flush_ms: Milliseconds | None = _property(
        "log.default.flush.interval.ms", "a log with older unflushed messages is due", default=None,
        shown="the scheduler's interval",
    )  # fmt: skip
    topic_flush_ms: Mapping[str, Milliseconds] = _property(
        "topic.flush.intervals.ms", "the same by topic", default_factory=dict
    )
    retention_hours: Positive | None = _property(
        "log.retention.hours", "after which segments are deleted; 0.7.2: 168", default=None, shown="**none**"
    )
    topic_retention_hours: Mapping[str, Positive] = _property(
        "topic.log.retention.hours", "the same by topic", default_factory=dict
    )
    retention_bytes: Annotated[int, Ge(-1), Le(_INT64)] = _property(
        "log.retention.size", "to which logs may grow; -1: without bound", default=-1
    )
    topic_retention_bytes: Mapping[str, Annotated[int, Ge(-1), Le(_INT64)]] = _property(
        "topic.log.retention.size", "the same by topic, any size; crashes 0.7.2", default_factory=dict
    )
    delete_policies: tuple[PolicyFactory, ...] = _property(
        "log.delete.policies", "applied after age and size, see below", default=(), own=True, shown="none",
        text=load_policies,
    )  # fmt: skip
    cleanup_minutes: Positive = _property(
        "log.cleanup.interval.mins", "between looks for segments to delete; the first time after a minute", default=10
    )
    max_message_bytes: Natural = _property(
        "max.message.size", "payload of an outer message; sets with a larger one are dropped silently, as by 0.7.2",
        default=1_000_000,
    )  # fmt: skip
    max_request_bytes: Positive = _property(
        "max.socket.request.bytes", "a larger frame closes the connection", default=100 << 20
    )
    max_topic_length: Annotated[int, Ge(1), Le(255)] = _property(
        "max.topic.name.length", "bytes of a topic's name at most", default=255
    )
    max_logs: Natural = _property(
        "max.logs", "0: unlimited; a PRODUCE that would create another log is refused, and its connection closed; "
        "existing logs are not affected", default=10_000, own=True,
    )  # fmt: skip
    queued_bytes: Annotated[int, Ge(1), Le(_INT64)] = _property(
        "queued.max.request.bytes", "memory for requests that are being received or processed, of all connections "
        "together, but at least `max.socket.request.bytes`; when it is used up, further requests wait, and the "
        "connection that has held its share for the longest (2 s at least) is closed", default=256 << 20, own=True,
    )  # fmt: skip
    request_timeout_ms: Natural = _property(
        "socket.request.timeout.ms", "0: never; a connection is closed if a request is incomplete this long after its "
        "first bytes", default=60_000, own=True,
    )  # fmt: skip
    max_connections: Natural = _property(
        "max.connections", "0: unlimited; further connections are closed at once; logged once, with their number "
        "afterwards", default=10_000, own=True,
    )  # fmt: skip
    max_idle_ms: Natural = _property(
        "connections.max.idle.ms", "0: never; a connection without traffic for this time is closed, also one that "
        "does not read its answer. Consumers reconnect. An idle connection that has produced stays open: producers of "
        "0.7 do not notice that their connection was closed, and lose the next messages", default=3_600_000, own=True,
    )  # fmt: skip
    threads: Positive | None = _property(
        "num.threads", "threads for disk I/O; clients need none", default=None, shown="Python's default"
    )
    send_buffer: Positive = _property("socket.send.buffer", "0.7.2: 102400", default=0, shown="**left to the system**")
    receive_buffer: Positive = _property(
        "socket.receive.buffer", "0.7.2: 102400", default=0, shown="**left to the system**"
    )
    use_zookeeper: bool = _property("enable.zookeeper", "also `--no-zookeeper`", default=True)
    zookeeper: str | None = _property(
        "zk.connect", "`host:port[,host:port...][/chroot]`, also `--zookeeper`", default=None, shown="-"
    )
    zk_session_ms: Milliseconds = _property("zk.sessiontimeout.ms", "of the broker's session", default=6000)
    zk_connection_ms: Milliseconds | None = _property(
        "zk.connectiontimeout.ms", "how long a start waits for ZooKeeper", default=None, shown="the session timeout"
    )
    health_listen: str | None = _property(
        "health.listen", "address of the HTTP server for [probes and metrics](#probes-and-metrics), also "
        "`--health-listen`", default=None, own=True, shown="none", text=_address,
    )  # fmt: skip
    health_metrics: bool = _property(
        "health.metrics", "whether it serves `/metrics`, also `--metrics`", default=False, own=True
    )
    otlp_endpoint: str | None = _property(
        "telemetry.otlp.endpoint", "base URL of an OpenTelemetry collector that gets the metrics (extra `otel`); "
        "without it the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT` is used", default=None, own=True,
        shown="none", text=_url,
    )  # fmt: skip
    partition_labels: bool = _property(
        "metrics.partition.labels", "metrics for each partition; false sums them up by topic", default=True, own=True
    )
    #: Configured properties of 0.7.2 without effect here; `WITHOUT_EFFECT` has the reasons.
    ignored: tuple[str, ...] = Tuned(())

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
