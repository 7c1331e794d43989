"""The logs that a pipeline has landed and that exist no longer: their topics were created again, or their ends cut off.

Strategy: bronze keeps the rows of all logs of a partition, told apart by `topic_id`. Where a former log began and ended
is in a file of the checkpoint of `land`, since the checkpoint itself has the current log only. `reconcile` treats each
former log as a partition of its own, `0@<topic id>`, and the current log has the partition's plain name: so a pipeline
whose topics were never created again is handled as if there were no ids. The end of a log that an unclean leader
election cut off is such a former log, too, `0@<topic id>:<leader epoch>:<end>`: its messages have offsets that others
have now, and leader epochs up to that one.

Rows without an id were landed by an earlier release, or from brokers without ids: they are of the first log, since the
replacement of a log is noticed by its id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.spark.checkpoints import CheckpointError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.spec import PipelineSpec

#: The columns of an identity that tell logs apart.
_LOG_COLUMNS: Final = {"topic_id": "string", "leader_epoch": "int"}


class FormerLog(NamedTuple):
    """A log that another one has replaced, and the range [start, end) of it that was to be landed.

    `leader_epoch`: only that range was cut off the log, and these are the messages of the epochs up to this one; None
    for the whole log.
    """

    topic: str
    partition: str
    topic_id: str | None
    start: int
    end: int
    leader_epoch: int | None = None

    @property
    def key(self) -> Key:
        """The log as a partition of its own."""
        name = f"{self.partition}@{self.topic_id or ''}"
        return self.topic, name if self.leader_epoch is None else f"{name}:{self.leader_epoch}:{self.end}"


def read_former(spark: SparkSession | None, pipeline: PipelineSpec) -> tuple[FormerLog, ...]:
    """The former logs, of each partition in their order. Raises CheckpointError."""
    path, files = locate(spark, _path(pipeline))
    data = files.read(path)
    try:
        return tuple(FormerLog(*each) for each in json.loads(data)) if data is not None else ()
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} does not list former logs ({error}): restore it from a backup.") from None


def add_former(spark: SparkSession | None, pipeline: PipelineSpec, fresh: Collection[FormerLog]) -> None:
    """Add logs to the list; one that it has stays as it is. Raises as `read_former`."""
    known = read_former(spark, pipeline)
    listed = {each.key for each in known}
    path, files = locate(spark, _path(pipeline))
    logs = [*known, *(each for each in fresh if each.key not in listed)]
    files.replace(path, json.dumps(logs).encode() + b"\n")


def name_of(former: Iterable[FormerLog], key: Key, topic_id: str | None) -> Key:
    """The log of a partition, as a partition: of an unknown id the first one."""
    logs = [each for each in former if (each.topic, each.partition) == key and each.leader_epoch is None]
    found = [each.key for each in logs if topic_id in (None, each.topic_id)]
    return found[0] if found else key


def identified(frame: DataFrame) -> DataFrame:
    """Rows with all columns of the identity: those of an earlier release have neither topic id nor leader epoch."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - this file is read without Spark, too

    missing = {name: kind for name, kind in _LOG_COLUMNS.items() if name not in frame.columns}
    return frame.withColumns({name: F.lit(None).cast(kind) for name, kind in missing.items()}) if missing else frame


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/former.json"  # it is of this checkpoint, and goes where that goes
