"""`consumerd log dump`: every message or batch of segment files."""

from __future__ import annotations

import json
import sys
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from consumerd.cli.archive_work import isolation_option
from consumerd.cli.config_option import json_option
from consumerd.cli.tables import Column, Entry, printable, show_dump

if TYPE_CHECKING:
    from consumerd.storage.log.dump import LogEntry

#: Problems that are spelt out at the end; the others are counted.
PROBLEMS_SHOWN = 20

EXAMPLES = """\b
Examples:
  consumerd log dump /var/lib/kafka/events-0
  consumerd log dump /var/lib/kafka/events-0/00000000000000000000.log
  consumerd log dump --json /archive | jq 'select(.valid | not)'
  consumerd log dump s3://archive/kafka.tar.gz
"""


@click.command("dump", epilog=EXAMPLES)
@json_option("Print one JSON object per line instead of a table.")
@isolation_option
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def command(as_json: bool, isolation: str, paths: tuple[str, ...]) -> None:
    """Show every outer message or batch of segment files, and of directories, tars and URLs with such, in order.

    Segments of 0.7 and of 0.8 and later are told apart by their bytes. A damaged message is shown as not valid, and the
    dump continues after it; bytes between messages are one entry. Problems are summarised on standard error and do
    not change the exit code, which is 0. With --isolation read_committed the batches of aborted transactions are left
    out, by the control batches of the named files.
    """
    from consumerd.storage.archives.dumped import (  # noqa: PLC0415  # `--help` needs no archive
        DumpedSegment,
        find_dumped,
        find_uncommitted,
        open_dumped,
    )
    from consumerd.storage.segments.dialect import SegmentDialect  # noqa: PLC0415  # `--help` needs no storage

    problems = _Problems()
    found = find_dumped(paths)
    left_out = find_uncommitted(found) if isolation == "read_committed" else {}
    for segment in open_dumped(found):
        if not isinstance(segment, DumpedSegment):
            problems.note(segment.problem)
        elif segment.dialect is SegmentDialect.V07:
            from consumerd.storage.log.dump import read_entries  # noqa: PLC0415

            entries = problems.watch(segment.name, read_entries(segment.stream, segment.start))
            if as_json:
                _show_json(segment.name, entries)
            else:
                show_dump(segment.name, entries, _COLUMNS, _cells)
        else:
            from consumerd.cli import log_v08  # noqa: PLC0415

            batches = problems.watch(segment.name, log_v08.read(segment, left_out.get(segment.folder)))
            if as_json:
                log_v08.show_json(segment.name, batches)
            else:
                show_dump(segment.name, batches, log_v08.COLUMNS, log_v08.cells)
    problems.report()


class _Problems:
    """Passes entries through and remembers their defects."""

    def __init__(self) -> None:
        self._entries = 0
        self._files = 0
        self._bad = 0
        self._shown: list[str] = []

    def note(self, problem: str) -> None:
        """A file that is not shown."""
        self._files += 1
        self._entries += 1
        self._see(problem)

    def _see(self, problem: str) -> None:
        self._bad += 1
        if len(self._shown) < PROBLEMS_SHOWN:
            self._shown.append(problem)

    def watch(self, name: str, entries: Iterable[Entry]) -> Iterator[Entry]:
        self._files += 1
        for entry in entries:
            self._entries += 1
            if entry.problem is not None:
                self._see(f"{name}: {entry.problem}")
            yield entry

    def report(self) -> None:
        if not self._bad:
            return
        for line in self._shown:
            click.echo(f"consumerd: {printable(line)}", err=True)
        click.echo(f"consumerd: {self._bad} of {self._entries} entries in {self._files} files are not valid", err=True)


def _codec_name(entry: LogEntry) -> str | None:
    return None if entry.codec is None else entry.codec.name.lower()


def _show_json(name: str, entries: Iterator[LogEntry]) -> None:
    # Put together by hand: a segment has millions of entries, and only the name and the problem can need escapes.
    start = f'{{"file": {json.dumps(name)}, "offset": '
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
