"""A report as one self-contained HTML page: nothing is fetched, and no text of the data becomes markup.

Strategy: the template beside this module, with autoescape, gets the facts, the findings in words, the plots (our own
SVG, the only thing that is inserted unescaped) and functions that format numbers. A content security policy in the page
allows its own styles and nothing else, so that even markup that slipped through would not run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import jinja2
from markupsafe import Markup

import consumerd
from consumerd.spark.reconcile_result import LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.report import wording
from consumerd.spark.report.facts import TOP_REASONS, GroupRow, LandedFacts, ReportFacts
from consumerd.spark.report.plots import Plot, plot_events, plot_lag, plot_landed, plot_sizes
from consumerd.spark.report.wording import count, duration, percent, plural

if TYPE_CHECKING:
    from consumerd.spark.step_history import StepRun

#: Partitions that are listed; those with findings come first.
MAX_PARTITIONS = 200
#: Runs before the last one with which it is compared.
MAX_BEFORE = 20
#: Fewer intervals than this are a table, not a chart.
MIN_BARS = 3
PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def render(facts: ReportFacts) -> str:
    """The page. The same facts give the same text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("consumerd.spark.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = ("age", "count", "digits", "moment", "percent", "plural", "printable", "rate", "seconds", "size")
    environment.filters |= {name: getattr(wording, name) for name in words}
    environment.filters |= {"inline": _inline, "distance": partial(wording.distance, messages=facts.counts_messages)}
    landed = facts.landed
    checks = [(check, partition_findings(check)) for check in facts.reconciled.partitions] if facts.reconciled else []
    checks.sort(key=lambda one: (one[0].is_clean, not one[1]))
    known = [one.behind for one in facts.progress.batches if one.behind is not None]
    watermark = facts.windows.watermark if facts.windows is not None else None
    return environment.get_template("report.html").render(
        facts=facts,
        landed=landed,
        version=consumerd.__version__,
        events=plot_events(facts.events, watermark) if facts.events and len(facts.events.intervals) > 1 else None,
        throughput=plot_landed(landed) if len(landed.intervals) >= MIN_BARS else None,
        share=quarantine_share(facts),
        trend=quarantine_trend(landed),
        groups=_groups(facts),
        known=known,
        lag=plot_lag(facts.progress.batches, messages=facts.counts_messages) if len(known) > 1 and any(known) else None,
        sizes=plot_sizes(landed.sizes) if landed.sizes.classes else None,
        percentiles=[(share, landed.sizes.percentile(share)) for share in PERCENTILES] if landed.sizes.classes else [],
        steps=step_rows(facts.history),
        verdict=report_verdict(facts.reconciled),
        checks=checks[:MAX_PARTITIONS],
        top_reasons=TOP_REASONS,
    )


class StepRow(NamedTuple):
    """The last run of a step beside the ones before it."""

    run: StepRun
    #: The median of the seconds of the runs before that had about as many rows, and their number.
    usual: float | None
    before: int
    #: Of the seconds that the slowest step took.
    share: float

    @property
    def difference(self) -> str:
        """How the last run compares: `1.4 times as long`."""
        if self.usual is None:
            return ""
        ratio = self.run.seconds / self.usual
        return "as usual" if 0.8 <= ratio <= 1.25 else f"{ratio:.1f} times as long"


def step_rows(history: Sequence[StepRun]) -> list[StepRow]:
    """The last run of each step, in their order."""
    by_step: dict[str, list[StepRun]] = {}
    for run in history:
        by_step.setdefault(run.step, []).append(run)
    longest = max((runs[-1].seconds for runs in by_step.values()), default=0.0) or 1.0
    rows = []
    for *before, last in by_step.values():
        alike = [run.seconds for run in before if similar(run, last)][-MAX_BEFORE:]
        rows.append(StepRow(last, statistics.median(alike) if alike else None, len(alike), last.seconds / longest))
    return sorted(rows, key=lambda row: row.run.started)


def similar(run: StepRun, other: StepRun) -> bool:
    """Whether two runs had about as many rows: no more than twice as many."""
    return run.rows is not None and other.rows is not None and run.rows <= 2 * other.rows and other.rows <= 2 * run.rows


def quarantine_share(facts: ReportFacts) -> float | None:
    """The quarantined part of what was refined; None if nothing was."""
    if facts.quarantine is None or facts.refined is None:
        return None
    refined = facts.refined + facts.quarantine.rows
    return facts.quarantine.rows / refined if refined else None


def quarantine_trend(landed: LandedFacts) -> str:
    """How the share of the newest interval compares with that of the ones before; nothing without at least two."""
    known = [one for one in landed.intervals if one.quarantined is not None and one.rows]
    if len(known) < 2:
        return ""
    *before, last = known
    now = (last.quarantined or 0) / last.rows
    then = sum(one.quarantined or 0 for one in before) / sum(one.rows for one in before)
    unit = "batch" if landed.width is None else duration(landed.width)
    if now == then == 0:
        return ""
    return f"{percent(now)} of the newest {unit}, {percent(then)} before"


def _groups(facts: ReportFacts) -> list[tuple[GroupRow, float]]:
    """Each group with its share of the events."""
    groups = facts.groups
    return [(row, row.events / groups.events) for row in groups.rows] if groups is not None and groups.events else []


def _inline(plot: Plot) -> Markup:
    return Markup(plot.svg)  # nosec B704  # noqa: S704 - our own, of numbers and times alone


#: Kinds of stretches by their names in a check: the words for them, and whether they are defects.
_KINDS: Final = (
    ("gaps", "missing", True),
    ("unexpected", "not in the source", True),
    ("unrefined", "neither in silver nor in quarantine", True),
    ("surplus", "refined more than once", True),
    ("trimmed", "lost before they landed", True),
    ("declared", "declared gone", False),
    ("dropped", "no messages, and left out as the pipeline says", False),
    ("compacted", "compacted away in the source since", False),
    ("empty", "without messages in the log", False),
)


#: From this share of refined rows on, quarantine is part of the verdict.
MANY_QUARANTINED: Final = 0.1


class ReportFinding(NamedTuple):
    """One finding about a partition."""

    text: str
    bad: bool


class ReportVerdict(NamedTuple):
    """The result in one sentence. `bad`: None if it is unknown, or needs attention."""

    text: str
    bad: bool | None


def partition_findings(check: PartitionCheck) -> list[ReportFinding]:
    """The findings about a partition, the worst first; none if all is well."""
    found = [ReportFinding(_stretches(getattr(check, name), words), bad) for name, words, bad in _KINDS]
    found += [ReportFinding(f"declared: {reason}", bad=False) for reason in check.reasons]
    if check.duplicates:
        found.append(ReportFinding(plural(check.duplicates, "duplicate"), bad=True))
    if check.same_hash is False:
        found.append(ReportFinding("content differs from the source's", bad=True))
    if check.pending:
        found.append(ReportFinding(f"{plural(check.pending, 'row')} not refined yet", bad=False))
    return sorted((one for one in found if one.text), key=lambda one: not one.bad)


def report_verdict(result: ReconcileResult | None) -> ReportVerdict:
    """The headline of the page."""
    if result is None:
        return ReportVerdict("Not reconciled: whether everything landed is unknown.", None)
    if not result.partitions:
        return ReportVerdict("Nothing was to land yet.", None)
    if result.is_clean:
        how = "offset by offset" if result.shallow else "message by message"
        partitions = plural(len(result.partitions), "partition")
        but = f", but for {plural(result.declared, 'stretch', 'stretches')} declared gone" if result.declared else ""
        text = f"Everything that was to land has landed, once{but}: {partitions}, compared {how}."
        refined = result.rows_refined + result.rows_quarantined
        if refined and result.rows_quarantined / refined >= MANY_QUARANTINED:
            share = f"{result.rows_quarantined / refined:.0%}"
            return ReportVerdict(
                f"{text} But {share} of what was refined is in quarantine, for the reasons below.", None
            )
        return ReportVerdict(text, bad=False)
    differences = [
        *([plural(result.gaps, "gap")] if result.gaps else []),
        *([plural(result.duplicates, "duplicate")] if result.duplicates else []),
        *(
            f"{plural(number, 'stretch', 'stretches')} {words}"
            for name, words, bad in _KINDS
            if bad and name != "gaps" and (number := sum(getattr(one, name).count for one in result.partitions))
        ),
    ]
    if altered := sum(one.same_hash is False for one in result.partitions):
        differences.append(f"{plural(altered, 'partition')} with content that differs from the source's")
    dirty = sum(not one.is_clean for one in result.partitions)
    where = f"{count(dirty)} of {plural(len(result.partitions), 'partition')}"
    *first, last = differences
    found = f"{', '.join(first)} and {last}" if first else last
    return ReportVerdict(f"{found}, in {where}; they are named below.", bad=True)


def _stretches(stretches: LogStretches, words: str) -> str:
    if not stretches.count:
        return ""
    shown = ", ".join(map(str, stretches.first))
    more = stretches.count - len(stretches.first)
    return f"{words}: {shown}" + (f" and {count(more)} more" if more else "")
