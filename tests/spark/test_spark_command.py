"""`consumerd spark` on the tests' session: results, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.cli.spark_show import show_json
from consumerd.demo.processes import format_toml
from consumerd.spark import run as steps_of_spark
from consumerd.wire.v07 import encode_message_set
from tests.support.lake_tables import replace_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = 60


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    log = tmp_path / "archive" / "t-0"
    log.mkdir(parents=True)
    lines = [b"\xff%d" % n if n % 10 == 0 else b'{"id": %d}' % n for n in range(LINES)]
    (log / f"{0:020}.kafka").write_bytes(encode_message_set(lines))
    return tmp_path / "archive"


@pytest.fixture
def declared(tmp_path: Path, archive: Path) -> Callable[..., str]:
    """Write a pipeline's configuration; the name of the file."""

    def write(**pipeline: Any) -> str:
        tables: dict[str, dict[str, Any]] = {
            "spark": {"root": str(tmp_path / "lake")},
            "spark.pipelines.p": {
                "source": {"path": str(archive), "subscribe": "t"},
                "refine": {"fields": {"id": "bigint not null"}},
                **pipeline,
            },
        }
        (tmp_path / "p.toml").write_text(format_toml(tables))
        return str(tmp_path / "p.toml")

    return write


def test_runs_all_steps_and_reports_missing_rows(
    spark: SparkSession, declared: Callable[..., str], archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = declared()
    segment = archive / "t-0" / f"{0:020}.kafka"
    messages = segment.read_bytes()
    segment.write_bytes(b"")  # a topic without any message so far is not an error
    assert run(["spark", "run", "-c", config, "--json"]) == ExitCode.OK
    assert list(json.loads(capsys.readouterr().out)) == ["land", "steps"]
    segment.write_bytes(messages)
    assert run(["spark", "run", "-c", config, "--json"]) == ExitCode.OK
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert list(found) == ["land", "refine", "reconcile", "report", "steps"]
    assert [(each["step"], each["rows"]) for each in found["steps"]] == [
        *((step, LINES) for step in ("land", "refine", "reconcile")),
        ("report", None),
    ]
    assert found["steps"][0]["megabytes_per_second"] is not None
    assert (found["land"]["rows"], found["refine"]["rows_quarantined"]) == (LINES, LINES // 10)
    assert (found["reconcile"]["clean"], found["reconcile"]["gaps"]) == (True, 0)
    assert Path(found["report"]["page"]).is_file()
    steps = ("land", "refine", "reconcile", "report")
    assert all(f"consumerd: {step}\n" in told.err for step in steps)
    assert spark.range(3).count() == 3  # a session that existed before continues

    assert run(["spark", "aggregate", "-c", config]) == ExitCode.CONFIG
    assert "aggregate" in capsys.readouterr().err
    bronze = tmp_path / "lake" / "p" / "bronze"
    replace_files(str(bronze), [file.name for file in bronze.glob("*.parquet")])
    assert run(["spark", "reconcile", "-c", config]) == ExitCode.CHECK_FAILED
    assert "reconcile\tclean\tno\n" in capsys.readouterr().out


def signal_when_there(file: Path, number: signal.Signals) -> None:
    """Send this process a signal once there is such a file."""

    def wait_and_send() -> None:
        while not file.exists():
            threading.Event().wait(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait_and_send, daemon=True).start()


def test_a_signal_ends_a_continuous_run_gracefully(
    spark: SparkSession, declared: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signal_when_there(tmp_path / "lake/p/_checkpoints/land/commits/0", signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    assert run(["spark", "land", "-c", declared(trigger="1 second"), "--continuous", "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["stopped"]) == (LINES, True)
    assert signal.getsignal(signal.SIGTERM) is before


def test_continuous_rounds_share_a_session_until_a_signal(
    spark: SparkSession,
    declared: Callable[..., str],
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = threading.Semaphore(0)

    def show_and_release(results: Any) -> None:
        show_json(results)
        shown.release()

    monkeypatch.setattr("consumerd.cli.spark_steps.show_json", show_and_release)

    def more_and_then_stop() -> None:
        shown.acquire()
        segment = archive / "t-0" / f"{0:020}.kafka"
        segment.write_bytes(segment.read_bytes() + encode_message_set([b'{"id": 1000}'] * 3))
        shown.acquire()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=more_and_then_stop, daemon=True).start()
    assert run(["spark", "run", "-c", declared(trigger="1 second"), "--continuous", "--json"]) == ExitCode.OK
    rounds = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["land"]["rows"], each["refine"]["batches"]) for each in rounds] == [(LINES, 1), (3, 1)]
    assert run(["spark", "run", "-c", declared(), "--continuous"]) == ExitCode.CONFIG
    assert "--continuous needs an interval" in capsys.readouterr().err


@pytest.mark.parametrize("step", [pytest.param("land", marks=pytest.mark.long), "refine"])
def test_a_signal_during_a_round_ends_a_continuous_run_with_exit_code_0(
    spark: SparkSession,
    declared: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    perform = steps_of_spark.perform

    def stop_and_perform(performed: str, *args: Any, **options: Any) -> Any:
        if performed == step:
            os.kill(os.getpid(), signal.SIGTERM)
            spark.range(1 << 50).selectExpr("sum(hash(id))").collect()  # takes hours, unless its end is requested
        return perform(performed, *args, **options)

    monkeypatch.setattr(steps_of_spark, "perform", stop_and_perform)
    config = declared(trigger="1 second")
    assert run(["spark", "run", "-c", config, "--continuous", "--json"]) == ExitCode.OK
    monkeypatch.undo()
    capsys.readouterr()
    assert run(["spark", "run", "-c", config, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["reconcile"]["clean"], found["reconcile"]["gaps"]) == (True, 0)


def test_a_signal_ends_a_step_before_its_end(
    spark: SparkSession, declared: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signal_when_there(tmp_path / "lake/p/_checkpoints/land/offsets/0", signal.SIGINT)
    config = declared()
    assert run(["spark", "run", "-c", config]) == ExitCode.INTERRUPTED
    assert "stopped by SIGINT; the same command continues where this one stopped" in capsys.readouterr().err
    assert run(["spark", "land", "-c", config, "--json"]) == ExitCode.OK


def test_read_command_prints_messages(
    spark: SparkSession, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = ["spark", "read", "--path", str(archive), "--subscribe", "t"]
    assert run([*look, "--count", "--json"]) == ExitCode.OK
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["topic"], row["broker_partition"], row["messages"], row["first_offset"]) == ("t", "0", LINES, 0)
    assert run([*look, "--show", "2"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1].endswith('\tnone\t{"id": 1}')
    assert run([*look, "--show", "1", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["rows"][0]["value_base64"] == "/zA="
    assert run([*look, "--to", f"parquet:{tmp_path}/out"]) == ExitCode.OK
    assert capsys.readouterr().out == f"parquet\t{tmp_path}/out\t{LINES}\n"
    assert spark.read.parquet(f"{tmp_path}/out").count() == LINES
    assert run([*look, "--to", f"parquet:{tmp_path}/out"]) == ExitCode.SPARK
    assert run([*look, "--option", "startingOfsets=earliest"]) == ExitCode.CONFIG
    assert "did you mean 'startingOffsets'" in capsys.readouterr().err
