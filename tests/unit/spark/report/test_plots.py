from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from consumerd.spark.report.facts import EventFacts, LandedFacts, LandedInterval, MessageSizes, ReportFacts, SizeClass
from consumerd.spark.report.plots import MAX_POINTS, Plot, merge, plot_events, plot_lag, plot_landed, plot_sizes, thin

MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def plots(facts: ReportFacts) -> list[Plot]:
    assert facts.events is not None
    events = plot_events(facts.events, facts.windows.watermark if facts.windows else None)
    return [events, plot_landed(facts.landed), plot_lag(facts.progress.batches), plot_sizes(facts.landed.sizes)]


def test_plots_are_svg_for_inclusion_in_a_page(facts: ReportFacts) -> None:
    for plot in plots(facts):
        root = ET.fromstring(plot.svg)
        assert root.tag == f"{SVG}svg"
        assert "viewBox" in root.attrib
        assert not {"width", "height"} & set(root.attrib)
        assert root.findtext(f"{SVG}title") == plot.title
        assert root.findtext(f"{SVG}desc") == plot.description
        assert root.find(f"{SVG}metadata") is None
        assert "ns0:" not in plot.svg


def test_plots_use_the_colours_of_the_page(facts: ReportFacts) -> None:
    for plot in plots(facts):
        assert "#00000" not in plot.svg
        assert "var(--ink-soft)" in plot.svg
        assert "var(--line)" in plot.svg


def test_plots_do_not_change_global_matplotlib_settings(facts: ReportFacts) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plots(facts)
    assert dict(mpl.rcParams) == before


def test_draws_a_bar_per_interval(facts: ReportFacts) -> None:
    fills = re.findall(r"fill: var\(--(first|bad)\)", plot_landed(facts.landed).svg)
    assert fills.count("first") == fills.count("bad") == len(facts.landed.intervals)
    unrefined = tuple(replace(one, quarantined=None) for one in facts.landed.intervals)
    assert "var(--bad)" not in plot_landed(replace(facts.landed, intervals=unrefined)).svg


@pytest.mark.parametrize("rows", [0, 1, 10**15])
def test_plots_any_number(facts: ReportFacts, rows: int) -> None:
    start = facts.made
    landed = LandedFacts(
        rows, rows, 0, 1, start, start, None, (LandedInterval(start, rows, rows, 12345),), MessageSizes()
    )
    assert "12345" in plot_landed(landed).svg
    many = [LandedInterval(start + timedelta(days=n), rows, rows) for n in range(120)]
    assert "at most" in plot_landed(LandedFacts(width=timedelta(days=1), intervals=tuple(many))).description
    assert plot_sizes(MessageSizes((SizeClass(0, 1 + rows, 0, 0),))).svg


def test_thinning_keeps_the_largest_lag(facts: ReportFacts) -> None:
    start: datetime = facts.made
    points = [(start + timedelta(seconds=n), n % 1000) for n in range(100_000)]
    points[54_321] = (points[54_321][0], 10**9)
    kept = thin(points)
    assert len(kept) <= MAX_POINTS
    assert points[54_321] in kept
    assert kept[-1] == points[-1]
    assert thin(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_merges_size_classes_until_they_are_distinguishable() -> None:
    classes = [SizeClass(number, 1, number, number) for number in range(240)]
    bars, step = merge(classes)
    assert (len(bars), step) == (30, 8)
    assert sum(rows for _, rows in bars) == 240
    assert merge(classes[:3]) == ([(0, 1), (1, 1), (2, 1)], 1)


def test_time_axis_has_dates_even_with_hourly_ticks(facts: ReportFacts) -> None:
    def words(*hours: float) -> set[str]:
        batches = [replace(facts.progress.batches[0], started=MIDNIGHT + timedelta(hours=each)) for each in hours]
        return {element.text or "" for element in ET.fromstring(plot_lag(batches).svg).iter(f"{SVG}text")}

    assert "2026-11-21 (UTC)" in words(3, 3.1, 3.2)
    assert "2026-11-21 to 2026-11-23 (UTC)" in words(3, 30, 50)


@pytest.mark.parametrize("count", [1, 6, 30])
def test_bars_of_batches_fill_the_width_of_the_plot(facts: ReportFacts, count: int) -> None:
    batches = tuple(LandedInterval(facts.made, 10, 10, number) for number in range(count))
    svg = plot_landed(LandedFacts(10 * count, 10 * count, intervals=batches)).svg
    _, _, width, _ = map(float, ET.fromstring(svg).attrib["viewBox"].split())
    bars = [path for path in ET.fromstring(svg).iter(f"{SVG}path") if "var(--first)" in path.attrib.get("style", "")]
    xs = [float(x) for bar in bars for x in re.findall(r"[ML] ([0-9.]+)", bar.attrib["d"])]
    assert len(bars) == count
    left, right = min(xs), width - max(xs)
    assert abs(left - right) < width / 6, "beside the labels of the axis"
    if count > 4:
        assert left + right < width / 5


def events(*rows: int, hours: float = 1 / 60) -> EventFacts:
    width = timedelta(hours=hours)
    found = tuple((MIDNIGHT + n * width, each) for n, each in enumerate(rows) if each)
    return EventFacts(sum(rows), 0, MIDNIGHT, MIDNIGHT, found, width)


def test_rates_of_events_have_a_unit_that_suits_them() -> None:
    assert "at most 30, 20 on average" in plot_events(events(30, 0, 30)).description, "also minutes without an event"
    assert plot_events(events(30, 0, 30)).title == "Events per minute"
    hourly = plot_events(events(5, 0, 10, hours=1))
    assert (hourly.title, hourly.description.rpartition(": ")[2]) == ("Events per hour", "at most 10, 5 on average.")
    assert "at most 1, 0.5 on average" in plot_events(events(1, 0, 0, 1, hours=24)).description
