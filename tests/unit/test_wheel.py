"""No wheel holds what only tests use: whatever is in the package is imported, in the end, by something users call.

Strategy: imports are read from the source, wherever they stand in a module, lazy ones and tables of module names too.
What users call are the entry points, modules that `python -m` runs, and those that documents and examples import.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("consumerd", "pyspark_consumerd")
#: A module's name in a table of lazy imports, or with `:name` that of a handler.
_NAME = re.compile(r"(consumerd(?:\.\w+)+)(?::\w+)?")
_IMPORTED_IN_PROSE = re.compile(r"(?:from|import) ((?:pyspark_)?consumerd[\w.]*)")


@cache
def modules() -> dict[str, Path]:
    """The modules of the wheel by their names."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named(name: str) -> set[str]:
    """The module that `name` is or is in, and the packages that Python imports on the way to it."""
    parts = name.split(".")
    return {above for end in range(1, len(parts) + 1) if (above := ".".join(parts[:end])) in modules()}


def imports(path: Path) -> set[str]:
    """The modules of the wheel that a file names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(*(named(alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} has a relative import"
            found.update(*(named(f"{node.module}.{alias.name}") for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := _NAME.fullmatch(node.value)):
            found |= named(match[1])
    return found


def entrances() -> set[str]:
    """The modules that users start."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    found = {"consumerd", "consumerd.__main__", "pyspark_consumerd"}
    found |= {name for name, path in modules().items() if '\nif __name__ == "__main__":' in path.read_text("utf-8")}
    found.update(*(named(target.partition(":")[0]) for group in groups for target in group.values()))
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        found.update(*(named(name) for name in _IMPORTED_IN_PROSE.findall(path.read_text("utf-8"))))
    for path in (ROOT / "examples").rglob("*.py"):
        found |= imports(path)
    return found


def test_entry_points_and_documented_imports_reach_every_module() -> None:
    reached: set[str] = set()
    waiting = entrances()
    while waiting:
        reached |= waiting
        waiting = {name for module in waiting for name in imports(modules()[module])} - reached
    assert sorted(modules().keys() - reached) == []


def test_wheel_does_not_import_tests() -> None:
    foreign = re.compile(r"^ *(?:from|import) (?:tests|benchmarks)\b", re.MULTILINE)
    assert [name for name, path in modules().items() if foreign.search(path.read_text("utf-8"))] == []
