"""How far a group is behind: in bytes of the logs where offsets are byte positions (0.7), in messages since 0.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumerd.admin.logs import LogRange, NoAnswer
from consumerd.partition import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.admin.survey import GroupSurvey
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


def lag_of(survey: GroupSurvey, ranges: Mapping[TopicPartition, LogRange | NoAnswer]) -> list[PartitionLag]:
    """The lag of every partition that is subscribed to, owned or committed.

    What can still be read counts: without a committed offset all of the log, and not what retention took away.
    """
    found = []
    for partition in survey.partitions():
        committed, known = survey.committed(partition), ranges.get(partition)
        name = survey.owner_name(partition)
        if isinstance(known, LogRange):
            start = known.earliest if committed is None else committed
            lag = max(known.end - max(start, known.earliest), 0)
            remark = _remark(committed, known, "messages" if partition.broker == NO_BROKER else "bytes")
            found.append(PartitionLag(partition, name, committed, known.earliest, known.end, lag, remark))
        else:
            remark = known.reason if known is not None else _nowhere(partition)
            found.append(PartitionLag(partition, name, committed, None, None, None, remark))
    return found


def _nowhere(partition: TopicPartition) -> str:
    if partition.broker == NO_BROKER:
        return "the cluster has no such partition"
    return f"not registered by broker {partition.broker}"


def _remark(committed: int | None, known: LogRange, unit: str) -> str:
    if committed is None:
        return "nothing committed: all of the log"
    if committed < known.earliest:
        return f"{known.earliest - committed} {unit} before the earliest were deleted unread"
    if committed > known.end:
        return f"committed {committed - known.end} {unit} beyond the end"
    return ""


def total_lag(lags: Iterable[PartitionLag]) -> int:
    """The sum over the partitions whose lag is known."""
    return sum(each.lag for each in lags if each.lag is not None)
