"""Metrics that a handler makes for itself."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.metrics import own
from consumerd.base.metrics.catalogue import Kind
from consumerd.base.metrics.exposition import Exposition
from consumerd.base.metrics.own import HandlerMetrics


def rendered(metrics: HandlerMetrics) -> list[str]:
    body, _ = Exposition(lambda: metrics.readings("g")).render("text/plain")
    return [line for line in body.decode().splitlines() if line.startswith("consumerd_")]


def test_prometheus_reads_them_under_the_name_of_the_handler() -> None:
    metrics = HandlerMetrics("my_package:Sink.of-it")
    rows = metrics.counter("rows", "Rows.", labels=["table"])
    rows.add(2, "a")
    rows.add(1, "b")
    metrics.histogram("size_bytes", "Sizes.", buckets=[1, 10]).observe(5)
    metrics.counter("calls", "Calls.")
    name = "consumerd_handler_my_package_sink_of_it"
    lines = rendered(metrics)
    assert f'{name}_rows_total{{group="g",table="a"}} 2.0' in lines
    assert f'{name}_rows_total{{group="g",table="b"}} 1.0' in lines
    assert f'{name}_size_bytes_bucket{{group="g",le="10.0"}} 1.0' in lines
    assert f'{name}_size_bytes_sum{{group="g"}} 5.0' in lines
    assert f'{name}_calls_total{{group="g"}} 0.0' in lines  # so that its first increase is one


def test_gives_the_same_metric_again() -> None:
    metrics = HandlerMetrics("h")
    assert metrics.counter("rows", "Rows.") is metrics.counter("rows", "Rows.")
    assert metrics.histogram("s", "S.") is metrics.histogram("s", "S.")
    with pytest.raises(ValueError, match="another type or other labels"):
        metrics.counter("rows", "Rows.", labels=["x"])
    with pytest.raises(ValueError, match="another type or other labels"):
        metrics.histogram("rows_total", "Rows.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Rows", "x"), "must be in snake case"),
        (("rows", "x", ["group"]), "labels must be a list of names other than group and le"),
        (("rows", "x", "table"), "labels must be a list"),
        (("rows", "x", ["a-b"]), "labels must be a list"),
    ],
)
def test_rejects_names_that_prometheus_does_not_have(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HandlerMetrics("h").counter(*arguments)


def test_rejects_the_daemons_names() -> None:
    assert HandlerMetrics("Duration").histogram("seconds_x", "x").metric.kind is Kind.HISTOGRAM
    with pytest.raises(ValueError, match="consumerd_handler_duration_seconds is a metric of the daemon"):
        HandlerMetrics("Duration").histogram("seconds", "x")
    with pytest.raises(ValueError, match="must ascend"):
        HandlerMetrics("h").histogram("s", "x", buckets=[2, 1])


def test_rejects_values_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = HandlerMetrics("h").counter("rows", "Rows.", labels=["table"])
    with pytest.raises(ValueError, match="cannot be decreased"):
        counter.add(-1, "a")
    with pytest.raises(ValueError, match="cannot be decreased"):
        counter.add(float("nan"), "a")
    with pytest.raises(ValueError, match="has the labels table, not"):
        counter.add(1)
    monkeypatch.setattr(own, "MAX_SERIES", 2)
    counter.add(1, "a")
    counter.add(1, "b")
    with pytest.raises(ValueError, match="2 combinations of labels"):
        counter.add(1, "c")
    counter.add(1, "a")
