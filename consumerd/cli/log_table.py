"""The table of a dump, of either dialect."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from consumerd.cli.tables import printable

#: Rows that share a table: rich must see a whole table before it prints, and a segment has millions of messages.
ROWS_PER_TABLE = 1000
#: Width of the table where standard output is not a terminal.
PIPE_WIDTH = 160

Entry = TypeVar("Entry", bound="DumpedEntry")


class DumpedEntry(Protocol):
    """What every entry of a dump has."""

    @property
    def next_offset(self) -> int: ...

    @property
    def problem(self) -> str | None: ...


class Column(NamedTuple):
    """A column of a dump's table: its head, its least width, and whether it holds numbers."""

    head: str
    width: int
    right: bool = False


def show_table(
    name: str, entries: Iterator[Entry], columns: Sequence[Column], cells: Callable[[Entry], tuple[str, ...]]
) -> None:
    """Print a file's entries: `columns`, then one with the first payload or the problem."""
    from rich.console import Console  # noqa: PLC0415  # only where a table is printed
    from rich.table import Table  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, emoji=False, markup=False)
    console.print(printable(name), soft_wrap=True)
    header = True
    digits = 0
    while rows := list(islice(entries, ROWS_PER_TABLE)):
        digits = max(digits, len("offset"), len(str(rows[-1].next_offset)))
        table = Table(show_header=header, expand=True, box=None, pad_edge=False)
        for column in columns:
            justify: Any = "right" if column.right else "left"
            table.add_column(column.head, justify=justify, min_width=column.width or digits)
        table.add_column("first payload, or problem", no_wrap=True, overflow="ellipsis", ratio=1)
        for entry in rows:
            table.add_row(*cells(entry))
        console.print(table)
        header = False
