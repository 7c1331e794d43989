"""A collector gets the values of the readings, in OpenTelemetry's data model."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.metrics.histogram import Histogram
from consumerd.base.metrics.otlp import metrics_data

HANDLED = Metric("consumerd_handled_total", Kind.COUNTER, "Handled.", ("topic", "partition"), "{message}")
LAG = Metric("consumerd_lag_bytes", Kind.GAUGE, "Lag.", ("topic",), "By")
SECONDS = Metric("consumerd_seconds", Kind.HISTOGRAM, "Seconds.", (), "s")


def test_readings_become_sums_gauges_and_histograms() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.5, 2.0):
        histogram.observe(value)
    readings = [
        Reading(HANDLED, ("t", "0"), 3),
        Reading(LAG, ("t",), 7.5),
        Reading(HANDLED, ("t", "1"), 4),
        Reading(SECONDS, (), histogram),
    ]
    data = metrics_data(
        readings, Resource({"service.name": "x"}), InstrumentationScope("consumerd"), started=100.0, now=160.5
    )
    histogram.observe(0.1)  # what was taken is not changed by it
    request = encode_metrics(data)
    (resource,) = request.resource_metrics
    assert [each.value.string_value for each in resource.resource.attributes] == ["x"]
    (scope,) = resource.scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    assert list(metrics) == ["consumerd_handled", "consumerd_lag_bytes", "consumerd_seconds"]
    assert [(metric.description, metric.unit) for metric in metrics.values()] == [
        ("Handled.", "{message}"),
        ("Lag.", "By"),
        ("Seconds.", "s"),
    ]

    total = metrics["consumerd_handled"].sum
    assert (total.is_monotonic, total.aggregation_temporality) == (True, 2)  # cumulative
    assert [
        ({each.key: each.value.string_value for each in point.attributes}, point.as_int) for point in total.data_points
    ] == [({"topic": "t", "partition": "0"}, 3), ({"topic": "t", "partition": "1"}, 4)]
    assert {(point.start_time_unix_nano, point.time_unix_nano) for point in total.data_points} == {
        (100_000_000_000, 160_500_000_000)
    }
    (gauge,) = metrics["consumerd_lag_bytes"].gauge.data_points
    assert gauge.as_double == 7.5
    (point,) = metrics["consumerd_seconds"].histogram.data_points
    assert (point.count, point.sum, list(point.bucket_counts), list(point.explicit_bounds)) == (
        3,
        2.75,
        [2, 0, 1],  # a value equal to a bound belongs below it, as in OpenTelemetry
        [0.5, 1.0],
    )
    assert not point.HasField("min")
    assert not point.HasField("max")
