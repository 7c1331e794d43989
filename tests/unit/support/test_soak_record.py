"""The picture of a run is SVG with a line for each kind of process, and the table names what is broken."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.plot import NAMESPACE
from tests.soak.record import as_table, picture, rates
from tests.soak.sampling import Life
from tests.soak.stage import LINES, lines_of, number_of
from tests.soak.verdict import measure


def record() -> dict[str, Any]:
    at = [5.0 * number for number in range(600)]
    lives = [
        Life(name, number, at, [90.0 + number] * 600, [20] * 600, [None, *[40] * 599], [10.0 * t for t in at],
             [0.0] * 600, at, 95.0)
        for number, name in enumerate(["member-0", "member-1", "broker-0"])
    ]  # fmt: skip
    return {
        "title": "50 minutes at <half> of full speed",
        "seconds": 3000.0,
        "sinks": {"files": {"rows": 7, "missing": 0}},
        "memory_limit": 180.0,
        "growth": [measure(life).as_json() for life in lives],
        "violations": ["member-1 grew"],
        "stays": "member-0",
        "rated": "handled",
        "faults_at": [10.0, 20.0, 2990.0],
        "lives": [life.as_json() for life in lives],
    }


def test_picture_has_every_panel_and_the_limit() -> None:
    root = ET.fromstring(picture(record()))
    texts = [each.text for each in root.iter(f"{{{NAMESPACE}}}text")]
    assert root.tag == f"{{{NAMESPACE}}}svg"
    assert "50 minutes at <half> of full speed" in texts
    for name in ("member that stays", "other members", "broker-0", "limit 180", "faults begin", "asyncio tasks"):
        assert name in texts
    lines = list(root.iter(f"{{{NAMESPACE}}}polyline"))
    assert len(lines) == 3 * 3 + 1
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 860
            assert 0 <= y <= 640


def test_table_ends_with_what_is_broken() -> None:
    lines = as_table(record()).splitlines()
    assert lines[-1] == "VIOLATION member-1 grew"
    assert any(line.startswith("sinks") and "'rows': 7" in line for line in lines)


def test_rates_are_differences_within_a_process() -> None:
    at = [5.0 * number for number in range(201)]
    lives = [{"at": at, "handled": [1e6 * pid + 10 * t for t in at]} for pid in range(2)]
    found = rates(lives, 1000.0)
    assert len(found) == 100
    assert {round(rate, 6) for _, rate in found} == {0.02}


def test_lines_are_a_function_of_their_numbers() -> None:
    assert lines_of(5) == lines_of(5) != lines_of(6)
    assert [number_of(line) for line in lines_of(123)] == [(123, line) for line in range(LINES)]
    assert max(map(len, lines_of(5))) > 5000
