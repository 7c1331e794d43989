"""`consumerd check` and its peers name every problem of a configuration, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run

LEVELS = "one of debug, info, warning, error."
WRONG = """\
[group]
id = "g"
topics = { t = 1 }
whitelist = "x"
instance_id = "i"

[fetch]
size = 0
sise = 1
initial = "s3cr3t"

[kafka]
bootstrap = ["h"]

[kafka.sasl]
mechanism = "PLAIN"

[zookeeper]
auth = ["s3cr3t"]

[handler]
name = "nothing"
"""


def problems(path: Path, capsys: pytest.CaptureFixture[str], *command: str, code: int = ExitCode.CONFIG) -> list[str]:
    assert run([*(command or ("check",)), "-c", str(path)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "s3cr3t" not in err
    return [line.removeprefix("consumerd: ").replace(str(path), "FILE") for line in err.splitlines()]


def test_names_all_problems_in_the_order_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(WRONG)
    monkeypatch.setenv("CONSUMERD_LOG__LEVEL", "loud")
    monkeypatch.setenv("CONSUMERD_COMMIT", '{"interval": -1}')
    monkeypatch.setenv("CONSUMERD_FECH__SIZE", "1")
    found = problems(path, capsys)
    assert found == [
        "FILE:3: 'group' is wrong: give exactly one of topics, whitelist and blacklist.",
        "FILE:5: 'group' is wrong: instance_id needs coordination = \"kafka\".",
        "FILE:8: 'fetch.size' must be a positive whole number of bytes, not 0.",
        "FILE:9: unknown key 'fetch.sise', did you mean 'size'?",
        "FILE:10: 'fetch.initial' must be earliest, latest, a time such as 2012-11-21T12:00, or a duration such as 7d.",
        "FILE:15: 'kafka.sasl' is wrong: PLAIN needs a user.",
        "FILE:15: 'kafka.sasl' is wrong: give exactly one of password and password_file.",
        found[7],
        "environment variable CONSUMERD_COMMIT: 'commit.interval' must be a positive number of seconds, not -1.",
        "environment variable CONSUMERD_FECH__SIZE: there is no table of this name, did you mean CONSUMERD_FETCH__...?",
        f"environment variable CONSUMERD_LOG__LEVEL: 'log.level' must be {LEVELS}",
    ]
    assert found[7].startswith("FILE:22: ")
    assert "nothing" in found[7]
    # The other two report what concerns keys and values, and do not load the handler.
    for command in (("run",), ("config", "show")):
        assert problems(path, capsys, *command) == found[:7] + found[8:]


def test_checks_the_parts_of_valid_tables_beside_invalid_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    text = '[group]\nid = "g"\ntopics = { "a/b" = 1 }\n[zookeeper]\nauth = ["s3cr3t"]\n[handler]\nname = "nothing"\n'
    path.write_text(text)
    lines = problems(path, capsys)
    assert [line.partition(": ")[0] for line in lines] == ["FILE:3", "FILE:5", "FILE:7"]
    path.write_text(f"{text}[log]\nlevel = 1\n")
    assert problems(path, capsys)[:3] == lines
    path.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\nname = "nothing"\n')
    assert problems(path, capsys, code=ExitCode.HANDLER) == [lines[2].replace("FILE:7", "FILE:5")]


def test_checks_pipelines_beside_an_invalid_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[group]\n\n[spark]\nrot = 1\n")
    assert problems(path, capsys) == [
        "FILE:1: 'group.id' is required.",
        "FILE:4: unknown key 'spark.rot', did you mean 'root'?",
    ]


def test_names_variables_that_make_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n')
    monkeypatch.setenv("CONSUMERD_KAFKA__SASL__PASSWORD", "s3cr3t")
    assert problems(path, capsys) == [
        "environment variable CONSUMERD_KAFKA__SASL__PASSWORD: 'kafka.sasl' is wrong: SCRAM-SHA-512 needs a user."
    ]
    monkeypatch.setenv("CONSUMERD_KAFKA__BOOTSTRAP", "kafka1:9092")
    [sentence] = problems(path, capsys)
    assert sentence.startswith("environment variable CONSUMERD_KAFKA__BOOTSTRAP: the value cannot be read: write lists")
