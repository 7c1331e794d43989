"""The logs that a pipeline has landed and that exist no longer, since their topics were deleted and created again.

Strategy: bronze keeps the rows of all logs of a partition, told apart by `topic_id`. Where a former log began and ended
is in a file of the checkpoint of `land`, since the checkpoint itself has the current log only. `reconcile` treats each
former log as a partition of its own, `0@<topic id>`, and the current log has the partition's plain name: so a pipeline
whose topics were never created again is handled as if there were no ids.

Rows without an id were landed by an earlier release, or from brokers without ids: they are of the first log, since the
replacement of a log is noticed by its id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.checkpoints import CheckpointError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.spec import PipelineSpec

#: The partition's name in the source, where `broker_partition` is the log's name.
PLAIN_PARTITION: Final = "plain_partition"
_TOPIC_ID: Final = "topic_id"


class FormerLog(NamedTuple):
    """A log that another one has replaced, and the range [start, end) of it that was to be landed."""

    topic: str
    partition: str
    topic_id: str
    start: int
    end: int

    @property
    def key(self) -> Key:
        """The log as a partition of its own."""
        return self.topic, f"{self.partition}@{self.topic_id}"


def read_former(spark: SparkSession, pipeline: PipelineSpec) -> tuple[FormerLog, ...]:
    """The former logs, of each partition in their order. Raises CheckpointError."""
    path, files = locate(spark, _path(pipeline), renames=False)
    data = files.read(path)
    try:
        return tuple(FormerLog(*each) for each in json.loads(data)) if data is not None else ()
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} does not list former logs ({error}): restore it from a backup.") from None


def add_former(spark: SparkSession, pipeline: PipelineSpec, fresh: Collection[FormerLog]) -> None:
    """Add logs to the list; one that it has stays as it is. Raises as `read_former`."""
    known = read_former(spark, pipeline)
    listed = {each.key for each in known}
    path, files = locate(spark, _path(pipeline), renames=False)
    logs = [*known, *(each for each in fresh if each.key not in listed)]
    files.replace(path, json.dumps(logs).encode() + b"\n")


def name_of(former: Iterable[FormerLog], key: Key, topic_id: str | None) -> Key:
    """The log of a partition, as a partition: of an unknown id the first one."""
    logs = [each for each in former if (each.topic, each.partition) == key]
    found = [each.key for each in logs if topic_id in (None, each.topic_id)]
    return found[0] if found else key


def identified(frame: DataFrame) -> DataFrame:
    """Rows with all columns of the identity: those of an earlier release have no topic id."""
    return frame if _TOPIC_ID in frame.columns else frame.withColumn(_TOPIC_ID, F.lit(None).cast("string"))


def with_log_names(spark: SparkSession, frame: DataFrame, former: Collection[FormerLog]) -> DataFrame:
    """Rows whose `broker_partition` is the name of their log, with the partition's own name in PLAIN_PARTITION."""
    if not former:
        return frame
    names = F.broadcast(
        spark.createDataFrame(
            list(_names(former)), "__topic string, __partition string, __topic_id string, __name string"
        )
    )
    same = [
        F.col("topic") == F.col("__topic"),
        F.col("broker_partition") == F.col("__partition"),
        F.col(_TOPIC_ID).eqNullSafe(F.col("__topic_id")),
    ]
    rows = identified(frame).join(names, same, "left").withColumn(PLAIN_PARTITION, F.col("broker_partition"))
    rows = rows.withColumn("broker_partition", F.coalesce(F.col("__name"), F.col("broker_partition")))
    return rows.drop("__topic", "__partition", "__topic_id", "__name")


def _names(former: Collection[FormerLog]) -> Iterator[tuple[str, str, str | None, str]]:
    first: set[Key] = set()
    for each in former:
        if (each.topic, each.partition) not in first:
            first.add((each.topic, each.partition))
            yield each.topic, each.partition, None, each.key[1]
        yield each.topic, each.partition, each.topic_id, each.key[1]


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/former.json"  # it is of this checkpoint, and goes where that goes
