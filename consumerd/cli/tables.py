"""Rows for people and for pipes.

Strategy: on a terminal a table, in a pipe one line per row with tabs between the fields and no header. Names and values
come from ZooKeeper, to which any client may write, so control characters never reach a terminal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """`text` with everything that is not printable, tabs and line ends included, as backslash escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(number: int, noun: str) -> str:
    """`1 partition`, `2,000 partitions`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", kind: str = "") -> None:
    """Print rows. `title` stands above a table; `kind` is the first field of a line, where several kinds are mixed.

    Without rows nothing is printed. Columns named with a leading `>` are aligned right.
    """
    cells = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not cells:
        return
    if not sys.stdout.isatty():
        for row in cells:
            click.echo("\t".join([kind, *row] if kind else row))
        return
    from rich.console import Console  # noqa: PLC0415 - only where a table is wanted
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, emoji=False, markup=False)
    if title:
        console.print(Text(title), soft_wrap=True)
    console.print(table)
