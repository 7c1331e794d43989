"""Metrics are named by Prometheus' rules, and have units."""

from __future__ import annotations

import re

from consumerd.base.metrics.catalogue import ALL_METRICS, Kind


def test_names_follow_the_conventions() -> None:
    for metric in ALL_METRICS:
        assert re.fullmatch(r"consumerd_[a-z][a-z_]*[a-z]", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric
        assert not metric.name.endswith(("_sum", "_count", "_bucket")), metric
        assert metric.help.endswith("."), metric
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)


def test_units_agree_with_names() -> None:
    for metric in ALL_METRICS:
        words = metric.name.removesuffix("_total").split("_")
        assert (words[-1] == "seconds") == (metric.unit == "s"), metric
        offset = words[-1] == "offset" and "log" in words  # positions of 0.7 are bytes
        assert ("bytes" in words or offset) == (metric.unit == "By"), metric
        assert re.fullmatch(r"1|s|By|\{[a-z]+\}", metric.unit), metric
