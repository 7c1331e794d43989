"""Results of steps as rows: everything that a step returns from `as_json` is shown.

Strategy: plain values become one table of names and values, lists of objects a table each. A pipe gets a line per row
whose first fields say of which step and of what it is; numbers keep their digits there, and get separators on a
terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from consumerd.cli.tables import show_rows


def show_json(result: Mapping[str, Any]) -> None:
    """One object."""
    click.echo(json.dumps(result, default=str))


#: The columns of `show_steps` by the names of `StepRun.as_json`.
_HEADS: Final = {
    "step": "step",
    "rows": ">rows",
    "rows_per_second": ">rows/s",
    "written_bytes": ">bytes written",
    "megabytes_per_second": ">MB/s",
    "seconds": ">seconds",
}


def show_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    """One row for each step: how much it did, how fast. Bytes are those of the files that it wrote."""
    rows = [[_text(step[name]) for name in _HEADS] for step in steps]
    show_rows(list(_HEADS.values()), rows, kind="steps")


def show_result(step: str, result: Mapping[str, Any]) -> None:
    """The rows of one step."""
    plain = {name: value for name, value in result.items() if not _is_table(value)}
    rows = [[name.replace("_", " ") if sys.stdout.isatty() else name, _text(value)] for name, value in plain.items()]
    show_rows(["result", "value"], rows, title=f"\n{step}", kind=step)
    for name, value in result.items():
        if _is_table(value) and value:
            columns = list(dict.fromkeys(key for row in value for key in row))
            show_rows(
                [f">{_head(column)}" if _is_number(value[0].get(column)) else _head(column) for column in columns],
                [[_text(row.get(column)) for column in columns] for row in value],
                title=f"\n{step}: {name.replace('_', ' ')}",
                kind=f"{step}\t{name}",
            )


def _is_table(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(row, dict) for row in value)


def _head(column: str) -> str:
    """`files_before` as the head of a column."""
    return column.replace("_", " ")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() if sys.stdout.isatty():
            return f"{value:,}"
        case float() if sys.stdout.isatty() and abs(value) >= 1000:
            return f"{value:,.0f}"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case dict() | list() | tuple():
            return _flat(value)
        case _:
            return str(value)


def _flat(value: dict[str, Any] | Sequence[Any]) -> str:
    """Nested values in few words: `a=1, b=2`, `1 2 3`."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(inner)}" for name, inner in value.items())
    return " ".join(map(_text, value))
