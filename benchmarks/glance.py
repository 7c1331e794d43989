"""The table of docs/performance.md: the ratios of the recorded run that most users look for.

Strategy: each line names rows of the record, so that the page cannot say anything else than `benchmarks/recorded.json`;
a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.surroundings import NATIVE, PURE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.race import Measurement

_CPU, _ROWS = "M msg/cpu-s", "M rows/s"
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


_JAFKA, _CONFLUENT, _KAFKA_SOURCE = "Jafka's consumer", "confluent-kafka", "Spark's Kafka source"

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
    """The table as Markdown. Raises KeyError with the row that the record has not."""
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
        ),
    ]
    return "\n".join(lines)
