"""Rows for people and for pipes.

Strategy: on a terminal a table whose rows have one line each, in a pipe one line per row with tabs between the fields
and no header. Numbers are aligned right and never cut. Where a table is wider than the terminal, its texts are cut, the
longest first; a pipe has all of them. Names and values come from ZooKeeper, to which any client may write, so control
characters never reach a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import click

#: Spaces between columns, and the cells to which a text is cut at most.
_GAP: Final = "  "
_SHORTEST: Final = 8
#: Of a dump: rows that share a table, since rich must see a whole table before it prints, and a segment has millions of
#: messages; and the width where standard output is not a terminal.
_ROWS_PER_TABLE: Final = 1000
_PIPE_WIDTH: Final = 160

Entry = TypeVar("Entry", bound="DumpedEntry")


def printable(text: str) -> str:
    """`text` with everything that is not printable, tabs and line ends included, as backslash escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def utc_text(milliseconds: int | None) -> str | None:
    """`2026-11-28 03:00:00` for milliseconds since 1970; None for None, and for what is not a time."""
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:19]
    except (OverflowError, ValueError, OSError):
        return None


def counted(number: int, noun: str) -> str:
    """`1 partition`, `2,000 partitions`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def styled(text: str, **style: Any) -> str:
    """`text` in bold or in a colour (as `click.style`) on a terminal that has these, unless NO_COLOR is set."""
    plain = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
    return text if plain else click.style(text, **style)


def show_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    kind: str = "",
    most: int | None = None,
) -> None:
    """Print rows. `title` stands above a table; `kind` is the first field of a line, where several kinds are mixed.

    Without rows nothing is printed. Columns named with a leading `>` are of numbers; a table leaves out the last one if
    it is empty. `most`: the lines that a terminal has for the table, with the title; what does not fit is counted.
    """
    cells = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not cells:
        return
    if not sys.stdout.isatty():
        for row in cells:
            click.echo("\t".join([kind, *row] if kind else row))
        return
    if not any(row[-1] for row in cells):  # remarks, of which there are none
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    head = [column.removeprefix(">") for column in columns]
    left = [not column.startswith(">") for column in columns]
    from shutil import get_terminal_size  # noqa: PLC0415 - with the modules of archives: only on a terminal

    space = get_terminal_size().columns
    widths, cut = fitted(head, cells, left, space)
    lines = [_line(row, widths, left) for row in (head, *cells)]
    lines[0] = styled(lines[0], bold=True)
    if title:
        lines.insert(0, title)
    if cut:
        lines.append(f"Texts with … are cut to {space} columns: pipe the output, or use --json where there is one.")
    if most is not None and len(lines) > most:
        shown = max(most - 1, 3)
        lines[shown:] = [f"... and {len(lines) - shown:,} more lines"] if len(lines) > shown else []
    for line in lines:
        click.echo(line)


def fitted(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool], space: int
) -> tuple[list[int], bool]:
    """Return the width of each column, and whether texts (`left`) are cut so that all take at most `space`."""
    widths = [max(_width(row[number]) for row in (head, *rows)) for number in range(len(head))]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - space
    cut = False
    while excess > 0:
        texts = [number for number, is_text in enumerate(left) if is_text and widths[number] > _SHORTEST]
        if not texts:
            break
        widest = max(texts, key=lambda number: widths[number])
        widths[widest] -= 1
        excess -= 1
        cut = True
    return widths, cut


def _line(row: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    cells = []
    for text, width, is_text in zip(row, widths, left, strict=True):
        shown = _shortened(text, width)
        fill = " " * (width - _width(shown))
        cells.append(shown + fill if is_text else fill + shown)
    return _GAP.join(cells).rstrip()


def _shortened(text: str, width: int) -> str:
    """Cut `text` in its middle: names of members and partitions differ at their ends."""
    if _width(text) <= width:
        return text
    end = (width - 1) // 3
    head, tail = text, text[-end:] if end else ""
    while _width(tail) > end:
        tail = tail[1:]
    while head and _width(head) + 1 + _width(tail) > width:
        head = head[:-1]
    return f"{head}…{tail}"


def _width(text: str) -> int:
    """The cells of a terminal that a text takes; characters of East Asian scripts take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - for such a text only

    return cell_len(text)


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


def show_dump(
    name: str, entries: Iterator[Entry], columns: Sequence[Column], cells: Callable[[Entry], tuple[str, ...]]
) -> None:
    """Print a file's entries: `columns`, then one with the first payload or the problem."""
    from rich.console import Console  # noqa: PLC0415 - only where a dump is a table
    from rich.table import Table  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, emoji=False, markup=False)
    console.print(printable(name), soft_wrap=True)
    header = True
    digits = 0
    while rows := list(islice(entries, _ROWS_PER_TABLE)):
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
