"""A query's options -> where each partition starts and ends, and the splits in between.

Strategy: functions over `PartitionLog`s, the same for batches and streams. What the options name is checked against
what is there: an offset that is no boundary would have a reader start inside a message. What is not there any more goes
to `Losses`, which raises or logs, as `failOnDataLoss` says.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from consumerd.errors import NotFoundError
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.offsets import entries
from consumerd.spark.source.options import OptionError
from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import InputPartition

    from consumerd.spark.source.filters import Pruning
    from consumerd.spark.source.logs import PartitionLog
    from consumerd.spark.source.offsets import Key, Offsets, Position
    from consumerd.spark.source.options import SourceOptions

log = logging.getLogger(__name__)


class Losses:
    """What to do about messages that are not there any more."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def report(self, what: str) -> None:
        """Raise DataLossError, or go on; the same sentence is logged once."""
        if self._fail:
            raise DataLossError(f"{what}; start elsewhere, or set failOnDataLoss=false to continue without them")
        if what not in self._reported:
            self._reported.add(what)
            log.warning("%s; continuing without them", what)


def plan_batch(options: SourceOptions, pruning: Pruning) -> list[InputPartition]:
    """The splits of one batch, as of now. Raises a ConsumerdError that names the option or the partition."""
    origin = open_origin(options)
    logs = origin.snapshot()
    if (missing := origin.missing(logs)) is not None:
        raise NotFoundError(missing)
    losses = Losses(fail=options.fail_on_data_loss)
    starts = starting(logs, options, options.start_of_batch(), losses)
    ends = resolve(logs, options.ending, "endingOffsets", losses)
    for key, start in starts.items():
        if start > ends[key]:
            raise OptionError(f"{_name(key)} starts at {start}, after its end at {ends[key]}; check endingOffsets")
    ranges = {key: (starts[key], ends[key]) for key in logs if pruning.wants(logs[key])}
    return [
        split
        for split in split_ranges(logs, ranges, options, losses)
        if pruning.overlaps(split.start, split.end)  # type: ignore[attr-defined]  # both kinds have them
    ]


def starting(
    logs: Mapping[Key, PartitionLog], options: SourceOptions, position: Position, losses: Losses
) -> dict[Key, int]:
    """Where each partition of a new query starts."""
    if options.starting_timestamp is not None:
        return {key: each.before(options.starting_timestamp) for key, each in logs.items()}
    if options.starting_times is not None:
        times = _by_partition(logs, options.starting_times, "startingOffsetsByTimestamp", "")
        return {key: each.before(times[key]) for key, each in logs.items()}
    return resolve(logs, position, "startingOffsets", losses)


def resolve(logs: Mapping[Key, PartitionLog], position: Position, option: str, losses: Losses) -> dict[Key, int]:
    """An offset for each partition. Raises OptionError for partitions left out or unknown, and for no boundaries."""
    if isinstance(position, int):
        return {key: each.start if position == EARLIEST else each.end for key, each in logs.items()}
    named = _by_partition(logs, position, option, " (-2: earliest, -1: latest)")
    return {key: _checked(each, named[key], option, losses) for key, each in logs.items()}


def _by_partition(logs: Mapping[Key, PartitionLog], given: Offsets, option: str, hint: str) -> dict[Key, int]:
    """What an option says of each partition. Raises OptionError for partitions left out or unknown."""
    named = dict(entries(given))
    for key in named:
        if key not in logs:
            raise OptionError(f"option {option} names {_name(key)}, which is not among the partitions that are read")
    for key in logs:
        if key not in named:
            raise OptionError(f"option {option} leaves out {_name(key)}; name it{hint}")
    return named


def _checked(each: PartitionLog, offset: int, option: str, losses: Losses) -> int:
    if offset in (EARLIEST, LATEST):
        return each.start if offset == EARLIEST else each.end
    if not each.start <= offset <= each.end:
        losses.report(f"{option} names {offset} of {_name(each.key)}, which has {each.start} to {each.end}")
        return min(max(offset, each.start), each.end)
    begins = each.message_at(offset)
    if begins != offset:
        where = "what precedes it cannot be read" if begins is None else f"the message around it begins at {begins}"
        raise OptionError(f"option {option} names {offset} of {_name(each.key)}, where no message begins; {where}")
    return offset


def split_ranges(
    logs: Mapping[Key, PartitionLog], ranges: Mapping[Key, tuple[int, int]], options: SourceOptions, losses: Losses
) -> list[InputPartition]:
    """Splits for a range of each partition: of about `max_split`, smaller where `minPartitions` asks for more."""
    total = sum(end - start for start, end in ranges.values())
    most = options.max_split
    if options.min_partitions > 1 and total:
        fair = max(1, total // options.min_partitions)
        most = min(most, fair) if most else fair
    splits: list[InputPartition] = []
    for key, (start, end) in ranges.items():
        report_gaps(logs[key], start, end, losses)
        splits += logs[key].splits(start, end, most)
    return splits


def report_gaps(each: PartitionLog, start: int, end: int, losses: Losses) -> None:
    """Tell of what is not there between two offsets."""
    for low, high in each.gaps():
        if low < end and start < high:
            losses.report(f"{_name(each.key)} has nothing from {max(low, start)} to {min(high, end)}")


def _name(key: Key) -> str:
    return "/".join(key)
