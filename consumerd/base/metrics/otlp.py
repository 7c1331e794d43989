"""Readings as OpenTelemetry's metrics (the extra `otel`).

Strategy: the catalogue is the one list of metrics, so its readings are turned into the SDK's data for exporters, and no
instruments of the SDK are made. All values are cumulative since the process started. Names are the catalogue's without
`_total`, which exporters to Prometheus add again.
Source: the metrics data model of OpenTelemetry, https://opentelemetry.io/docs/specs/otel/metrics/data-model/.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.metrics.histogram import Histogram

_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE


def metrics_data(
    readings: Iterable[Reading], resource: Resource, scope: InstrumentationScope, *, started: float, now: float
) -> otel.MetricsData:
    """Return the readings in the form of an exporter. `started` and `now`: seconds since 1970. Values are copied."""
    times = (int(started * 1e9), int(now * 1e9))
    by_metric: dict[Metric, list[Reading]] = {}
    for reading in readings:
        by_metric.setdefault(reading.metric, []).append(reading)
    metrics = [_metric(metric, found, times) for metric, found in by_metric.items()]
    scoped = otel.ScopeMetrics(scope, metrics, schema_url="")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scoped], schema_url="")])


def _metric(metric: Metric, readings: Sequence[Reading], times: tuple[int, int]) -> otel.Metric:
    data: otel.Sum | otel.Gauge | otel.Histogram
    if metric.kind is Kind.HISTOGRAM:
        data = otel.Histogram([_histogram(each, times) for each in readings], _CUMULATIVE)
    else:
        points = [otel.NumberDataPoint(_attributes(each), *times, _number(each.value)) for each in readings]
        data = otel.Sum(points, _CUMULATIVE, is_monotonic=True) if metric.kind is Kind.COUNTER else otel.Gauge(points)
    return otel.Metric(metric.name.removesuffix("_total"), metric.help, metric.unit, data)


def _attributes(reading: Reading) -> dict[str, str]:
    return dict(zip(reading.metric.labels, reading.labels, strict=True))


def _number(value: float | Histogram) -> float:
    assert not isinstance(value, Histogram)
    return value


def _histogram(reading: Reading, times: tuple[int, int]) -> otel.HistogramDataPoint:
    value = reading.value
    assert isinstance(value, Histogram)
    unknown: Any = None  # neither the smallest nor the largest value is kept; both are optional on the wire
    return otel.HistogramDataPoint(
        _attributes(reading),
        *times,
        count=value.count,
        sum=value.total,
        bucket_counts=list(value.counts),
        explicit_bounds=[float(bound) for bound in value.bounds],
        min=unknown,
        max=unknown,
    )
