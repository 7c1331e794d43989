"""Which copy of a partition is read, where several brokers' disks have one, and how the others differ. Pure, no I/O.

Strategy: a leader epoch has one leader, which alone assigns its offsets, and every replica that has a record of an
epoch has what that leader had before it. So where two logs have the same epoch at an offset, they are the same up to
there; where they differ, or one ends below an offset at which it knows a later epoch than the other's, they diverged.

    1. Topic ids differ: the existing topic's is read, where it is known; else, as a guess, that with the latest time.
    2. The authority is the copy with the latest epoch, then with the greatest end: the leader that brokers would elect.
    3. Of the copies that agree with it, the one with the most offsets is read: what is missing in its middle counts.
       Before its start, copies that end there are read, and tiered segments, which may be on a broker's disk still.

Sources: KIP-101, KIP-279 (leader epochs), KIP-516 (topic ids).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from consumerd.base.errors import CorruptDataError

_UNKNOWN: Final = -1
_LATEST: Final = 1 << 31
_MAX_OFFSET: Final = (1 << 63) - 1
_start = itemgetter(1)


class EpochStart(NamedTuple):
    """A leader epoch, and an offset that has it: its first one, in a checkpoint."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """One copy. `start` and `end` are offsets, `gaps` ranges of them without a segment, `time` milliseconds since 1970.

    `epochs` ascend; between two of them the epoch is that of the former, if they are `exact`, else it may be either's.
    `tiered`: it is in tiered storage, which has what brokers deleted from their disks, and lacks their last segment.
    """

    name: str
    start: int
    end: int
    epochs: tuple[EpochStart, ...] = ()
    exact: bool = True
    gaps: tuple[tuple[int, int], ...] = ()
    topic_id: str | None = None
    time: int | None = None
    tiered: bool = False

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else _UNKNOWN

    @property
    def length(self) -> int:
        """Offsets before the end that are not missing. What a broker deleted at the beginning does not count."""
        return self.end - sum(high - low for low, high in self.gaps)

    def bounds(self, offset: int) -> tuple[int, int]:
        """The least and the greatest epoch that a record at `offset` may have in this log."""
        at = bisect_right(self.epochs, offset, key=_start)
        least = self.epochs[at - 1].epoch if at else _UNKNOWN
        if at and (self.exact or self.epochs[at - 1].start == offset):
            return least, least
        return least, self.epochs[at].epoch if at < len(self.epochs) else _LATEST


class CopyDifferenceKind(StrEnum):
    """How a copy differs from the others. The values are the names of findings."""

    DIVERGED = "diverged-copy"
    SHORTER = "shorter-copy"
    INCOMPLETE = "incomplete-copy"
    OTHER_TOPIC = "other-topic-id"


class CopyDifference(NamedTuple):
    """`copy` is an index into the copies; `problem` a clause. `offset` and `end`: the range, as far as it has one."""

    copy: int
    kind: CopyDifferenceKind
    problem: str
    offset: int | None = None
    end: int | None = None


class CopyChoice(NamedTuple):
    """The indexes of the copies that are read, in the order of their starts, each up to the start of the next one."""

    read: tuple[int, ...]
    differences: tuple[CopyDifference, ...]


def choose_copy(copies: Sequence[PartitionCopy], topic_id: str | None = None) -> CopyChoice:
    """The copy to read of at least one. `topic_id`: that of the existing topic, None where it is not known."""
    indexes = range(len(copies))
    chosen_id, others = _topic(copies, topic_id)
    same = [index for index in indexes if copies[index].topic_id in (None, chosen_id)]
    authority = max(same, key=lambda index: (copies[index].last_epoch, copies[index].end, copies[index].length, -index))
    parted = {index: divergence(copies[index], copies[authority]) for index in same}
    agreeing = [index for index in same if parted[index] is None]
    chosen = max(agreeing, key=lambda index: (copies[index].length, copies[index].end, -copies[index].start, -index))
    read, start = [chosen], copies[chosen].start
    for index in sorted(agreeing, key=lambda index: -copies[index].end):
        before = copies[index].start < copies[index].end <= start
        if index != chosen and (before or (copies[index].tiered and copies[index].start < start)):
            read.append(index)
            start = copies[index].start
    found = list(others)
    for index in same:
        if (offset := parted[index]) is not None:
            found.append(_diverged(index, copies[index], copies[authority], offset))
        elif index in read:
            found += _lacking(index, copies, agreeing, read)
        else:
            found += _shorter(index, copies[index], copies[chosen])
    return CopyChoice(tuple(sorted(read, key=lambda index: copies[index].start)), tuple(sorted(found)))


def divergence(one: PartitionCopy, other: PartitionCopy) -> int | None:
    """The first offset at which the logs are known to differ; None where they may agree."""
    points = {max(one.start, other.start), min(one.end, other.end)}
    points |= {start + after for copy in (one, other) for _, start in copy.epochs for after in (0, 1)}
    low, high = max(one.start, other.start), max(one.end, other.end)
    return next((point for point in sorted(points) if low <= point < high and _differ(one, other, point)), None)


def _differ(one: PartitionCopy, other: PartitionCopy, offset: int) -> bool:
    (low, high), (other_low, other_high) = one.bounds(offset), other.bounds(offset)
    if offset < one.end and offset < other.end:
        return low > other_high or other_low > high
    # One ends before: it may have had records of any later epoch, but none of an earlier one than it knows.
    return other_low > high if offset < one.end else low > other_high


def _topic(copies: Sequence[PartitionCopy], existing: str | None) -> tuple[str | None, Iterator[CopyDifference]]:
    """The id to read, and the copies of other topics of the name."""
    latest: dict[str, int] = {}
    for copy in copies:
        if copy.topic_id is not None:
            time = _UNKNOWN if copy.time is None else copy.time
            latest[copy.topic_id] = max(time, latest.get(copy.topic_id, _UNKNOWN))
    if not latest:
        return None, iter(())
    known = existing in latest
    chosen = existing if known else max(latest, key=lambda each: (latest[each], each))
    why = "the existing topic has" if known else "the copy that is read (a guess: it has the latest time) has"
    return chosen, (
        CopyDifference(
            index,
            CopyDifferenceKind.OTHER_TOPIC,
            f"it is of another topic of this name: its topic id is {copy.topic_id}, and {why} {chosen}",
        )
        for index, copy in enumerate(copies)
        if copy.topic_id not in (None, chosen)
    )


def _diverged(index: int, copy: PartitionCopy, authority: PartitionCopy, offset: int) -> CopyDifference:
    epoch, later = copy.bounds(offset)[0], authority.bounds(offset)[0]
    by = "" if copy.exact and authority.exact else " or before (a guess: only some batches were looked at)"
    what = f"has leader epoch {epoch}" if offset < copy.end else f"ends, at leader epoch {copy.last_epoch}"
    return CopyDifference(
        index,
        CopyDifferenceKind.DIVERGED,
        f"from offset {offset}{by} on it {what}, where {authority.name} has leader epoch {later}: an election left "
        f"out {max(0, copy.end - offset)} offsets of it, which are not read",
        offset,
        copy.end,
    )


def _shorter(index: int, copy: PartitionCopy, chosen: PartitionCopy) -> Iterator[CopyDifference]:
    """How a copy that agrees and is not read differs from the one that is."""
    for low, high in _missing(copy, chosen):
        problem = f"it has no segments with the offsets {low} to {high - 1}, which {chosen.name} has"
        yield CopyDifference(index, CopyDifferenceKind.INCOMPLETE, problem, low, high)
    if copy.end < chosen.end and not copy.tiered:
        problem = f"it ends at offset {copy.end}, and {chosen.name} at {chosen.end}"
        yield CopyDifference(index, CopyDifferenceKind.SHORTER, problem, copy.end, chosen.end)


def _lacking(
    index: int, copies: Sequence[PartitionCopy], agreeing: Sequence[int], read: Sequence[int]
) -> Iterator[CopyDifference]:
    """What a copy that is read has not, and another one that agrees has."""
    copy = copies[index]
    for other in agreeing:
        if other in read:
            continue
        for low, high in _missing(copy, copies[other]):
            problem = (
                f"it is read, and has no segments with the offsets {low} to {high - 1}, which "
                f"{copies[other].name} has: read that copy, too, by itself"
            )
            yield CopyDifference(index, CopyDifferenceKind.INCOMPLETE, problem, low, high)
        after = copies[other]
        if copy.end < after.end and index == max(read, key=lambda each: copies[each].end):
            problem = f"it is read, and ends at offset {copy.end}, and {after.name} at {after.end}: that copy has gaps"
            yield CopyDifference(index, CopyDifferenceKind.SHORTER, problem, copy.end, after.end)


def _missing(copy: PartitionCopy, other: PartitionCopy) -> Iterator[tuple[int, int]]:
    """The gaps of a copy that the other one does not have."""
    for low, high in copy.gaps:
        if low >= other.start and high <= other.end and not any(a <= low and high <= b for a, b in other.gaps):
            yield low, high


def parse_epochs(data: bytes) -> tuple[EpochStart, ...]:
    """The entries of a `leader-epoch-checkpoint`: version 0, their number, and a line `EPOCH START` each.

    Raises CorruptDataError for anything else.
    """
    try:
        version, count, *lines = data.decode("ascii").splitlines()
        entries = [EpochStart(*map(_number, line.split(" "))) for line in lines]
        if _number(version) != 0 or _number(count) != len(entries):
            raise ValueError(f"version {version[:20]!r}, with {count[:20]!r} entries where there are {len(entries)}")
        for former, entry in pairwise(entries):
            if entry.epoch <= former.epoch or entry.start < former.start:
                raise ValueError(f"epoch {entry.epoch} from offset {entry.start} on stands after {former.epoch}")
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"not a checkpoint of leader epochs: {error}") from None
    return tuple(entries)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 19 or (number := int(text)) > _MAX_OFFSET:
        raise ValueError(f"{text[:20]!r} is not a number from 0 on")
    return number
