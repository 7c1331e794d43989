"""A report as one self-contained HTML page: nothing is fetched, and no text of the data becomes markup.

Strategy: the template beside this module, with autoescape, gets the facts, the findings in words, the plots (our own
SVG, the only thing that is inserted unescaped) and functions that format numbers. A content security policy in the page
allows its own styles and nothing else, so that even markup that slipped through would not run.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import jinja2
from markupsafe import Markup

import consumerd
from consumerd.spark.reconcile_result import LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.report import wording
from consumerd.spark.report.facts import TOP_REASONS, ReportFacts
from consumerd.spark.report.plots import Plot, plot_lag, plot_sizes, plot_throughput
from consumerd.spark.report.wording import count, plural

#: Partitions that are listed; those with findings come first.
MAX_PARTITIONS = 200
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
    environment.filters |= {
        name: getattr(wording, name) for name in ("count", "size", "plural", "moment", "printable")
    } | {"inline": _inline, "distance": partial(wording.distance, messages=facts.counts_messages)}
    landed = facts.landed
    checks = [(check, partition_findings(check)) for check in facts.reconciled.partitions] if facts.reconciled else []
    checks.sort(key=lambda one: (one[0].is_clean, not one[1]))
    return environment.get_template("report.html").render(
        facts=facts,
        landed=landed,
        version=consumerd.__version__,
        throughput=plot_throughput(landed) if landed.intervals else None,
        busy=_busy(facts),
        known=[one.behind for one in facts.progress.batches if one.behind is not None],
        lag=plot_lag(facts.progress.batches, messages=facts.counts_messages) if _has_lag(facts) else None,
        sizes=plot_sizes(landed.sizes) if landed.sizes.classes else None,
        percentiles=[(share, landed.sizes.percentile(share)) for share in PERCENTILES] if landed.sizes.classes else [],
        verdict=report_verdict(facts.reconciled),
        checks=checks[:MAX_PARTITIONS],
        top_reasons=TOP_REASONS,
    )


def _busy(facts: ReportFacts) -> float | None:
    """Seconds that all of bronze's batches took together; None where the history does not have each of them."""
    batches = facts.progress.batches
    seconds = sum(one.seconds for one in batches)
    return seconds if seconds and len(batches) == facts.landed.batches else None


def _has_lag(facts: ReportFacts) -> bool:
    """Whether the plot would show more than a dot or a line at zero."""
    known = [one.behind for one in facts.progress.batches if one.behind is not None]
    return len(known) > 1 and any(known)


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
        plural(result.gaps, "gap"),
        plural(result.duplicates, "duplicate"),
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
    return ReportVerdict(
        f"{', '.join(differences[:-1])} and {differences[-1]}, in {where}; they are named below.", bad=True
    )


def _stretches(stretches: LogStretches, words: str) -> str:
    if not stretches.count:
        return ""
    shown = ", ".join(map(str, stretches.first))
    more = stretches.count - len(stretches.first)
    return f"{words}: {shown}" + (f" and {count(more)} more" if more else "")
