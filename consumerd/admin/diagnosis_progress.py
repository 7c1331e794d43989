"""Whether the owners of partitions work: what two looks at a group tell, and one alone does not.

Strategy: an owner whose node is perfect may read nothing (a JVM member that gave up while joining: notes on mixed
groups; a handler that hangs while another thread sends heartbeats), and the only sign of it is an offset that stands
still while the log grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.admin.findings import Finding, Kind, process_of
from consumerd.admin.logs import LogRange
from consumerd.admin.v08.snapshot import Coordinator, V08Survey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.admin.diagnosis_offsets import Look
    from consumerd.admin.snapshot import GroupSurvey
    from consumerd.partition import TopicPartition


def progress_findings(first: Look, second: Look) -> Iterable[Finding]:
    """Owners that look perfect, whose committed offset did not move between two looks although there is more to read.

    The time between must be longer than the members' commit interval, 10 s by default (5 s where a broker coordinates).
    """
    seconds, survey = second.at - first.at, second.survey
    plan, unit = survey.plan(), survey.unit
    for partition, owner in survey.view.owners.items():
        before, now = first.ranges.get(partition), second.ranges.get(partition)
        if not (isinstance(before, LogRange) and isinstance(now, LogRange)):
            continue
        same = owner == first.survey.view.owners.get(partition) == plan.get(partition)
        if not _stood(first, second, partition) or not same or owner[0] not in survey.view.members:
            continue
        offset = _furthest(second, partition)
        lag, grown = now.end - (now.earliest if offset is None else offset), now.end - before.end
        if lag <= 0 or (offset is None and not grown):
            continue
        stands = "nothing is committed" if offset is None else f"the committed offset stands at {offset}"
        name, process = survey.owner_name(partition), _process(survey, owner[0])
        if grown > 0:
            yield Finding(
                Kind.BLACK_HOLE,
                str(partition),
                f"{name} owns it, but {stands} while {grown} {unit} were written in {seconds:.0f} s; "
                f"the lag is {lag} {unit}. {_why(survey)}",
                f"Restart {process}; {_nudge(survey)}If its commits are more "
                f"than {seconds:.0f} s apart, look again with a longer --interval.",
            )
        else:
            yield Finding(
                Kind.STANDING_STILL,
                str(partition),
                f"{name} owns it, and {stands} for {seconds:.0f} s with a lag of {lag} {unit}.",
                f"If it should be faster, see what {process} is doing.",
            )


def _stood(first: Look, second: Look, partition: TopicPartition) -> bool:
    """Whether no offset of the partition moved, wherever it is kept."""
    if first.kept.get(partition) != second.kept.get(partition):
        return False
    return first.survey.committed(partition) == second.survey.committed(partition)


def _furthest(look: Look, partition: TopicPartition) -> int | None:
    found = [one for one in (look.survey.committed(partition), look.kept.get(partition)) if one is not None]
    return max(found, default=None)


def _process(survey: GroupSurvey, name: str) -> str:
    if isinstance(survey, V08Survey) and name in survey.clients:
        return f"the client {survey.clients[name]}"
    return process_of(survey.group, name)


def _at_broker(survey: GroupSurvey) -> bool:
    return isinstance(survey, V08Survey) and survey.coordinator is Coordinator.BROKER


def _why(survey: GroupSurvey) -> str:
    if _at_broker(survey):
        return (
            "Probably nobody reads it: its handler hangs or fails again and again; or a transaction that never ended "
            "stops readers of committed messages."
        )
    return (
        "Probably nobody reads it: its handler hangs, or it is a JVM member that gave "
        "up while it joined, and owns without reading."
    )


def _nudge(survey: GroupSurvey) -> str:
    return "that gives its partitions to the others. " if _at_broker(survey) else "a nudge does not help. "
