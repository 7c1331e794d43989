"""The start offsets of a pipeline's landing, fixed before its first batch.

Strategy: Spark writes down where a batch ends, but asks the source again where the first batch begins each time it is
tried. By then `latest` has moved and `earliest` may have, so messages in between would be skipped, and afterwards
the range to be landed would be unknown. Therefore the options are resolved once and the offsets kept in a file of the
checkpoint, which is written atomically; `land` starts from them, and `reconcile` expects everything from there on. A
partition that appears later is added when the first batch that has it is landed.

The file also has what is known of the log that each offset belongs to: the topic's id and a leader epoch. When a batch
begins another log of a partition, since its topic was deleted and created again, the range of the former one is noted
(`former_logs`). So is the range that an unclean leader election cut off, when a batch goes back to where the logs part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from consumerd.base.errors import ConsumerdError, NotFoundError
from consumerd.spark.checkpoints import Checkpoint, CheckpointError
from consumerd.spark.former_logs import FormerLog, add_former
from consumerd.spark.source.choice import deselected, renamed
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.offsets import (
    Key,
    LogOffset,
    Offsets,
    format_offsets,
    parse_offsets,
    positions,
    sorted_offsets,
)
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import SourceOptions, read_options
from consumerd.spark.source.planning import Losses, compare, continued, placed, starting
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

_FILE = "began.json"
_REPLACED = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})


def source_options(pipeline: PipelineSpec) -> dict[str, str]:
    """The pipeline's options of the source. A stream begins at the latest offsets by default, and landing does not."""
    options = dict(pipeline.source)
    named = {name.lower() for name in options}
    return options if named & _REPLACED else options | {"startingOffsets": "earliest"}


def begin(spark: SparkSession | None, pipeline: PipelineSpec, source: Mapping[str, str]) -> dict[str, str]:
    """The options for the stream of `land`: those of `source`, with the recorded offsets as start.

    Once a batch is done the checkpoint has the next offsets, and the options stay as they are. Raises what planning
    raises, NotFoundError for a partition that is gone before it was read, CheckpointError for a file that is not ours.
    """
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    if checkpoint.last_committed() is not None:
        return dict(source)
    options = read_options(source)
    origin = open_origin(options)
    logs = origin.snapshot()
    losses = Losses(fail=options.fail_on_data_loss)
    path, files = locate(spark, _path(pipeline))
    fixed = began(spark, pipeline)
    if fixed is None:
        if (missing := origin.missing(logs)) is not None:
            raise NotFoundError(missing)
        asked = options.start_of_stream()
        starts = dict(origin.with_epochs(placed(logs, starting(origin, logs, options, asked, losses))))
        # Requested offsets that were deleted before the first batch were to be landed, too.
        timed = options.starting_timestamp is not None or options.starting_times is not None
        if not timed and not isinstance(asked, int):
            starts |= {
                key: LogOffset(each.offset, logs[key].topic_id)
                for key, each in positions(asked)
                if 0 <= each.offset < logs[key].start and each.may_be_of(logs[key].topic_id)
            }
        files.make_directory(path.rpartition("/")[0])
        if not files.create(path, format_offsets(sorted_offsets(starts)).encode()):
            return begin(spark, pipeline, source)  # another run was first
    else:
        # Partitions that came since begin where their log does.
        starts = placed(logs, {key: log.start for key, log in logs.items()}) | dict(positions(fixed))
        replaced = {key for key, log in logs.items() if not starts[key].may_be_of(log.topic_id)}
        for key in replaced:
            losses.report_replaced(logs[key], starts[key], "to be landed from")
        moved = placed(logs, {key: logs[key].start for key in replaced})
        for key, change in compare(origin, logs, starts).items():
            if change is not None:
                losses.report_change(logs[key], starts[key], change, "to be landed from")
                moved[key] = continued(logs[key], change)
        if moved and checkpoint.last_planned() is None:
            # Nothing was read of the former logs. Otherwise the first batch is as it was planned, and says so.
            starts |= moved
            _store(spark, pipeline, starts)
    for key in starts:
        if key not in logs:
            raise _missing(pipeline, options, key)
    kept = {name: value for name, value in source.items() if name.lower() not in _REPLACED}
    return kept | {"startingOffsets": format_offsets(sorted_offsets(starts))}


def _missing(pipeline: PipelineSpec, options: SourceOptions, key: Key) -> ConsumerdError:
    """The error for a partition that was to be landed and is not among those that are read."""
    changed = renamed(options, key) or deselected(options, key)
    where = f"{'/'.join(key)} was to be landed and"
    remedy = f"or move {pipeline.base} away to start over"
    if changed is not None:
        return OptionError(f"{where} {changed}; set it as it was, {remedy}")
    return NotFoundError(f"{where} no longer exists; restore it, {remedy}")


def began(spark: SparkSession | None, pipeline: PipelineSpec) -> Offsets | None:
    """Return the offsets at which the landing began; None if it never did. Raises CheckpointError."""
    return began_at(spark, pipeline.checkpoint("land"))


def began_at(spark: SparkSession | None, checkpoint: str) -> Offsets | None:
    """As `began`, by the folder of the checkpoint."""
    path, files = locate(spark, f"{checkpoint}/{_FILE}")
    data = files.read(path)
    if data is None:
        return None
    try:
        return parse_offsets(data.decode())
    except ValueError as error:
        raise CheckpointError(f"{path} contains no valid offsets ({error}): restore it from a backup.") from None


def set_beginning(spark: SparkSession | None, pipeline: PipelineSpec, starts: Mapping[Key, LogOffset]) -> None:
    """Record where each log began to be landed, as the table says; partitions that it does not name stay."""
    _store(spark, pipeline, dict(positions(began(spark, pipeline) or {})) | dict(starts))


def _store(spark: SparkSession | None, pipeline: PipelineSpec, starts: Mapping[Key, LogOffset]) -> None:
    path, files = locate(spark, _path(pipeline))
    files.replace(path, format_offsets(sorted_offsets(starts)).encode())


def note_new(spark: SparkSession | None, pipeline: PipelineSpec, batch: int) -> None:
    """Record the start of partitions, and of logs, that are new in a batch, before it is landed.

    The stream's offsets say so too, but Spark forgets those of old batches, and retention moves on. Raises as `begin`.
    """
    fixed = began(spark, pipeline)
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    ends = checkpoint.end(batch)
    if fixed is None or not isinstance(ends, dict):
        return
    known = dict(positions(fixed))
    former, now = after_batch(known, positions_of(checkpoint.end(batch - 1)), positions_of(ends))
    if former:
        add_former(spark, pipeline, former)
    if now != known:
        _store(spark, pipeline, now)


def after_batch(
    starts: Mapping[Key, LogOffset], before: Mapping[Key, LogOffset], ends: Mapping[Key, LogOffset]
) -> tuple[list[FormerLog], dict[Key, LogOffset]]:
    """Return the logs that a batch leaves, and where the log of each partition begins after it.

    `starts`: where they began so far; `before`, `ends`: the ends of the batch before and of this one. The batch that
    begins a log ends where the log does begin, and one that goes back ends where the end of the log was cut off.
    """
    former = []
    now = dict(starts)
    for key, end in ends.items():
        start = starts.get(key)
        if start is None:
            now[key] = end
            continue
        reached = before.get(key, start)
        if not start.may_be_of(end.topic_id):
            until = reached.offset if reached.topic_id == start.topic_id else start.offset
            former.append(FormerLog(*key, start.topic_id, start.offset, max(until, start.offset)))
            now[key] = end
            continue
        if start.topic_id is None:
            now[key] = start._replace(topic_id=end.topic_id)
        cut_off = end.offset < reached.offset and reached.may_be_of(end.topic_id)
        if cut_off and reached.leader_epoch is not None:
            low = max(end.offset, start.offset)
            log_id = end.topic_id or start.topic_id
            former.append(FormerLog(*key, log_id, low, max(low, reached.offset), reached.leader_epoch))
            if end.offset < start.offset:
                now[key] = end
    return former, now


def positions_of(ends: object) -> dict[Key, LogOffset]:
    """The ends of a batch as the offset log has them; none where Spark deleted it."""
    return dict(positions(ends)) if isinstance(ends, dict) else {}


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/{_FILE}"  # moving the checkpoint away resets the start
