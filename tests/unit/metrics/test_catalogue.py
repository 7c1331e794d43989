"""Metrics are named by Prometheus' rules, and documented."""

from __future__ import annotations

import re
from pathlib import Path

from consumerd.metrics import Kind
from consumerd.metrics.catalogue import DAEMON_METRICS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"


def test_names_follow_the_conventions() -> None:
    for metric in DAEMON_METRICS:
        assert re.fullmatch(r"consumerd_[a-z][a-z_]*[a-z]", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric
        assert not metric.name.endswith(("_sum", "_count", "_bucket")), metric
        assert metric.help.endswith("."), metric
    assert len({metric.name for metric in DAEMON_METRICS}) == len(DAEMON_METRICS)


def test_documentation_lists_all_metrics() -> None:
    rows = []
    for metric in DAEMON_METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |")
    text = DOCS.read_text("utf-8")
    documented = [line for line in text.splitlines() if line.startswith("| `consumerd_")]
    assert documented[: len(rows)] == rows
