from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.consume import _target
from consumerd.cli.main import run
from consumerd.cli.session import ClusterAddress
from consumerd.operate.admin.changes import OffsetTargetKind

ZOOKEEPER = ["--zookeeper", "127.0.0.1:1"]
KAFKA = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topic", "t"], "give --zookeeper, --bootstrap-server, or --config"),
        ([*KAFKA, *ZOOKEEPER, "--topic", "t"], "either --zookeeper or --bootstrap-server"),
        (KAFKA, "exactly one of --topic"),
        ([*KAFKA, "--topic", "t", "--whitelist", "x"], "exactly one of --topic"),
        ([*ZOOKEEPER, "--topic", "t"], "give --group"),
        ([*ZOOKEEPER, "--topic", "t", "--group", "g", "--isolation", "read_committed"], "have no transactions"),
        ([*ZOOKEEPER, "--topic", "t", "--group", "g", "--key-separator", ":"], "brokers of 0.7 have no keys"),
        ([*ZOOKEEPER, "--topic", "t", "--group", "g", "--partition", "0"], "--partition cannot be used with --group"),
        ([*KAFKA, "--topic", "t", "--group", "g", "--partition", "0"], "--partition cannot be used with --group"),
        ([*KAFKA, "--topic", "t", "--topic", "u", "--partition", "0"], "--partition goes with one --topic"),
        ([*KAFKA, "--whitelist", "t", "--partition", "0"], "--partition goes with one --topic"),
        ([*KAFKA, "--topic", "t", "--partition", "-1"], "--partition"),
        ([*KAFKA, "--topic", "t", "--json", "--key-separator", ":"], "cannot be used with --json"),
        ([*KAFKA, "--topic", "t", "--json", "--format", "%s"], "cannot be used with --json"),
        ([*KAFKA, "--topic", "t", "--decoder", "json"], "--decoder goes with --json"),
        ([*KAFKA, "--topic", "t", "--json", "--decoder-option", "a=1"], "--decoder-option needs --decoder"),
        ([*KAFKA, "--topic", "t", "--format", "%q"], "must consist of %s, %S, %k"),
        ([*KAFKA, "--topic", "t", "--from", "+3"], "must be earliest, latest, an offset or -N"),
        ([*KAFKA, "--topic", "t", "--from", "yesterday"], "must be earliest, latest"),
        ([*KAFKA, "--topic", "t", "--from-time", "yesterday"], "must be ISO 8601"),
        ([*KAFKA, "--topic", "t", "--group", "g", "--from", "-3"], "see `consumerd offsets reset`"),
        ([*ZOOKEEPER, "--topic", "t", "--group", "g", "--from-time", "0"], "see `consumerd offsets reset`"),
    ],
)
def test_rejects_wrong_command_lines(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_rejects_invalid_names_and_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", *KAFKA, "--topic", "a/b"]) == ExitCode.CONFIG
    assert "topic name 'a/b'" in capsys.readouterr().err
    assert run(["consume", *KAFKA, "--whitelist", "("]) == ExitCode.CONFIG
    assert "'('" in capsys.readouterr().err
    for group in ([], ["--group", "g"]):
        assert run(["consume", *KAFKA, *group, "--topic", "t", "--timeout", "0.2"]) == ExitCode.BROKER
        assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("group", "initial", "kind"),
    [("g", "7d", None), (None, "7d", OffsetTargetKind.TIME), (None, "70", OffsetTargetKind.OFFSET)],
)
def test_duration_is_the_start_of_a_group_and_a_time_without_one(
    group: str | None, initial: str, kind: OffsetTargetKind | None
) -> None:
    options: dict[str, Any] = {"from_time": None, "initial": initial, "group": group}
    target = _target(ClusterAddress("", 1.0, bootstrap=(("h", 1),)), options)
    assert (None if target is None else target.kind) is kind
    assert options["initial"] == ("earliest" if target else initial)


def test_joins_the_group_of_a_daemon_only_if_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text('[group]\nid = "precious"\ntopics = { t = 1 }\n')
    assert run(["consume", "-c", str(config), "--topic", "t"]) == ExitCode.USAGE
    assert "give --group" in capsys.readouterr().err


def test_takes_tls_from_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(
        '[group]\nid = "g"\ncoordination = "kafka"\ntopics = { t = 1 }\n'
        '[kafka]\nbootstrap = ["127.0.0.1:1"]\n[kafka.tls]\nca = "/nowhere/ca.pem"\n'
    )
    assert run(["consume", "-c", str(config), "--topic", "t"]) == ExitCode.CONFIG
    assert "kafka.tls.ca: " in capsys.readouterr().err


def test_environment_overrides_the_file_but_not_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[kafka.sasl]\nmechanism = "PLAIN"\nuser = "u"\n')
    monkeypatch.setenv("CONSUMERD_KAFKA__SASL__PASSWORD", "hush")
    assert run(["consume", *KAFKA, "-c", str(config), "--topic", "t", "--timeout", "0.2"]) == ExitCode.BROKER
    assert "127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("CONSUMERD_GROUP__ID", "not/a/name")
    assert run(["consume", *KAFKA, "--topic", "t", "--timeout", "0.2"]) == ExitCode.BROKER
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_decoder_is_that_of_the_option_or_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is found before any server is asked."""
    config = tmp_path / "daemon.toml"
    config.write_text(
        '[group]\nid = "g"\ncoordination = "kafka"\ntopics = { t = 1 }\n[kafka]\nbootstrap = ["127.0.0.1:1"]\n'
        '[handler]\ndecoder = "text"\ndecoder_options = { encoding = "utf-0" }\n'
    )
    for at in (["-c", str(config)], [*ZOOKEEPER, "--group", "g", "-c", str(config)]):
        consume = ["consume", *at, "--topic", "t", "--timeout", "0.2"]
        servers_away = (ExitCode.BROKER, ExitCode.ZOOKEEPER)
        assert run([*consume, "--json"]) == ExitCode.HANDLER
        problem = capsys.readouterr().err
        assert "unknown encoding 'utf-0'" in problem
        assert "give --decoder bytes" in problem
        assert run(consume) in servers_away
        assert run([*consume, "--json", "--decoder", "bytes"]) in servers_away
        assert run([*consume, "--json", "--decoder", "text", "--decoder-option", "encoding='utf-1'"]) == (
            ExitCode.HANDLER
        )
        problem = capsys.readouterr().err
        assert "unknown encoding 'utf-1'" in problem
        assert "--decoder bytes" not in problem
