"""Spark that starts before its work: nothing runs without a line, and the session always ends."""

from __future__ import annotations

import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.demo import early_spark


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was called, in order."""
    calls: list[Any] = []

    def build(master: str, **options: Any) -> str:
        calls.append(("start", master, options["config"]))
        return "session"

    def run(name: str, **_: Any) -> None:
        calls.append((name, sys.argv[1:]))
        raise SystemExit(11)

    monkeypatch.setattr(early_spark, "build_session", build)
    monkeypatch.setattr(early_spark, "end_session", lambda spark: calls.append(("end", spark)))
    monkeypatch.setattr(runpy, "run_module", run)
    monkeypatch.setattr(sys, "argv", ["early_spark"])
    return calls


def test_runs_the_command_in_the_session_after_a_line(
    tmp_path: Path, happened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "s.json"
    settings.write_text(json.dumps({"master": "local[2]", "config": {"a": "1"}}))
    started = ("start", "local[2]", {"a": "1"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("run\n"))
    with pytest.raises(SystemExit, match="11"):
        early_spark.main(settings, tmp_path / "log", ["spark", "run"])
    assert happened == [started, ("consumerd", ["spark", "run"]), ("end", "session")]
    happened.clear()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    early_spark.main(settings, tmp_path / "log", ["spark", "run"])
    assert happened == [started, ("end", "session")]
