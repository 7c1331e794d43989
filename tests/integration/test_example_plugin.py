"""The example plugin is a package that installs and that consumerd finds by its entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "handler-plugin"

SCRIPT = """
import asyncio
from consumerd.handlers import Batch, Handler, load_handler
from consumerd.base.partition import TopicPartition
from consumerd.wire.v07 import decode_batch, encode_message_set

async def main():
    handler = load_handler("wordcount", {"top": 2, "ignore_case": True})
    assert isinstance(handler, Handler)
    data = encode_message_set([b"the cat", b"The hat", b"\\xff the"])
    batch = Batch(TopicPartition("t", 0, 0), decode_batch(data, 0))
    await handler.handle(batch)
    assert batch.handled == 3
    await handler.stop()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees the installed plugin."""
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*install, "--no-deps", "--no-build-isolation", "--target", str(target), str(PLUGIN)],
        check=True,
        timeout=100,
    )
    return {**os.environ, "PYTHONPATH": str(target)}


def test_loads_by_name_and_handles_messages(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "words_counted" in done.stdout
    assert "('the', 3)" in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("{ top = 5 }", ExitCode.OK, ""),
        ("{ tpo = 5 }", ExitCode.HANDLER, "has no option 'tpo', did you mean 'top'?"),
        ("{ top = 0 }", ExitCode.HANDLER, "refused its options: top must be at least 1."),
    ],
)
def test_check_accepts_its_options(
    environment: dict[str, str], tmp_path: Path, options: str, code: int, words: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[group]\nid = "g"\ntopics = {{ t = 1 }}\n[handler]\nname = "wordcount"\noptions = {options}\n')
    done = subprocess.run(
        [sys.executable, "-m", "consumerd", "check", "-c", str(config)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_passes_its_own_tests(environment: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(PLUGIN, tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "plugin"],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_installation_leaves_no_files_in_the_source(environment: dict[str, str]) -> None:
    found = {str(path.relative_to(PLUGIN)) for path in PLUGIN.rglob("*") if path.is_file()}
    assert {name for name in found if "__pycache__" not in name} == {
        "README.md",
        "pyproject.toml",
        "src/consumerd_wordcount/__init__.py",
        "src/consumerd_wordcount/py.typed",
        "tests/test_wordcount.py",
    }
