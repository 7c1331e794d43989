"""`consumerd log`: read segment files of any Kafka without a broker."""

from __future__ import annotations

import json
import sys
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click

from consumerd.cli import log_export, log_verify
from consumerd.cli.tables import printable

if TYPE_CHECKING:
    from consumerd.storage.log.dump import LogEntry

_Entry = TypeVar("_Entry", bound="DumpedEntry")

#: Rows that share a table: rich must see a whole table before it prints, and a segment has millions of messages.
ROWS_PER_TABLE = 1000
#: Problems that are spelt out at the end; the others are counted.
PROBLEMS_SHOWN = 20
#: Width of the table where standard output is not a terminal.
PIPE_WIDTH = 160

EXAMPLES = """\b
Examples:
  consumerd log dump /var/lib/kafka/events-0
  consumerd log dump /var/lib/kafka/events-0/00000000000000000000.log
  consumerd log dump --json /archive | jq 'select(.valid | not)'
"""


@click.group("log")
def command() -> None:
    """Read segment files, .kafka of 0.7 and .log of 0.8 and later, without a broker."""


command.add_command(log_export.command)
command.add_command(log_verify.command)


@command.command("dump", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a table.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
def dump(as_json: bool, paths: tuple[Path, ...]) -> None:
    """Show every outer message or batch of segment files, and of directories with such, in order.

    Segments of 0.7 and of 0.8 and later are told apart by their bytes. A damaged message is shown as not valid, and the
    dump continues after it; bytes that are no messages are one entry. Problems are summarised on standard error and do
    not change the exit code, which is 0.
    """
    from consumerd.storage.segments.dialect import SegmentDialect  # noqa: PLC0415  # `--help` needs no storage
    from consumerd.storage.segments.finding import find_segment_files  # noqa: PLC0415

    problems = _Problems()
    for path, start, dialect in find_segment_files(paths):
        if dialect is SegmentDialect.V07:
            from consumerd.storage.log.dump import read_segment  # noqa: PLC0415

            entries = problems.watch(path, read_segment(path, start))
            if as_json:
                _show_json(path, entries)
            else:
                show_table(path, entries, _COLUMNS, _cells)
        else:
            from consumerd.cli import log_v08  # noqa: PLC0415

            batches = problems.watch(path, log_v08.read(path, start))
            if as_json:
                log_v08.show_json(path, batches)
            else:
                show_table(path, batches, log_v08.COLUMNS, log_v08.cells)
    problems.report()


class DumpedEntry(Protocol):
    """What every entry of a dump has."""

    @property
    def next_offset(self) -> int: ...

    @property
    def problem(self) -> str | None: ...


class _Problems:
    """Passes entries through and remembers their defects."""

    def __init__(self) -> None:
        self._entries = 0
        self._files = 0
        self._bad = 0
        self._shown: list[str] = []

    def watch(self, path: Path, entries: Iterable[_Entry]) -> Iterator[_Entry]:
        self._files += 1
        for entry in entries:
            self._entries += 1
            if entry.problem is not None:
                self._bad += 1
                if len(self._shown) < PROBLEMS_SHOWN:
                    self._shown.append(f"{printable(str(path))}: {entry.problem}")
            yield entry

    def report(self) -> None:
        if not self._bad:
            return
        for line in self._shown:
            click.echo(f"consumerd: {line}", err=True)
        click.echo(f"consumerd: {self._bad} of {self._entries} entries in {self._files} files are not valid", err=True)


def _codec_name(entry: LogEntry) -> str | None:
    return None if entry.codec is None else entry.codec.name.lower()


def _show_json(path: Path, entries: Iterator[LogEntry]) -> None:
    # Put together by hand: a segment has millions of entries, and only the name and the problem can need escapes.
    start = f'{{"file": {json.dumps(str(path))}, "offset": '
    write, encode = sys.stdout.write, b2a_base64
    for entry in entries:
        payloads = ", ".join([f'"{encode(payload, newline=False).decode()}"' for payload in entry.payloads])
        magic, size = ("null" if number is None else number for number in (entry.magic, entry.size))
        codec = "null" if entry.codec is None else f'"{_codec_name(entry)}"'
        problem = "" if entry.problem is None else f', "problem": {json.dumps(entry.problem)}'
        write(
            f'{start}{entry.offset}, "next_offset": {entry.next_offset}, "valid": {"false" if problem else "true"}, '
            f'"magic": {magic}, "codec": {codec}, "size": {size}, "payloads_base64": [{payloads}]{problem}}}\n'
        )


class Column(NamedTuple):
    """A column of a dump's table: its head, its least width, and whether it holds numbers."""

    head: str
    width: int
    right: bool = False


#: The offsets in front of each table are of the width of the last one.
_COLUMNS = (
    Column("offset", 0, right=True),
    Column("next", 0, right=True),
    Column("size", 10, right=True),
    Column("valid", 5),
    Column("magic", 5),
    Column("codec", 6),
    Column("messages", 8, right=True),
)


def show_table(
    path: Path, entries: Iterator[_Entry], columns: Sequence[Column], cells: Callable[[_Entry], tuple[str, ...]]
) -> None:
    """Print a file's entries: `columns`, then one with the first payload or the problem."""
    from rich.console import Console  # noqa: PLC0415  # only where a table is printed
    from rich.table import Table  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, emoji=False, markup=False)
    console.print(printable(str(path)), soft_wrap=True)
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


def _cells(entry: LogEntry) -> tuple[str, ...]:
    first = repr(entry.payloads[0][:200])[1:] if entry.payloads else ""
    return (
        str(entry.offset),
        str(entry.next_offset),
        "" if entry.size is None else str(entry.size),
        "yes" if entry.valid else "NO",
        "" if entry.magic is None else str(entry.magic),
        _codec_name(entry) or "",
        str(len(entry.payloads)),
        entry.problem or first,
    )
