"""Prometheus reads the same values as the readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.metrics.exposition import Exposition
from consumerd.base.metrics.histogram import Histogram

HANDLED = Metric("consumerd_handled_total", Kind.COUNTER, "Handled.", ("topic",))
LAG = Metric("consumerd_lag", Kind.GAUGE, "Lag.", ("topic",))
SECONDS = Metric("consumerd_seconds", Kind.HISTOGRAM, "Seconds.", ())


def test_readings_become_families_in_both_formats() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.75, 2.0):
        histogram.observe(value)
    readings = [
        Reading(HANDLED, ('a "b"\n\\c',), 3),
        Reading(LAG, ("t",), 7),
        Reading(SECONDS, (), histogram),
        Reading(LAG, ("u",), 8),
    ]
    exposition = Exposition(lambda: readings)
    for accept, parse in (
        ("text/plain", parse_text),
        ("application/openmetrics-text; version=1.0.0", parse_openmetrics),
    ):
        body, content_type = exposition.render(accept)
        assert content_type.startswith(accept.partition(";")[0])
        samples = {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in parse(body.decode())
            for sample in family.samples
        }
        assert samples["consumerd_handled_total", ('a "b"\n\\c',)] == 3
        assert samples["consumerd_lag", ("t",)] == 7
        assert samples["consumerd_lag", ("u",)] == 8
        assert samples["consumerd_seconds_bucket", ("0.5",)] == 1
        assert samples["consumerd_seconds_bucket", ("1.0",)] == 2
        assert samples["consumerd_seconds_bucket", ("+Inf",)] == 3
        assert samples["consumerd_seconds_count", ()] == 3
        assert samples["consumerd_seconds_sum", ()] == 3.0
        assert samples["process_open_fds", ()] > 0


def test_each_scrape_asks_again() -> None:
    values = iter((1, 2))
    exposition = Exposition(lambda: [Reading(LAG, ("t",), next(values))])
    assert b'consumerd_lag{topic="t"} 1.0' in exposition.render("")[0]
    assert b'consumerd_lag{topic="t"} 2.0' in exposition.render("")[0]


class Given:
    """What prometheus-client is given to write by itself."""

    def __init__(self, family: CounterMetricFamily | GaugeMetricFamily) -> None:
        self.family = family

    def describe(self) -> list[CounterMetricFamily]:
        return []

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        return [self.family]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
@given(
    counts=st.booleans(),
    text=st.text(max_size=20),
    values=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8), st.floats() | st.integers()), min_size=1),
)
def test_writes_the_lines_that_prometheus_client_writes(
    accept: str, counts: bool, text: str, values: list[tuple[str, str, float]]
) -> None:
    kind, name = (Kind.COUNTER, "consumerd_x_total") if counts else (Kind.GAUGE, "consumerd_x")
    metric = Metric(name, kind, text, ("topic", "group"))
    family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=metric.labels)
    for topic, group, value in values:
        family.add_metric([topic, group], value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given(family))
    expected = choose_encoder(accept)[0](registry)
    body = Exposition(lambda: [Reading(metric, (topic, group), value) for topic, group, value in values]).render(accept)
    assert body[0].endswith(expected)
