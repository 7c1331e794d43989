"""Metrics of a handler's own: counters and histograms that it makes, and /metrics shows beside the daemon's.

Strategy: plain numbers, as everywhere here; the form for Prometheus is made at each scrape. So they cost an addition
where nothing scrapes them, and need no package. The names begin with the handler's, so that those of two handlers never
mix.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Final, TypeVar

from consumerd.base.metrics.catalogue import ALL_METRICS, Kind, Metric, Reading
from consumerd.base.metrics.histogram import DURATIONS, Histogram

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,60}")
_LABEL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,60}")
_RESERVED: Final = {metric.name for metric in ALL_METRICS}
#: Labels that have a meaning already.
_TAKEN: Final = {"group", "le"}
#: Combinations of labels' values that one metric may have. More would fill the memory of daemon and Prometheus alike.
MAX_SERIES: Final = 1000


class _OwnMetric:
    """Values by those of the labels, but for the group."""

    metric: Metric
    _values: Mapping[tuple[str, ...], float | Histogram]

    def readings(self, group: str) -> Iterator[Reading]:
        """Yield the readings for Prometheus."""
        for labels, value in self._values.items():
            yield Reading(self.metric, (group, *labels), value)


class OwnCounter(_OwnMetric):
    """A number that only grows; with labels one for each combination of their values."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not metric.labels[1:]:
            self._values[()] = 0.0

    def add(self, amount: float = 1, *labels: str) -> None:
        """Add `amount`, at least 0, for these values of the labels, in their order. Raises ValueError."""
        if not amount >= 0:
            raise ValueError(f"the counter {self.metric.name} cannot be decreased by {-amount}")
        if labels not in self._values:
            _check(self.metric, labels, self._values)
        self._values[labels] += amount


class OwnHistogram(_OwnMetric):
    """Counts values by buckets; with labels for each combination of their values."""

    def __init__(self, metric: Metric, buckets: Sequence[float]) -> None:
        self.metric = metric
        self._buckets = tuple(buckets)
        self._values: dict[tuple[str, ...], Histogram] = {}
        if not metric.labels[1:]:
            self._values[()] = Histogram(self._buckets)

    def observe(self, value: float, *labels: str) -> None:
        """Count `value` for these values of the labels, in their order. Raises ValueError."""
        if labels not in self._values:
            _check(self.metric, labels, self._values)
            self._values[labels] = Histogram(self._buckets)
        self._values[labels].observe(value)


_Own = TypeVar("_Own", OwnCounter, OwnHistogram)


class HandlerMetrics:
    """The metrics of the handler that the configuration calls `name`.

    A counter `rows` of the handler `my_package:Sink` is `consumerd_handler_my_package_sink_rows_total`, with the label
    `group`. Asked again for a metric, it gives the same one.
    """

    def __init__(self, name: str = "handler") -> None:
        self._prefix = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        self._own: dict[str, OwnCounter | OwnHistogram] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> OwnCounter:
        """The counter `name`, in snake case and without `_total`; `text`: its description. Raises ValueError."""
        metric = self._metric(f"{name}_total", Kind.COUNTER, text, labels)
        return self._made(metric, OwnCounter(metric))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = DURATIONS
    ) -> OwnHistogram:
        """The histogram `name`, in snake case with its unit at the end. Raises ValueError.

        `buckets` are ascending upper bounds; by default they suit seconds.
        """
        if not buckets or list(buckets) != sorted(set(buckets)):
            raise ValueError(f"the buckets of the histogram {name} must ascend")
        metric = self._metric(name, Kind.HISTOGRAM, text, labels)
        return self._made(metric, OwnHistogram(metric, buckets))

    def readings(self, group: str) -> Iterator[Reading]:
        """Yield the readings of all of them for Prometheus."""
        for own in self._own.values():
            yield from own.readings(group)

    def _metric(self, name: str, kind: Kind, text: str, labels: Sequence[str]) -> Metric:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a metric must be in snake case, not {name!r}")
        if isinstance(labels, str) or not all(_LABEL.fullmatch(label) for label in labels) or {*labels} & _TAKEN:
            raise ValueError(f"labels must be a list of names other than group and le, not {labels!r}")
        full = f"consumerd_handler_{self._prefix}_{name}"
        if full in _RESERVED:
            raise ValueError(f"{full} is a metric of the daemon: name yours otherwise")
        return Metric(full, kind, text, ("group", *labels))

    def _made(self, metric: Metric, new: _Own) -> _Own:
        found = self._own.setdefault(metric.name, new)
        if not isinstance(found, type(new)) or found.metric.labels != metric.labels:
            raise ValueError(f"there is a metric {metric.name} with another type or other labels")
        return found


def _check(metric: Metric, labels: tuple[str, ...], series: Sized) -> None:
    """Check new values of labels. Raises ValueError where they do not fit, or would be too many."""
    if len(labels) != len(metric.labels) - 1 or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{metric.name} has the labels {', '.join(metric.labels[1:]) or 'none'}, not {labels!r}")
    if len(series) >= MAX_SERIES:
        raise ValueError(f"{metric.name} has {MAX_SERIES} combinations of labels, which is the most that it may have")
