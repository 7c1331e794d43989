"""Planning of batches and streams: where each partition starts and ends, and the splits in between.

Strategy: functions over `PartitionLog`s, the same for batches and streams. Offsets in the options are checked against
the log: an offset that is not a boundary would make a reader start inside a message. Deleted offsets go to `Losses`,
which raises or logs, as `failOnDataLoss` says.

For each question of a stream, the planner reads the partitions again and compares them with the offsets that Spark
passes in; it does not rely on earlier answers, so a restart from a checkpoint plans the same splits. New partitions
start at their beginning, which one micro-batch records and the next one continues from: otherwise a retried batch could
begin elsewhere. Bytes per trigger are shared evenly: a partition that has less than its share leaves the rest to the
others, and each that has data advances by at least one message. With AvailableNow the ends are those at the start.

An offset counts only in the log that it was read from (`LogOffset`). If the topic has another id now, it was deleted
and created again, which goes to `Losses` too; where it may continue, the new log is read from its beginning as that of
a new partition is, in a micro-batch of its own, so that no batch has rows of two logs of a partition. Metadata of a
broker that lags behind may still have the former id: so another id is believed if it is there a moment later, too. An
id that is unknown (a checkpoint of an earlier release, brokers before 2.8 and since upgraded) is taken up with the next
batch.

The same holds for a log whose end was cut off by an unclean leader election, which leader epochs show: it goes to
`Losses`, and where it may continue, a micro-batch without rows goes back to where the two logs part. The end of a batch
has the epoch of its last message, so a task that meets a later one in its range reads messages that came since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.errors import ConsumerdError, NotFoundError
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.spark.source.choice import deselected, renamed
from consumerd.spark.source.discovery import committer_of, open_origin
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.logs import Origin, PartitionLog
from consumerd.spark.source.offsets import Key, LogOffset, Offsets, Position, entries, positions, sorted_offsets
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import SourceOptions
from consumerd.spark.source.split import V08Split
from consumerd.spark.source.v07.segment_log import bytes_per_message, some
from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from consumerd.spark.source.filters import Pruning
    from consumerd.spark.source.split import Split

log = logging.getLogger(__name__)


class Losses:
    """The policy for messages that no longer exist: raise or log."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def report(self, what: str) -> None:
        """Raise DataLossError, or log it once and continue."""
        self._fail_or_log(
            DataLossError, what, "start elsewhere, or set failOnDataLoss=false to continue without them",
            "continuing without them",
        )  # fmt: skip

    def _fail_or_log(self, kind: type[ConsumerdError], sentence: str, remedy: str, goes_on: str) -> None:
        if self._fail:
            raise kind(f"{sentence}; {remedy}")
        if sentence not in self._reported:
            self._reported.add(sentence)
            log.warning("%s; %s", sentence, goes_on)

    def report_missing(self, options: SourceOptions, key: Key, what: str) -> None:
        """As `report`, of a partition that is not among those to read: deleted, or not selected by changed options.

        `what`: what was done with it. Raises OptionError for changed options, also where losses are only logged if the
        partition has another name now.
        """
        other_name, not_selected = renamed(options, key), deselected(options, key)
        if other_name is not None:
            raise OptionError(
                f"{_name(key)} was {what}, and {other_name}, which gives its messages other identities; set it as it "
                "was, or start a new query or pipeline"
            )
        if not_selected is None:
            self.report(f"{_name(key)} was {what} and no longer exists")
            return
        sentence = f"{_name(key)} was {what}, and {not_selected}"
        self._fail_or_log(
            OptionError, sentence, "select it again, or start a new query or pipeline", "continuing without it"
        )

    def report_replaced(self, each: PartitionLog, known: LogOffset, what: str) -> None:
        """As `report`, of a log whose topic was deleted and created again. `what`: what was done up to `known`."""
        sentence = (
            f"{_name(each.key)} was {what} {known.offset} in the log with topic id {known.topic_id}, and the topic was "
            f"deleted and created again: its id is {each.topic_id} now, with offsets {each.start} to {each.end}"
        )
        remedy = (
            "what was not read of the former log is lost: to read the new one from its beginning, set "
            "failOnDataLoss=false until that is done, or start a new query"
        )
        self._fail_or_log(DataLossError, sentence, remedy, "reading the new log from its beginning")

    def report_change(self, each: PartitionLog, known: LogOffset, change: LogChange, what: str) -> None:
        """As `report`, of a log whose leader epochs show that it is not the one of `known` up to there."""
        resume = continued(each, change)
        if change.kind is LogChangeKind.TRUNCATED:
            epoch = change.now.leader_epoch
            after = "" if epoch is None else f", after leader epoch {epoch}"
            happened = f"the log was cut off at offset {change.divergence}{after}, as by an unclean leader election"
            remedy = (
                f"to read what was written since, from offset {resume.offset} on, set failOnDataLoss=false until that "
                "is done, or start a new query"
            )
        else:
            happened = "the log does not have the message before it any more, so the log was replaced"
            remedy = f"start a new query, or set failOnDataLoss=false to continue at offset {resume.offset}"
        sentence = (
            f"{_name(each.key)} was {what} {known.offset} in leader epoch {known.leader_epoch}, and {happened}: it has "
            f"offsets {each.start} to {each.end} now"
        )
        self._fail_or_log(DataLossError, sentence, remedy, f"continuing at offset {resume.offset}")


def continued(each: PartitionLog, change: LogChange) -> LogOffset:
    """Where reading continues in a log that changed: where the two logs part.

    In a log that was replaced, and has no id of its own, at the position, or the end: its messages may have the
    identities of former ones.
    """
    if change.divergence is None:
        return LogOffset(max(each.start, min(change.offset, each.end)), each.topic_id)
    if change.divergence <= each.start:
        return LogOffset(each.start, each.topic_id)
    return LogOffset(change.divergence, each.topic_id, change.now.leader_epoch)


def plan_batch(options: SourceOptions, pruning: Pruning | None = None) -> list[Split]:
    """The splits of one batch, as of now. Raises a ConsumerdError that names the option or the partition."""
    origin = open_origin(options)
    logs = origin.snapshot()
    if (missing := origin.missing(logs)) is not None:
        raise NotFoundError(missing)
    losses = Losses(fail=options.fail_on_data_loss)
    starts = starting(origin, logs, options, options.start_of_batch(), losses)
    ends = resolve(origin, logs, options.ending, "endingOffsets", losses)
    for key, start in starts.items():
        if start > ends[key]:
            raise OptionError(f"{_name(key)} starts at {start}, after its end at {ends[key]}; check endingOffsets")
    ranges = {key: (starts[key], ends[key]) for key in logs if pruning is None or pruning.wants(logs[key])}
    splits = split_ranges(logs, ranges, options, losses)
    return splits if pruning is None else [each for each in splits if pruning.overlaps(each.start, each.end)]


def starting(
    origin: Origin, logs: Mapping[Key, PartitionLog], options: SourceOptions, position: Position, losses: Losses
) -> dict[Key, int]:
    """Return the offset at which each partition of a new query starts."""
    if options.starting_timestamp is not None:
        return {key: each.before(options.starting_timestamp) for key, each in logs.items()}
    if options.starting_times is not None:
        times = _by_partition(logs, options.starting_times, "startingOffsetsByTimestamp", "")
        return {key: each.before(times[key].offset) for key, each in logs.items()}
    return resolve(origin, logs, position, "startingOffsets", losses)


def resolve(
    origin: Origin, logs: Mapping[Key, PartitionLog], position: Position, option: str, losses: Losses
) -> dict[Key, int]:
    """An offset for each partition. Raises OptionError for missing or unknown ones, and no boundaries."""
    if isinstance(position, int):
        return {key: each.start if position == EARLIEST else each.end for key, each in logs.items()}
    named = _by_partition(logs, position, option, " (-2: earliest, -1: latest)")
    for key, change in compare(origin, logs, named).items():
        if change is not None:
            losses.report_change(logs[key], named[key], change, f"named by {option} at")
            named[key] = continued(logs[key], change)
    return {key: _checked(each, named[key], option, losses) for key, each in logs.items()}


def _by_partition(logs: Mapping[Key, PartitionLog], given: Offsets, option: str, hint: str) -> dict[Key, LogOffset]:
    """The option's value for each partition. Raises OptionError for missing or unknown partitions."""
    named = dict(positions(given))
    for key in named:
        if key not in logs:
            raise OptionError(f"option {option} names {_name(key)}, which is not among the partitions that are read")
    for key in logs:
        if key not in named:
            raise OptionError(f"option {option} leaves out {_name(key)}; name it{hint}")
    return named


def _checked(each: PartitionLog, named: LogOffset, option: str, losses: Losses) -> int:
    offset = named.offset
    if offset in (EARLIEST, LATEST):
        return each.start if offset == EARLIEST else each.end
    if not named.may_be_of(each.topic_id):
        losses.report_replaced(each, named, f"named by {option} at")
        return each.start
    if not each.start <= offset <= each.end:
        losses.report(
            f"{option} names offset {offset} of {_name(each.key)}, whose log has offsets {each.start} to {each.end}"
        )
        return min(max(offset, each.start), each.end)
    begins = each.message_at(offset)
    if begins != offset:
        where = "what precedes it cannot be read" if begins is None else f"the message around it begins at {begins}"
        raise OptionError(f"option {option} names {offset} of {_name(each.key)}, where no message begins; {where}")
    return offset


def compare(
    origin: Origin, logs: Mapping[Key, PartitionLog], known: Mapping[Key, LogOffset]
) -> Mapping[Key, LogChange | None]:
    """As `Origin.compared`, of those positions whose logs exist under the same id."""
    return origin.compared(
        {
            key: each
            for key, each in known.items()
            if each.leader_epoch is not None and key in logs and each.may_be_of(logs[key].topic_id)
        }
    )


def split_ranges(
    logs: Mapping[Key, PartitionLog],
    ranges: Mapping[Key, tuple[int, int]],
    options: SourceOptions,
    losses: Losses,
    epochs: Mapping[Key, int | None] | None = None,
) -> list[Split]:
    """Splits for a range of each partition: of about `max_split`, smaller where `minPartitions` asks for more.

    `epochs`: the leader epoch of the last message of a range, where it is known.
    """
    total = sum(end - start for start, end in ranges.values())
    most = options.max_split
    if options.min_partitions > 1 and total:
        fair = max(1, total // options.min_partitions)
        most = min(most, fair) if most else fair
    splits: list[Split] = []
    for key, (start, end) in ranges.items():
        report_gaps(logs[key], start, end, losses)
        found = logs[key].splits(start, end, most)
        if (epoch := (epochs or {}).get(key)) is not None:
            found = [replace(each, last_epoch=epoch) if isinstance(each, V08Split) else each for each in found]
        splits += found
    return splits


def report_gaps(each: PartitionLog, start: int, end: int, losses: Losses) -> None:
    """Report the missing ranges between two offsets."""
    for low, high in each.gaps():
        if low < end and start < high:
            losses.report(f"{_name(each.key)} has no messages from offset {max(low, start)} to {min(high, end)}")


def _name(key: Key) -> str:
    return "/".join(key)


#: Seconds for which a look is good: to find new messages, and to plan those that were found already.
_FRESH: Final = 0.2
_STILL_GOOD: Final = 5.0
#: Seconds after which all brokers have the metadata of a topic that was created again.
_SETTLED: Final = 1.0


class StreamPlanner:
    """Plans the micro-batches of one stream. All methods raise a ConsumerdError if the query cannot continue.

    `most`: of all partitions together in a batch, in the unit of offsets; with the option maxOffsetsPerTrigger in
    messages.
    """

    def __init__(self, options: SourceOptions, most: int | None = None) -> None:
        self._options = options
        self._most = most
        self._origin = open_origin(options)
        self._committer = committer_of(options)
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._target: dict[Key, LogOffset] | None = None
        self._logs: Mapping[Key, PartitionLog] = {}
        self._looked = -_STILL_GOOD
        #: Partitions that lacked offsets in the last look for them, so that one look is enough as long as that lasts.
        self._lacking: frozenset[Key] = frozenset()
        self._group_checked = False

    def initial(self) -> dict[str, dict[str, Any]]:
        """Return the offsets at which a stream without a checkpoint starts."""
        logs = self._look(0)
        if (missing := self._origin.missing(logs)) is not None:
            raise NotFoundError(missing)
        starts = starting(self._origin, logs, self._options, self._options.start_of_stream(), self._losses)
        return sorted_offsets(self._origin.with_epochs(placed(logs, starts)))

    def stop_at_present(self) -> None:
        """Plan only what exists now, and no new partitions."""
        self._target = _ends(self._look(0))

    def latest(self, start: Offsets, most: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the end of the next micro-batch; `start` if there is nothing new. `most`: for this one."""
        most = self._most if most is None else most
        logs = self._look_for(start, _FRESH)
        ends = dict(positions(start))
        compared = compare(self._origin, logs, ends)
        ranges: dict[Key, tuple[int, int]] = {}
        for key, reached in ends.items():
            if key not in logs:
                self._losses.report_missing(self._options, key, f"read up to {reached.offset}")
        for key, each in logs.items():
            known = ends.get(key)
            other = self._other_log(each, known, compared.get(key))
            if other is not None:
                if self._target is None or key in self._target:
                    ends[key] = other
                continue
            assert known is not None  # else it begins
            begin = self._begin(each, known.offset, certain=key in compared)
            epoch = known.leader_epoch if begin == known.offset else None
            ends[key] = LogOffset(begin, each.topic_id or known.topic_id, epoch)
            end = self._end(each, begin)
            if begin < end:
                ranges[key] = (begin, end)
        if most is not None and self._options.max_messages is not None and ranges:
            sampled = some([(logs[key], begin) for key, (begin, _) in ranges.items()])
            most = max(1, round(most * bytes_per_message(sampled)))
        for key, share in _shares(ranges, most).items():
            begin, end = ranges[key]
            reach = end if begin + share >= end else min(logs[key].limited(begin, share), end)
            ends[key] = ends[key]._replace(offset=reach)
            report_gaps(logs[key], begin, reach, self._losses)
        moved = {key: each for key, each in ends.items() if key in ranges or each.leader_epoch is None}
        return sorted_offsets({**ends, **self._origin.with_epochs(moved)})

    def reported(self) -> dict[str, dict[str, Any]] | None:
        """The ends of all partitions when they were looked at last."""
        return sorted_offsets(_ends(self._logs)) if self._logs else None

    def splits(self, start: Offsets, end: Offsets) -> list[Split]:
        """Splits that read everything from `start` to `end`."""
        logs = self._look_for(end, _STILL_GOOD)
        starts, ends = dict(positions(start)), dict(positions(end))
        compared = compare(self._origin, logs, ends)
        epochs = {key: planned.leader_epoch for key, planned in ends.items()}
        ranges: dict[Key, tuple[int, int]] = {}
        for key, planned in ends.items():
            reached, known = planned.offset, starts.get(key)
            if known is not None and not known.may_be_of(planned.topic_id):
                known = None  # this batch begins the log
            if known is not None and known.offset >= reached:
                continue
            if key not in logs:
                self._losses.report_missing(self._options, key, f"to be read up to {reached}")
                continue
            each = logs[key]
            if not planned.may_be_of(each.topic_id):
                self._losses.report_replaced(each, planned, "to be read up to")
                continue
            if (change := compared.get(key)) is not None:
                self._losses.report_change(each, planned, change, "to be read up to")
                reached, _, epochs[key] = continued(each, change)
                if known is not None and known.offset >= reached:
                    continue
            begin = self._begin(each, None if known is None else known.offset, certain=key in compared)
            if reached > each.end and key not in compared:
                self._losses.report(f"{_name(key)} was to be read up to {reached} and ends at {each.end}")
                reached = each.end
            if begin < reached:
                ranges[key] = (begin, reached)
                self._check_boundary(each, begin)
        return split_ranges(logs, ranges, self._options, self._losses, epochs)

    def commit(self, end: Offsets) -> None:
        """Commit the offsets of a completed batch for lag tools, if the options say so."""
        if self._committer is not None:
            self._committer.commit_if_possible(end)

    def _look(self, age: float) -> Mapping[Key, PartitionLog]:
        """A snapshot that is at most this many seconds old."""
        if not self._group_checked and self._committer is not None:
            self._committer.check()
        self._group_checked = True
        now = time.monotonic()
        if now - self._looked > age:
            self._logs, self._looked = self._origin.snapshot(), now
        return self._logs

    def _look_for(self, offsets: Offsets, age: float) -> Mapping[Key, PartitionLog]:
        """As `_look`, but read again if `offsets` were not there: before anything counts as lost."""
        logs = self._look(age)
        if not _lacking(logs, offsets) <= self._lacking:
            if _replaced(logs, offsets):
                time.sleep(_SETTLED)
            logs = self._look(0)
            self._lacking = _lacking(logs, offsets)
        return logs

    def _other_log(self, each: PartitionLog, known: LogOffset | None, change: LogChange | None) -> LogOffset | None:
        """Where reading begins in a log that is not the one of `known`, after a report; None: it is that one."""
        if known is None:
            return LogOffset(each.start, each.topic_id)
        if not known.may_be_of(each.topic_id):
            self._losses.report_replaced(each, known, "read up to")
            return LogOffset(each.start, each.topic_id)
        if change is None:
            return None
        self._losses.report_change(each, known, change, "read up to")
        return continued(each, change)

    def _begin(self, each: PartitionLog, reached: int | None, *, certain: bool) -> int:
        """Return the offset at which reading continues; a new partition starts at its beginning.

        `certain`: the log has the message before `reached`, even if a new leader does not yet report its end.
        """
        if reached is None or reached == each.start:
            return each.start
        name = _name(each.key)
        if reached < each.start:
            self._losses.report(f"{name} was read up to {reached} and begins at {each.start} now")
            return each.start
        if reached > each.end and not certain:
            self._losses.report(f"{name} was read up to {reached} and ends at {each.end} now, so the log was replaced")
            return each.end
        return reached

    def _end(self, each: PartitionLog, begin: int) -> int:
        """Return the offset up to which to read from `begin`."""
        if self._target is None:
            return each.end
        target = self._target.get(each.key)
        # A log that has come since belongs to the next run.
        return begin if target is None or not target.may_be_of(each.topic_id) else min(each.end, target.offset)

    def _check_boundary(self, each: PartitionLog, begin: int) -> None:
        """Report an offset at which reading would continue inside a message: that is a place in another log."""
        around = each.resumed(begin)
        if around != begin:
            self._losses.report(
                f"{_name(each.key)} was read up to {begin}, which is inside the message that begins at {around} now, "
                "so the log was replaced"
            )


def placed(logs: Mapping[Key, PartitionLog], offsets: Mapping[Key, int]) -> dict[Key, LogOffset]:
    """Offsets of these logs, with the ids of the logs."""
    return {key: LogOffset(offset, logs[key].topic_id) for key, offset in offsets.items()}


def _ends(logs: Mapping[Key, PartitionLog]) -> dict[Key, LogOffset]:
    return placed(logs, {key: each.end for key, each in logs.items()})


def _replaced(logs: Mapping[Key, PartitionLog], offsets: Offsets) -> frozenset[Key]:
    return frozenset(
        key for key, known in positions(offsets) if key in logs and not known.may_be_of(logs[key].topic_id)
    )  # fmt: skip


def _lacking(logs: Mapping[Key, PartitionLog], offsets: Offsets) -> frozenset[Key]:
    ended = (key for key, reached in entries(offsets) if key not in logs or reached > logs[key].end)
    return _replaced(logs, offsets).union(ended)


def _shares(ranges: Mapping[Key, tuple[int, int]], most: int | None) -> dict[Key, int]:
    """Return the share of each partition, in the unit of offsets: all of it, or an even part of `most`, at least 1."""
    sizes = {key: end - start for key, (start, end) in ranges.items()}
    if most is None or sum(sizes.values()) <= most:
        return sizes
    shares: dict[Key, int] = {}
    left = most
    for number, key in enumerate(sorted(sizes, key=lambda key: (sizes[key], key))):
        shares[key] = max(1, min(sizes[key], left // (len(sizes) - number)))
        left = max(0, left - shares[key])
    return shares
