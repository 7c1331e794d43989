"""Readings in Prometheus' formats, by prometheus-client (the extra `metrics`).

Strategy: readings are asked for when they are scraped. Counters and gauges are written here, line by line: a thousand
partitions have some thousands of them, and prometheus-client takes four times as long, in which the event loop stands
still. It writes histograms, and what it tells of the process and the interpreter, by a custom collector in a registry
of our own. Whether it is Prometheus' text or OpenMetrics is negotiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from consumerd.base.metrics.catalogue import Kind, Metric, Reading
from consumerd.base.metrics.histogram import Histogram

#: The function that a reader of metrics calls.
Source = Callable[[], Iterable[Reading]]
#: The end of a response in OpenMetrics.
_END: Final = b"# EOF\n"
#: A number as Prometheus writes it.
_number: Final[Callable[[float], str]] = floatToGoString


class Exposition:
    """The response of `/metrics`, from the readings of `source`."""

    def __init__(self, source: Source) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._histograms = _Histograms()
        self._registry.register(self._histograms)
        self._source = source

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, for the request's Accept header."""
        encoder, content_type = choose_encoder(accept)
        families: dict[Metric, list[Reading]] = {}
        for reading in self._source():
            families.setdefault(reading.metric, []).append(reading)
        self._histograms.families = {
            metric: families.pop(metric) for metric in list(families) if metric.kind is Kind.HISTOGRAM
        }
        body = encoder(self._registry)
        end = _END if body.endswith(_END) else b""
        return body.removesuffix(_END) + _written(families, open_metrics=bool(end)) + end, content_type


def _written(families: dict[Metric, list[Reading]], *, open_metrics: bool) -> bytes:
    """Counters and gauges as lines, which differ in the two formats by the names of counters in their heads."""
    lines = []
    texts: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
    for metric, readings in families.items():
        name = metric.name
        head = name.removesuffix("_total") if open_metrics and metric.kind is Kind.COUNTER else name
        text = _escaped(metric.help, quoted=open_metrics)
        lines.append(f"# HELP {head} {text}\n# TYPE {head} {metric.kind.value}\n")
        for _, labels, value in readings:
            assert not isinstance(value, Histogram)
            of_all = texts.get(key := (metric.labels, labels))
            if of_all is None:
                of_all = texts[key] = _labels(metric.labels, labels)
            lines.append(f"{name}{of_all} {_number(value)}\n")
    return "".join(lines).encode()


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join([f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs]) + "}" if pairs else ""


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


class _Histograms(Collector):
    """Those of the scrape that is under way."""

    def __init__(self) -> None:
        self.families: dict[Metric, list[Reading]] = {}

    def describe(self) -> Iterable[Family]:
        """Return nothing: the metrics depend on the moment."""
        return ()

    def collect(self) -> Iterator[Family]:
        """One family for each histogram that has readings."""
        for metric, readings in self.families.items():
            histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for _, labels, value in readings:
                assert isinstance(value, Histogram)
                buckets = [
                    ("+Inf" if bound == float("inf") else repr(float(bound)), float(count))
                    for bound, count in value.cumulative()
                ]
                histograms.add_metric(labels, buckets, value.total)
            yield histograms
