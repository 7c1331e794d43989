"""What is wrong with the committed offsets of a group, and with their progress.

Strategy: one look compares each offset with what the partition's broker has. Whether anybody works takes two looks: an
owner whose node is perfect may read nothing (a JVM member that gave up while joining: notes on mixed groups), and the
only sign of it is an offset that stands still while the log grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumerd.admin.findings import Finding, Kind, process_of
from consumerd.admin.logs import LogRange, NoAnswer
from consumerd.registry import format_owner, offsets_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.admin.survey import Survey
    from consumerd.partition import TopicPartition

_RESET = "`consumerd offsets reset` while the group is stopped"


class Look(NamedTuple):
    """A survey with the ranges of its partitions, at one time (seconds of any clock)."""

    survey: Survey
    ranges: Mapping[TopicPartition, LogRange | NoAnswer]
    at: float


def offset_findings(survey: Survey, ranges: Mapping[TopicPartition, LogRange | NoAnswer]) -> Iterable[Finding]:
    """Findings about every committed offset, and about brokers that do not answer."""
    view = survey.view
    root = f"{offsets_root(survey.group)}/"
    for path, fault in view.faults.items():
        if path.startswith(root) and path in view.stats:
            topic, _, name = path.removeprefix(root).partition("/")
            yield Finding(
                Kind.BROKEN_OFFSET,
                f"{topic}/{name}",
                f"{fault[:1].upper()}{fault[1:]}. A JVM member that should own the partition fails over it.",
                "`consumerd offsets set` while the group is stopped.",
            )
    for partition, offset in view.offsets.items():
        finding = _offset_finding(survey, partition, offset, ranges.get(partition))
        if finding is not None:
            yield finding
    silent: dict[tuple[int, str], int] = {}
    for partition, answer in ranges.items():
        if isinstance(answer, NoAnswer) and partition.broker in survey.brokers:
            key = partition.broker, answer.reason
            silent[key] = silent.get(key, 0) + 1
    for (broker, reason), count in silent.items():
        yield Finding(
            Kind.SILENT_BROKER,
            f"broker {broker}",
            f"The offsets of {count} partitions could not be checked: {reason}.",
            "See whether the broker runs and can be reached from here.",
        )


def _offset_finding(
    survey: Survey, partition: TopicPartition, offset: int, known: LogRange | NoAnswer | None
) -> Finding | None:
    if not survey.exists(partition):
        count = survey.topics.get(partition.topic, {}).get(partition.broker)
        if partition.broker not in survey.brokers:
            why = f"broker {partition.broker} is not registered"
        elif count is None:
            why = f"broker {partition.broker} has not registered the topic"
        else:
            why = f"broker {partition.broker} has only {count} partitions of it"
        return Finding(
            Kind.NO_PARTITION,
            str(partition),
            f"Offset {offset} is committed, but {why}.",
            "Keep it if the broker comes back; otherwise it does no harm, and goes with `consumerd group delete`.",
        )
    if not isinstance(known, LogRange) or known.earliest <= offset <= known.end:
        return None
    if offset < known.earliest:
        says = f"lies {known.earliest - offset} bytes before the earliest, {known.earliest}: retention was faster"
    else:
        says = f"lies {offset - known.end} bytes beyond the end, {known.end}: the log was lost or cut"
    return Finding(
        Kind.OUT_OF_RANGE,
        str(partition),
        f"Offset {offset} {says}. A member that starts there goes by its policy: autooffset.reset, fetch.out_of_range.",
        f"Decide yourself where to go on: {_RESET}.",
    )


def progress_findings(first: Look, second: Look) -> Iterable[Finding]:
    """Owners that look perfect, whose committed offset did not move between two looks although there is more to read.

    The time between must be longer than the members' commit interval, 10 s by default.
    """
    seconds = second.at - first.at
    plan = second.survey.plan()
    for partition, owner in second.survey.view.owners.items():
        before, now = first.ranges.get(partition), second.ranges.get(partition)
        if not (isinstance(before, LogRange) and isinstance(now, LogRange)):
            continue
        offset = second.survey.view.offsets.get(partition)
        stood = offset == first.survey.view.offsets.get(partition)
        same = owner == first.survey.view.owners.get(partition) == plan.get(partition)
        if not stood or not same or owner[0] not in second.survey.view.members:
            continue
        lag, grown = now.end - (now.earliest if offset is None else offset), now.end - before.end
        if lag <= 0 or (offset is None and not grown):
            continue
        stands = "nothing is committed" if offset is None else f"the committed offset stands at {offset}"
        if grown > 0:
            yield Finding(
                Kind.BLACK_HOLE,
                str(partition),
                f"{format_owner(*owner)} owns it, but {stands} while {grown} bytes were written in {seconds:.0f} s; "
                f"the lag is {lag} bytes. Probably nobody reads it: its handler hangs, or it is a JVM member that gave "
                "up while it joined, and owns without reading.",
                f"Restart {process_of(second.survey.group, owner[0])}; a nudge does not help. If its commits are more "
                f"than {seconds:.0f} s apart, look again with a longer --interval.",
            )
        else:
            yield Finding(
                Kind.STANDING_STILL,
                str(partition),
                f"{format_owner(*owner)} owns it, and {stands} for {seconds:.0f} s with a lag of {lag} bytes.",
                f"If it should be faster, see what {process_of(second.survey.group, owner[0])} is doing.",
            )
