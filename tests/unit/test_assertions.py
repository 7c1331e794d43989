"""No test passes because it checked nothing: if all its checks are in loops, one of these runs over something.

`make check` runs this file, too. What counts as not empty: displays with items, `range`, enum classes, constants that
are such displays or come from elsewhere, what `@pytest.mark.parametrize` gives, what functions and fixtures of the
module return after an assertion, and `enumerate`, `zip`, `sorted` and the like of these. Tests with `@given` run many
times, over other data each. For the rest: collect the results in a list, and compare that; or say beside the loop what
it runs over (`assert paths`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
#: Functions whose result has items if their arguments do.
_KEEPS_ITEMS: Final = frozenset(
    [
        "batched",
        "chain",
        "count",
        "cycle",
        "dict",
        "enumerate",
        "frozenset",
        "list",
        "pairwise",
        "permutations",
        "product",
        "repeat",
        "reversed",
        "set",
        "sorted",
        "tuple",
        "zip",
        "items",
        "keys",
        "values",
    ]
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Loop = ast.For | ast.AsyncFor


class _Module:
    """What is known of the names in a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.values = _assigned(tree.body)
        self.imported = {
            alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        #: Functions that assert, or return a display.
        self.given = set()
        for node in tree.body:
            if isinstance(node, _Function):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                if any(isinstance(each, ast.Assert) for each in ast.walk(node)) or any(
                    isinstance(each, ast.List | ast.Tuple) and each.elts for each in returned
                ):
                    self.given.add(node.name)


class _Names:
    """What is known of the names in a test."""

    def __init__(self, module: _Module, function: _Function) -> None:
        self.values = {**module.values, **_assigned(ast.walk(function))}
        self.given = module.given | {name for each in function.decorator_list for name in _parametrized(each)}
        self.imported = module.imported


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    found = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def _parametrized(decorator: ast.expr) -> list[str]:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=str(names)), *_]):
            return [name.strip() for name in names.split(",")]
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Tuple(elts=names) | ast.List(elts=names), *_]):
            return [str(name.value) for name in names if isinstance(name, ast.Constant)]
    return []


def _is_drawn(function: _Function) -> bool:
    return any(ast.unparse(each).startswith("given(") for each in function.decorator_list)


def has_items(node: ast.expr, names: _Names, depth: int = 0) -> bool:
    """Whether what `node` evaluates to is known to be not empty."""

    def known(other: ast.expr) -> bool:
        return depth < 5 and has_items(other, names, depth + 1)

    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return any(not isinstance(item, ast.Starred) or known(item.value) for item in items)
        case ast.Dict(keys=items):
            return bool(items)
        case ast.Constant(value=str(text) | bytes(text)):
            return bool(text)
        case ast.ListComp(generators=[only]) | ast.DictComp(generators=[only]) | ast.GeneratorExp(generators=[only]):
            return not only.ifs and known(only.iter)
        case ast.Call():
            return _gives_items(node, names, known)
        case ast.BinOp(left=left, right=right):
            return known(left) or known(right)
        case ast.Name(id=name) if name in names.values:
            return known(names.values[name])
        case ast.Name(id=name):
            return name in names.given or (name in names.imported and not name.islower())
        case ast.Attribute(attr=name):
            return name.isupper()
    return False


def _gives_items(call: ast.Call, names: _Names, known: Callable[[ast.expr], bool]) -> bool:
    match call:
        case ast.Call(func=ast.Name(id="range")) | ast.Call(func=ast.Attribute(attr="split"), args=[_]):
            return True
        case ast.Call(func=ast.Name(id="zip" | "chain"), args=arguments):
            return any(map(known, arguments))  # `zip(strict=True)`, as nearly everywhere here
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _KEEPS_ITEMS:
            return known(first)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments) if name in _KEEPS_ITEMS:
            return known(arguments[0] if arguments else owner)
        case ast.Call(func=ast.Name(id=name)):
            return name in names.given
    return False


def _is_check(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Raise():
            return True
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return any(
                "raises" in ast.unparse(item.context_expr) or "warns" in ast.unparse(item.context_expr)
                for item in items
            )
        case ast.Call(func=func):
            return ast.unparse(func).rpartition(".")[2].startswith(("assert", "check", "fail", "verify"))
    return False


def _checks(node: ast.AST, names: _Names, *, calls: bool, sure: bool = True) -> Iterator[bool]:
    """For each check in `node` whether it is made in any case, as far as loops are concerned."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            continue
        if _is_check(child) or (calls and isinstance(child, ast.Expr) and not isinstance(child.value, ast.Constant)):
            yield sure
        runs = sure and (not isinstance(child, _Loop) or has_items(child.iter, names))
        yield from _checks(child, names, calls=calls, sure=runs)


def vacuous(path: Path) -> list[str]:
    """`file:line: name` of each test whose checks are all in loops over what may be empty."""
    tree = ast.parse(path.read_text("utf-8"))
    module, found = _Module(tree), []
    for function in ast.walk(tree):
        if isinstance(function, _Function) and function.name.startswith("test_") and not _is_drawn(function):
            if not any(isinstance(node, _Loop) for node in ast.walk(function)):
                continue
            names = _Names(module, function)
            checks = [*_checks(function, names, calls=False)] or [*_checks(function, names, calls=True)]
            if checks and not any(checks):
                shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                found.append(f"{shown}:{function.lineno}: {function.name}")
    return found


def test_every_test_checks_something() -> None:
    found = [each for path in sorted((ROOT / "tests").rglob("test_*.py")) for each in vacuous(path)]
    if found:
        pytest.fail("\n".join(["all checks of these are in loops that may run over nothing:", *found]), pytrace=False)


EXAMPLES: Final = """
import pytest
from elsewhere import CASES, Codec, helper

KNOWN = [1, 2]
NONE = []

def listed(path):
    found = [*path.glob("*")]
    assert found
    return found

def test_paths(tmp_path):
    for path in tmp_path.glob("*"):
        assert path.exists()

def test_calls(tmp_path):
    for path in tmp_path.glob("*"):
        helper(path)

def test_empty():
    for each in sorted(NONE):
        with pytest.raises(ValueError):
            int(each)

async def test_stream(source):
    async for each in source:
        assert each

def test_known():
    for one, other in zip(enumerate(KNOWN, 1), range(2), strict=True):
        assert one, other

def test_enum():
    for codec in Codec:
        assert codec

def test_imported():
    for case in CASES:
        assert case

def test_asserted(tmp_path):
    for path in listed(tmp_path):
        assert path

def test_counted(tmp_path):
    paths = [*tmp_path.glob("*")]
    assert paths
    for path in paths:
        assert path

@pytest.mark.parametrize(("cases", "code"), [([1], 2)])
def test_given(cases, code):
    for case in cases:
        assert case < code
"""


def test_finds_tests_that_may_check_nothing(tmp_path: Path) -> None:
    module = tmp_path / "test_module.py"
    module.write_text(EXAMPLES)
    names = [each.rpartition(" ")[2] for each in vacuous(module)]
    assert names == ["test_paths", "test_calls", "test_empty", "test_stream"]
