from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumerd.base.errors import ExitCode
from consumerd.cli.group import command
from consumerd.cli.main import run

CONTENT = {"topics": {"t": {"0": 11, "1": 1}}, "ids": {"g_b": '{ "t": 1 }', "g_a": "*2*t"}}
OWNERS = {
    "t/0-0": "g_a-0", "t/0-1": "g_a-0", "t/0-10": "g_a-0", "t/0-2": "g_a-0",
    "t/0-3": "g_a-1", "t/0-4": "g_a-1", "t/0-5": "g_a-1", "t/0-6": "g_a-1",
    "t/0-7": "g_b-0", "t/0-8": "g_b-0", "t/0-9": "g_b-0", "t/1-0": "g_b-0",
}  # fmt: skip


def test_prints_json_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(CONTENT))
    result = CliRunner().invoke(command, ["plan", "--json", str(tmp_path / "plan.json")], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.output) == OWNERS


def test_reads_standard_input() -> None:
    result = CliRunner().invoke(command, ["plan", "-"], input=json.dumps(CONTENT), catch_exceptions=False)
    assert result.output.splitlines() == [f"{partition}\t{owner}" for partition, owner in OWNERS.items()]


def test_plans_a_group_without_members_or_topics() -> None:
    contents: list[dict[str, object]] = [
        {"topics": {}, "ids": {}},
        {"topics": {"t": {"0": 0}, "u": {"0": 3}}, "ids": {"g_a": '{ "t": 1 }'}},
    ]
    for content in contents:
        result = CliRunner().invoke(command, ["plan", "--json", "-"], input=json.dumps(content), catch_exceptions=False)
        assert json.loads(result.output) == {}


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("", ExitCode.CONFIG, "cannot be read as JSON"),
        ("[" * 100_000, ExitCode.CONFIG, "cannot be read as JSON"),
        ('"\udcff"', ExitCode.CONFIG, "cannot be read as JSON"),
        ("[]", ExitCode.CONFIG, "not of the form"),
        ('{"topics": {}}', ExitCode.CONFIG, "not of the form"),
        ('{"topics": [], "ids": {}}', ExitCode.CONFIG, "topics must be an object"),
        ('{"topics": {"t": 4}, "ids": {}}', ExitCode.CONFIG, "topic 't' must be an object"),
        ('{"topics": {"t": {"0": "4"}}, "ids": {}}', ExitCode.CONFIG, "number of partitions"),
        ('{"topics": {"t": {"0": -1}}, "ids": {}}', ExitCode.CONFIG, "number of partitions"),
        ('{"topics": {"t": {"0": true}}, "ids": {}}', ExitCode.CONFIG, "number of partitions"),
        ('{"topics": {"t": {"0": 1000000000}}, "ids": {}}', ExitCode.CONFIG, "number of partitions"),
        ('{"topics": {"t": {"x": 4}}, "ids": {}}', ExitCode.ZOOKEEPER, "a broker id"),
        ('{"topics": {"a/b": {}}, "ids": {}}', ExitCode.USAGE, "the topic 'a/b'"),
        ('{"topics": {}, "ids": {"g_a": 1}}', ExitCode.CONFIG, "member 'g_a' must be text"),
        ('{"topics": {}, "ids": {"g_a": "{ \\"t\\": 0 }"}}', ExitCode.ZOOKEEPER, "member 'g_a'"),
        ('{"topics": {}, "ids": {"g_a": "*1*(?x)a"}}', ExitCode.ZOOKEEPER, "flag x"),
        ('{"topics": {}, "ids": {"g_a": "{\\"subscription\\":{}}"}}', ExitCode.ZOOKEEPER, "0.8 or later"),
    ],
)
def test_reports_errors_of_a_file(
    text: str, code: ExitCode, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run(["group", "plan", str(path)]) == code
    err = capsys.readouterr().err
    assert err.startswith("consumerd: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--group", "g"], ["--zookeeper", "h:1"], ["-", "--group", "g"], ["-", "--zookeeper", "h:1", "--group", "g"]],
)
def test_requires_either_a_file_or_a_group(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "plan", *arguments]) == ExitCode.USAGE
    assert "either a FILE, or --zookeeper and --group" in capsys.readouterr().err


def test_rejects_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "plan", "no-such-file"]) == ExitCode.NOT_FOUND
    assert "no-such-file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["group", "plan"], ["group", "describe"], ["group", "list"], ["topics", "list"]])
def test_help_shows_real_invocations(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--help"]) == ExitCode.OK
    assert f"consumerd {' '.join(arguments)} --" in capsys.readouterr().out
