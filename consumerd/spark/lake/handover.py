"""A table that a step of a pipeline and the daemon append to in turns: each continues where the other one ended.

Strategy: the commit of a batch says where it ends in its source (`offsets`), whichever program made it. The daemon
follows the table alone. A step follows its checkpoint, which is brought up to the table before the step begins: the
table's last batch is recorded as done, with the end that its commit says. What the step had planned for that batch, and
not stored, is planned again.

Both may be started at a time by mistake. Then the daemon leaves out what the step committed; the step finds that its
batch has another end in the table, and stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consumerd.spark.beginning import began_at, set_beginning
from consumerd.spark.checkpoints import Checkpoint, CheckpointError
from consumerd.spark.former_logs import FormerLog, add_former
from consumerd.spark.lake.checkpoint import CheckpointTakenError, WritableCheckpoint
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.source.offsets import positions, sorted_offsets
from consumerd.spark.tables.errors import TableOwnedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


def joined(path: str) -> WritableCheckpoint:
    """The checkpoint in a folder, with an id: a new one if no step has begun. Raises as `WritableCheckpoint.begin`."""
    checkpoint = WritableCheckpoint(path)
    try:
        checkpoint.begin()
    except CheckpointTakenError:
        checkpoint.query_id()  # another member was faster
    return checkpoint


def offsets_of(
    checkpoint: Checkpoint, batch: int, end: Any = None, *, spark: SparkSession | None = None, planned: bool = False
) -> TableOffsets | None:
    """Where a batch ended, as the checkpoint planned it; None if it does not have it, or the source has no offsets.

    `end`: what it planned. `planned`: for the commit of a step. Raises CheckpointError.
    """
    end = checkpoint.end(batch) if end is None else end
    if not isinstance(end, dict):
        return None
    starts = began_at(spark, checkpoint.path) or {}
    return TableOffsets(batch, dict(positions(end)), dict(positions(starts)), planned=planned)


def must_have(table: LakeTable, batch: int, end: Any) -> None:
    """Raise TableOwnedError if the batch that the table has already is not the one that a step planned."""
    found = table.offsets()
    if found is not None and (found.batch != batch or not found.ends_at(end)):
        raise TableOwnedError(
            f"the daemon has appended to {table.path} since this step began: let one of them append at a time. Nothing "
            "of the batch was stored, and the same command continues where the table ends."
        )


def catch_up(
    pipeline: PipelineSpec, checkpoint: WritableCheckpoint, table: LakeTable, spark: SparkSession | None = None
) -> None:
    """Bring the checkpoint of `land` up to a table that the daemon has appended to. Raises CheckpointError, OSError.

    `spark`: as the checkpoint has it. May be killed and repeated at any time. Does nothing where the table belongs to
    another checkpoint, or a step made its last commit: then the checkpoint has to have that batch, and one that lacks
    it is older than the table.
    """
    found = table.offsets()
    if found is None or found.planned or not checkpoint.exists or table.owner() != checkpoint.query_id():
        return
    checkpoint.must_be_whole()
    planned, done = checkpoint.last_planned(), checkpoint.last_committed()
    last, completed = found.batch, -1 if done is None else done
    same = planned is not None and planned >= last and found.ends_at(checkpoint.end(last))
    if same and completed >= last - 1:
        return
    if completed >= last:
        raise CheckpointError(
            f"batch {last} of {table.path} ends elsewhere than the checkpoint {checkpoint.path} says: restore the "
            "table or the checkpoint from a backup."
        )
    ends = sorted_offsets(found.ends)
    if last and checkpoint.end(last - 1) is None:
        checkpoint.record(last - 1, ends)  # Spark requires the one before the last
    checkpoint.record(last, ends)
    add_former(spark, pipeline, [FormerLog(*each) for each in found.former])
    set_beginning(spark, pipeline, found.starts)
    checkpoint.complete(last)
