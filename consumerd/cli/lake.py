"""`consumerd lake`: the steps of the data pipeline in worker processes, without Spark."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ConfigError, ExitCode
from consumerd.cli.spark_session import StoppedBySignal
from consumerd.cli.spark_show import show_json, show_result
from consumerd.cli.step_options import AgainOptions, again_options, require_interval, shallow_option, step_options
from consumerd.cli.step_progress import batch_display

if TYPE_CHECKING:
    from consumerd.spark.spec import SparkSpec

EXAMPLES = """\b
Examples:
  consumerd lake land -c events.toml
  consumerd lake land -c events.toml --workers 4 --json | jq .rows

The steps and tables are those of `consumerd spark`, and so are the checkpoints: a pipeline may change between both.
"""
LAND_EXAMPLES = """\b
Examples:
  consumerd lake land -c events.toml
  consumerd lake land -c events.toml --pipeline clicks --workers 2
  consumerd lake land -c events.toml --continuous
"""

REFINE_EXAMPLES = """\b
Examples:
  consumerd lake refine -c events.toml
  consumerd lake refine -c events.toml --json | jq .reasons
  consumerd lake refine -c events.toml --again --dry-run
  consumerd lake refine -c events.toml --again --since 2026-11-01
"""
RECONCILE_EXAMPLES = """\b
Examples:
  consumerd lake reconcile -c events.toml && echo complete
  consumerd lake reconcile -c events.toml --json | jq '.partitions[] | select(.missing > 0)'
"""
COMPACT_EXAMPLES = """\b
Examples:
  consumerd lake compact -c events.toml
  consumerd lake compact -c events.toml --pipeline clicks --json
"""


@click.group("lake", epilog=EXAMPLES)
def command() -> None:
    """Turn partitions and archives into clean tables, on this machine alone.

    The same pipelines as `consumerd spark`, declared in [spark.pipelines.NAME] of the configuration file, run in
    worker processes: no Spark and no Java. Tables are in Delta's format. Requires the extra `lake`.
    """


_workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Worker processes, about 300 MB of memory each.  [default: the number of processors]",
)


def _spec(path: Path) -> SparkSpec:
    """The configuration, where the packages for its steps are installed. Raises ConfigError."""
    for package in ("pyarrow", "deltalake", "msgspec", "xxhash"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"this needs the package {package}: pip install 'consumerd[lake]'")
    from consumerd.spark.spec import load_spark  # noqa: PLC0415 - heavy imports for the command that runs

    return load_spark(path)


def _show(step: str, result: Any, *, as_json: bool, continuous: bool = False) -> None:
    """Show the result of a step. Raises StoppedBySignal for one that a signal ended before it was done."""
    if as_json:
        show_json(result.as_json())
    else:
        show_result(step, result.as_json())
    sys.stdout.flush()
    if getattr(result, "stopped", False) and not continuous:
        raise StoppedBySignal("stopped by a signal; the same command continues where this one stopped.")


@command.command("land", epilog=LAND_EXAMPLES)
@step_options()
@_workers
@click.option(
    "--continuous",
    is_flag=True,
    help="Continue at the pipeline's trigger until SIGTERM or Ctrl-C, which let the current batch finish; a second "
    "signal forces the exit.",
)
def land(path: Path, pipeline: str | None, workers: int | None, as_json: bool, continuous: bool) -> None:
    """Append to bronze what the source has and bronze has not: every message once, as it is.

    Without --continuous, land what is there at the start and exit. A batch that was interrupted is landed by the next
    run, and never twice.
    """
    chosen = _spec(path).pipeline(pipeline)
    if continuous:
        require_interval(chosen, path)
    from consumerd.spark.lake.land import land as run  # noqa: PLC0415 - as above

    with batch_display("land", sys.stderr) as display:
        result = run(chosen, workers=workers, available_now=not continuous, display=display)
    _show("land", result, as_json=as_json, continuous=continuous)


@command.command("refine", epilog=REFINE_EXAMPLES)
@step_options()
@_workers
@again_options
def refine(path: Path, pipeline: str | None, workers: int | None, as_json: bool, **again: Any) -> None:
    """Parse what is new in bronze: into silver if it fits the declared schema, else into quarantine with the reason.

    Messages are parsed as by `consumerd spark refine`, to the same values and reasons. Avro needs Spark, and so do
    some patterns.
    """
    spec = _spec(path)
    chosen = spec.pipeline(pipeline)
    from consumerd.spark.lake import refine_step  # noqa: PLC0415 - as above

    work: Callable[..., Any] = refine_step.refine
    if (wanted := AgainOptions.of(**again)) is not None:
        work = partial(
            refine_step.preview if wanted.dry_run else refine_step.refine_again, since=wanted.since, until=wanted.until
        )
    zone = spec.config.get("spark.sql.session.timeZone", "UTC")
    with batch_display("refine", sys.stderr) as display:
        result = work(chosen, zone=zone, workers=workers, display=display)
    _show("refine", result, as_json=as_json)


@command.command("reconcile", epilog=RECONCILE_EXAMPLES)
@step_options()
@_workers
@shallow_option
def reconcile(path: Path, pipeline: str | None, workers: int | None, as_json: bool, shallow: bool) -> int:
    """Compare, per partition, what the source has with what is in the tables: gaps, duplicates, counts, a hash.

    The exit code is 11 if messages are missing, duplicated or altered.
    """
    chosen = _spec(path).pipeline(pipeline)
    from consumerd.spark.lake.reconcile import reconcile as run  # noqa: PLC0415 - as above

    with batch_display("reconcile", sys.stderr) as display:
        result = run(chosen, shallow=shallow, workers=workers, display=display)
    _show("reconcile", result, as_json=as_json)
    return ExitCode.OK if result.is_clean else ExitCode.CHECK_FAILED


@command.command("compact", epilog=COMPACT_EXAMPLES)
@step_options()
def compact(path: Path, pipeline: str | None, as_json: bool) -> None:
    """Merge small files of the pipeline's tables into large ones, and remove files that nothing needs any more.

    Merged files stay for the time `compact.keep`, for readers that began before. Safe to interrupt and repeat, also
    while steps run.
    """
    chosen = _spec(path).pipeline(pipeline)
    from consumerd.spark.lake.compact import compact as run  # noqa: PLC0415 - as above

    _show("compact", run(chosen), as_json=as_json)
