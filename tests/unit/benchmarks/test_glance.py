from __future__ import annotations

import pytest

from benchmarks import glance
from benchmarks.race import Measurement
from benchmarks.report import GLANCE, PAGE, RECORDED, Report, with_tables
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
        glance.table([])


def test_table_of_the_page_is_that_of_the_recorded_run() -> None:
    recorded = Report.from_json(RECORDED.read_text())
    assert with_tables(PAGE.read_text(), GLANCE, glance.table(recorded.rows) + "\n") == PAGE.read_text()
