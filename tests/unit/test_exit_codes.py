"""Exit codes: the constants, the documents and the systemd unit say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import consumerd
from consumerd.base.errors import ExitCode

PACKAGE = Path(consumerd.__file__).parent
ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def section(heading: str) -> str:
    """The text below `heading` of docs/operations.md, up to the next one."""
    return OPERATIONS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_table_has_every_exit_code_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| (\S.*?) \|", section("Exit codes"), re.MULTILINE)
    assert [(int(code), name) for code, name, _ in rows] == [(each.value, each.name) for each in ExitCode]


def test_the_restarts_section_names_the_codes_of_the_unit() -> None:
    unit = (ROOT / "systemd" / "consumerd@.service").read_text()
    prevented = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    named = re.search(r"except after exit codes ([\d, and\n]+), which", section("Restarts under systemd"))
    assert prevented is not None
    assert named is not None
    assert re.findall(r"\d+", named[1]) == prevented[1].split()


def test_documents_name_no_other_code() -> None:
    codes = {each.value for each in ExitCode}
    found = [
        (path.name, int(code))
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for listed in re.findall(r"exit(?:s with)?\s+codes?\s+(\d+(?:(?:,|\s+and|\s+or)\s+\d+)*)", path.read_text())
        for code in re.findall(r"\d+", listed)
    ]
    assert len(found) > 40
    assert [(name, code) for name, code in found if code not in codes] == []


def test_every_code_is_used() -> None:
    used = {
        node.attr
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ExitCode"
    }
    assert used == set(ExitCode.__members__)
