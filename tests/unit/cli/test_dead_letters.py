"""`consumerd dead-letters` on files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.handlers.dead_letter_progress import locked


def letter(offset: int, **changed: Any) -> str:
    known = {
        "topic": "t", "broker": 0, "partition": 0, "offset": offset, "index": 0, "payload_base64": "YQ==",
        "error_type": "ValueError", "error": "no", "attempts": 2, "failed_at": 1_700_000_000 + offset,
    }  # fmt: skip
    return json.dumps(known | changed) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "dead.ndjson"
    (tmp_path / "dead.000001.ndjson").write_text(letter(1) + letter(2, error_type="OSError", payload_base64="/w=="))
    made.write_text(letter(3) + letter(4, broker=None, key_base64="aw==", timestamp=5, headers=[], topic="k"))
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "c.toml"
    made.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\nname = "print"\nmax_attempts = 1\n')
    return made


def test_list_counts_by_partition_and_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "list", str(path)]) == ExitCode.OK
    assert [line.split("\t")[:4] for line in capsys.readouterr().out.splitlines()] == [
        ["k", "0", "ValueError", "1"],
        ["t", "0-0", "OSError", "1"],
        ["t", "0-0", "ValueError", "2"],
    ]
    assert run(["dead-letters", "list", str(path), "--topic", "t", "--error-type", "ValueError", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "topic": "t", "partition": "0-0", "error_type": "ValueError", "letters": 2,
        "first": "2023-11-14T22:13:21Z", "last": "2023-11-14T22:13:23Z", "replayed": {},
    }  # fmt: skip


def test_show_prints_payloads_as_text_where_they_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "show", str(path)]) == ExitCode.OK
    first, second, _, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["offset"], first["payload"], first["error"]) == (1, "a", "no")
    assert second["payload_base64"] == "/w=="
    assert (last["broker"], last["key"]) == (None, "k")
    assert run(["dead-letters", "show", str(path), "--limit", "1", "--topic", "k"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["offset"] == 4


def test_reports_invalid_lines_at_the_end(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("a") as file:
        file.write("nonsense\n")
    assert run(["dead-letters", "show", str(path)]) == ExitCode.CORRUPT
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 4
    assert "not dead letters: 1 (first: " in captured.err
    assert run(["dead-letters", "list", str(path)]) == ExitCode.CORRUPT


def test_replay_to_the_handler_of_a_configuration_once(
    path: Path, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.OK
    captured = capfd.readouterr()
    assert [json.loads(line)["offset"] for line in captured.out.splitlines()] == [1, 2, 3, 4]
    assert "4 letters replayed to handler print." in captured.err
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.OK
    assert "0 letters replayed" in capfd.readouterr().err
    assert run(["dead-letters", "replay", str(path), "-c", str(config), "--progress", f"{path}.new"]) == ExitCode.OK
    assert "4 letters replayed" in capfd.readouterr().err
    further = '[[subscriptions]]\nname = "audit"\ntopics = { u = 1 }\nhandler = { name = "null" }\n'
    config.write_text(config.read_text() + further)
    command = ["dead-letters", "replay", str(path), "-c", str(config), "--subscription", "audit"]
    assert run([*command, "--progress", f"{path}.audit"]) == ExitCode.OK
    assert "4 letters replayed to handler null." in capfd.readouterr().err


def test_refuses_a_second_replay_with_the_same_progress_while_one_runs(
    path: Path, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["dead-letters", "replay", str(path), "-c", str(config)]
    progress = path.with_name(f"{path.name}.replayed")
    with locked(progress):
        assert run(command) == ExitCode.REFUSED
        captured = capfd.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith(f"consumerd: another replay is noting its progress in {progress}: wait until")
        assert run([*command, "--progress", f"{path}.other"]) == ExitCode.OK
    assert run(command) == ExitCode.OK
    assert not [each.name for each in path.parent.iterdir() if each.name.endswith(".lock")]


def test_replay_to_a_second_receiver_delivers_everything_and_list_and_show_name_both(
    path: Path, config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace('"print"', '"print"\noptions = { descriptor = 2 }'))
    third = tmp_path / "third.toml"
    third.write_text(config.read_text().replace('id = "g"', 'id = "h"'))
    assert run(["dead-letters", "replay", str(path), "-c", str(config), "--topic", "k"]) == ExitCode.OK
    capfd.readouterr()
    for file, known in ((config, False), (other, True), (third, True)):
        assert run(["dead-letters", "replay", str(path), "-c", str(file)]) == ExitCode.OK
        told = capfd.readouterr().err
        assert "4 letters replayed to handler print." in told
        assert ("this is another receiver" in told) == known
        assert run(["dead-letters", "replay", str(path), "-c", str(file)]) == ExitCode.OK
        assert capfd.readouterr().err == "0 letters replayed to handler print.\n"
    names = [
        "handler print of group g at 127.0.0.1:2181",
        'handler print of group g at 127.0.0.1:2181 with {"descriptor": 2}',
        "handler print of group h at 127.0.0.1:2181",
    ]
    assert run(["dead-letters", "show", str(path), "--limit", "1"]) == ExitCode.OK
    assert json.loads(capfd.readouterr().out)["replayed_to"] == names
    assert run(["dead-letters", "list", str(path), "--topic", "k"]) == ExitCode.OK
    row = capfd.readouterr().out.rstrip("\n").split("\t")
    assert row[6] == "; ".join(f"1 to {name}" for name in names)
    assert run(["dead-letters", "list", str(path), "--topic", "t", "--json"]) == ExitCode.OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["replayed"] for each in rows] == [dict.fromkeys(names, 1), dict.fromkeys(names, 2)]
    assert run(["dead-letters", "list", str(path), "--progress", f"{path}.none"]) == ExitCode.OK
    assert [line.split("\t")[6] for line in capfd.readouterr().out.splitlines()] == ["none"] * 3


def test_replay_continues_what_an_earlier_release_noted(
    path: Path, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noted = path.with_name("dead.ndjson.replayed")
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.OK
    (record,) = json.loads(noted.read_text())["replayed"]
    noted.write_text(json.dumps({"replayed": {'["handler print", null, null]': record["files"]}}))
    capfd.readouterr()
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.OK
    told = capfd.readouterr().err
    assert "An earlier release noted how far it replayed to handler print" in told
    assert "0 letters replayed" in told


def test_progress_file_has_no_secret_of_the_handler(
    path: Path, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = 'options = { url = "http://127.0.0.1:1/", headers = { Authorization = "Bearer pa55" } }'
    config.write_text(config.read_text().replace('"print"', f'"http"\n{options}'))
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.HANDLER_FAILED
    noted = path.with_name("dead.ndjson.replayed").read_text()
    assert "handler http of group g" in noted
    assert "pa55" not in noted + capfd.readouterr().err


def test_a_replay_that_fails_again_stops_or_writes_new_letters(
    path: Path, config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace('"print"', '"print"\noptions = { descriptor = 9999 }'))
    assert run(["dead-letters", "replay", str(path), "-c", str(config)]) == ExitCode.HANDLER_FAILED
    assert "Bad file descriptor" in capfd.readouterr().err
    again = tmp_path / "again.ndjson"
    assert run(["dead-letters", "replay", str(path), "-c", str(config), "--failed", str(again)]) == ExitCode.OK
    assert [json.loads(line)["offset"] for line in again.read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give -c with the handler"),
        (["--bootstrap-server", "h:1"], "give -c with the handler"),
        (["--to-topic", "x"], "exactly one of"),
        (["--to-topic", "x", "--zookeeper", "z", "--bootstrap-server", "h:1"], "exactly one of"),
        (["--to-topic", "x", "--bootstrap-server", "h:1", "--failed", "f"], "--failed is for a replay to a handler"),
    ],
)
def test_targets_exclude_each_other(
    path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dead-letters", "replay", str(path), *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_a_file_that_does_not_exist_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "list", str(tmp_path / "none")]) == ExitCode.NOT_FOUND
    assert "there are no dead letters at" in capsys.readouterr().err
