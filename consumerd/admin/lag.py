"""How far a group is behind, in bytes of the logs: an offset of 0.7 is a byte position, and tells no messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumerd.admin.logs import LogRange, NoAnswer
from consumerd.registry import format_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.admin.survey import Survey
    from consumerd.partition import TopicPartition


class PartitionLag(NamedTuple):
    """One partition. `lag` is None where the end of its log is not known."""

    partition: TopicPartition
    owner: str | None
    committed: int | None
    earliest: int | None
    end: int | None
    lag: int | None
    remark: str


def lag_of(survey: Survey, ranges: Mapping[TopicPartition, LogRange | NoAnswer]) -> list[PartitionLag]:
    """The lag of every partition that is subscribed to, owned or committed.

    What can still be read counts: without a committed offset all of the log, and not what retention took away.
    """
    found = []
    for partition in survey.partitions():
        owner = survey.view.owners.get(partition)
        committed, known = survey.view.offsets.get(partition), ranges.get(partition)
        name = None if owner is None else format_owner(*owner)
        if isinstance(known, LogRange):
            start = known.earliest if committed is None else committed
            lag = max(known.end - max(start, known.earliest), 0)
            remark = _remark(committed, known)
            found.append(PartitionLag(partition, name, committed, known.earliest, known.end, lag, remark))
        else:
            remark = known.reason if known is not None else f"not registered by broker {partition.broker}"
            found.append(PartitionLag(partition, name, committed, None, None, None, remark))
    return found


def _remark(committed: int | None, known: LogRange) -> str:
    if committed is None:
        return "nothing committed: all of the log"
    if committed < known.earliest:
        return f"{known.earliest - committed} bytes before the earliest were deleted unread"
    if committed > known.end:
        return f"committed {committed - known.end} bytes beyond the end"
    return ""


def total_lag(lags: Iterable[PartitionLag]) -> int:
    """Bytes, of the partitions whose lag is known."""
    return sum(each.lag for each in lags if each.lag is not None)
