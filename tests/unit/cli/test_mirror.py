from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.cli.mirror_v08 import partitions_option, target_section

SOURCE = ["--from-zookeeper", "127.0.0.1:1/a", "--group", "g"]
TARGET = ["--to-zookeeper", "127.0.0.1:1/b"]
KAFKA = ["--to-bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of --to-zookeeper, --to-broker and --to-bootstrap-server"),
        ([*TARGET, "--to-broker", "h:1"], "one of --to-zookeeper, --to-broker and --to-bootstrap-server"),
        (TARGET, "one of --from-zookeeper and --from-bootstrap-server, and --group; or --config"),
        ([*TARGET, *SOURCE], "exactly one of --topic"),
        ([*TARGET, *SOURCE, "--topic", "t", "--whitelist", "a"], "exactly one of --topic"),
        ([*TARGET, *SOURCE, "--topic", "t", "--codec", "lz4"], "--codec"),
        ([*TARGET, "-c", "x.toml", "--group", "g"], "--group and --config contradict each other"),
        ([*TARGET, "-c", "x.toml", "--topic", "t"], "--topic and --config contradict each other"),
        ([*TARGET, "-c", "x.toml", "--from", "latest"], "--from and --config contradict each other"),
        ([*KAFKA, "-c", "x.toml", "--isolation", "read_committed"], "--isolation and --config contradict each other"),
        ([*TARGET, *SOURCE, "--topic", "t", "--isolation", "read_committed"], "--isolation goes with --to-bootstrap"),
        ([*TARGET, *KAFKA], "one of --to-zookeeper, --to-broker and --to-bootstrap-server"),
        ([*TARGET, "--from-bootstrap-server", "h:1", "--group", "g"], "brokers of 0.7 have no keys"),
        ([*TARGET, *SOURCE, "--topic", "t", "--key", "json:id"], "--key goes with --to-bootstrap-server only"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--verify"], "--verify is for brokers of 0.7"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--any-partition", "--key", "json:id"], "contradict each other"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--round-robin", "--key", "json:id"], "--round-robin and --key contradict"),
        (
            [*KAFKA, *SOURCE, "--topic", "t", "--round-robin", "--any-partition"],
            "--any-partition and --round-robin contr",
        ),
        ([*KAFKA, *SOURCE, "--topic", "t", "--round-robin", "--resume", "target"], 'requires placing = "keep"'),
        ([*TARGET, *SOURCE, "--topic", "t", "--round-robin"], "--round-robin goes with --to-bootstrap-server only"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--resume", "target", "--key", "json:id"], 'requires placing = "keep"'),
        ([*KAFKA, *SOURCE, "--topic", "t", "--resume", "target", "--no-headers"], "needs headers = true"),
        ([*TARGET, *SOURCE, "--topic", "t", "--exactly-once"], "--exactly-once goes with --to-bootstrap-server only"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--exactly-once", "--resume", "target"], "has positions of its own"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--key", "column:5"], "a column must be START-END"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--key", "column:5-2"], "is invalid"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--key", "xml:a"], "must be json:PATH, regex:PATTERN or column:START-END"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--partitions", "0"], "must be a number or TOPIC=N"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--partitions", "=4"], "must be a number or TOPIC=N"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--partitions", "4", "--partitions", "t=4"], "give --partitions once"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--partitions", "t=4", "--partitions", "4"], "give --partitions once"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--partitions", "t=4", "--partitions", "t=5"], "give --partitions once"),
        ([*TARGET, *SOURCE, "--topic", "t", "--partitions", "4"], "--partitions goes with --to-bootstrap-server only"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--rename", "a"], "is not of the form OLD=NEW"),
        ([*KAFKA, *SOURCE, "--topic", "t", "--rename", "a=b c"], "must be a valid topic name"),
        ([*KAFKA, *SOURCE, "--from-bootstrap-server", "h:1", "--topic", "t"], "one of --from-zookeeper and"),
    ],
)
def test_rejects_wrong_command_lines(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mirror", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_takes_partitions_for_all_topics_or_each() -> None:
    assert partitions_option([]) is None
    assert partitions_option(["4"]) == 4
    assert partitions_option(["clicks=4", "orders=2"]) == {"clicks": 4, "orders": 2}


def test_checks_the_configuration_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "no.toml")
    assert run(["mirror", "-c", missing, *TARGET]) == ExitCode.CONFIG
    assert "cannot read the configuration" in capsys.readouterr().err
    assert run(["mirror", *SOURCE, "--topic", "a/b", *TARGET]) == ExitCode.CONFIG
    assert "topic name 'a/b'" in capsys.readouterr().err
    assert run(["mirror", *SOURCE, "--topic", "t", "--to-broker", "h"]) == ExitCode.USAGE
    assert "Invalid value for --to-broker: 'h' is not of the form host:port" in capsys.readouterr().err


def test_refuses_further_subscriptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    further = '[[subscriptions]]\nname = "audit"\ntopics = { u = 1 }\nhandler = { name = "null" }\n'
    config.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n' + further)
    assert run(["mirror", "-c", str(config), *TARGET]) == ExitCode.CONFIG
    assert "a mirror has one subscription, that of [group]" in capsys.readouterr().err


def test_refuses_to_mirror_a_cluster_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mirror", *SOURCE, "--topic", "t", "--to-zookeeper", "127.0.0.1:1/a"]) == ExitCode.REFUSED
    assert "source and target are the same cluster (ZooKeeper at" in capsys.readouterr().err


def test_accepts_several_servers_in_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    """As with the other tools; else the whole list is looked up as one name."""
    servers = ["--to-bootstrap-server", "127.0.0.1:1, 127.0.0.1:2", "--to-bootstrap-server", "127.0.0.1:3"]
    source = ["--from-bootstrap-server", "127.0.0.1:4,127.0.0.1:5", "--topic", "t"]
    assert run(["migrate", "verify", *source, *servers, "--broker-timeout", "0.1"]) == ExitCode.BROKER
    assert "no broker of the cluster can be reached (3 tried)" in capsys.readouterr().err
    assert target_section(["a:1, b:2", "c:3"], None).bootstrap == ("a:1", "b:2", "c:3")
