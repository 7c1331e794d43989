from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from benchmarks.__main__ import check, compile_package, known, main
from benchmarks.race import OURS, Measurement
from benchmarks.report import GLANCE, LAST_RUN, README, RECORDED, Report, Turn, markdown, number, text, with_tables
from benchmarks.suite import ENTRIES
from benchmarks.surroundings import NATIVE, PURE

ENDED = "2026-01-02T03:04:05Z"


def report(ratio: float = 2.0, *, kept: bool = True, failed: bool = False, codec: str = NATIVE) -> Report:
    machine = {"architecture": "x86_64", "cores": 2, "memory_gib": 8.0, "system": "Linux 6", "processor": "P"}
    rows = [
        Measurement("decode", "plain", OURS, 4.0, "M/s", rounds=3),
        Measurement("decode", "plain", "aiokafka", 4.0 / ratio, "M/s", ratio, 4.0, 0.05, 3),
        Measurement("daemon", "plain", "peak memory", 55.5, "MiB"),
    ]
    turns = [Turn("decode", ENDED, True, ["--rounds", "3"], 60.0, 0.5, 7.25, {"at least 1x": kept}, failed=failed)]
    return Report(codec, machine, {"python": "3.11.7", "kazoo": "2"}, turns, rows)


def test_a_record_is_read_as_it_was_written() -> None:
    assert Report.from_json(report().as_json()) == report()


def test_a_record_has_a_line_for_each_row() -> None:
    assert sum('"benchmark": "decode"' in line for line in report().as_json().splitlines()) == 3


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"format": 0}', report().as_json().replace('"rows"', '"rosw"')])
def test_rejects_anything_else(broken: str) -> None:
    with pytest.raises(ValueError, match="no record of a run"):
        Report.from_json(broken)


def test_tables_hold_ratios_and_figures_once() -> None:
    lines = markdown(report()).splitlines()
    assert "| plain | aiokafka | 4 | 2 | M/s | 2 | 5 % |" in lines
    assert "| plain | peak memory | 55.5 | MiB |" in lines
    assert not any("| plain | consumerd |" in line for line in lines)


def test_tables_say_what_they_depend_on() -> None:
    said = markdown(report())
    assert "2 cores of P (x86_64), 8.0 GiB, Linux 6" in said
    assert "Python 3.11.7; kazoo 2." in said
    assert "0.5 to 7.25" in said
    assert f"decode, quick (`--rounds 3`): 60 s, ended at {ENDED}, load 0.5 to 7.25." in said


def test_tables_list_broken_promises() -> None:
    assert "- at least 1x" in markdown(report(kept=False))
    assert "BROKEN: decode: at least 1x" in text(report(kept=False))
    assert "FAILED: decode" in text(report(failed=True))
    assert report().kept
    assert not report(kept=False).kept
    assert not report(failed=True).kept


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.12345, "0.123"), (9.999, "10"), (99.94, "99.9"), (1234.5, "1,234"), (2.0, "2")]
)
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert number(value) == said


def test_a_part_is_recorded_in_place_of_the_same_part() -> None:
    part = report(3.0)
    part = replace(part, rows=[row for row in part.rows if row.benchmark == "decode"])
    found = report(2.0).merged(part)
    assert [(row.benchmark, row.ratio) for row in found.rows] == [("daemon", None), ("decode", None), ("decode", 3.0)]
    assert found.turns == part.turns


def test_parts_of_other_machines_are_not_merged() -> None:
    other = replace(report(), machine={"architecture": "aarch64"})
    with pytest.raises(ValueError, match="of another machine"):
        report().merged(other)


@pytest.mark.parametrize("place", [LAST_RUN, GLANCE])
def test_tables_replace_those_before(place: tuple[str, str]) -> None:
    before = f"# Title\n{place[0]}\nold\n{place[1]}\nrest\n"
    tables = markdown(report())
    found = with_tables(before, place, tables)
    assert found.startswith("# Title\n")
    assert found.endswith("\nrest\n")
    assert tables in found
    assert "old" not in found
    assert with_tables(found, place, tables) == found


@pytest.mark.parametrize("place", [LAST_RUN, GLANCE])
def test_a_document_without_their_place_is_refused(place: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="no place"):
        with_tables("# Title\n", place, "")


def test_tables_of_the_readme_are_those_of_the_recorded_run() -> None:
    recorded = Report.from_json(RECORDED.read_text())
    assert with_tables(README.read_text(), LAST_RUN, markdown(recorded)) == README.read_text()


def test_the_recorded_run_is_of_the_suite_and_did_not_fail() -> None:
    recorded = Report.from_json(RECORDED.read_text())
    names = {turn.benchmark.partition(",")[0] for turn in recorded.turns}
    assert names <= {entry.name for entry in ENTRIES}
    assert names == {row.benchmark for row in recorded.rows}
    assert not any(turn.failed for turn in recorded.turns)


def test_the_suite_runs_benchmarks_that_exist() -> None:
    assert {entry.name for entry in ENTRIES} <= set(known())


@pytest.mark.parametrize("name", known())
def test_each_benchmark_is_explained(name: str) -> None:
    assert f"`{name}`" in README.read_text()


def test_check_fails_for_what_got_slower(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(report(2.0), report(2.0)) == 0
    assert check(report(2.0), report(2.5)) == 0
    assert check(report(2.0), report(1.5)) == 1
    assert capsys.readouterr().out.endswith("  decode: plain: 1.5 beside aiokafka, recorded 2 (-25 %, noise 10 %)\n")


def test_check_fails_for_a_benchmark_that_gave_nothing() -> None:
    assert check(report(), report(failed=True)) == 1


def test_check_refuses_another_codec() -> None:
    assert check(report(), report(codec=PURE)) == 2


def test_rejects_unknown_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "no benchmark is called nothing; there is archive, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "not in the suite: nothing"),
        (["--quik"], "unrecognized arguments: --quik"),
    ],
)
def test_rejects_invalid_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_a_start_compiles_nothing_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    module = tmp_path / "module.py"
    module.write_text("")
    compile_package(tmp_path)
    assert Path(cache_from_source(str(module))).exists()
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
