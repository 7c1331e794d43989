from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from consumerd.demo import pipeline as module
from consumerd.demo.audit import AuditResult
from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError, DemoInputError
from consumerd.demo.pipeline import REPORT, Pipeline, PipelineResult, configuration, missing_package
from consumerd.demo.result import DemoResult
from consumerd.spark.spec import parse_spark

FOUND: dict[str, Any] = {
    "land": {"batches": 3, "seconds": 1.5},
    "refine": {"rows_silver": 70, "rows_quarantined": 30, "seconds": 2},
    "aggregate": {"rows": 70, "windows": 9, "seconds": 1},
    "reconcile": {"rows_landed": 100, "rows_quarantined": 30, "gaps": 0, "duplicates": 0},
}


def test_declares_a_valid_pipeline(tmp_path: Path) -> None:
    tables = configuration(tmp_path, tmp_path / "files", "lines", 1000)
    spec = parse_spark({"spark": {**tables["spark"], "pipelines": {"lines": tables["spark.pipelines.lines"]}}}, "demo")
    pipeline = spec.pipeline("lines")
    assert pipeline.source == {"files": str(tmp_path / "files"), "subscribe": "lines", "maxBytesPerTrigger": "751"}
    assert pipeline.aggregate_spec is not None
    pattern = re.compile(module._PATTERN.replace("(?<", "(?P<"))
    words = {line: match["word"] for line in ("  if x:", "}", "", "42", "end\r") if (match := pattern.fullmatch(line))}
    assert words == {"  if x:": "if", "end\r": "end"}


def test_says_which_counts_wait_for_later_messages() -> None:
    assert module._counts(9, 0) == "9 counts of a word in a second"
    assert module._counts(9, 1200) == (
        "9 counts of a word in a second, and 1,200 that are complete once later messages come"
    )
    assert module._counts(0, 12) == "12 counts of a word in a second, complete once later messages come"


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., tuple[Pipeline, Child]]:
    """A pipeline whose process has printed this result, and has ended."""

    def make(found: Any, *, report: Path | None) -> tuple[Pipeline, Child]:
        page = tmp_path / "page.html"
        page.write_text("<html>")
        pipeline = Pipeline(tmp_path / "p", tmp_path / "files", "lines", report)
        pipeline.prepare()
        said = {**found, "report": {"page": str(page)}} if found else {}
        (tmp_path / "p" / "pipeline.json").write_text(json.dumps(said))
        child = Child([sys.executable, "-c", "raise SystemExit('no luck')"], log=tmp_path / "log")
        child.start()
        return pipeline, child

    return make


async def test_writes_the_report_to_the_given_path(
    ended: Callable[..., tuple[Pipeline, Child]], tmp_path: Path
) -> None:
    pipeline, child = ended(FOUND, report=tmp_path / "kept.html")
    await child.wait(30)
    result = pipeline.result(child)
    assert (result.rows_landed, result.rows_quarantined, result.gaps, result.duplicates) == (100, 30, 0, 0)
    assert result.report.read_text() == "<html>"
    assert result.report == tmp_path / "kept.html"
    assert [step[:2] for step in result.steps] == [("land", 100), ("refine", 70), ("aggregate", 70)]
    await child.stop()


async def test_rejects_an_unwritable_report_path(
    ended: Callable[..., tuple[Pipeline, Child]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, child = ended(FOUND, report=tmp_path / "no" / "kept.html")
    await child.wait(30)
    with pytest.raises(DemoInputError, match=r"the report cannot be written to .*: No such file"):
        pipeline.result(child)
    (tmp_path / "here" / REPORT).mkdir(parents=True)  # in the way of the default report
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipeline, again = ended(FOUND, report=None)
    await again.wait(30)
    made = pipeline.result(again).report
    assert (made.parent, made.read_text()) == (tmp_path, "<html>")
    await child.stop()
    await again.stop()


async def test_reports_a_failed_pipeline(ended: Callable[..., tuple[Pipeline, Child]]) -> None:
    pipeline, child = ended(None, report=None)
    await child.wait(30)
    with pytest.raises(ChildError, match="the pipeline ended with status 1: no luck"):
        pipeline.result(child)
    await child.stop()


def test_names_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_package() is None
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "jinja2" else find_spec(name))
    assert missing_package() == "jinja2"


def test_requires_counts_and_tables_to_agree() -> None:
    audit = AuditResult(produced=100, handled=100, distinct=100)
    assert DemoResult(audit, 1, 2.0).sound
    assert DemoResult(audit, 1, 2.0).as_json()["rows_landed"] is None
    good = PipelineResult(100, 30, 0, 0, Path("r.html"))
    assert DemoResult(audit, 1, 2.0, good).sound
    told = DemoResult(audit, 1, 2.0, good).as_json()
    assert (told["rows_landed"], told["rows_quarantined"], told["duplicated"], told["duplicates"]) == (100, 30, 0, 0)
    for bad in (PipelineResult(99, 0, 0, 0, Path("r")), PipelineResult(100, 0, 1, 0, Path("r"))):
        assert not DemoResult(audit, 1, 2.0, bad).sound
        assert DemoResult(audit, 1, 2.0, bad).findings
