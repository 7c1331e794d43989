"""Shared by `log verify` and `log export`: options, signals, progress, and the display of findings."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError, ExitCode
from consumerd.cli.config_option import Decorated, together
from consumerd.cli.numbers import PositiveInt
from consumerd.cli.tables import show_rows

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from consumerd.storage.archives.contiguity import ArchivePartitionReport, ArchiveReport
    from consumerd.storage.archives.export import ExportReport
    from consumerd.storage.archives.findings import ArchiveFinding
    from consumerd.storage.archives.pool import Progress, StopFlag
    from consumerd.storage.archives.sources import SegmentSource

_Report = TypeVar("_Report")

#: A process of its own is not worth its start for less.
BYTES_PER_WORKER = 16 << 20
#: Seconds between lines of progress where no bar is shown.
SECONDS_PER_LINE = 10.0


def _checked_layout(_: click.Context, __: click.Parameter, text: str) -> str:
    """The value of `--layout`. Raises BadParameter for a text that is not a layout."""
    from consumerd.storage.log.archive_names import ArchiveLayout  # noqa: PLC0415

    try:
        return ArchiveLayout(text).text
    except ConfigError as error:
        raise click.BadParameter(f"{error}.") from None


#: `--isolation`, of what shows or exports the records of an archive.
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="All messages of 0.8 and later, or those outside of transactions and of committed ones: the archive is read "
    "twice. A transaction that is open at its end counts as aborted.",
)


def layout_option(about: str) -> Callable[[Decorated], Decorated]:
    """`--layout`. `about`: its help."""
    return click.option(
        "--layout",
        default="{topic}-{partition}",
        show_default=True,
        callback=_checked_layout,
        metavar="PATTERN",
        help=about,
    )


#: The options that say where segments are and how to read them.
source_options = together(
    layout_option(
        "Pattern of the last folders above a segment: {topic}, {partition}, {broker}, * and text. The name of a tar "
        "file counts as a folder: 'broker-{broker}.tar.gz/{topic}-{partition}'."
    ),
    click.option("--broker-id", type=click.IntRange(0, (1 << 31) - 1), help="Id of the broker whose files they are."),
    click.option("--workers", type=PositiveInt(1024), help="Number of worker processes.  [default: by CPUs and work]"),
    click.option(
        "--max-expansion",
        type=PositiveInt(),
        default=200,
        show_default=True,
        help="Maximum ratio of decompressed to compressed size, for anything that exceeds 1 GiB.",
    ),
    click.option(
        "--allow-torn-tail",
        is_flag=True,
        help="Do not change the exit code for a last segment that ends inside a message, as after a crash.",
    ),
)


def worker_count(given: int | None, sources: Iterable[SegmentSource]) -> int:
    """The number of processes to start: as given, else by the CPUs and the work."""
    if given is not None:
        return given
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, 1 + sum(source.size or 0 for source in sources) // BYTES_PER_WORKER)


@contextlib.contextmanager
def stopping(stop: StopFlag) -> Iterator[None]:
    """SIGINT and SIGTERM request a stop; the second one forces it."""

    def on_signal(*_: object) -> None:
        if stop.requested:
            os._exit(ExitCode.FORCED)
        stop.requested = True

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def over_archive(paths: Sequence[str], workers: int | None, what: str, work: Callable[..., _Report]) -> _Report:
    """Do `work` on the segments that `paths` name, which is called with `workers`, `progress` and `stop` of a signal.

    `what`: the verb for its progress.
    """
    from consumerd.storage.archives.pool import StopFlag  # noqa: PLC0415 - `--help` needs no archive
    from consumerd.storage.archives.sources import find_sources  # noqa: PLC0415 - `--help` needs no archive

    stop = StopFlag()
    with stopping(stop), progress(what) as shown:
        sources = find_sources(paths)
        return work(sources, workers=worker_count(workers, sources), progress=shown, stop=stop)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A bar where standard error is a terminal, now and then a line where it is not."""
    if not sys.stderr.isatty():
        yield Lines(what, SystemClock().monotonic)
        return
    from rich import progress as rich  # noqa: PLC0415 - only where a terminal is
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[segments]}{task.fields[of]} segments, {task.fields[messages]} messages"),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        yield Bar(what, shown)


class Bar:
    """Progress for a terminal; `progress` is rich's."""

    def __init__(self, what: str, progress: RichProgress) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None, segments=0, of="", messages=0)
        self._segments = self._messages = 0

    def begin(self, total_bytes: int, segments: int | None) -> None:
        of = "" if segments is None else f"/{segments}"
        self._progress.update(self._task, total=total_bytes, of=of)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def segment(self, rows: int) -> None:
        self._segments += 1
        self._messages += rows
        self._progress.update(self._task, segments=self._segments, messages=self._messages)


class Lines:
    """Progress for a log."""

    def __init__(self, what: str, monotonic: Callable[[], float]) -> None:
        self._what = what
        self._monotonic = monotonic
        self._next = monotonic() + SECONDS_PER_LINE
        self._total = self._read = self._segments = self._messages = 0
        self._of = ""

    def begin(self, total_bytes: int, segments: int | None) -> None:
        self._total = total_bytes
        self._of = "" if segments is None else f" of {segments}"

    def advance(self, count: int) -> None:
        self._read += count
        self._tell()

    def segment(self, rows: int) -> None:
        self._segments += 1
        self._messages += rows
        self._tell()

    def _tell(self) -> None:
        if self._monotonic() < self._next:
            return
        self._next = self._monotonic() + SECONDS_PER_LINE
        click.echo(
            f"consumerd: {self._what}: {self._segments}{self._of} segments, {self._read} of {self._total} bytes, "
            f"{self._messages} messages",
            err=True,
        )


def partition_json(partition: ArchivePartitionReport) -> dict[str, Any]:
    """One partition in the summary object."""
    return {
        "partition": partition.name,
        "segments": len(partition.segments),
        "bytes": partition.size,
        "messages": partition.messages,
        "start": partition.start,
        "end": partition.end,
        "corrupt": sum(segment.corrupt for segment in partition.segments),
        "torn": sum(segment.torn_at is not None for segment in partition.segments),
        "gaps": _gaps(partition),
        "findings": sum(finding.count for finding in partition.findings),
    }


def _gaps(partition: ArchivePartitionReport) -> int:
    from consumerd.storage.archives.findings import ArchiveFindingKind  # noqa: PLC0415 - `--help` needs no archive

    return partition.count(ArchiveFindingKind.GAP, ArchiveFindingKind.LOST)


def show_report(report: ArchiveReport | ExportReport) -> None:
    """A row per partition, then one per finding."""
    columns = [">segments", ">bytes", ">messages", ">start", ">end", ">corrupt", ">torn", ">gaps", ">findings"]
    rows = [list(partition_json(partition).values()) for partition in report.partitions]
    show_rows(["partition", *columns], rows, kind="partition")
    show_findings(report.findings())


def show_totals(totals: Mapping[str, int]) -> None:
    """A row with the totals, by their names."""
    show_rows([f">{name}" for name in totals], [list(totals.values())], kind="total")


def show_findings(findings: Iterable[ArchiveFinding]) -> None:
    """A row per finding."""
    show_rows(
        ["finding", "source", ">offset", ">end", "problem"],
        ((str(found.kind), found.source, found.offset, found.end, found.problem) for found in findings),
        kind="finding",
    )
