"""A daemon's configuration, validated by another process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.credentials import secret_of
from consumerd.service.config.model import parse
from consumerd.service.config.problems import ConfigProblemsError, read_document

VALID = """\
[group]
id = "g"
topics = { events = 2 }
[kafka.sasl]
user = "u"
password = "hush"
[zookeeper]
auth = ["digest:u:hush"]
[handler]
name = "files"
options = { directory = "/var/lib/events", since = 2026-11-28T00:00:00Z }
max_batch = 500
[[subscriptions]]
name = "audit"
topics = { payments = 1 }
handler.name = "null"
[spark]
root = "/tables"
"""
INVALID = 'handler = 3\n[group]\nid = "g"\ntopcs = { events = 1 }\n[log]\nlevel = "loud"\n'

#: Of each way to read a file in another process.
WAYS = {"start": "child.begin_loading(path)()", "reload": "child.parse_aside(read_document(path), str(path))"}
#: Writes what comes of it, and which modules this process imported for it, or to find the handler.
PROGRAM = """\
import os, pickle, signal, sys
from pathlib import Path
from consumerd.service.config import child
from consumerd.service.config.problems import ConfigProblemsError, read_document
from consumerd.handlers import load_handler

path = Path(sys.argv[1])
{trouble}
try:
    found = {way}
    load_handler("null")
except ConfigProblemsError as error:
    found = str(error), int(error.exit_code)
sys.stdout.buffer.write(pickle.dumps((found, sys.modules.keys() & {{"pydantic", "importlib.metadata"}})))
"""


def read(path: Path, way: str, trouble: str = "") -> Any:
    program = PROGRAM.format(way=WAYS[way], trouble=trouble)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONSUMERD_")}
    command = [sys.executable, "-c", program, str(path)]
    ended = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=120)
    assert not ended.stderr
    return pickle.loads(ended.stdout)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events.toml"
    path.write_text(VALID)
    return path


@pytest.mark.parametrize("way", WAYS)
def test_reads_a_configuration_without_importing_pydantic_or_looking_for_plugins(path: Path, way: str) -> None:
    config, imported = read(path, way)
    assert config == parse(read_document(path), str(path), environment=False)
    assert secret_of(config.kafka.sasl, "password", "kafka.sasl") == "hush"
    assert config.handler.given == {"name", "options", "max_batch"}
    assert not imported


@pytest.mark.parametrize("way", WAYS)
def test_errors_are_those_of_a_command(path: Path, way: str) -> None:
    path.write_text(INVALID)
    with pytest.raises(ConfigProblemsError) as expected:
        parse(read_document(path), str(path), environment=False)
    assert read(path, way)[0] == (str(expected.value), expected.value.exit_code)


@pytest.mark.parametrize(
    ("way", "trouble"),
    [
        ("start", "child._validate = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"),
        ("start", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
        ("start", "os.fork = lambda: os.open('/nowhere', os.O_RDONLY)  # an OSError"),
        ("reload", "sys.executable = '/nowhere'"),
    ],
)
def test_reads_the_configuration_itself_where_the_child_fails(path: Path, way: str, trouble: str) -> None:
    config, imported = read(path, way, trouble)
    assert config == parse(read_document(path), str(path), environment=False)
    assert imported == {"pydantic", "importlib.metadata"}
