"""`consumerd demo`: a whole cluster on loopback, and a count of every message."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumerd.errors import ConsumerdError, ExitCode

if TYPE_CHECKING:
    from consumerd.embedded.demo import Demo, DemoResult

EXAMPLES = """\b
Examples:
  consumerd demo
  consumerd demo --input /var/log
  consumerd demo 2>/dev/null | jq .duplicated
"""


class DemoInterrupted(ConsumerdError):  # noqa: N818 - no error, an end that was asked for
    """A signal ended the demo."""

    exit_code = ExitCode.INTERRUPTED


class DemoFailed(ConsumerdError):  # noqa: N818
    """The count found what must not be."""

    exit_code = ExitCode.CHECK_FAILED


@click.command("demo", epilog=EXAMPLES)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File or folder whose lines to produce. [default: the Python standard library's sources]",
)
@click.option("--seconds", type=click.FloatRange(0, 3600), default=8.0, show_default=True, help="How long to produce.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep all files of the run there: logs, segments, records, tables.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the pipeline's report goes.  [default: consumerd-demo-report.html]",
)
@click.option("--no-spark", is_flag=True, help="Leave the pipeline out.")
def command(source: Path | None, seconds: float, keep: Path | None, report: Path | None, no_spark: bool) -> None:
    """Run a ZooKeeper, two brokers and three daemons on loopback, and count every message.

    Lines of text go to 8 partitions, plain, gzip and snappy. While two daemons work, a third one joins, one is killed
    with SIGKILL and one stopped with SIGTERM. When the lag is 0, what was handed over is compared with what was sent,
    message by message. Then Spark lands, refines and aggregates what the daemons stored, and reconciles. Progress goes
    to standard error, the result as one line of JSON to standard output:

    \b
    produced      lines sent
    handled       messages handed over, repetitions included
    distinct      different messages handed over
    duplicated    repetitions (allowed: delivery is at least once)
    lost          never handed over                                  (must be 0)
    out_of_order  handed over after a later one, within one ownership (must be 0)
    corrupted     handed over with another payload than was sent      (must be 0)
    overlapping   handed over by a member that had lost the partition (must be 0)
    rows_landed   rows of the pipeline's first table                 (must be as many as distinct)
    rows_quarantined  rows that did not fit the declared schema
    gaps          stretches of the log that are not in the tables     (must be 0)
    duplicates    rows of the tables that are there twice             (must be 0)

    Without the extra `spark` the last four are null.
    """  # noqa: D301 - the escape tells the option parser to leave the table alone
    from rich.console import Console  # noqa: PLC0415 - imported by the command that runs

    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415
    from consumerd.embedded.demo import Demo, DemoOptions, PlainView, TerminalView, pipeline_table  # noqa: PLC0415

    configure_logs("error", "auto")
    console = Console(stderr=True)
    with TerminalView(console) if console.is_terminal else PlainView(console) as view:
        options = DemoOptions(source, seconds, keep, report, spark=not no_spark)
        demo = Demo(options, view, clock=SystemClock(), rng=random.SystemRandom())
        result = asyncio.run(_until_a_signal(demo))
    if result.pipeline is not None:
        console.print(pipeline_table(result.pipeline.steps))
        console.print(f"report: {result.pipeline.report}", markup=False, highlight=False, soft_wrap=True)
    click.echo(json.dumps(result.as_json()))
    if not result.sound:
        raise DemoFailed(f"the count is not as it must be: {'; '.join(result.findings)}")


async def _until_a_signal(demo: Demo) -> DemoResult:
    """Run it; SIGINT and SIGTERM end it and everything that it started."""
    loop = asyncio.get_running_loop()
    running = loop.create_task(demo.run(), name="demo")
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
        raise DemoInterrupted(f"the demo was ended by {received[0]}, and all its processes with it.") from None
    finally:
        running.cancel()
        await asyncio.wait([running])
