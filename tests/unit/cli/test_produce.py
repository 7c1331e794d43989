from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run

KAFKA = ["--topic", "t", "--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--topic"),
        (["--topic", "t"], "either --broker or --zookeeper"),
        (["--topic", "t", "--broker", "a:1", "--zookeeper", "b:2"], "either --broker or --zookeeper"),
        (["--topic", "t", "--broker", "a:1", "--partition", "-2"], "--partition"),
        (["--topic", "t", "--broker", "a:1", "--codec", "lz4"], "--codec"),
        (["--topic", "t", "--broker", "a:1", "--magic", "2"], "--magic"),
        (["--topic", "t", "--broker", "a:1", "--batch-size", "0"], "--batch-size"),
        (["--topic", "t", "--broker", "a:1", "--key-separator", ""], "--key-separator"),
        (["--topic", "t", "--broker", "a:1", "--queue-time", "1"], "belong to --async"),
        (["--topic", "t", "--broker", "a:1", "--async", "--queue-size", "0"], "--queue-size"),
        (["--topic", "t", "--broker", "a:1", "--bootstrap-server", "b:2"], "or --bootstrap-server"),
        (["--topic", "t", "--zookeeper", "a:1", "--bootstrap-server", "b:2"], "either --zookeeper or --bootstrap"),
        (["--topic", "t", "--broker", "a:1", "--acks", "1"], "--acks is for brokers of Kafka 0.8 and later"),
        (["--topic", "t", "--broker", "a:1", "--linger", "0"], "--linger is for brokers of Kafka 0.8 and later"),
        (["--topic", "t", "--broker", "a:1", "--batch-bytes", "9"], "--batch-bytes is for brokers of Kafka 0.8"),
        (["--topic", "t", "--broker", "a:1", "--delivery-timeout", "9"], "--delivery-timeout is for brokers of Kafka"),
        (["--topic", "t", "--broker", "a:1", "--header", "a=b"], "--header is for brokers of Kafka 0.8 and later"),
        (
            ["--topic", "t", "--broker", "a:1", "--codec", "zstd"],
            "brokers of 0.7 do not support --codec zstd: use none, gzip or snappy",
        ),
        ([*KAFKA, "--bootstrap-server", "nowhere"], "'nowhere' is not of the form host:port"),
        ([*KAFKA, "--magic", "0"], "--magic is for brokers of Kafka 0.7"),
        ([*KAFKA, "--batch-size", "9"], "give --batch-bytes"),
        ([*KAFKA, "--async"], "always sent in the background"),
        ([*KAFKA, "--async", "--queue-time", "0"], "--async is for brokers of Kafka 0.7"),
        ([*KAFKA, "--verify"], "see --acks"),
        ([*KAFKA, "--verify-timeout", "1"], "see --acks"),
        ([*KAFKA, "--partition", "-1"], "omit it"),
        ([*KAFKA, "--partition", "1", "--round-robin"], "--partition and --round-robin contradict each other"),
        (["--topic", "t", "--broker", "a:1", "--round-robin"], "--round-robin is for brokers of Kafka 0.8 and later"),
        ([*KAFKA, "--acks", "2"], "--acks"),
        ([*KAFKA, "--header", "=b"], "not of the form KEY=VALUE"),
        ([*KAFKA, "--key-separator", ""], "--key-separator"),
    ],
)
def test_rejects_wrong_command_lines(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_rejects_wrong_names_before_reading_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "--topic", "a/b", "--broker", "127.0.0.1:1"]) != ExitCode.OK
    assert "topic name 'a/b'" in capsys.readouterr().err
    assert run(["produce", "--topic", "t", "--broker", "nowhere"]) == ExitCode.USAGE
    assert "--broker: 'nowhere' is not of the form host:port" in capsys.readouterr().err


def test_reports_unreachable_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", *KAFKA, "--timeout", "0.2"]) == ExitCode.BROKER
    assert "no broker of the cluster can be reached" in capsys.readouterr().err


def test_takes_tls_from_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(
        '[group]\nid = "g"\ncoordination = "kafka"\ntopics = { t = 1 }\n'
        '[kafka]\nbootstrap = ["127.0.0.1:1"]\n[kafka.tls]\nca = "/nowhere/ca.pem"\n'
    )
    assert run(["produce", "-c", str(config), "--topic", "t"]) == ExitCode.CONFIG
    assert "kafka.tls.ca: " in capsys.readouterr().err
