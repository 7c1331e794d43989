from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from consumerd.spark.report.facts import Interval, Landed, SizeClass, Sizes
from consumerd.spark.report.plots import MAX_POINTS, Plot, merge, plot_lag, plot_sizes, plot_throughput, thin

if TYPE_CHECKING:
    from datetime import datetime

    from consumerd.spark.report.facts import Facts

SVG = "{http://www.w3.org/2000/svg}"


def plots(facts: Facts) -> list[Plot]:
    return [plot_throughput(facts.landed), plot_lag(facts.progress.batches), plot_sizes(facts.landed.sizes)]


def test_plots_are_svg_that_fits_into_any_page(facts: Facts) -> None:
    for plot in plots(facts):
        root = ET.fromstring(plot.svg)
        assert root.tag == f"{SVG}svg"
        assert "viewBox" in root.attrib
        assert not {"width", "height"} & set(root.attrib)
        assert root.findtext(f"{SVG}title") == plot.title
        assert root.findtext(f"{SVG}desc") == plot.description
        assert root.find(f"{SVG}metadata") is None
        assert "ns0:" not in plot.svg


def test_colours_are_the_pages(facts: Facts) -> None:
    for plot in plots(facts):
        assert "#00000" not in plot.svg
        assert "var(--ink-soft)" in plot.svg
        assert "var(--line)" in plot.svg


def test_plots_do_not_change_what_others_draw(facts: Facts) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plots(facts)
    assert dict(mpl.rcParams) == before


def test_a_bar_for_each_interval(facts: Facts) -> None:
    fills = re.findall(r"fill: var\(--(first|second)\)", plot_throughput(facts.landed).svg)
    assert fills.count("first") == fills.count("second") == len(facts.landed.intervals)


@pytest.mark.parametrize("rows", [0, 1, 10**15])
def test_any_number_can_be_shown(facts: Facts, rows: int) -> None:
    start = facts.made
    landed = Landed(rows, rows, 0, 1, start, start, None, (Interval(start, rows, rows, 12345),), Sizes())
    assert "12345" in plot_throughput(landed).svg
    many = [Interval(start + timedelta(days=n), rows, rows) for n in range(120)]
    assert "at most" in plot_throughput(Landed(width=timedelta(days=1), intervals=tuple(many))).description
    assert plot_sizes(Sizes((SizeClass(0, 1 + rows, 0, 0),))).svg


def test_the_worst_lag_is_never_thinned_away(facts: Facts) -> None:
    start: datetime = facts.made
    points = [(start + timedelta(seconds=n), n % 1000) for n in range(100_000)]
    points[54_321] = (points[54_321][0], 10**9)
    kept = thin(points)
    assert len(kept) <= MAX_POINTS
    assert points[54_321] in kept
    assert kept[-1] == points[-1]
    assert thin(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_classes_are_merged_until_they_can_be_told_apart() -> None:
    classes = [SizeClass(number, 1, number, number) for number in range(240)]
    bars, step = merge(classes)
    assert (len(bars), step) == (30, 8)
    assert sum(rows for _, rows in bars) == 240
    assert merge(classes[:3]) == ([(0, 1), (1, 1), (2, 1)], 1)
