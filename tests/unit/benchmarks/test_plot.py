from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.plot import decoding, plot, series
from benchmarks.race import OURS, Measurement
from benchmarks.report import PLOT, RECORDED, Report

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
