"""The table of docs/performance.md: the ratios of the recorded run that most users look for.

Strategy: each line names rows of the record, so that the page cannot say anything else than `benchmarks/recorded.json`;
a test compares them. Lines of a benchmark that the record does not have at all are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.surroundings import NATIVE, PURE

if TYPE_CHECKING:
    from benchmarks.race import Measurement

_CPU, _ROWS, _MS = "M msg/cpu-s", "M rows/s", "ms"
#: Of a line that has no such figure.
_NONE: Final = "-"


class Line(NamedTuple):
    """One line: the words for it, and the rows with its ratios. `{}` in `case` stands for the codec."""

    words: str
    benchmark: str
    case: str
    subject: str
    unit: str = _CPU
    #: Whether the pure codec has a row of its own.
    pure: bool = True


_JAFKA, _AIOKAFKA, _CONFLUENT = "Jafka's consumer", "aiokafka", "confluent-kafka"
_KAFKA_SOURCE = "Spark's Kafka source"
_THOUSAND = "0.8+, 200/s over 1000 partitions, {}"
_IDLE, _PART = "0.8+, 1000 partitions, {}", "% of a core"

LINES: Final = (
    Line("decode 0.7, 100 B, to a list of payloads", "decode", "plain 100 B, {}", "aiokafka"),
    Line(
        "the same without reading payloads", "decode", "plain 100 B, {}, payloads not asked for", "aiokafka", pure=False
    ),
    Line("decode 0.7, gzip", "decode", "gzip 100 B, {}", "aiokafka"),
    Line("decode 0.7, snappy", "decode", "snappy 100 B, {}", "aiokafka"),
    Line("`consumerd run` on 0.7, handler `null`", "daemon", "plain 100 B, null, {}", _JAFKA),
    Line("the same, every value read", "daemon", "plain 100 B, every value, {}", _JAFKA),
    Line("consume from Kafka 3.9", "kafka", "consume 100 B, {}", "aiokafka", pure=False),
    Line("the same", "kafka", "consume 100 B, {}", _CONFLUENT, pure=False),
    Line("produce to Kafka 3.9, acks 1", "kafka", "produce 100 B, acks 1, {}", _CONFLUENT, pure=False),
    Line("produce to Kafka 3.9, acks all", "kafka", "produce 100 B, acks -1, {}", _CONFLUENT, pure=False),
    Line("latency, Kafka 3.9, 5/s, median", "latency", "0.8+, 5/s over 8 partitions, p50", _AIOKAFKA, _MS, pure=False),
    Line("the same", "latency", "0.8+, 5/s over 8 partitions, p50", _CONFLUENT, _MS, pure=False),
    Line("the same, p99", "latency", "0.8+, 5/s over 8 partitions, p99", _AIOKAFKA, _MS, pure=False),
    Line("the same, p99", "latency", "0.8+, 5/s over 8 partitions, p99", _CONFLUENT, _MS, pure=False),
    Line("the same, 200/s, median", "latency", "0.8+, 200/s over 8 partitions, p50", _AIOKAFKA, _MS, pure=False),
    Line("the same", "latency", "0.8+, 200/s over 8 partitions, p50", _CONFLUENT, _MS, pure=False),
    Line("the same, 200/s, p99", "latency", "0.8+, 200/s over 8 partitions, p99", _AIOKAFKA, _MS, pure=False),
    Line("the same, 200/s, p99", "latency", "0.8+, 200/s over 8 partitions, p99", _CONFLUENT, _MS, pure=False),
    Line("the same, 20,000/s, median", "latency", "0.8+, 20000/s over 8 partitions, p50", _AIOKAFKA, _MS, pure=False),
    Line("the same", "latency", "0.8+, 20000/s over 8 partitions, p50", _CONFLUENT, _MS, pure=False),
    Line("the same, 20,000/s, p99", "latency", "0.8+, 20000/s over 8 partitions, p99", _AIOKAFKA, _MS, pure=False),
    Line("the same, 20,000/s, p99", "latency", "0.8+, 20000/s over 8 partitions, p99", _CONFLUENT, _MS, pure=False),
    Line("200/s over 1,000 partitions, median", "latency", _THOUSAND.format("p50"), _AIOKAFKA, _MS, pure=False),
    Line("the same", "latency", _THOUSAND.format("p50"), _CONFLUENT, _MS, pure=False),
    Line("the same, p99", "latency", _THOUSAND.format("p99"), _AIOKAFKA, _MS, pure=False),
    Line("the same, p99", "latency", _THOUSAND.format("p99"), _CONFLUENT, _MS, pure=False),
    Line("`send` and wait, median", "latency", "0.8+, send and wait, p50", _AIOKAFKA, _MS, pure=False),
    Line("the same", "latency", "0.8+, send and wait, p50", _CONFLUENT, _MS, pure=False),
    Line("the same, p99", "latency", "0.8+, send and wait, p99", _AIOKAFKA, _MS, pure=False),
    Line("the same, p99", "latency", "0.8+, send and wait, p99", _CONFLUENT, _MS, pure=False),
    Line("latency, 0.7, 200/s, p99", "latency", "0.7, 200/s over 8 partitions, p99", _JAFKA, _MS, pure=False),
    Line("idle, 1,000 partitions, processor", "idle", _IDLE.format("processor time"), _AIOKAFKA, _PART, pure=False),
    Line("the same", "idle", _IDLE.format("processor time"), _CONFLUENT, _PART, pure=False),
    Line("the same, memory", "idle", _IDLE.format("resident"), _AIOKAFKA, "MiB", pure=False),
    Line("the same, memory", "idle", _IDLE.format("resident"), _CONFLUENT, "MiB", pure=False),
    Line("Spark, segments of 0.7, values", "spark", "137 B, local[2], value, {}", "read.text", _ROWS, pure=False),
    Line("the same, to Parquet", "spark", "137 B, local[2], full to parquet, {}", "text to parquet", _ROWS, pure=False),
    Line(
        "the same, to Parquet", "spark", "137 B, local[2], full to parquet, {}", "parquet to parquet", _ROWS, pure=False
    ),
    Line("`log export` to Parquet", "spark", "137 B, log export to parquet, {}", "text to parquet", _ROWS, pure=False),
    Line("Spark, Kafka 3.9, values", "spark_kafka", "100 B, local[2], value, {}", _KAFKA_SOURCE, _ROWS, pure=False),
    Line("the same, all columns", "spark_kafka", "100 B, local[2], full, {}", _KAFKA_SOURCE, _ROWS, pure=False),
    Line("ZooKeeper, pipelined writes", "zookeeper", "pipelined set, processor time", "aiozk", "k/s", pure=False),
    Line("ZooKeeper, pipelined reads", "zookeeper", "pipelined get, processor time", "aiozk", "k/s", pure=False),
)


def table(rows: Iterable[Measurement]) -> str:
    """The table as Markdown. Raises KeyError with the row that a recorded benchmark has not."""
    rows = list(rows)
    benchmarks = {row.benchmark for row in rows}
    ratios = {(row.benchmark, row.case, row.subject, row.unit): row.ratio for row in rows}

    def ratio(line: Line, codec: str) -> str:
        key = line.benchmark, line.case.format(codec), line.subject, line.unit
        found = ratios[key]
        assert found is not None
        return f"{found:.1f}" if found >= 10 else f"{found:.2f}"

    lines = [
        "| | beside | native codec | pure codec |",
        "|---|---|--:|--:|",
        *(
            f"| {line.words} | {line.subject} | {ratio(line, NATIVE)} | {ratio(line, PURE) if line.pure else _NONE} |"
            for line in LINES
            if line.benchmark in benchmarks
        ),
    ]
    return "\n".join(lines)
