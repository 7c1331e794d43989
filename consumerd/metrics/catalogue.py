"""The metrics of the daemon: name, kind, labels and meaning of each.

Strategy: a metric is a value here and nowhere else; `consumerd.daemon.readings` brings the numbers, and the tests hold
`docs/monitoring.md`, the dashboard and the alert rules against this list. Names follow Prometheus' conventions: base
units, `_total` for counters. Offsets of Kafka 0.7 are positions in bytes, so its lag is `consumerd_lag_bytes`; later
brokers count messages, `consumerd_lag`. A partition has one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from consumerd.metrics.histogram import Histogram


class Kind(Enum):
    """What Prometheus calls the type of a metric."""

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


class Reading(NamedTuple):
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


_GROUP: Final = ("group",)
_TOPIC: Final = ("group", "topic")
#: `broker` is empty on brokers since 0.8, whose partitions move between them.
PARTITION: Final = ("group", "topic", "broker", "partition")


def _counter(name: str, text: str, labels: tuple[str, ...] = _GROUP) -> Metric:
    return Metric(f"consumerd_{name}_total", Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, labels: tuple[str, ...] = _GROUP) -> Metric:
    return Metric(f"consumerd_{name}", Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, labels: tuple[str, ...] = _GROUP) -> Metric:
    return Metric(f"consumerd_{name}", Kind.HISTOGRAM, text, labels)


BUILD_INFO: Final = _gauge("build_info", "Always 1; the version is a label.", ("version",))
START_TIME: Final = _gauge("start_timestamp_seconds", "When the daemon started, in seconds since 1970.", ())

READY: Final = _gauge("member_ready", "Whether /readyz answers 200: 1 or 0.")
SESSION_UP: Final = _gauge(
    "session_up", "Whether the ZooKeeper session, or the membership at the coordinator, holds: 1 or 0."
)
ASSIGNED: Final = _gauge("assigned_partitions", "Partitions that this member is to own.")
OWNED: Final = _gauge("owned_partitions", "Partitions that this member owns and consumes.")
PAUSED: Final = _gauge("paused_partitions", "Owned partitions that are paused.")
REBALANCES: Final = _counter("rebalances", "Assignments that changed what this member owns.")
REBALANCE_SECONDS: Final = _histogram(
    "rebalance_duration_seconds", "From a changed assignment until all of it is consumed."
)
LOST: Final = _counter("lost_partitions", "Partitions that were lost to another owner or with the session.")

LAG_BYTES: Final = _gauge("lag_bytes", "Kafka 0.7: bytes of the log that are not handled yet.", PARTITION)
LAG: Final = _gauge("lag", "Kafka 0.8 and later: messages that are not handled yet.", PARTITION)
LAG_SECONDS: Final = _gauge(
    "lag_seconds",
    "Seconds since a message was handled, or the start, while there is lag; else 0.",
    PARTITION,
)
LAST_HANDLED: Final = _gauge(
    "last_handled_timestamp_seconds", "When the last message was handled, in seconds since 1970.", PARTITION
)
POSITION: Final = _gauge("position_offset", "The offset before which everything is handled.", PARTITION)
COMMITTED: Final = _gauge("committed_offset", "The offset that this member committed last.", PARTITION)

HANDLED: Final = _counter("messages_handled", "Messages that were handled.", PARTITION)
HANDLED_BYTES: Final = _counter("bytes_handled", "Kafka 0.7: bytes of the log that were handled.", PARTITION)
BATCH_SECONDS: Final = _histogram(
    "handler_duration_seconds", "Time of a batch in the handler, with its retries and their pauses.", _TOPIC
)
BATCH_MESSAGES: Final = _histogram("batch_messages", "Messages of a batch.", _TOPIC)
FAILURES: Final = _counter("handler_failures", "Attempts of the handler that failed or timed out.", _TOPIC)
RETRIES: Final = _counter("handler_retries", "Attempts of the handler that were repeated.", _TOPIC)
SKIPPED: Final = _counter("messages_skipped", "Messages that failed for good and were skipped.", _TOPIC)
DEAD_LETTERED: Final = _counter(
    "messages_dead_lettered", "Messages that failed for good and were written as dead letters.", _TOPIC
)
UNDECODABLE: Final = _counter("messages_undecodable", "Messages that the decoder could not decode.", _TOPIC)
BUSY_SECONDS: Final = _gauge("handler_busy_seconds", "Longest time without progress of a batch in hand; 0 without one.")
DISK_FULL: Final = _gauge("handlers_waiting_for_disk", "Calls of the handler that wait for room on a full disk.")
HUNG: Final = _gauge("handlers_hung", "Partitions whose batch made no progress for `health.hung_after`.")

FETCHED: Final = _counter("messages_fetched", "Messages that were fetched.")
FETCHED_BYTES: Final = _counter("bytes_fetched", "Bytes of message sets that were received.")
FETCHES: Final = _counter("fetches", "FETCH and MULTIFETCH requests that were answered.")
FETCH_ERRORS: Final = _counter("fetch_errors", "Answers to fetches with an error, by its code.", ("group", "code"))
FETCH_RESETS: Final = _counter("offset_resets", "Offsets that the broker no longer had.")
FETCH_SKIPPED: Final = _counter("bad_messages_skipped", "Corrupt or oversized messages that a policy skipped.")
FETCH_PARKED: Final = _counter("partitions_parked", "Partitions that a policy parked.")
CONNECTS: Final = _counter("broker_connects", "Connections to brokers that were made for fetching.")
DISCONNECTS: Final = _counter("broker_disconnects", "Connections to brokers that were lost or could not be made.")

COMMITS: Final = _counter("commits", "Offsets that were committed.")
FAILED_COMMITS: Final = _counter("commit_failures", "Offsets that could not be committed at the time.")

MEMORY_USED: Final = _gauge("memory_used_bytes", "Bytes of messages that are held in memory.")
MEMORY_LIMIT: Final = _gauge("memory_limit_bytes", "Bytes of messages that may be held in memory (fetch.budget).")
LOOP_LAG: Final = _histogram("loop_lag_seconds", "How late the event loop comes round.", ())

#: All of the above, in the order in which they are documented.
DAEMON_METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
