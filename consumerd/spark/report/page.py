"""A report as one HTML page: everything it needs is in it, nothing is fetched, and no foreign text becomes markup.

Strategy: the template beside this module, with autoescape, gets the facts, the plots (our own SVG, the only thing that
is put in as it is) and the words for numbers. A content security policy in the page allows styles in it and nothing
else, so that even markup that slipped through would not run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

import consumerd
from consumerd.spark.report import wording
from consumerd.spark.report.facts import TOP_REASONS
from consumerd.spark.report.findings import findings, verdict
from consumerd.spark.report.plots import plot_lag, plot_sizes, plot_throughput

if TYPE_CHECKING:
    from consumerd.spark.report.facts import Facts
    from consumerd.spark.report.plots import Plot

#: Partitions that are listed; those with something to tell come first.
MAX_PARTITIONS = 200
PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def render(facts: Facts) -> str:
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
    checks = [(check, findings(check)) for check in facts.reconciled.partitions] if facts.reconciled else []
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
        verdict=verdict(facts.reconciled),
        checks=checks[:MAX_PARTITIONS],
        top_reasons=TOP_REASONS,
    )


def _busy(facts: Facts) -> float | None:
    """Seconds that all of bronze's batches took together; None where the history does not have each of them."""
    batches = facts.progress.batches
    seconds = sum(one.seconds for one in batches)
    return seconds if seconds and len(batches) == facts.landed.batches else None


def _has_lag(facts: Facts) -> bool:
    """Whether there is more to see than a dot, or a line at zero."""
    known = [one.behind for one in facts.progress.batches if one.behind is not None]
    return len(known) > 1 and any(known)


def _inline(plot: Plot) -> Markup:
    return Markup(plot.svg)  # noqa: S704 - our own, of numbers and times alone
