"""Readings in Prometheus' formats, by prometheus-client (the extra `metrics`).

Strategy: a custom collector that asks for readings when it is scraped, in a registry of its own, together with what
prometheus-client tells of the process and the interpreter. Whether it is Prometheus' text or OpenMetrics is negotiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.metrics.histogram import Histogram

#: The function that a reader of metrics calls.
Source = Callable[[], Iterable[Reading]]


class Exposition:
    """The response of `/metrics`, from the readings of `source`."""

    def __init__(self, source: Source) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_Readings(source))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, for the request's Accept header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type


class _Readings(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Family]:
        """Return nothing: the metrics depend on the moment."""
        return ()

    def collect(self) -> Iterator[Family]:
        """One family for each metric that has readings."""
        families: dict[Metric, list[Reading]] = {}
        for reading in self._source():
            families.setdefault(reading.metric, []).append(reading)
        for metric, readings in families.items():
            yield _family(metric, readings)


def _family(metric: Metric, readings: list[Reading]) -> Family:
    name = metric.name
    if metric.kind is Kind.HISTOGRAM:
        histograms = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for _, labels, value in readings:
            assert isinstance(value, Histogram)
            buckets = [
                ("+Inf" if bound == float("inf") else repr(float(bound)), float(count))
                for bound, count in value.cumulative()
            ]
            histograms.add_metric(labels, buckets, value.total)
        return histograms
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        family = CounterMetricFamily(name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for _, labels, value in readings:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)
    return family
