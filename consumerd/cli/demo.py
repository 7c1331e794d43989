"""`consumerd demo`: a whole cluster on loopback, and a count of every message."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.demo.result import DemoResult

if TYPE_CHECKING:
    from consumerd.demo.play import Demo

EXAMPLES = """\b
Examples:
  consumerd demo
  consumerd demo --input /var/log
  consumerd demo --keep --no-spark
  consumerd demo 2>/dev/null | jq .duplicated
"""


class DemoInterrupted(ConsumerdError):  # noqa: N818 - no error, an end that was asked for
    """A signal ended the demo."""

    exit_code = ExitCode.INTERRUPTED


class DemoFailed(ConsumerdError):  # noqa: N818
    """The count found faults."""

    exit_code = ExitCode.CHECK_FAILED


@click.command("demo", epilog=EXAMPLES)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File or folder whose lines to produce. [default: the Python standard library's sources]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=8.0,
    show_default=True,
    help="How long to produce messages, in seconds.",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder in which to keep all files of the run: logs, segments, records, tables.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep running after the count, with a status page for each daemon, until Ctrl-C or SIGTERM.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write the pipeline's report to.  [default: consumerd-demo-report.html]",
)
@click.option("--no-spark", is_flag=True, help="Skip the Spark pipeline.")
def command(
    source: Path | None, seconds: float, files: Path | None, keep: bool, report: Path | None, no_spark: bool
) -> None:
    """Run a ZooKeeper, two brokers and three daemons on loopback, and count every message.

    Lines of text go to 8 partitions, plain, gzip and snappy. While two daemons work, a third one joins, one is killed
    with SIGKILL and one stopped with SIGTERM. When the lag is 0, the delivered messages are compared with those
    sent, one by one. Then Spark lands, refines and aggregates what the daemons stored, and reconciles. Progress goes
    to standard error, the result as one line of JSON to standard output:

    \b
    produced      lines sent
    handled       delivered messages, repetitions included
    distinct      different messages delivered
    duplicated    repetitions (allowed: delivery is at least once)
    lost          never delivered                                   (must be 0)
    out_of_order  delivered after a later one, within one ownership (must be 0)
    corrupted     delivered with a different payload than sent      (must be 0)
    overlapping   delivered to a member that had lost the partition (must be 0)
    rows_landed   rows of the pipeline's first table                (must be as many as distinct)
    rows_quarantined  rows that did not fit the declared schema
    gaps          stretches of the log that are not in the tables   (must be 0)
    duplicates    rows of the tables that are there twice           (must be 0)

    Without the extra `spark`, the last four are null.
    """  # noqa: D301 - the escape tells the option parser to leave the table alone
    from rich.console import Console  # noqa: PLC0415 - imported by the command that runs

    from consumerd.demo.play import Demo  # noqa: PLC0415
    from consumerd.demo.result import DemoOptions  # noqa: PLC0415
    from consumerd.demo.view import PlainView, TerminalView, pipeline_table  # noqa: PLC0415
    from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415

    configure_logs("error", "auto")
    console = Console(stderr=True)
    with TerminalView(console) if console.is_terminal else PlainView(console) as view:
        options = DemoOptions(source, seconds, files, report, spark=not no_spark, keep=keep)
        demo = Demo(options, view, clock=SystemClock(), rng=random.SystemRandom())
        result = asyncio.run(_until_a_signal(demo, _print_result if keep else lambda _: None))
    if result.pipeline is not None:
        console.print(pipeline_table(result.pipeline.steps))
        console.print(f"report: {result.pipeline.report}", markup=False, highlight=False, soft_wrap=True)
    if not keep:
        _print_result(result)
    if not result.sound:
        raise DemoFailed(f"the count of messages is wrong: {'; '.join(result.findings)}")


def _print_result(result: DemoResult) -> None:
    click.echo(json.dumps(result.as_json()))


async def _until_a_signal(demo: Demo, finished: Callable[[DemoResult], None]) -> DemoResult:
    """Run it; SIGINT and SIGTERM end it and everything that it started. After the count that is how it ends."""
    results: list[DemoResult] = []

    def note(result: DemoResult) -> None:
        results.append(result)
        finished(result)

    loop = asyncio.get_running_loop()
    running = loop.create_task(demo.run(note), name="demo")
    received: list[str] = []

    def stop(number: signal.Signals) -> None:
        received.append(number.name)
        running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await running
    except asyncio.CancelledError:
        if not received:
            raise
        if results:
            return results[-1]
        raise DemoInterrupted(f"the demo was ended by {received[0]}, and all its processes with it.") from None
    finally:
        running.cancel()
        await asyncio.wait([running])
