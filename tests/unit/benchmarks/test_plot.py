from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.latency_clients import QUANTILES
from benchmarks.plot import decoding, latency, plot, series
from benchmarks.race import OURS, Measurement
from benchmarks.report import LATENCIES, PLOT, RECORDED, Report

SVG = "{http://www.w3.org/2000/svg}"


def test_series_are_ways_and_peers_by_size() -> None:
    rows = [
        Measurement("decode", "plain 10 B, pure codec", OURS, 4.0, "M msg/s"),
        Measurement("decode", "plain 10 B, pure codec", "aiokafka", 2.0, "M msg/s", 2.0, 4.0),
        Measurement("decode", "plain 1000 B, pure codec", OURS, 1.0, "M msg/s"),
        Measurement("decode", "gzip 100 B, pure codec", OURS, 9.0, "M msg/s"),
        Measurement("archive", "plain 10 B, pure codec", OURS, 9.0, "M msg/s"),
    ]
    assert series(rows) == {"consumerd, pure codec": {10: 4.0, 1000: 1.0}, "aiokafka": {10: 2.0}}


def test_axes_are_logarithmic() -> None:
    root = ElementTree.fromstring(plot("t", "x", "y", {"a": {10: 1.0, 100: 10.0, 1000: 100.0}}))
    line = root.find(f"{SVG}polyline")
    assert line is not None
    (x0, y0), (x1, y1), (x2, y2) = [map(float, point.split(",")) for point in line.attrib["points"].split()]
    assert x1 - x0 == pytest.approx(x2 - x1) == pytest.approx(200)
    assert y0 - y1 == pytest.approx(y1 - y2) == pytest.approx(170)


def test_names_are_escaped() -> None:
    root = ElementTree.fromstring(plot("a < b", "&", "y", {"<c>": {10: 1.0}}))
    assert [text.text for text in root.iter(f"{SVG}text")][-1] == "<c>"


def test_rejects_rows_without_a_line() -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        decoding([])


def test_the_plot_is_that_of_the_recorded_run() -> None:
    assert decoding(Report.from_json(RECORDED.read_text()).rows) == PLOT.read_text()


def test_latencies_have_a_plot_for_each_case_and_a_line_for_each_subject() -> None:
    ages = [0.1 * 10 ** (4 * part) for part in QUANTILES]  # from 0.1 to 1000 ms
    rows = [
        Measurement("latency", f"0.8+, {rate}/s over 8 partitions, p50", subject, 10.0, "ms", quantiles=ages)
        for rate in (5, 200)
        for subject in (OURS, "aiokafka")
    ]
    rows.append(Measurement("latency", "0.8+, 5/s over 8 partitions, p99", OURS, 20.0, "ms"))
    root = ElementTree.fromstring(latency(rows))
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 4
    points = [tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split()]
    assert len(points) == len(QUANTILES)
    # This distribution is a straight line: the axis of ages is logarithmic.
    assert points[5] == pytest.approx(((points[0][0] + points[-1][0]) / 2, (points[0][1] + points[-1][1]) / 2), abs=0.1)
    titles = [text.text for text in root.iter(f"{SVG}text")]
    assert titles.count("0.8+, 5/s over 8 partitions") == 1
    assert titles.count("aiokafka") == 1


def test_rejects_latencies_without_a_distribution() -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        latency([Measurement("latency", "0.8+, 5/s, p99", OURS, 20.0, "ms")])


def test_the_plot_of_latencies_is_that_of_the_recorded_run() -> None:
    rows = Report.from_json(RECORDED.read_text()).rows
    if any(row.quantiles for row in rows):
        assert latency(rows) == LATENCIES.read_text()
    else:
        assert not LATENCIES.exists()
