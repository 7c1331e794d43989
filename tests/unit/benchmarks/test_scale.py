"""The record of what grows with partitions and members, and its plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import scale
from benchmarks.plot import footprint, group
from benchmarks.race import Measurement
from benchmarks.report import Report, Turn

SVG = "{http://www.w3.org/2000/svg}"


def texts(plot: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(plot).iter(f"{SVG}text")]


def test_costs_of_a_daemon_are_lines_by_partitions() -> None:
    rows = [
        Measurement("footprint", "1 partitions, 1 brokers", "idle: memory", 40.0, "MiB"),
        Measurement("footprint", "10 partitions, 1 brokers", "idle: memory", 50.0, "MiB"),
        Measurement("footprint", "1 partitions, 1 brokers", "idle: processor", 0.0, "% of a core"),
        Measurement("footprint", "10 partitions, 1 brokers", "threads", 7.0, ""),
    ]
    plot = footprint(rows)
    assert "resident memory, MiB" in texts(plot)
    assert plot.count("<polyline") == 1
    assert "threads" not in plot


def test_requests_of_events_are_lines_by_members() -> None:
    case = "model, {} members, 200 partitions, earliest, 0 ms"
    rows = [
        Measurement("group", case.format(count), f"{event}: {what}", value, "")
        for count, value in ((2, 10.0), (20, 30.0))
        for event in ("start", "join at the end", "all stop")
        for what in ("requests", "lower bound of requests", "settled")
    ]
    rows.append(Measurement("group", "events, 2 members, 200 partitions, earliest, 0 ms", "join: requests", 5.0, ""))
    plot = group(rows)
    assert {"join at the end", "all stop", "2", "20"} <= set(texts(plot))
    assert plot.count("<polyline") == 2
    assert texts(plot)[0] == "A group that owns 200 partitions (requests to ZooKeeper at an event)"


def test_ten_thousand_partitions_have_a_longer_session() -> None:
    many, few, model = scale.commands([10_000, 10], [200], 30.0)[:3]
    assert many[-4:] == ["--rate", "0.1", "--session-timeout", "30"]
    assert few == ["footprint", "--partitions", "10", "--brokers", "1", "--seconds", "30"]
    assert model == ["group", "--scenario", "model", "--members", "200", "--partitions", "200"]


def test_failure_is_named_and_the_rest_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Report.from_json(scale.RECORD.read_text()).rows

    def run(name: str, *arguments: str) -> tuple[Turn, list[Measurement]]:
        failed = "10000" in arguments
        turn = Turn(name, "2026-01-02T03:04:05Z", False, list(arguments), 1.0, 0.5, 0.5, {}, failed=failed)
        return turn, [] if failed else [row for row in rows if row.benchmark == name]

    monkeypatch.setattr(scale, "run", run)
    monkeypatch.setattr(scale, "RECORD", tmp_path / "scale.json")
    monkeypatch.setattr(scale, "PLOTS", {tmp_path / "group.svg": group})
    assert scale.main(["--partitions", "10", "10000", "--members", "2"]) == 1
    assert capsys.readouterr().err.startswith("FAILED: footprint --partitions 10000")
    assert {row.benchmark for row in Report.from_json((tmp_path / "scale.json").read_text()).rows} == {
        "footprint",
        "group",
    }
    assert (tmp_path / "group.svg").read_text().startswith("<svg")


def test_a_size_that_is_measured_again_replaces_that_of_the_record() -> None:
    old = Report.from_json(scale.RECORD.read_text())
    turn, row = old.turns[0], old.rows[0]
    new = replace(old, turns=[replace(turn, seconds=1.5)], rows=[replace(row, value=123.0)])
    merged = scale.added(old, new)
    assert sorted(turn.seconds for turn in merged.turns)[:1] == [1.5]
    assert len(merged.turns) == len(old.turns)
    assert [found.value for found in merged.rows if found.case == row.case] == [123.0]
    with pytest.raises(ValueError, match="another machine"):
        scale.added(old, replace(new, machine={}))


@pytest.mark.parametrize("path", scale.PLOTS, ids=lambda path: path.name)
def test_the_plots_are_those_of_the_record(path: Path) -> None:
    report = Report.from_json(scale.RECORD.read_text())
    assert not any(turn.failed for turn in report.turns)
    assert scale.PLOTS[path](report.rows) == path.read_text()
