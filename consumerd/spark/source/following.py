"""What a stream's planner does between two micro-batches: from the offsets reached to the offsets to reach.

Strategy: every question looks at the partitions anew and compares them with the offsets that Spark hands in; nothing
that was said before is relied on, so a restart from a checkpoint comes to the same splits. Partitions that are new
start at their beginning, which one micro-batch writes down and the next one goes on from: otherwise a batch that is
tried again could begin elsewhere. Bytes per trigger are shared out evenly: who has less than its share leaves the rest
to the others, and each partition that has anything goes on by one message at least. With AvailableNow the ends are
those of the look at the start.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from consumerd.errors import NotFoundError
from consumerd.spark.source.discovery import committer_of, open_origin
from consumerd.spark.source.offsets import entries, sorted_offsets
from consumerd.spark.source.planning import Losses, report_gaps, split_ranges, starting
from consumerd.spark.source.v07.segment_log import bytes_per_message, some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import InputPartition

    from consumerd.spark.source.logs import PartitionLog
    from consumerd.spark.source.offsets import Key, Offsets
    from consumerd.spark.source.options import SourceOptions


#: Seconds for which a look is good: to see what is new, and to plan what was seen already.
_FRESH: Final = 0.2
_STILL_GOOD: Final = 5.0


class Follower:
    """The state of one running stream. All methods raise a ConsumerdError where the query cannot go on."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._origin = open_origin(options)
        self._committer = committer_of(options)
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._target: dict[Key, int] | None = None
        self._logs: Mapping[Key, PartitionLog] = {}
        self._looked = -_STILL_GOOD
        #: What was not there in the last look for it, so that one look is enough as long as that lasts.
        self._lacking: frozenset[Key] = frozenset()
        self._group_checked = False

    def initial(self) -> dict[str, dict[str, int]]:
        """Where a stream without a checkpoint starts."""
        logs = self._look(0)
        if (missing := self._origin.missing(logs)) is not None:
            raise NotFoundError(missing)
        return sorted_offsets(starting(logs, self._options, self._options.start_of_stream(), self._losses))

    def stop_at_present(self) -> None:
        """Go no further than what is there now, and take no new partitions."""
        self._target = {key: each.end for key, each in self._look(0).items()}

    def latest(self, start: Offsets, most: int | None) -> dict[str, dict[str, int]]:
        """Where the next micro-batch ends; `start` if there is nothing new.

        `most`: of all partitions together, in what offsets count; with the option maxOffsetsPerTrigger in messages.
        """
        logs = self._look_for(start, _FRESH)
        ends = dict(entries(start))
        ranges: dict[Key, tuple[int, int]] = {}
        for key, reached in ends.items():
            if key not in logs:
                self._losses.report(f"{'/'.join(key)} was read up to {reached} and no longer exists")
        for key, each in logs.items():
            if key not in ends:
                if self._target is None or key in self._target:
                    ends[key] = each.start
                continue
            begin = ends[key] = self._begin(each, ends[key])
            end = each.end if self._target is None else min(each.end, self._target.get(key, begin))
            if begin < end:
                ranges[key] = (begin, end)
        if most is not None and self._options.max_messages is not None and ranges:
            sampled = some([(logs[key], begin) for key, (begin, _) in ranges.items()])
            most = max(1, round(most * bytes_per_message(sampled)))
        for key, share in _shares(ranges, most).items():
            begin, end = ranges[key]
            ends[key] = end if begin + share >= end else min(logs[key].limited(begin, share), end)
            report_gaps(logs[key], begin, ends[key], self._losses)
        return sorted_offsets(ends)

    def reported(self) -> dict[str, dict[str, int]] | None:
        """The ends of all partitions when they were looked at last."""
        return sorted_offsets({key: each.end for key, each in self._logs.items()}) if self._logs else None

    def splits(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """What reads everything from `start` to `end`."""
        logs = self._look_for(end, _STILL_GOOD)
        starts = dict(entries(start))
        ranges: dict[Key, tuple[int, int]] = {}
        for key, reached in entries(end):
            begin = starts.get(key)
            if begin is not None and begin >= reached:
                continue
            if key not in logs:
                self._losses.report(f"{'/'.join(key)} was to be read up to {reached} and no longer exists")
                continue
            each = logs[key]
            begin = self._begin(each, begin)
            if reached > each.end:
                self._losses.report(f"{'/'.join(key)} was to be read up to {reached} and ends at {each.end}")
            if begin < min(reached, each.end):
                ranges[key] = (begin, min(reached, each.end))
        return split_ranges(logs, ranges, self._options, self._losses)

    def commit(self, end: Offsets) -> None:
        """Write the offsets of a batch that is done for lag tools, if that was asked for."""
        if self._committer is not None:
            self._committer.commit_if_possible(end)

    def _look(self, age: float) -> Mapping[Key, PartitionLog]:
        """What is there, seen at most so many seconds ago."""
        if not self._group_checked and self._committer is not None:
            self._committer.check()
        self._group_checked = True
        now = time.monotonic()
        if now - self._looked > age:
            self._logs, self._looked = self._origin.snapshot(), now
        return self._logs

    def _look_for(self, offsets: Offsets, age: float) -> Mapping[Key, PartitionLog]:
        """As `_look`, and anew where `offsets` were not there then: before anything counts as lost."""
        logs = self._look(age)
        if not _lacking(logs, offsets) <= self._lacking:
            logs = self._look(0)
            self._lacking = _lacking(logs, offsets)
        return logs

    def _begin(self, each: PartitionLog, reached: int | None) -> int:
        """Where reading goes on; a partition that nobody has read yet starts at its beginning."""
        if reached is None or reached == each.start:
            return each.start
        name = "/".join(each.key)
        if reached < each.start:
            self._losses.report(f"{name} was read up to {reached} and begins at {each.start} now")
            return each.start
        if reached > each.end:
            self._losses.report(f"{name} was read up to {reached} and ends at {each.end} now, so it is another log")
            return each.end
        return reached


def _lacking(logs: Mapping[Key, PartitionLog], offsets: Offsets) -> frozenset[Key]:
    return frozenset(key for key, reached in entries(offsets) if key not in logs or reached > logs[key].end)


def _shares(ranges: Mapping[Key, tuple[int, int]], most: int | None) -> dict[Key, int]:
    """How many bytes each partition may take: all of them, or an even share of `most`, but never nothing."""
    sizes = {key: end - start for key, (start, end) in ranges.items()}
    if most is None or sum(sizes.values()) <= most:
        return sizes
    shares: dict[Key, int] = {}
    left = most
    for number, key in enumerate(sorted(sizes, key=lambda key: (sizes[key], key))):
        shares[key] = max(1, min(sizes[key], left // (len(sizes) - number)))
        left = max(0, left - shares[key])
    return shares
