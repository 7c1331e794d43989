"""What earlier comparisons have proven of bronze, for the time when the source has it no more.

Strategy: a place of the log without a message (the end of a transaction, a compressed message that holds none) looks,
once retention has taken it, just as a message that never landed. So a comparison that found everything of a partition
landed leaves a seal: from where to where, and how many rows bronze had there with which sum of hashes. As long as
bronze has the same rows there, what it lacks is what the log lacked. A seal is worth nothing once a single row differs,
or where a declaration of `gone` that it was made under is withdrawn.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.spec import PipelineSpec


class Seal(NamedTuple):
    """Of one partition: bronze was complete in [start, end), with so many rows, of whose hashes this was the sum."""

    start: int
    end: int
    rows: int
    digest: int
    #: What was declared gone then.
    declared: tuple[tuple[int, int], ...] = ()


def read_seals(spark: SparkSession, pipeline: PipelineSpec, query: str) -> dict[Key, Seal]:
    """Seals of the checkpoint with this id; none where the file is missing, or holds something else."""
    path, files = locate(spark, _path(pipeline), renames=False)
    try:
        found = json.loads(files.read(path) or b"{}")
        if found.get("query") != query:
            return {}
        seals = {
            (topic, name): Seal(start, end, rows, digest, tuple((low, high) for low, high in declared))
            for topic, name, start, end, rows, digest, declared in found["partitions"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # a proof that cannot be read is none; the next comparison makes another one
    gone = {(each.topic, each.partition, each.start, each.end) for each in pipeline.gone}
    return {key: seal for key, seal in seals.items() if {(*key, *each) for each in seal.declared} <= gone}


def write_seals(spark: SparkSession, pipeline: PipelineSpec, query: str, seals: Mapping[Key, Seal]) -> None:
    """Keep these and no others. Raises OSError."""
    path, files = locate(spark, _path(pipeline), renames=False)
    rows = [[*key, *seal] for key, seal in sorted(seals.items())]
    files.replace(path, json.dumps({"query": query, "partitions": rows}).encode() + b"\n")


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/proven.json"  # it is of this checkpoint, and goes where that goes
