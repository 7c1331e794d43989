"""The commands of docs/lake.md run where pyspark is not installed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli import main
from consumerd.wire.v07 import encode_message_set

PAGE = (Path(__file__).parents[4] / "docs" / "lake.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^    consumerd (lake .*)$", PAGE, re.MULTILINE)


#: Runs commands, and prints for each its exit code and what it printed.
STEPS = ("land", "refine", "reconcile")
RUN = """
import contextlib, io, json, sys
sys.modules.update(pyspark=None, py4j=None)
from consumerd.cli.main import run
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = int(run(command))
    print(json.dumps([code, printed.getvalue()]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's configuration and an archive."""
    partition = tmp_path / "archive" / "clicks-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020}.kafka").write_bytes(
        b"".join(encode_message_set([b'{"user": 1, "at": %d}' % number]) for number in range(100))
    )
    text = BLOCKS["lake.toml"].replace('"/archive"', f'"{tmp_path}/archive"')
    (tmp_path / "lake.toml").write_text(text.replace("/var/lib/consumerd/lake", f"{tmp_path}/lake"), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_of_the_page_run_without_spark(folder: Path) -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) >= 3
    commands = json.dumps([shlex.split(command, comments=True) for command in COMMANDS])
    ran = subprocess.run([sys.executable, "-c", RUN, commands], check=True, capture_output=True, text=True)
    said = ran.stderr.splitlines()  # progress, if the machine is slow
    assert all(line.startswith(tuple(f"consumerd: {step}: " for step in STEPS)) for line in said), said
    codes, shown = zip(*map(json.loads, ran.stdout.splitlines()), strict=True)
    assert codes == (0,) * len(COMMANDS)
    assert "land\trows\t100\n" in shown[0]
    assert json.loads(shown[3])["rows_silver"] == 100
    assert json.loads(shown[4])["rows_refined"] == 100
    assert json.loads(shown[1]) | {"seconds": 0} == {
        "pipeline": "clicks", "table": f"{folder}/lake/clicks/bronze", "rows": 0, "batches": 0, "last_batch": 0,
        "seconds": 0, "stopped": False, "committed": 0,
    }  # fmt: skip


def test_names_the_missing_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deltalake" else find(name))
    assert main.run(["lake", "land", "-c", "lake.toml"]) == ExitCode.CONFIG
    assert capsys.readouterr().err == "consumerd: this needs the package deltalake: pip install 'consumerd[lake]'\n"
