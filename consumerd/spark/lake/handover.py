"""A table that a step of a pipeline and the daemon append to in turns: each continues where the other one ended.

Strategy: the commit of a batch says where it ends in its source (`offsets`), whichever program made it. The daemon
follows the table alone. A step follows its checkpoint, which is brought up to the table before the step begins.
"""

from __future__ import annotations

from consumerd.base.files import SystemFiles
from consumerd.spark.checkpoints import Checkpoint, CheckpointError, OffsetLog
from consumerd.spark.lake.checkpoint import CheckpointTakenError, WritableCheckpoint
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.source.offsets import parse_offsets, positions

#: The file of a checkpoint of `land` with the offsets at which landing began.
BEGAN: str = "began.json"


def joined(path: str) -> WritableCheckpoint:
    """The checkpoint in a folder, with an id: a new one if no step has begun. Raises as `WritableCheckpoint.begin`."""
    checkpoint = WritableCheckpoint(path)
    try:
        checkpoint.begin()
    except CheckpointTakenError:
        checkpoint.query_id()  # another member was faster
    return checkpoint


def offsets_of(checkpoint: Checkpoint, batch: int) -> TableOffsets | None:
    """Where a batch ended, as the checkpoint planned it; None if it does not have it. Raises CheckpointError."""
    end = OffsetLog(None, checkpoint.path).end(batch)
    if not isinstance(end, dict):
        return None
    data = SystemFiles().read(f"{checkpoint.path}/{BEGAN}")
    try:
        starts = dict(positions(parse_offsets("{}" if data is None else data.decode())))
        return TableOffsets(batch, dict(positions(end)), starts)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint.path} contains no valid offsets ({error}): restore it from a backup."
        ) from None
