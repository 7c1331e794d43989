"""The start offsets of a pipeline's landing, fixed before its first batch.

Strategy: Spark writes down where a batch ends, but asks the source again where the first batch begins each time it is
tried. By then `latest` has moved and `earliest` may have, so messages in between would be skipped, and afterwards
the range to be landed would be unknown. Therefore the options are resolved once and the offsets kept in a file of the
checkpoint, which is written atomically; `land` starts from them, and `reconcile` expects everything from there on. A
partition that appears later is added when the first batch that has it is landed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.errors import NotFoundError
from consumerd.spark.checkpoints import Checkpoint, CheckpointError, OffsetLog
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.offsets import entries, format_offsets, parse_offsets, sorted_offsets
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import Losses, starting
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from consumerd.spark.source.offsets import Offsets
    from consumerd.spark.spec import PipelineSpec

_REPLACED = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})


def begin(spark: SparkSession, pipeline: PipelineSpec, source: Mapping[str, str]) -> dict[str, str]:
    """The options for the stream of `land`: those of `source`, with the recorded offsets as start.

    Once a batch is done the checkpoint has the next offsets, and the options stay as they are. Raises what planning
    raises, NotFoundError for a partition that is gone before it was read, CheckpointError for a file that is not ours.
    """
    if Checkpoint(spark, pipeline.checkpoint("land")).last_committed() is not None:
        return dict(source)
    options = read_options(source)
    origin = open_origin(options)
    logs = origin.snapshot()
    fixed = began(spark, pipeline)
    if fixed is None:
        if (missing := origin.missing(logs)) is not None:
            raise NotFoundError(missing)
        asked = options.start_of_stream()
        starts = starting(logs, options, asked, Losses(fail=options.fail_on_data_loss))
        # Requested offsets that were deleted before the first batch were to be landed, too.
        timed = options.starting_timestamp is not None or options.starting_times is not None
        if not timed and not isinstance(asked, int):
            starts |= {key: offset for key, offset in entries(asked) if 0 <= offset < logs[key].start}
        path, files = locate(spark, _path(pipeline), renames=False)
        files.make_folder(path.rpartition("/")[0])
        if not files.create(path, format_offsets(sorted_offsets(starts)).encode()):
            return begin(spark, pipeline, source)  # another run was first
    else:
        # Partitions that came since begin where their log does.
        starts = {key: log.start for key, log in logs.items()} | dict(entries(fixed))
    for topic, name in starts:
        if (topic, name) not in logs:
            raise NotFoundError(
                f"{topic}/{name} was to be landed and no longer exists; restore it, or move "
                f"{pipeline.base} away to start over"
            )
    kept = {name: value for name, value in source.items() if name.lower() not in _REPLACED}
    return kept | {"startingOffsets": format_offsets(sorted_offsets(starts))}


def began(spark: SparkSession, pipeline: PipelineSpec) -> Offsets | None:
    """Return the offsets at which the landing began; None if it never did. Raises CheckpointError."""
    path, files = locate(spark, _path(pipeline), renames=False)
    data = files.read(path)
    if data is None:
        return None
    try:
        return parse_offsets(data.decode())
    except ValueError as error:
        raise CheckpointError(f"{path} contains no valid offsets ({error}): restore it from a backup.") from None


def note_new(spark: SparkSession, pipeline: PipelineSpec, batch: int) -> None:
    """Record the start of partitions that are new in a batch, before it is landed.

    The stream's offsets say so too, but Spark forgets those of old batches, and retention moves on. Raises as `begin`.
    """
    fixed = began(spark, pipeline)
    ends = OffsetLog(spark, pipeline.checkpoint("land")).end(batch)
    if fixed is None or not isinstance(ends, dict):
        return
    known = dict(entries(fixed))
    fresh = {key: offset for key, offset in entries(ends) if key not in known}
    if fresh:
        path, files = locate(spark, _path(pipeline), renames=False)
        files.replace(path, format_offsets(sorted_offsets(known | fresh)).encode())


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/began.json"  # moving the checkpoint away resets the start
