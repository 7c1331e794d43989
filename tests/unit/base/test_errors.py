"""Errors in words: one line, and never nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import consumerd
from consumerd.base.errors import ConfigError, did_you_mean, reason_of
from consumerd.net.zk.errors import ServerError

PACKAGE = Path(consumerd.__file__).parent
#: Errors of these classes may have no text at all.
FOREIGN = {"BaseException", "Exception", "OSError", "TimeoutError", "ConnectionError", "EOFError", "ServerError"}
#: Of a file that was to be opened: the operating system's own words, with the path.
WORDED = {"OSError"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer in time"),
        (TimeoutError("no answer within 3 s"), "no answer within 3 s"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ConnectionResetError(104, "reset by peer"), "[Errno 104] reset by peer"),
        (ValueError(), "ValueError"),
        (KeyError("name"), "KeyError: 'name'"),
        (RuntimeError("two\n  lines"), "RuntimeError: two lines"),
        (ConfigError("the key 'x' is wrong."), "the key 'x' is wrong."),
        (ServerError(-112), "ServerError: ZooKeeper answered with error SessionExpired (-112)"),
        (ExceptionGroup("", [TimeoutError(), ValueError("x")]), "no answer in time; ValueError: x"),
    ],
)
def test_errors_have_a_text(error: Exception, words: str) -> None:
    assert reason_of(error) == words


def _classes(handler: ast.ExceptHandler) -> set[str]:
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(each) for each in named if each is not None}


def _bare_uses(tree: ast.AST) -> list[int]:
    """Lines where an error that may have no text becomes text by itself."""
    found = []
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
        foreign = _classes(handler) & FOREIGN
        for node in ast.walk(handler):
            match node:
                case ast.Call(func=ast.Name("str"), args=[ast.Name(name)]) if name == handler.name and foreign:
                    found.append(node.lineno)
                case ast.FormattedValue(value=ast.Name(name), conversion=-1) if (
                    name == handler.name and foreign - WORDED
                ):
                    found.append(node.lineno)
    return found


def test_never_reports_only_the_text_of_errors_that_may_have_none() -> None:
    assert _bare_uses(ast.parse("try: f()\nexcept (KeyError, TimeoutError) as e:\n  log(str(e), f'{e}')")) == [3, 3]
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in _bare_uses(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found, f"say consumerd.base.errors.reason_of(error) there: {sorted(found)}"


def test_an_unknown_name_ends_a_sentence_in_one_way() -> None:
    assert did_you_mean("sise", ["size", "max_size"]) == ", did you mean 'size'?"
    assert did_you_mean("xyzzy", ["size"]) == "."
    assert did_you_mean("xyzzy", ["size"], "; known is size") == "; known is size"
    own = [path.name for path in PACKAGE.rglob("*.py") if "difflib" in path.read_text("utf-8")]
    assert own == ["errors.py"], "did_you_mean() of consumerd.base.errors is the one place that looks for similar names"
