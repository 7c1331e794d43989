from __future__ import annotations

import pytest

from benchmarks import glance
from benchmarks.race import Measurement
from benchmarks.report import GLANCE, PAGE, RECORDED, Report, at_a_glance, with_tables
from benchmarks.surroundings import NATIVE, PURE


def rows() -> list[Measurement]:
    return [
        Measurement(
            line.benchmark, line.case.format(codec), line.subject, 2.0, line.unit, 12.34 if codec == NATIVE else 0.987
        )
        for line in glance.LINES
        for codec in (NATIVE, PURE)
    ]


def test_each_line_has_the_ratios_of_its_rows() -> None:
    lines = glance.table(rows()).splitlines()
    assert "| decode 0.7, gzip | aiokafka | 12.3 | 0.99 |" in lines
    assert "| ZooKeeper, pipelined reads | aiozk | 0.99 | - |" in lines  # the same row for both codecs
    assert len(lines) == 2 + len(glance.LINES)


def test_a_record_without_a_row_is_refused() -> None:
    with pytest.raises(KeyError, match="decode"):
        glance.table([row for row in rows() if row.case != "gzip 100 B, native codec"])


def test_lines_of_a_benchmark_that_was_not_recorded_are_left_out() -> None:
    lines = glance.table([row for row in rows() if row.benchmark != "latency"]).splitlines()
    left_out = sum(line.benchmark == "latency" for line in glance.LINES)
    assert left_out > 5
    assert len(lines) == 2 + len(glance.LINES) - left_out


def test_table_of_the_page_is_that_of_the_recorded_run() -> None:
    recorded = Report.from_json(RECORDED.read_text())
    assert with_tables(PAGE.read_text(), GLANCE, at_a_glance(recorded.rows)) == PAGE.read_text()


def test_the_plot_of_latencies_is_shown_once_there_are_some() -> None:
    recorded = rows()
    assert "images/latency.svg" not in at_a_glance(recorded)
    recorded.append(Measurement("latency", "0.8+, 5/s, p50", "consumerd", 2.0, "ms", quantiles=[2.0] * 11))
    assert "(images/latency.svg)" in at_a_glance(recorded)
