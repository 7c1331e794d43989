"""The record of a step's runs; the file is one of this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.files import SystemFiles
from consumerd.spark import step_history
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.step_history import MAX_RUNS, StepRun, note_run, read_runs, step_run

START = datetime(2026, 11, 21, 17, tzinfo=UTC)
SPARK: Any = None


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineSpec:
    monkeypatch.setattr(step_history, "locate", lambda _spark, path: (path, SystemFiles()))
    return PipelineSpec("p", str(tmp_path), {})


def test_records_runs_and_keeps_the_newest(pipeline: PipelineSpec) -> None:
    assert read_runs(SPARK, pipeline) == ()
    for number in range(3):
        note_run(SPARK, pipeline, StepRun("land", START, 2.0, number, 10, {"late": number}))
    assert read_runs(SPARK, pipeline)[-1] == StepRun("land", START, 2.0, 2, 10, {"late": 2})
    file = Path(pipeline.base, "_progress", "runs.ndjson")
    lines = file.read_bytes()
    assert lines.count(b"\n") == 3
    file.write_bytes(lines * MAX_RUNS + b"{torn\n[]\n" + lines.replace(b'"seconds": 2.0', b'"seconds": "x"'))
    note_run(SPARK, pipeline, StepRun("refine", START, 1.0))
    runs = read_runs(SPARK, pipeline)
    assert len(runs) == MAX_RUNS
    assert runs[-1].step == "refine"


def test_a_failed_write_is_logged(pipeline: PipelineSpec, capsys: pytest.CaptureFixture[str]) -> None:
    Path(pipeline.base).mkdir(parents=True)
    Path(pipeline.base, "_progress").touch()
    note_run(SPARK, pipeline, StepRun("land", START, 2.0))
    assert "step_history_write_failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("result", "rows"),
    [
        ({"rows": 7, "seconds": 1.0, "table": "t"}, 7),
        ({"rows_silver": 5, "rows_quarantined": 2, "duplicates": 1, "reasons": {"x": 2}}, 8),
        ({"clean": True, "rows_landed": 9, "rows_refined": 5, "rows_quarantined": 4, "duplicates": 0}, 9),
        ({"tables": []}, None),
    ],
)
def test_takes_the_rows_that_a_step_processed_from_its_result(result: dict[str, Any], rows: int | None) -> None:
    run = step_run("s", START, 2.0, result, 4_000_000)
    assert run.rows == rows
    assert run.rows_per_second == (None if rows is None else rows / 2)
    assert run.megabytes_per_second == 2.0
    assert not any(isinstance(value, (list, dict)) for value in run.figures.values())


def test_speeds_that_are_not_known_are_absent() -> None:
    assert StepRun("s", START, 0.0, 5).rows_per_second is None
    assert StepRun("s", START, 1.0).as_json() == {
        "step": "s", "seconds": 1.0, "rows": None, "rows_per_second": None, "written_bytes": None,
        "megabytes_per_second": None,
    }  # fmt: skip
