"""The dashboard and the alert rules ask for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd.base.metrics.catalogue import ALL_METRICS, Kind

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "consumerd.json"
RULES = ROOT / "deploy" / "prometheus" / "consumerd-alerts.yaml"
TESTS = Path(__file__).with_name("alerts.test.yaml")

SAMPLES = {
    f"{metric.name}{suffix}": metric
    for metric in ALL_METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
#: Labels that Prometheus adds, and those of histograms.
GIVEN = {"instance", "job", "le"}


def expressions(value: Any) -> Iterator[str]:
    """Every expression of a dashboard."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "definition") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def check(expression: str) -> set[str]:
    """The metrics of an expression, all of which there are, with the labels by which it sums up and selects."""
    names = set(re.findall(r"\bconsumerd_\w+", expression))
    assert names, expression
    assert names <= SAMPLES.keys(), names - SAMPLES.keys()
    labels = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    labels |= set(re.findall(r"[{,]\s*(\w+)=", expression))
    for name in names:
        assert labels <= {*SAMPLES[name].labels, *GIVEN}, (name, labels)
    return names


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    document = json.loads(DASHBOARD.read_text("utf-8"))
    found = [check(expression) for expression in expressions(document)]
    assert len(found) > 20
    identifiers = [panel["id"] for panel in document["panels"]]
    assert len(set(identifiers)) == len(identifiers)


@pytest.fixture
def alerts() -> dict[str, dict[str, Any]]:
    """The rules by the names of their alerts."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    found = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert len(found) > 20
    return found


def test_the_alerts_ask_for_metrics_that_exist(alerts: dict[str, dict[str, Any]]) -> None:
    for alert, rule in alerts.items():
        asked = set(re.findall(r"\bconsumerd_\w+|\bup\b", rule["expr"]))
        assert asked, alert
        assert asked <= {*SAMPLES, "up"}, alert


def test_each_alert_points_to_its_section(alerts: dict[str, dict[str, Any]]) -> None:
    text = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == alerts.keys()
    for alert, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"


def test_each_alert_is_fired_by_the_tests_of_the_rules(alerts: dict[str, dict[str, Any]]) -> None:
    cases = [case for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts.keys()


@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", TESTS)])
def test_promtool_takes_the_rules(arguments: tuple[str | Path, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("needs promtool (CI=true: nothing is skipped)", pytrace=False)
        pytest.skip("needs promtool (Debian: prometheus)")
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
