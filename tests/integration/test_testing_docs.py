"""The snippets of docs/testing.md run unchanged, in a project of their own, with warnings as errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consumerd.base.java import JavaRuntime

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "testing.md"
INI = """
[pytest]
filterwarnings = error
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
consumerd_missing = fail
"""


def examples(document: Path = DOCUMENT) -> dict[str, str]:
    """The Python blocks, by the file name in their first line."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    return {block.splitlines()[0].removeprefix("# "): block for block in blocks}


def run(pytester: pytest.Pytester, names: set[str], passed: int, document: Path = DOCUMENT) -> None:
    found = examples(document)
    for name in names:
        pytester.path.joinpath(name).write_text(found[name])
    pytester.path.joinpath("pytest.ini").write_text(INI)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=passed)


WITHOUT_SERVERS = {"test_wordcount.py", "test_failures.py", "test_ledger.py", "test_cancellation.py", "test_group.py"}


def test_runs_every_example_of_the_page() -> None:
    assert set(examples()) == {*WITHOUT_SERVERS, "test_servers.py"}


def test_runs_examples_of_handlers_and_groups(pytester: pytest.Pytester) -> None:
    run(pytester, WITHOUT_SERVERS, passed=8)


def test_runs_examples_of_servers(pytester: pytest.Pytester, java: JavaRuntime) -> None:
    run(pytester, {"test_servers.py"}, passed=4)


def test_runs_the_handler_of_the_readme(pytester: pytest.Pytester) -> None:
    run(pytester, {"wordcount.py", "test_wordcount.py"}, passed=1, document=ROOT / "README.md")


def test_table_lists_exactly_the_fixtures(pytester: pytest.Pytester) -> None:
    listed = set(re.findall(r"^\| `(consumerd_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    result = pytester.runpytest_subprocess("--fixtures", "-p", "no:asyncio", timeout=60)
    assert listed == set(re.findall(r"^(consumerd_\w+)", result.stdout.str(), re.MULTILINE))
