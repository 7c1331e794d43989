"""A histogram counts as Prometheus' does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.metrics.histogram import Histogram

BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.floats(-1.0, 100.0)))
def test_each_bucket_counts_values_up_to_its_bound(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [(bound, sum(value <= bound for value in values)) for bound in (*BOUNDS, math.inf)]
    assert list(histogram.cumulative()) == expected
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_quantile_is_the_bound_of_its_bucket() -> None:
    histogram = Histogram(BOUNDS)
    assert histogram.quantile(0.5) is None
    for value in (0.05, 0.05, 0.5, 50.0):
        histogram.observe(value)
    assert histogram.quantile(0.5) == 0.1
    assert histogram.quantile(0.75) == 1.0
    assert histogram.quantile(1.0) == math.inf


@given(st.integers(1, 50), st.floats(0.0, 20.0), st.floats(0.0, 20.0))
def test_evenly_spaced_values_are_counted_as_each_by_itself(count: int, first: float, last: float) -> None:
    """Up to a value that is as near to a bound as floats are to each other."""
    last = first if count == 1 else last
    together = Histogram(BOUNDS)
    together.observe_evenly(count, first, last)
    values = [first + (last - first) * (number / (count - 1) if number else 0) for number in range(count)]
    assert together.total == pytest.approx(sum(values))
    assert together.count == count
    for bound, counted in together.cumulative():
        assert (
            sum(value <= bound - 1e-9 for value in values) <= counted <= sum(value <= bound + 1e-9 for value in values)
        )
    assert min(together.counts) >= 0


@given(st.lists(st.floats(-1.0, 100.0)), st.lists(st.floats(-1.0, 100.0)))
def test_sum_counts_the_values_of_both(ones: list[float], others: list[float]) -> None:
    one, other, both = Histogram(BOUNDS), Histogram(BOUNDS), Histogram(BOUNDS)
    for histograms, values in (((one, both), ones), ((other, both), others)):
        for histogram in histograms:
            for value in values:
                histogram.observe(value)
    added = one.plus(other)
    assert list(added.cumulative()) == list(both.cumulative())
    assert added.total == pytest.approx(both.total)
    assert one.count == len(ones)
    with pytest.raises(ValueError, match="other bounds"):
        one.plus(Histogram((1.0,)))
