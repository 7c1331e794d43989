"""The expected messages of a reconciliation: from the checkpoint of `land` and from the source itself.

Strategy: the checkpoint has the end of the planned batches, `consumerd.spark.beginning` their start; everything
in between is expected, independent of bronze. The part of it that the source still has is read again as a batch, and
missing offsets are skipped instead of failing the query: the sweep reports them. Of a topic that was created again the
source has another log, and nothing of the one that was landed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.spark.beginning import began
from consumerd.spark.checkpoints import Checkpoint, CheckpointError, CountedTable
from consumerd.spark.former_logs import FormerLog, read_former
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.offsets import Key, LogOffset, entries, format_offsets, positions, sorted_offsets
from consumerd.spark.source.options import STREAM_ONLY, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

_REPLACED: Final = frozenset(
    name.lower()
    for name in (
        "assign", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
        "startingOffsetsByTimestamp", "failOnDataLoss", "includeHeaders", *STREAM_ONLY,
    )
)  # fmt: skip


class RangeToLand(NamedTuple):
    """A range [start, end) of one partition's log. `topic_id`: that of the log, None where it is unknown."""

    start: int
    end: int
    topic_id: str | None = None


class LandingPlan(NamedTuple):
    """The ranges to be landed. Rows of bronze count up to `last_batch`: a query may be adding to it.

    `former`: the logs that others have replaced by then.
    """

    spans: dict[Key, RangeToLand]
    last_batch: int
    former: tuple[FormerLog, ...] = ()


def planned(
    spark: SparkSession | None,
    pipeline: PipelineSpec,
    bronze: CountedTable,
    first_landed: Callable[[], Mapping[Key, int]],
) -> LandingPlan:
    """Return the range to be landed of every partition. Raises NotFoundError if nothing was landed, CheckpointError.

    `first_landed`: the first offset of each partition in bronze, for partitions that appeared after landing began: they
    begin where their log does, and that offset is not recorded.
    """
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    # A batch may be in the table and not committed yet; one that the checkpoint does not list is not land's.
    last = [each[-1] for each in bronze.batches()[-1:]]
    known = [batch for batch in (*last, checkpoint.last_committed()) if batch is not None]
    if not known:
        raise NotFoundError(f"the pipeline {pipeline.name} has not landed anything yet: run land first.")
    found = (checkpoint.end(batch) for batch in sorted(known, reverse=True))
    ends = next((end for end in found if end is not None), None)
    if not isinstance(ends, dict):
        raise CheckpointError(
            f"{checkpoint.path}/offsets does not contain the end of batch {max(known)}: restore the checkpoint of "
            f"{bronze.path}."
        )
    reached = dict(positions(ends))
    starts = dict(entries(began(spark, pipeline) or {}))
    former = []
    for each in read_former(spark, pipeline):
        key = each.topic, each.partition
        at = reached.get(key)
        if at is None or at.topic_id != each.topic_id:
            former.append(each)
        elif each.leader_epoch is None:
            starts[key] = each.start  # a later batch, which is not counted, has replaced it
        elif at.leader_epoch is None or at.leader_epoch > each.leader_epoch or at.offset <= each.start:
            former.append(each)  # else such a batch has left it
    unknown = [key for key in reached if key not in starts]
    if unknown:
        logs = open_origin(read_options(pipeline.source)).snapshot()
        landed = first_landed()
        for key in unknown:
            firsts = [log.start for log in (logs.get(key),) if log is not None]
            starts[key] = min([*firsts, *(offset for offset in (landed.get(key),) if offset is not None)], default=0)
    spans = {key: RangeToLand(min(starts[key], at.offset), at.offset, at.topic_id) for key, at in reached.items()}
    spans |= {each.key: RangeToLand(each.start, each.end, each.topic_id) for each in former}
    return LandingPlan(spans, max(known), tuple(former))


class SourceSpans(NamedTuple):
    """The part of a range that the source has: its span by partition, and the pieces between its gaps."""

    spans: dict[Key, RangeToLand]
    pieces: list[tuple[Key, RangeToLand]]


def available(pipeline: PipelineSpec, wanted: Mapping[Key, RangeToLand]) -> SourceSpans:
    """The part of `wanted` that the source has now; partitions of which it has nothing are left out."""
    logs = open_origin(read_options(pipeline.source)).snapshot()
    found = {
        key: RangeToLand(max(span.start, logs[key].start), min(span.end, logs[key].end), span.topic_id)
        for key, span in wanted.items()
        if key in logs and LogOffset(span.start, span.topic_id).may_be_of(logs[key].topic_id)
    }
    spans = {key: span for key, span in found.items() if span.start < span.end}
    pieces = []
    for key, (start, end, _) in spans.items():
        for low, high in logs[key].gaps():
            if low < end and start < high:
                pieces.append((key, RangeToLand(start, max(start, low))))
                start = high
        pieces.append((key, RangeToLand(start, end)))
    return SourceSpans(spans, [(key, span) for key, span in pieces if span.start < span.end])


def common(
    one: Iterable[tuple[Key, RangeToLand]], other: Iterable[tuple[Key, RangeToLand]]
) -> list[tuple[Key, RangeToLand]]:
    """The intersection of both, piece by piece."""
    by_key: dict[Key, list[RangeToLand]] = {}
    for key, span in other:
        by_key.setdefault(key, []).append(span)
    found = [
        (key, RangeToLand(max(span.start, each.start), min(span.end, each.end)))
        for key, span in one
        for each in by_key.get(key, ())
    ]
    return [(key, span) for key, span in found if span.start < span.end]


def source_options(pipeline: PipelineSpec, spans: Mapping[Key, RangeToLand]) -> dict[str, str]:
    """The options to read the source in `spans`, at least one, as a batch: without failing for what is gone.

    Where the pipeline leaves out bytes that are not messages, such rows are there, with the reason in `_corrupt`.
    """
    assigned: dict[str, list[str]] = {}
    for topic, name in sorted(spans):
        assigned.setdefault(topic, []).append(name)
    replaced = _REPLACED | ({"mode"} if drops_malformed(pipeline) else set())
    kept = {name: value for name, value in pipeline.source.items() if name.lower() not in replaced}
    starts = {key: LogOffset(span.start, span.topic_id) for key, span in spans.items()}
    ends = {key: LogOffset(span.end, span.topic_id) for key, span in spans.items()}
    return kept | {
        "assign": json.dumps(assigned),
        "startingOffsets": format_offsets(sorted_offsets(starts)),
        "endingOffsets": format_offsets(sorted_offsets(ends)),
        "failOnDataLoss": "false",
    }


def drops_malformed(pipeline: PipelineSpec) -> bool:
    """Whether the pipeline leaves out bytes that are not messages."""
    return read_options(pipeline.source).mode is ParseMode.DROPMALFORMED
