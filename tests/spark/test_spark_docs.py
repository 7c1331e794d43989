"""The snippets of docs/spark.md and the README run except for paths and addresses, and the lists are complete."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from consumerd.cli.main import cli
from consumerd.spark.packages import AVRO_PACKAGE
from consumerd.spark.run import run_pipeline
from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.spec import parse_spark
from consumerd.spark.tables import open_table
from consumerd.testing.plugin import BrokerFactory
from consumerd.wire.v07 import Codec, encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", README + PAGE, re.DOTALL))
START_MS = 1_300_000_000_000
#: Five messages a minute for an hour, then one that is not a click.
CLICKS = [
    json.dumps({"user": n, "at": START_MS + 12_000 * n, "page": f"/{n % 3}", "ms": n}).encode() for n in range(300)
]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive" / "clicks-0"
    folder.mkdir(parents=True)
    log = b"".join(encode_message_set(CLICKS[n : n + 10], codec=Codec(n // 10 % 3)) for n in range(0, 300, 10))
    (folder / f"{0:020}.kafka").write_bytes(log + encode_message_set([b"no click"]))
    return tmp_path / "archive"


@pytest.fixture
def steps_file(tmp_path: Path, archive: Path) -> Path:
    file = tmp_path / "clicks.toml"
    text = BLOCKS["clicks.toml"].replace('"/archive"', f'"{archive}"')
    assert tomllib.loads(text)["spark"]["pipelines"]["clicks"]["source"]["path"] == str(archive)
    file.write_text(text.replace("/var/lib/consumerd/lake", str(tmp_path / "lake")), "utf-8")
    return file


def run(name: str, **replaced: object) -> None:
    text = BLOCKS[name]
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, str(new))
    exec(compile(text, name, "exec"), {})


def test_spark_without_the_package_reads_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path / "silver"))
    program = BLOCKS["spark_reader.py"].replace("/lake/clicks/silver", str(tmp_path / "silver"))
    found: dict[str, list[tuple[str, int]]] = {}
    for batch in range(3):
        frame = spark.range(2).selectExpr("cast(id as string) page", *(["1 later"] if batch == 2 else []))
        assert table.append(frame, writer="w", batch=batch)
        exec(compile(program, "spark_reader.py", "exec"), found)
        assert sorted(map(tuple, found["rows"])) == sorted((p, b) for b in range(batch + 1) for p in ("0", "1"))
        table.compact(1 << 20)


def test_examples_read_and_stream_an_archive(
    spark: SparkSession, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("read.py", **{"/archive": archive})
    printed = capsys.readouterr().out
    assert re.search(r"clicks\| +0-0\| +301\|", printed)
    assert f"0-0 0 0 {CLICKS[0]!r}" in printed

    run("clicks_spark.py", **{"/archive": archive})
    assert "only showing top 3 rows" in capsys.readouterr().out

    run("stream.py", **{'"/archive"': repr(str(archive)), "lake/clicks": tmp_path / "lake" / "clicks"})
    landed = spark.read.parquet(str(tmp_path / "lake" / "clicks"))
    assert {bytes(row.value) for row in landed.collect()} == {*CLICKS, b"no click"}


def test_example_reads_an_exported_archive(
    spark: SparkSession, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = [line for line in commands() if line.startswith("consumerd log export")]
    words = shlex.split(line.replace("-o exported /archive", f"-o {tmp_path}/exported {archive}"))[1:]
    assert CliRunner().invoke(cli, words).exit_code == 0
    capsys.readouterr()
    run("exported.py", **{'"exported"': repr(str(tmp_path / "exported"))})
    assert re.search(r"clicks\| +0\| +0\| +301\|", capsys.readouterr().out)


def test_example_reads_brokers(
    spark: SparkSession, consumerd_broker_factory: BrokerFactory, zk_root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = consumerd_broker_factory(broker_id=0, partitions=1, zookeeper=zk_root)
    broker.produce("clicks-eu", CLICKS[:7], partition=0)
    run("live.py", **{"zk1:2181,zk2:2181/kafka": zk_root})
    assert capsys.readouterr().out.splitlines()[-1] == "7 messages"


def test_example_runs_the_pipeline(
    spark: SparkSession, steps_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(steps_file.parent)
    run("steps.py")
    printed = capsys.readouterr().out
    assert "301 landed" in printed
    assert "{'the message is not a JSON object': 1}" in printed
    assert "gaps: 0 duplicates: 0" in printed

    pipeline = parse_spark(tomllib.loads(steps_file.read_text("utf-8")), "clicks.toml").pipeline()
    result = run_pipeline(spark, pipeline, ("report", "aggregate"))
    assert list(result.results) == ["aggregate", "report"]
    windows = open_table(spark, pipeline.aggregate).read()
    assert windows.agg({"count": "sum"}).collect()[0][0] > 200
    assert Path(pipeline.report).stat().st_size > 20_000


def commands() -> list[str]:
    return list(re.findall(r"^    (consumerd .+)$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_guide_parse(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(command.name, words)


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]


def test_guide_lists_all_columns() -> None:
    listed = [name for row in rows("Columns") for name in re.findall(r"`(\w+)`", row[0])]
    assert listed == [column.name for column in COLUMNS]


def test_deployment_guide_names_the_jar_that_sessions_request() -> None:
    deploying = (ROOT / "deploy" / "spark" / "README.md").read_text("utf-8")
    assert re.findall(r"--packages (\S+?)`", deploying) == [AVRO_PACKAGE]
