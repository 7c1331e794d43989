"""Every row of the table of exit codes (docs/operations.md); every command with a server, file or pipe that fails."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli import produce_lines
from consumerd.cli.main import COMMANDS, cli, run
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import encode_message

ROOT = Path(__file__).parents[3]
MISSING = "/nonexistent/file"
#: What a command needs besides the server or the file, to get as far as that.
ARGUMENTS: dict[str, list[str]] = {
    "broker": ["--no-zookeeper"],
    "consume": ["--topic", "t", "--exit-at-end"],
    "group delete": ["--group", "g"],
    "group describe": ["--group", "g"],
    "group doctor": ["--group", "g"],
    "group lag": ["--group", "g"],
    "group verify": ["--group", "g"],
    "log export": ["-o", "out"],
    "migrate offsets": ["--group", "g"],
    "migrate verify": ["--topic", "t"],
    "offsets export": ["--group", "g"],
    "offsets get": ["--group", "g"],
    "offsets reset": ["--group", "g", "--to", "earliest"],
    "offsets set": ["--group", "g", "t/0=1"],
    "produce": ["--topic", "t"],
    "topics create": ["--topic", "t", "--partitions", "1", "--replication-factor", "1"],
    "topics delete": ["--topic", "t"],
}
#: Other arguments, where an option excludes those above or needs the other cluster of two.
SPECIAL: dict[tuple[str, str], list[str]] = {
    ("consume", "--zookeeper"): ["--topic", "t", "--group", "g"],
    ("group plan", "--zookeeper"): ["--group", "g"],
    ("dead-letters replay", "--bootstrap-server"): ["letters", "--to-topic", "t"],
    ("dead-letters replay", "--config"): ["letters"],
    ("dead-letters replay", "path"): ["--to-topic", "t", "--zookeeper", "127.0.0.1:1"],
    ("handlers test", "--config"): ["letters"],
    ("log export", "--to-bootstrap-server"): ["letters"],
    ("log export", "--to-config"): ["letters", "--to-bootstrap-server", "127.0.0.1:1"],
    ("log offsets", "--to-bootstrap-server"): ["letters"],
    ("log offsets", "--to-config"): ["letters", "--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate offsets", "--from-zookeeper"): ["--group", "g", "--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate offsets", "--from-bootstrap-server"): ["--group", "g", "--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate offsets", "--from-config"): ["--group", "g", "--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate offsets", "--to-zookeeper"): ["--group", "g", "--from-zookeeper", "127.0.0.1:1"],
    ("migrate offsets", "--to-bootstrap-server"): ["--group", "g", "--from-bootstrap-server", "127.0.0.1:1"],
    ("migrate offsets", "--to-config"): ["--group", "g", "--from-zookeeper", "127.0.0.1:1"],
    ("migrate verify", "--from-zookeeper"): ["--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate verify", "--from-bootstrap-server"): ["--topic", "t", "--to-bootstrap-server", "127.0.0.1:1"],
    ("migrate verify", "--from-config"): [
        *("--topic", "t", "--from-bootstrap-server", "127.0.0.1:1", "--to-bootstrap-server", "127.0.0.1:1"),
    ],
    ("migrate verify", "--to-bootstrap-server"): ["--from-bootstrap-server", "127.0.0.1:1", "--topic", "t"],
    ("migrate verify", "--to-config"): [
        *("--topic", "t", "--from-bootstrap-server", "127.0.0.1:1", "--to-bootstrap-server", "127.0.0.1:1"),
    ],
    ("mirror", "--from-bootstrap-server"): ["--group", "g", "--topic", "t", "--to-bootstrap-server", "127.0.0.1:1"],
    ("mirror", "--to-broker"): ["--group", "g", "--topic", "t", "--from-zookeeper", "127.0.0.1:1"],
    ("mirror", "--to-bootstrap-server"): ["--group", "g", "--topic", "t", "--from-zookeeper", "127.0.0.1:1"],
    ("mirror", "--config"): ["--to-broker", "127.0.0.1:1"],
    ("mirror", "--to-config"): [
        *("--group", "g", "--topic", "t", "--from-zookeeper", "127.0.0.1:1", "--to-bootstrap-server", "127.0.0.1:1"),
    ],
    ("offsets import", "--bootstrap-server"): ["letters"],
    ("offsets import", "--config"): ["letters"],
    ("topics create", "--configuration"): ["--topic", "t"],
}
#: Options whose server is not asked within the time of a test, or by Spark only; and options that are not the name of a
#: file.
NOT_ASKED = {
    ("dead-letters replay", "--bootstrap-server"), ("dead-letters replay", "--zookeeper"),
    ("mirror", "--from-zookeeper"), ("mirror", "--from-bootstrap-server"), ("mirror", "--to-zookeeper"),
    ("mirror", "--to-broker"), ("mirror", "--to-bootstrap-server"), ("broker", "--zookeeper"),
    ("group plan", "--bootstrap-server"), ("group verify", "--bootstrap-server"), ("offsets import", "--zookeeper"),
    ("offsets import", "--bootstrap-server"),
}  # fmt: skip


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name; those of Spark have tests of their own."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            if name != "spark":
                yield from leaves(found, (*path, name))
    else:
        yield " ".join(path), command


LEAVES = dict(leaves(cli))


def options(suffixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Command and option, for each option whose longest name ends so."""
    found = []
    for name, command in LEAVES.items():
        for param in command.params:
            option = max(param.opts, key=len)
            if isinstance(param, click.Option) and option.endswith(suffixes):
                found.append((name, option))
    return found


SERVERS = options(("zookeeper", "bootstrap-server", "-broker", "--broker"))
SERVERS.remove(("broker", "--no-zookeeper"))
CONFIGS = options(("-config", "--configuration"))
CONFIGS.remove(("topics create", "--config"))  # settings of the topic
FILES = [
    (name, param.name or "")
    for name, command in LEAVES.items()
    for param in command.params
    if isinstance(param, click.Argument) and param.name in ("path", "paths", "file", "files")
]


def invoke(name: str, option: str, *value: str) -> int:
    """Run the command with what it needs, and the option."""
    arguments = SPECIAL.get((name, option), ARGUMENTS.get(name, []))
    given = [option, *value] if option.startswith("-") else value
    known = {opt for param in LEAVES[name].params for opt in param.opts}
    timeouts = [f"{each}=0.1" for each in ("--timeout", "--broker-timeout") if each in known]
    return run([*name.split(), *arguments, *given, *timeouts])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").write_text("")


@pytest.fixture
def unused_address() -> Iterator[str]:
    """Where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield "127.0.0.1:{1}".format(*bound.getsockname())


@pytest.mark.parametrize(("name", "option"), [each for each in SERVERS if each not in NOT_ASKED])
def test_a_server_that_is_not_there(
    name: str, option: str, unused_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"one\n")
    with (tmp_path / "lines").open("rb") as lines:
        monkeypatch.setattr(produce_lines, "_STDIN", lines.fileno())
        expected = ExitCode.ZOOKEEPER if option.endswith("zookeeper") else ExitCode.BROKER
        assert invoke(name, option, unused_address) == expected


@pytest.mark.parametrize(("name", "option"), SERVERS)
@pytest.mark.parametrize("text", ["nohost:port", "host:99999"])
def test_an_address_that_cannot_be_one(name: str, option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(name, option, text) == ExitCode.USAGE
    assert f"{text!r}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "option"), CONFIGS)
def test_a_configuration_that_is_not_there(name: str, option: str) -> None:
    assert invoke(name, option, MISSING) == ExitCode.CONFIG


@pytest.mark.parametrize(("name", "argument"), FILES)
def test_a_file_that_is_not_there(name: str, argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(name, argument, MISSING) == ExitCode.NOT_FOUND
    assert MISSING in capsys.readouterr().err


def test_the_walk_meets_all_kinds_of_options() -> None:
    assert (len(SERVERS), len(CONFIGS), len(FILES)) >= (40, 25, 9)
    assert set(NOT_ASKED) <= set(SERVERS)
    assert {*SPECIAL} <= {*SERVERS, *CONFIGS, *FILES}


@pytest.fixture
def closed_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield
        monkeypatch.undo()


CONFIGURATION = """\
[zookeeper]
connect = "127.0.0.1:1"
[group]
id = "g"
topics = {{ t = 1 }}
[handler]
name = "{handler}"
"""
PLAN = '{"topics": {"t": {"0": 4}}, "ids": {"g_a": "{ \\"t\\": 1 }"}}'
WITH_OUTPUT = [
    "--help", "--version", "group lag --help", "log dump log", "log dump --json log", "log verify log",
    "log verify --json log", "config example", "config schema", "config show -c daemon.toml",
    "config convert consumer.properties", "handlers list", "check -c daemon.toml", "group plan plan.json",
    "group plan --json plan.json", "dead-letters show letters", "dead-letters list letters",
]  # fmt: skip
LETTER = (
    '{"topic": "t", "broker": 0, "partition": 0, "offset": 0, "index": 0, "payload_base64": "YQ==", '
    '"error_type": "ValueError", "error": "no", "attempts": 2, "failed_at": 1700000000}\n'
)


def segment(folder: Path, data: bytes) -> None:
    (folder / "t-0").mkdir(parents=True)
    (folder / "t-0" / f"{0:020d}.kafka").write_bytes(data)


@pytest.mark.parametrize("line", WITH_OUTPUT)
def test_a_reader_of_the_output_that_has_gone(line: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    segment(tmp_path / "log", encode_message(b"one") * 3000)
    (tmp_path / "daemon.toml").write_text(CONFIGURATION.format(handler="null"))
    (tmp_path / "plan.json").write_text(PLAN)
    (tmp_path / "consumer.properties").write_text("zk.connect=h:1\ngroupid=g\n")
    (tmp_path / "letters").write_text(LETTER)
    request.getfixturevalue("closed_pipe")
    assert run(line.split()) == ExitCode.PIPE


async def fail(batch: Any) -> None:
    """The handler that keeps failing."""
    raise ValueError


@click.command("broken")
@click.argument("kind")
def command(kind: str) -> None:
    """A command with a defect, and one that is interrupted."""
    raise {"defect": RuntimeError, "interrupt": KeyboardInterrupt}[kind]


#: The tests that show the code, where that takes other processes or Spark.
ELSEWHERE = {
    ExitCode.ID_TAKEN: "tests/integration/test_bad_input.py",
    ExitCode.FORCED: "tests/integration/test_daemon_signals.py",
    ExitCode.SPARK: "tests/spark/test_spark_command.py",
}
LINES = {
    ExitCode.OK: "--version",
    ExitCode.INTERNAL: "broken defect",
    ExitCode.USAGE: "topics create --zookeeper memory --topic t --partitions 1 --replication-factor 1",  # of Kafka 0.7
    ExitCode.CONFIG: f"check -c {MISSING}",
    ExitCode.HANDLER: "check -c daemon.toml",
    ExitCode.ZOOKEEPER: "topics list --zookeeper 127.0.0.1:1 --timeout 0.2",
    ExitCode.BROKER: "topics list --bootstrap-server 127.0.0.1:1 --timeout 0.2",
    ExitCode.CORRUPT: "log export -o out --on-corrupt fail damaged",
    ExitCode.NOT_FOUND: f"dead-letters list {MISSING}",
    ExitCode.HANDLER_FAILED: f"handlers test {__name__}:fail lines",
    ExitCode.CHECK_FAILED: "log verify damaged",
    ExitCode.REFUSED: "group delete --zookeeper memory --group g --execute",
    ExitCode.INTERRUPTED: "broken interrupt",
    ExitCode.PIPE: "config example",
}


@pytest.mark.parametrize("code", LINES, ids=lambda code: code.name)
def test_a_command_for_every_row_of_the_table(
    code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(COMMANDS, "broken", (__name__, ""))
    damaged = bytearray(encode_message(b"one") * 3)
    damaged[-1] ^= 1
    segment(tmp_path / "damaged", bytes(damaged) + encode_message(b"two"))
    (tmp_path / "daemon.toml").write_text(CONFIGURATION.format(handler="nowhere:handler"))
    (tmp_path / "lines").write_text("one\n")
    if " memory " in LINES[code]:
        memory: MemoryZooKeeper = request.getfixturevalue("memory")
        memory.put("/brokers/ids/0", b"h-1300000000000:127.0.0.1:1")
        memory.put("/consumers/g/ids/g_a", b'{ "t": 1 }', session_id=7)
    if code is ExitCode.PIPE:
        request.getfixturevalue("closed_pipe")
    assert run(LINES[code].split()) == code


def test_every_code_has_a_command_or_a_test_elsewhere() -> None:
    assert {*LINES, *ELSEWHERE} == {*ExitCode}
    for code, path in ELSEWHERE.items():
        assert f"ExitCode.{code.name}" in (ROOT / path).read_text(), path
