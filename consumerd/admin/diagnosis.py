"""What is wrong with a group, why, and what to do about it: pure functions of surveys.

Strategy: first the members' own nodes, then who owns what, then committed offsets: each has a module of its own, which
works for groups of every kind, as far as they have such a thing. Facts behind it: golden notes, 4 and 5, and what was
measured beside JVM members (notes on mixed groups): they look for the last time 6 s after the trigger and give up at 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.admin.diagnosis_members import foreign_findings, member_findings
from consumerd.admin.diagnosis_offsets import offset_findings, silent_brokers
from consumerd.admin.diagnosis_owners import owner_findings
from consumerd.admin.diagnosis_progress import progress_findings
from consumerd.admin.findings import PASSING
from consumerd.admin.snapshot import Survey
from consumerd.admin.v08.diagnosis import diagnose_v08, store_findings
from consumerd.admin.v08.snapshot import V08Survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.admin.diagnosis_offsets import Look
    from consumerd.admin.findings import Finding
    from consumerd.admin.logs import LogRange, NoAnswer
    from consumerd.partition import TopicPartition


def diagnose(survey: Survey, ranges: Mapping[TopicPartition, LogRange | NoAnswer]) -> list[Finding]:
    """All findings of one look at a group of 0.7.

    Those of `PASSING` kinds may be a rebalance that is under way: see `lasting`.
    """
    return [
        *member_findings(survey),
        *owner_findings(survey),
        *offset_findings(survey, ranges),
        *silent_brokers(survey.brokers, ranges),
        *foreign_findings(survey),
    ]


def diagnose_look(look: Look) -> list[Finding]:
    """All findings of one look at a group of whatever kind."""
    survey = look.survey
    if isinstance(survey, V08Survey):
        return diagnose_v08(survey, look)
    assert isinstance(survey, Survey)
    return diagnose(survey, look.ranges)


def diagnose_looks(first: Look, second: Look | None = None) -> list[Finding]:
    """What is true of the second of two looks, without what may just be passing; and whether anybody works.

    Of one look alone, everything that it shows.
    """
    if second is None:
        return [*diagnose_look(first), *store_findings(first, first)]
    return [
        *lasting(diagnose_look(first), diagnose_look(second)),
        *store_findings(first, second),
        *progress_findings(first, second),
    ]


def lasting(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of the second look without those that may just be passing."""
    before = {(finding.kind, finding.subject) for finding in first}
    return [finding for finding in second if finding.kind not in PASSING or (finding.kind, finding.subject) in before]
