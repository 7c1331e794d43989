from __future__ import annotations

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run

TARGET = ["--to-bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (TARGET, ExitCode.USAGE, "one of --from-zookeeper, --from-directory and --from-bootstrap"),
        ([*TARGET, "--from-zookeeper", "a:1", "--from-directory", "/x"], ExitCode.USAGE, "one of --from-zookeeper"),
        ([*TARGET, "--from-bootstrap-server", "a:1"], ExitCode.USAGE, "--from-bootstrap-server requires --topic"),
        (["--from-zookeeper", "a:1"], ExitCode.USAGE, "--to-bootstrap-server"),
        (
            [*TARGET, "--from-directory", "/x", "--group", "g"],
            ExitCode.USAGE,
            "--group requires --from-zookeeper",
        ),
        ([*TARGET, "--from-directory", "/x", "--rename", "a=b c"], ExitCode.USAGE, "must be a valid topic name"),
        (
            [*TARGET, "--from-directory", "/x", "--topic-template", "a/b"],
            ExitCode.USAGE,
            "does not give valid topic names",
        ),
        ([*TARGET, "--from-directory", "/x", "--layout", "{a}"], ExitCode.USAGE, "the layout '{a}'"),
        ([*TARGET, "--from-directory", "/does/not/exist"], ExitCode.NOT_FOUND, "/does/not/exist does not exist"),
        (["--to-bootstrap-server", "x", "--from-directory", "/x"], ExitCode.USAGE, "'x' is not of the form host:port"),
    ],
)
def test_rejects_wrong_command_lines(
    arguments: list[str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["migrate", "verify", *arguments]) == code
    assert words in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--help"]) == 0
    assert "verify" in capsys.readouterr().out
    assert run(["migrate", "verify", "--help"]) == 0
    assert "consumerd migrate verify --from-zookeeper old:2181/kafka" in capsys.readouterr().out
