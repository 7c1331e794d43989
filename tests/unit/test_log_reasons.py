"""Every log event of an error has its reason in words, under one key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import consumerd

PACKAGE = Path(consumerd.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def log_calls(module: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and re.search(r"\b_?(log|logger)$", ast.unparse(node.func.value))
        ):
            yield node


def wordless(module: ast.Module) -> list[str]:
    """Keywords of log calls that may hold an error without words, or that say `error` for `reason`."""
    caught = {node.name for node in ast.walk(module) if isinstance(node, ast.ExceptHandler)} | {"error", "failure"}
    texts = {f"{text}({name})" for text in ("str", "repr") for name in caught}
    return [
        ast.unparse(keyword)
        for call in log_calls(module)
        for keyword in call.keywords
        if keyword.arg == "error" or ast.unparse(keyword.value) in texts
    ]


def test_finds_reasons_that_may_be_empty() -> None:
    source = """
try:
    pass
except OSError as failed:
    self._log.info("one", reason=str(failed))
    log.warning("two", reason=reason_of(failed), error=reason_of(failed))
    logger.error("three", path=str(path), reason=reason_of(failed))
"""
    assert wordless(ast.parse(source)) == ["reason=str(failed)", "error=reason_of(failed)"]


def test_logs_give_reasons_that_are_never_empty() -> None:
    modules = {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert sum(len(list(log_calls(module))) for module in modules.values()) > 100
    found = {str(path.relative_to(PACKAGE)): wordless(module) for path, module in modules.items()}
    assert {path: keywords for path, keywords in found.items() if keywords} == {}
