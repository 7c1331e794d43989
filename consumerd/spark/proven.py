"""Ranges that a reconciliation found complete: a file of the checkpoint of `land`.

A position of the log without a message (the end of a transaction, a compressed message without content) looks, once
retention has removed it, just like a message that never landed. So a reconciliation that finds a partition complete
writes down its range, the number of its rows in bronze and the sum of their hashes. As long as bronze has the same rows
there, the offsets that it lacks are those that the log lacked. The record is void once a single row differs, or when a
declaration of `gone` that it was made under is withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from consumerd.spark.former_logs import FormerLog, name_of
from consumerd.spark.source.offsets import Key
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


class ProvenRange(NamedTuple):
    """Bronze was complete in [start, end) of one partition: this many rows, and `digest` is the sum of their hashes."""

    start: int
    end: int
    rows: int
    digest: int
    #: The ranges that were declared gone then.
    declared: tuple[tuple[int, int], ...] = ()
    #: The log's, None where it was unknown.
    topic_id: str | None = None


def read_proven(
    spark: SparkSession | None, pipeline: PipelineSpec, query: str, former: Collection[FormerLog] = ()
) -> dict[Key, ProvenRange]:
    """The ranges of the checkpoint with this id; none if the file is missing or has other content."""
    path, files = locate(spark, _path(pipeline))
    try:
        found = json.loads(files.read(path) or b"{}")
        if found.get("query") != query:
            return {}
        proven_ranges = {
            name_of(former, (topic, name), *log or (None,)): ProvenRange(
                start, end, rows, digest, tuple((low, high) for low, high in declared), *log
            )
            for topic, name, start, end, rows, digest, declared, *log in found["partitions"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # an unreadable proof is void; the next comparison writes another one
    gone = {(each.topic, each.partition, each.start, each.end) for each in pipeline.gone}
    return {key: proven for key, proven in proven_ranges.items() if {(*key, *each) for each in proven.declared} <= gone}


def write_proven(
    spark: SparkSession | None, pipeline: PipelineSpec, query: str, proven_ranges: Mapping[Key, ProvenRange]
) -> None:
    """Keep these and no others. Raises OSError."""
    path, files = locate(spark, _path(pipeline))
    rows = [[*key, *proven] for key, proven in sorted(proven_ranges.items())]
    files.replace(path, json.dumps({"query": query, "partitions": rows}).encode() + b"\n")


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/proven.json"  # it is of this checkpoint, and goes where that goes
