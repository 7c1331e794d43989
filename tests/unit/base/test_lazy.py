"""The rooms whose names are imported at their first use."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import consumerd
from consumerd.base.lazy import lazy_names

ROOT = Path(consumerd.__file__).parent
ROOMS = sorted(path.parent for path in ROOT.rglob("__init__.py") if "lazy_names(" in path.read_text("utf-8"))


def imported(tree: ast.Module) -> dict[str, str]:
    """Name -> module, of the imports that only type checkers see."""
    blocks = [each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return {name.name: str(each.module) for each in imports for name in each.names}


def exported(tree: ast.Module) -> dict[str, str]:
    """Name -> module, of the call of `lazy_names`."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) == "lazy_names"]
    return {name: module for module, names in ast.literal_eval(calls[0].args[1]).items() for name in names.split()}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: ".".join(room.relative_to(ROOT).parts))
def test_exports_the_names_that_type_checkers_see(room: Path) -> None:
    tree = ast.parse((room / "__init__.py").read_text("utf-8"))
    assert exported(tree) == imported(tree)
    package = import_module(".".join(("consumerd", *room.relative_to(ROOT).parts)))
    assert set(exported(tree)) <= set(package.__all__)
    for name, module in exported(tree).items():
        assert getattr(package, name) is getattr(import_module(module), name)


def test_finds_a_name_in_the_package_after_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "some_package", package)
    get = lazy_names("some_package", {"consumerd.base.partition": "TopicPartition NO_BROKER"})
    found = get("TopicPartition")
    assert vars(package) == {"TopicPartition": found}
    assert found is import_module("consumerd.base.partition").TopicPartition


def test_names_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'some_package' has no attribute 'Other'"):
        lazy_names("some_package", {})("Other")
