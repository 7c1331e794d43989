"""`consumerd spark` without Spark: what is refused before anything starts, and how results are shown."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.cli.spark_show import show_json, show_result, show_steps
from consumerd.cli.step_progress import SECONDS_PER_LINE, Counter, Spinner, StepLines, display
from consumerd.spark.step_history import StepRun

PIPELINE = '[spark]\nroot = "lake"\n[spark.pipelines.p.source]\npath = "/archive"\nsubscribe = "t"\n'


@pytest.mark.parametrize("step", ["run", "land", "refine", "aggregate", "compact", "reconcile", "report", "read"])
def test_every_step_has_help_with_examples(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", step, "--help"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert f"  consumerd spark {step} " in said
    assert "--json" in said
    assert "--master" in said


def test_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else found(name))
    for arguments in (["land", "-c", "x.toml"], ["read", "--path", "x", "--subscribe", "t"]):
        assert run(["spark", *arguments]) == ExitCode.CONFIG
        assert capsys.readouterr().err == (
            "consumerd: this needs the package pyarrow; install the spark extra: pip install 'consumerd[spark]'\n"
        )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["land"], ExitCode.USAGE, "Missing option '-c'"),
        (["land", "-c", "no.toml"], ExitCode.CONFIG, "cannot read the configuration no.toml"),
        (["land", "-c", "p.toml", "--pipeline", "q"], ExitCode.NOT_FOUND, "no pipeline 'q'; declared pipelines: p"),
        (["land", "-c", "p.toml", "--continuous"], ExitCode.CONFIG, "trigger of pipeline p is available-now"),
        (["read", "--count", "--show", "3"], ExitCode.USAGE, "at most one of --show, --count and --to"),
        (["read", "--to", "csv:x"], ExitCode.USAGE, "'csv:x' is not FORMAT:DIR with one of parquet, json, orc"),
        (["read", "--to", "parquet"], ExitCode.USAGE, "is not FORMAT:DIR"),
        (["read", "--option", "x"], ExitCode.USAGE, "'x' is not NAME=VALUE"),
        (
            ["read", "--path", "logs", "--option", "subscribe=t", "--log", "no/such/file"],
            ExitCode.CONFIG,
            "--log no/such/file cannot be written",
        ),
    ],
)
def test_reports_errors_before_spark_starts(
    arguments: list[str],
    code: ExitCode,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PIPELINE)
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    (tmp_path / "logs" / "t-0" / f"{0:020}.kafka").write_bytes(b"")
    assert run(["spark", *arguments]) == code
    assert sentence in capsys.readouterr().err


RESULT: dict[str, Any] = {
    "pipeline": "p",
    "rows": 1234567,
    "seconds": 1.50,
    "clean": True,
    "last": None,
    "reasons": {"no JSON": 3, "x\x1b[m": 1},
    "none": [],
    "partitions": [{"topic": "t", "rows": 5, "gaps": ["[0, 9)"]}, {"topic": "u", "rows": 0, "late": 1}],
}


def test_prints_a_line_per_value_and_row_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_result("land", RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "land\tpipeline\tp",
        "land\trows\t1234567",
        "land\tseconds\t1.5",
        "land\tclean\tyes",
        "land\tlast\t",
        "land\treasons\tno JSON=3, x\\x1b[m=1",
        "land\tpartitions\tt\t5\t[0, 9)\t",
        "land\tpartitions\tu\t0\t\t1",
    ]


def test_prints_tables_with_heads_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = StepRun("land", datetime(2026, 11, 21, tzinfo=UTC), 19.0, 3_420_000, 120_000_000)
    idle = replace(run, step="reconcile", rows=None, written=None, seconds=1.5)
    compacted = {"pipeline": "p", "tables": [{"table": "bronze", "files_before": 1200, "merged": 2}]}
    show_steps([run.as_json(), idle.as_json()])
    assert (
        capsys.readouterr().out == "steps\tland\t3420000\t180000\t120000000\t6.3\t19\nsteps\treconcile\t\t\t\t\t1.5\n"
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    show_steps([run.as_json(), idle.as_json()])
    show_result("compact", compacted)
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        "step            rows   rows/s  bytes written  MB/s  seconds",
        "land       3,420,000  180,000    120,000,000   6.3       19",
        f"{'reconcile':<56}1.5",
        "",
        "compact",
        "result    value",
        "pipeline  p",
        "",
        "compact: tables",
        "table   files before  merged",
        "bronze         1,200       2",
    ]


def test_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(RESULT)
    assert json.loads(capsys.readouterr().out) == RESULT


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_counts_a_batch_once_however_often_it_is_reported() -> None:
    time = Time()
    counter = Counter(time)
    counter.step("land")
    time.now += 3
    assert counter.text() == "land: 3 s"
    counter.batch("q", 0, 1000, 500.0)
    counter.batch("q", 0, 1000, 500.0)
    assert counter.text() == "land: 3 s, 1 batch, 1,000 rows, 500 rows/s"
    counter.batch("q", 1, 500, 2500.0)
    assert counter.text() == "land: 3 s, 2 batches, 1,500 rows, 2,500 rows/s"
    counter.step("refine")
    assert counter.text() == "refine: 0 s"


def test_writes_progress_lines_to_a_log() -> None:
    time, stream = Time(), StringIO()
    lines = StepLines(stream, time)
    lines.step("land")
    lines.batch("q", 0, 7, 1.0)
    lines.tick()
    time.now += SECONDS_PER_LINE
    lines.tick()
    lines.tick()
    assert stream.getvalue() == "consumerd: land\nconsumerd: land: 10 s, 1 batch, 7 rows, 1 rows/s\n"


def test_terminal_keeps_the_result_of_each_step() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with display(stream) as shown:
        shown.step("land")
        shown.batch("q", 0, 7, 1.0)
        shown.tick()
        shown.step("refine")
    assert "land: 0 s, 1 batch, 7 rows, 1 rows/s" in stream.getvalue()


def test_line_of_a_terminal_has_the_seconds_although_nothing_is_reported() -> None:
    time, stream = Time(), StringIO()
    shown = Spinner(Console(file=stream), time)
    shown.step("starting Spark")
    time.now += 5
    Console(file=stream).print(shown)
    assert stream.getvalue() == "starting Spark: 5 s\n"


SIGNALLED = """
import os, signal, sys, threading
from types import SimpleNamespace
from consumerd.cli.step_progress import StepLines
from consumerd.cli.spark_session import StoppedBySignal, Work, _caught_signals

cancelled = threading.Event()
spark = SimpleNamespace(
    streams=SimpleNamespace(active=[]), sparkContext=SimpleNamespace(cancelAllJobs=cancelled.set)
)
with _caught_signals() as signals, Work(spark, StepLines(sys.stderr, lambda: 0.0), signals) as work:
    os.kill(os.getpid(), signal.SIGTERM)
    assert cancelled.wait(20)
    try:
        work.begin("refine")
    except StoppedBySignal as error:
        print(error, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(20)
print("went on")
"""


def test_first_signal_stops_the_steps_and_the_second_ends_the_process() -> None:
    command = [sys.executable, "-c", SIGNALLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.FORCED, done.stderr
    assert done.stdout == "stopped by SIGTERM; the same command continues where this one stopped.\n"


GRACEFUL = """
import os, signal, sys
from types import SimpleNamespace
from consumerd.cli.step_progress import StepLines
from consumerd.cli.spark_session import Work, _caught_signals
from consumerd.spark.stopping import stop_on_signals

cancelled = []
spark = SimpleNamespace(
    streams=SimpleNamespace(active=[]), sparkContext=SimpleNamespace(cancelAllJobs=lambda: cancelled.append(1))
)
with _caught_signals() as signals, Work(spark, StepLines(sys.stderr, lambda: 0.0), signals) as work:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(20) and work.wait(20)
    work._done.wait(0.5)  # some looks of the thread
print(cancelled)
"""


def test_a_step_that_ends_its_batch_keeps_its_jobs_after_a_signal() -> None:
    done = subprocess.run([sys.executable, "-c", GRACEFUL], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dry-run"], "--dry-run requires --again"),
        (["--since", "2026-11-01"], "--since requires --again"),
        (["--again", "--until", "noon"], "must be ISO 8601, such as 2026-11-21T12:00, not 'noon'"),
        (["--again", "--since", "2026-11-02T01:00+01:00", "--until", "2026-11-02"], "must be later than --since"),
    ],
)
@pytest.mark.parametrize("command", ["lake", "spark"])
def test_options_of_refine_again(
    command: str,
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PIPELINE)
    assert run([command, "refine", "-c", "p.toml", *arguments]) == ExitCode.USAGE
    assert sentence in " ".join(capsys.readouterr().err.split())
