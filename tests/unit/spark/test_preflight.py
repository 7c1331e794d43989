"""Errors that are reported before Spark starts. No test here starts Spark."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode, NotFoundError
from consumerd.cli.main import run
from consumerd.demo.processes import format_toml
from consumerd.spark.failures import FileFailedError
from consumerd.spark.preflight import check_read, check_steps
from consumerd.spark.spec import PipelineSpec
from consumerd.wire.v07 import encode_message_set


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    log = tmp_path / "archive" / "t-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.kafka").write_bytes(encode_message_set([b"1"]))
    return tmp_path / "archive"


@pytest.fixture
def pipeline(tmp_path: Path, archive: Path) -> PipelineSpec:
    return PipelineSpec("p", str(tmp_path / "lake"), {"path": str(archive), "subscribe": "t"})


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_accepts_a_pipeline_that_works(pipeline: PipelineSpec, tmp_path: Path) -> None:
    check_steps(pipeline, ("land", "reconcile", "report"), {})
    check_read(pipeline.source, str(tmp_path / "out"))


def test_reports_missing_paths_topics_and_brokers(pipeline: PipelineSpec, tmp_path: Path, closed_port: int) -> None:
    for options, sentence in (
        ({"path": f"{tmp_path}/nowhere", "subscribe": "t"}, "nowhere"),
        ({"path": pipeline.source["path"], "subscribe": "clicks"}, "clicks"),
        ({"path": pipeline.source["path"], "assign": '{"t": ["3"]}'}, "t/3"),
        ({"brokers": f"0=127.0.0.1:{closed_port}", "subscribe": "t", "partitions": "1"}, f"127.0.0.1:{closed_port}"),
        (
            {"bootstrap": f"127.0.0.1:{closed_port}", "subscribe": "t", "timeoutMs": "100"},
            f"127.0.0.1:{closed_port}",
        ),
    ):
        with pytest.raises(ConsumerdError, match=sentence):
            check_steps(replace(pipeline, source=options), ("land",), {})
        with pytest.raises(ConsumerdError, match=sentence):
            check_read(options)


def test_accepts_a_stream_that_continues_without_deleted_offsets(pipeline: PipelineSpec) -> None:
    lenient = replace(pipeline, source={**pipeline.source, "assign": '{"t": ["0", "1"]}', "failOnDataLoss": "false"})
    lenient.source.pop("subscribe")  # type: ignore[attr-defined]
    with pytest.raises(NotFoundError, match="t/1"):
        check_steps(lenient, ("land",), {})
    Path(pipeline.checkpoint("land"), "commits").mkdir(parents=True)
    check_steps(lenient, ("land",), {})


def test_reports_steps_without_input_or_declaration(pipeline: PipelineSpec) -> None:
    with pytest.raises(NotFoundError, match=r"table .*/lake/p/bronze does not exist: run land of the pipeline p first"):
        check_steps(pipeline, ("reconcile", "report"), {})
    with pytest.raises(ConfigError, match=r"has no \[refine\] table"):
        check_steps(pipeline, ("refine",), {})
    with pytest.raises(ConfigError, match=r"has no \[aggregate\] table"):
        check_steps(pipeline, ("aggregate",), {})
    # On another file system only Spark can tell.
    check_steps(pipeline, ("reconcile",), {"spark.hadoop.fs.defaultFS": "hdfs://nn:8020"})
    check_steps(replace(pipeline, root="hdfs://nn/lake"), ("reconcile",), {})


def test_reports_unwritable_directories(pipeline: PipelineSpec, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileFailedError, match=f"cannot create {tmp_path}/file/lake/p: {tmp_path}/file is not a folder"):
        check_steps(replace(pipeline, root=f"{tmp_path}/file/lake"), ("land",), {})
    with pytest.raises(FileFailedError, match=r"cannot (create|write) /proc/1/lake/p"):
        check_steps(replace(pipeline, root="/proc/1/lake"), ("land",), {})
    with pytest.raises(FileFailedError, match=f"{archive} already exists"):
        check_read(pipeline.source, str(archive))


def test_commands_report_errors_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables: dict[str, dict[str, Any]] = {
        "spark": {"root": str(tmp_path / "lake")},
        "spark.pipelines.p": {"source": {"path": str(tmp_path / "nowhere"), "subscribe": "t"}},
    }
    (tmp_path / "p.toml").write_text(format_toml(tables))
    for command in (
        ["spark", "land", "-c", str(tmp_path / "p.toml")],
        ["spark", "run", "-c", str(tmp_path / "p.toml")],
        ["spark", "read", "--path", str(tmp_path / "nowhere"), "--subscribe", "t"],
    ):
        assert run(command) == ExitCode.NOT_FOUND
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert "nowhere" in told
        assert "starting Spark" not in told
