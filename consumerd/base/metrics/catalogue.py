"""The metrics of members, mirrors and brokers: name, kind, unit, labels and meaning of each.

Strategy: a metric is a value here and nowhere else; `consumerd.service.daemon.readings` and
`consumerd.service.daemon.broker_readings` bring the numbers, the reference in the documentation is made of this list,
and tests compare the dashboard and the alert rules with it. Names follow Prometheus' conventions: base units, `_total`
for counters. Offsets of Kafka 0.7 are positions in bytes, so its lag is `consumerd_lag_bytes`; later brokers count
messages, `consumerd_lag`. A partition has one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from consumerd.base.metrics.histogram import Histogram


class Kind(Enum):
    """The type of a metric, by its name in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name of a counter ends in `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    #: In the Unified Code for Units of Measure, as OpenTelemetry has it: `s`, `By`, `{message}`, `1` for none.
    unit: str = "1"


class Reading(NamedTuple):
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


_GROUP: Final = ("group",)
_TOPIC: Final = ("group", "topic")
#: `broker` is empty on brokers since 0.8, whose partitions move between them.
PARTITION: Final = ("group", "topic", "broker", "partition")


def _counter(name: str, text: str, labels: tuple[str, ...] = _GROUP, *, unit: str) -> Metric:
    return Metric(f"consumerd_{name}_total", Kind.COUNTER, text, labels, unit)


def _gauge(name: str, text: str, labels: tuple[str, ...] = _GROUP, *, unit: str = "1") -> Metric:
    return Metric(f"consumerd_{name}", Kind.GAUGE, text, labels, unit)


def _histogram(name: str, text: str, labels: tuple[str, ...] = _GROUP, *, unit: str = "s") -> Metric:
    return Metric(f"consumerd_{name}", Kind.HISTOGRAM, text, labels, unit)


BUILD_INFO: Final = _gauge("build_info", "Always 1; the version is a label.", ("version",))
START_TIME: Final = _gauge("start_timestamp_seconds", "When the daemon started, in seconds since 1970.", (), unit="s")

READY: Final = _gauge("member_ready", "Whether /readyz answers 200: 1 or 0.")
SESSION_UP: Final = _gauge(
    "session_up", "Whether the ZooKeeper session, or the membership at the coordinator, holds: 1 or 0."
)
ASSIGNED: Final = _gauge("assigned_partitions", "Partitions that this member is to own.", unit="{partition}")
OWNED: Final = _gauge("owned_partitions", "Partitions that this member owns and consumes.", unit="{partition}")
BROKERS: Final = _gauge(
    "registered_brokers",
    "Brokers that are registered in ZooKeeper, or in the latest metadata, as last seen; absent before the first look.",
    unit="{broker}",
)
BLOCKED: Final = _gauge(
    "blocked_claims",
    "Assigned partitions that wait for another owner; absent while that is not known, or nothing is claimed.",
    unit="{partition}",
)
PAUSED: Final = _gauge("paused_partitions", "Owned partitions that are paused.", unit="{partition}")
REBALANCES: Final = _counter("rebalances", "Assignments that changed what this member owns.", unit="{rebalance}")
REBALANCE_SECONDS: Final = _histogram(
    "rebalance_duration_seconds", "From a changed assignment until all of it is consumed."
)
LOST: Final = _counter(
    "lost_partitions", "Partitions that were lost to another owner or with the session.", unit="{partition}"
)

LAG_BYTES: Final = _gauge("lag_bytes", "Kafka 0.7: bytes of the log that are not handled yet.", PARTITION, unit="By")
LAG: Final = _gauge("lag", "Kafka 0.8 and later: messages that are not handled yet.", PARTITION, unit="{message}")
LAG_SECONDS: Final = _gauge(
    "lag_seconds",
    "Age of the first message that is not handled, by its timestamp; where it has none, since the log was seen to end "
    "before it. 0 without lag; absent where unknown.",
    PARTITION,
    unit="s",
)
SINCE_HANDLED: Final = _gauge(
    "since_handled_seconds",
    "Seconds since a message was handled, or the start, while there is lag; else 0.",
    PARTITION,
    unit="s",
)
LAG_UNKNOWN: Final = _gauge(
    "lag_unknown_partitions",
    "Partitions of this member whose lag is unknown: their brokers do not answer or (0.7) are not registered, or the "
    "session was lost.",
    unit="{partition}",
)
LAST_HANDLED: Final = _gauge(
    "last_handled_timestamp_seconds", "When the last message was handled, in seconds since 1970.", PARTITION, unit="s"
)
POSITION: Final = _gauge("position_offset", "The offset before which everything is handled.", PARTITION)
COMMITTED: Final = _gauge("committed_offset", "The offset that this member committed last.", PARTITION)

HANDLED: Final = _counter("messages_handled", "Messages that were handled.", PARTITION, unit="{message}")
HANDLED_BYTES: Final = _counter("bytes_handled", "Kafka 0.7: bytes of the log that were handled.", PARTITION, unit="By")
BATCH_SECONDS: Final = _histogram(
    "handler_duration_seconds", "Time of a batch in the handler, with its retries and their pauses.", _TOPIC
)
BATCH_MESSAGES: Final = _histogram("batch_messages", "Messages of a batch.", _TOPIC, unit="{message}")
MESSAGE_AGES: Final = _histogram(
    "message_age_seconds",
    "From a message's timestamp until its batch was handled; 0 where a clock is ahead. Of a batch the first and the "
    "last timestamp are read, and those between count as evenly spaced. Absent without timestamps (before 0.10).",
    _TOPIC,
)
FAILURES: Final = _counter(
    "handler_failures", "Attempts of the handler that failed or timed out.", _TOPIC, unit="{attempt}"
)
RETRIES: Final = _counter("handler_retries", "Attempts of the handler that were repeated.", _TOPIC, unit="{attempt}")
SKIPPED: Final = _counter(
    "messages_skipped", "Messages that failed for good and were skipped.", _TOPIC, unit="{message}"
)
DEAD_LETTERED: Final = _counter(
    "messages_dead_lettered",
    "Messages that failed for good and were written as dead letters.",
    _TOPIC,
    unit="{message}",
)
DEFERRED: Final = _counter(
    "messages_deferred",
    "Messages that failed and were written to a retry topic, to be tried again later.",
    _TOPIC,
    unit="{message}",
)
UNDECODABLE: Final = _counter(
    "messages_undecodable", "Messages that the decoder could not decode.", _TOPIC, unit="{message}"
)
BUSY_SECONDS: Final = _gauge(
    "handler_busy_seconds", "Longest time without progress of a batch in hand; 0 without one.", unit="s"
)
DISK_FULL: Final = _gauge(
    "handlers_waiting_for_disk", "Calls of the handler that wait for room on a full disk.", unit="{call}"
)
HUNG: Final = _gauge(
    "handlers_hung", "Partitions whose batch made no progress for `health.hung_after`.", unit="{partition}"
)

FETCHED: Final = _counter("messages_fetched", "Messages that were fetched.", unit="{message}")
FETCHED_BYTES: Final = _counter("bytes_fetched", "Bytes of message sets that were received.", unit="By")
FOLLOWER_BYTES: Final = _counter(
    "bytes_fetched_from_followers",
    "Those of `bytes_fetched` that followers returned, because they are in the rack of `kafka.rack`.",
    unit="By",
)
FETCHES: Final = _counter("fetches", "FETCH and MULTIFETCH requests that were answered.", unit="{request}")
FETCH_ERRORS: Final = _counter(
    "fetch_errors", "Answers to fetches with an error, by its code.", ("group", "code"), unit="{error}"
)
FETCH_THROTTLED: Final = _counter(
    "fetch_throttle_seconds", "Seconds for which brokers demanded no other fetch because of a quota.", unit="s"
)
FETCH_RESETS: Final = _counter("offset_resets", "Offsets that the broker no longer had.", unit="{reset}")
LOGS_CHANGED: Final = _counter(
    "logs_changed",
    "Logs that were found to be others than those that the offsets were read from: `replaced` or `truncated`.",
    ("group", "kind"),
    unit="{log}",
)
FETCH_SKIPPED: Final = _counter(
    "bad_messages_skipped", "Corrupt or oversized messages that a policy skipped.", unit="{message}"
)
FETCH_PARKED: Final = _counter("partitions_parked", "Partitions that a policy parked.", unit="{partition}")
PARTITIONS_DENIED: Final = _gauge(
    "partitions_denied", "Partitions that the brokers do not let the member read (permissions).", unit="{partition}"
)
CONNECTS: Final = _counter(
    "broker_connects", "Connections to brokers that were made for fetching.", unit="{connection}"
)
DISCONNECTS: Final = _counter(
    "broker_disconnects", "Connections to brokers that were lost or could not be made.", unit="{connection}"
)

COMMITS: Final = _counter("commits", "Offsets that were committed.", unit="{commit}")
FAILED_COMMITS: Final = _counter("commit_failures", "Offsets that could not be committed at the time.", unit="{commit}")

MEMORY_USED: Final = _gauge("memory_used_bytes", "Bytes of messages that are held in memory.", unit="By")
MEMORY_LIMIT: Final = _gauge(
    "memory_limit_bytes", "Bytes of messages that may be held in memory (fetch.budget).", unit="By"
)
LOOP_LAG: Final = _histogram("loop_lag_seconds", "How late the event loop comes round.", ())
TASKS: Final = _gauge("tasks", "asyncio tasks that are not done.", (), unit="{task}")

#: The metrics of `consumerd run`, in the order in which they are documented.
MEMBER_METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

# The mirror: a member with these beside.

_TARGET: Final = ("group", "topic")
TARGET_SENT: Final = _counter(
    "mirror_messages_sent", "Messages that were sent to the target, repetitions included.", _TARGET, unit="{message}"
)
TARGET_CONFIRMED: Final = _counter(
    "mirror_messages_confirmed", "Messages that the target has confirmed.", _TARGET, unit="{message}"
)
REVERSE_MIRRORS: Final = _gauge(
    "mirror_reverse_mirrors",
    "Mirrors that copied these topics from the target when this one started: messages may loop.",
    unit="{mirror}",
)

#: The metrics of `consumerd mirror` alone.
MIRROR_METRICS: Final = (TARGET_SENT, TARGET_CONFIRMED, REVERSE_MIRRORS)

# The broker. `broker` is its id.

_BROKER: Final = ("broker",)
_REQUEST: Final = ("broker", "request")
#: `partition` is empty where the partitions of a topic are summed up.
LOG: Final = ("broker", "topic", "partition")

BROKER_READY: Final = _gauge("broker_ready", "Whether /readyz answers 200: 1 or 0.", _BROKER)
BROKER_REGISTERED: Final = _gauge(
    "broker_registered", "Whether the broker is registered in ZooKeeper: 1 or 0.", _BROKER
)
BROKER_REGISTERED_AT: Final = _gauge(
    "broker_registered_timestamp_seconds",
    "When the broker registered in ZooKeeper last, in seconds since 1970.",
    _BROKER,
    unit="s",
)
TOPICS_NOT_REGISTERED: Final = _gauge(
    "broker_topics_not_registered",
    "Topics that are not registered, because ZooKeeper refuses their nodes: consumers do not find them.",
    _BROKER,
    unit="{topic}",
)
CONNECTIONS: Final = _gauge("broker_connections", "Clients that are connected.", _BROKER, unit="{connection}")
ACCEPTED: Final = _counter(
    "broker_connections_accepted", "Connections that were accepted.", _BROKER, unit="{connection}"
)
CONNECTIONS_REFUSED: Final = _counter(
    "broker_connections_refused",
    "Connections that were closed at once, because there were `max.connections`.",
    _BROKER,
    unit="{connection}",
)
RECEIVED_BYTES: Final = _counter("broker_received_bytes", "Bytes that clients sent.", _BROKER, unit="By")
SENT_BYTES: Final = _counter("broker_sent_bytes", "Bytes that were sent to clients.", _BROKER, unit="By")
REQUESTS: Final = _counter(
    "broker_requests",
    "Requests by kind: produce, multiproduce, fetch, multifetch, offsets.",
    _REQUEST,
    unit="{request}",
)
REQUEST_SECONDS: Final = _histogram(
    "broker_request_duration_seconds",
    "Time of a request from when it had arrived whole until its response began, or until its messages were appended "
    "(and flushed, where that was due).",
    _REQUEST,
)
REQUESTS_REFUSED: Final = _counter(
    "broker_requests_refused", "Invalid requests, for which the connection was closed.", _BROKER, unit="{request}"
)
REQUESTS_FAILED: Final = _counter(
    "broker_requests_failed",
    "Valid requests that the broker could not carry out, and closed the connection for.",
    _BROKER,
    unit="{request}",
)
BROKER_FETCH_ERRORS: Final = _counter(
    "broker_fetch_errors",
    "Errors in responses to FETCH and MULTIFETCH, by code.",
    ("broker", "code"),
    unit="{error}",
)
OVERSIZED_SETS: Final = _counter(
    "broker_oversized_sets_dropped",
    "Message sets that were dropped for a message larger than `max.message.size`.",
    _BROKER,
    unit="{set}",
)
PRODUCED: Final = _counter("broker_messages_produced", "Messages that were appended.", LOG, unit="{message}")
PRODUCED_BYTES: Final = _counter("broker_produced_bytes", "Bytes of message sets that were appended.", LOG, unit="By")
LOGS: Final = _gauge("broker_logs", "Logs in service.", _BROKER, unit="{log}")
LOGS_OFFLINE: Final = _gauge(
    "broker_logs_offline", "Logs that are not served because of damage.", _BROKER, unit="{log}"
)
LOG_BYTES: Final = _gauge("broker_log_bytes", "Size of the log.", LOG, unit="By")
LOG_SEGMENTS: Final = _gauge("broker_log_segments", "Segments of the log.", LOG, unit="{segment}")
UNFLUSHED_BYTES: Final = _gauge(
    "broker_log_unflushed_bytes",
    "Bytes that are appended and not flushed: consumers do not see them yet.",
    LOG,
    unit="By",
)
LOG_START: Final = _gauge("broker_log_start_offset", "The first offset of the log.", LOG, unit="By")
LOG_END: Final = _gauge("broker_log_end_offset", "The offset that the next message gets.", LOG, unit="By")
FLUSHES: Final = _histogram("broker_flush_duration_seconds", "Time of a flush of one log to the disk.", _BROKER)
ROLLS: Final = _counter(
    "broker_segments_rolled", "Segments that were begun because one was full.", _BROKER, unit="{segment}"
)
SEGMENTS_DELETED: Final = _counter(
    "broker_segments_deleted", "Segments that retention deleted.", _BROKER, unit="{segment}"
)
REQUEST_MEMORY_USED: Final = _gauge(
    "broker_request_memory_used_bytes", "Bytes of requests that are held in memory.", _BROKER, unit="By"
)
REQUEST_MEMORY_LIMIT: Final = _gauge(
    "broker_request_memory_limit_bytes",
    "Bytes of requests that may be held in memory (`queued.max.request.bytes`).",
    _BROKER,
    unit="By",
)

# The lag of groups without a member here, by the names and labels of kafka-lag-exporter. Not of our naming: its
# dashboards know them.

_CLUSTER: Final = ("cluster_name",)
_LAG_OF: Final = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")


def _exported(name: str, text: str, labels: tuple[str, ...], *, unit: str = "{message}") -> Metric:
    return Metric(f"kafka_{name}", Kind.GAUGE, text, labels, unit)


GROUP_OFFSET: Final = _exported("consumergroup_group_offset", "The committed offset.", _LAG_OF, unit="1")
GROUP_LAG: Final = _exported(
    "consumergroup_group_lag", "Messages from the committed offset to the end of the log; bytes on Kafka 0.7.", _LAG_OF
)
GROUP_LAG_SECONDS: Final = _exported(
    "consumergroup_group_lag_seconds",
    "Age of the first message that is not handled, by its timestamp; where it has none, since the log was last seen to "
    "end before it. 0 without lag; absent where unknown.",
    _LAG_OF,
    unit="s",
)
GROUP_SUM_LAG: Final = _exported("consumergroup_group_sum_lag", "The lag of all partitions.", ("cluster_name", "group"))
GROUP_MAX_LAG: Final = _exported("consumergroup_group_max_lag", "The largest lag.", ("cluster_name", "group"))
GROUP_MAX_LAG_SECONDS: Final = _exported(
    "consumergroup_group_max_lag_seconds", "The largest lag in seconds.", ("cluster_name", "group"), unit="s"
)
GROUP_TOPIC_SUM_LAG: Final = _exported(
    "consumergroup_group_topic_sum_lag", "The lag of all partitions of the topic.", ("cluster_name", "group", "topic")
)
PARTITION_EARLIEST: Final = _exported(
    "partition_earliest_offset", "The first offset of the log.", ("cluster_name", "topic", "partition"), unit="1"
)
PARTITION_LATEST: Final = _exported(
    "partition_latest_offset", "The end of the log.", ("cluster_name", "topic", "partition"), unit="1"
)
POLL_MILLISECONDS: Final = _exported(
    "consumergroup_poll_time_ms", "How long the last look at all groups took.", _CLUSTER, unit="{millisecond}"
)
GROUPS_UNREAD: Final = Metric(
    "consumerd_exporter_unread_groups",
    Kind.GAUGE,
    "Groups that could not be read in the last round, and are absent.",
    _CLUSTER,
    "{group}",
)

#: The metrics of any process.
PROCESS_METRICS: Final = (BUILD_INFO, START_TIME, LOOP_LAG, TASKS)
#: The metrics of `consumerd broker` alone, in the order in which they are documented.
BROKER_METRICS: Final = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric) and value.labels[:1] == _BROKER
)
#: The metrics of `consumerd group exporter` alone.
EXPORTER_METRICS: Final = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric) and value.labels[:1] == _CLUSTER
)
#: Those with names of ours, each once.
ALL_METRICS: Final = (*MEMBER_METRICS, *MIRROR_METRICS, *BROKER_METRICS)
