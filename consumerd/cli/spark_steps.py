"""`consumerd spark land`, `refine`, `aggregate`, `compact`, `convert`, `reconcile`, `report` and `run`.

Strategy: every command names its steps; one function starts the session, runs them in order and shows their results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ExitCode
from consumerd.cli.spark_session import StoppedBySignal, Work, require_spark, session_options, working
from consumerd.cli.spark_show import show_json, show_result, show_steps
from consumerd.cli.step_options import AgainOptions, again_options, require_interval, shallow_option, step_options

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec
    from consumerd.spark.step_history import StepRun


LAND_EXAMPLES = """\b
Examples:
  consumerd spark land -c events.toml
  consumerd spark land -c events.toml --continuous --master spark://spark-1:7077
"""
REFINE_EXAMPLES = """\b
Examples:
  consumerd spark refine -c events.toml --json | jq .reasons
  consumerd spark refine -c events.toml --again --dry-run
  consumerd spark refine -c events.toml --again --since 2026-11-01
"""
AGGREGATE_EXAMPLES = """\b
Examples:
  consumerd spark aggregate -c events.toml
"""
COMPACT_EXAMPLES = """\b
Examples:
  consumerd spark compact -c events.toml --pipeline clicks
"""
CONVERT_EXAMPLES = """\b
Examples:
  consumerd spark convert -c events.toml
"""
RECONCILE_EXAMPLES = """\b
Examples:
  consumerd spark reconcile -c events.toml && echo complete
  consumerd spark reconcile -c events.toml --json | jq '.partitions[] | select(.missing > 0)'
"""
REPORT_EXAMPLES = """\b
Examples:
  consumerd spark report -c events.toml
"""
RUN_EXAMPLES = """\b
Examples:
  consumerd spark run -c events.toml
  consumerd spark run -c events.toml --json | jq .reconcile.gaps
  consumerd spark run -c events.toml --log /var/log/consumerd/spark.log
  consumerd spark run -c events.toml --continuous --json >> rounds.ndjson
"""

_continuous = click.option(
    "--continuous",
    is_flag=True,
    help=("Continue until SIGTERM or Ctrl-C, which let the current batch finish; a second signal forces the exit."),
)
_rounds = click.option(
    "--continuous",
    is_flag=True,
    help="Land, refine and aggregate at each trigger of the pipeline, in one session, until SIGTERM or Ctrl-C. "
    "Rounds that landed nothing are not shown; reconcile and report are not run.",
)


@click.command("land", epilog=LAND_EXAMPLES)
@step_options(session_options)
@_continuous
def land(continuous: bool, **options: Any) -> int:
    """Append to bronze what the source has and bronze has not: every message once, as it is.

    Without --continuous, land what is there at the start and exit. A batch that was interrupted is landed by the next
    run, and never twice.
    """
    return _run(("land",), continuous=continuous, **options)


@click.command("refine", epilog=REFINE_EXAMPLES)
@step_options(session_options)
@again_options
def refine(again: bool, since: str | None, until: str | None, dry_run: bool, **options: Any) -> int:
    """Parse what is new in bronze: into silver if it fits the declared schema, else into quarantine with the reason."""
    wanted = AgainOptions.of(again=again, since=since, until=until, dry_run=dry_run)
    return _run(("refine",), again=wanted, **options)


@click.command("aggregate", epilog=AGGREGATE_EXAMPLES)
@step_options(session_options)
def aggregate(**options: Any) -> int:
    """Count and sum what is new in silver, per window of event time and group.

    A window is written once, when the watermark has passed its end; later events are not counted.
    """
    return _run(("aggregate",), **options)


@click.command("compact", epilog=COMPACT_EXAMPLES)
@step_options(session_options)
def compact(**options: Any) -> int:
    """Merge small files of the pipeline's tables into large ones. Safe to interrupt and repeat, and for readers."""
    return _run(("compact",), **options)


@click.command("convert", epilog=CONVERT_EXAMPLES)
@step_options()
def convert(path: Path, pipeline: str | None, as_json: bool) -> None:
    """Turn the pipeline's tables of the earlier Parquet layout into Delta tables, in place.

    Files stay where they are, and batches keep their numbers, so every step continues where it stopped. Safe to
    interrupt and repeat. Requires that no step of the pipeline runs, and needs no Spark.
    """
    require_spark()
    from consumerd.spark.spec import load_spark  # noqa: PLC0415 - heavy imports for the command that runs
    from consumerd.spark.tables.convert import convert_pipeline  # noqa: PLC0415

    converted = convert_pipeline(load_spark(path).pipeline(pipeline)).as_json()
    if as_json:
        show_json(converted)
    else:
        show_result("convert", converted)


@click.command("reconcile", epilog=RECONCILE_EXAMPLES)
@step_options(session_options)
@shallow_option
def reconcile(shallow: bool, **options: Any) -> int:
    """Compare, per partition, what the source has with what is in the tables: gaps, duplicates, counts, a hash.

    The exit code is 11 if messages are missing, duplicated or altered.
    """
    return _run(("reconcile",), shallow=shallow, **options)


@click.command("report", epilog=REPORT_EXAMPLES)
@step_options(session_options)
@shallow_option
def report(shallow: bool, **options: Any) -> int:
    """Reconcile, and write one self-contained HTML page: throughput, lag, sizes, reasons of quarantine, gaps.

    The exit code is 11 if messages are missing, duplicated or altered.
    """
    return _run(("reconcile", "report"), shallow=shallow, **options)


@click.command("run", epilog=RUN_EXAMPLES)
@step_options(session_options)
@shallow_option
@_rounds
def run(shallow: bool, continuous: bool, **options: Any) -> int:
    """Land, refine, aggregate, reconcile and report, one after the other; undeclared steps are skipped.

    The exit code is 11 if reconcile finds messages missing, duplicated or altered.
    """
    return _run(None, shallow=shallow, rounds=continuous, **options)


COMMANDS = (run, land, refine, aggregate, compact, convert, reconcile, report)


def _run(
    steps: Sequence[str] | None,
    *,
    path: Path,
    pipeline: str | None,
    master: str | None,
    log: Path | None,
    as_json: bool,
    continuous: bool = False,
    rounds: bool = False,
    shallow: bool = False,
    again: AgainOptions | None = None,
) -> int:
    """Run these steps, or all that the pipeline declares, and show their results as they come. `again`: for refine."""
    require_spark(*(("jinja2", "matplotlib") if steps is None or "report" in steps else ()))
    from consumerd.spark.packages import required_packages  # noqa: PLC0415 - heavy imports for the command that runs
    from consumerd.spark.preflight import check_steps  # noqa: PLC0415
    from consumerd.spark.run import declared_steps, nothing_landed, perform  # noqa: PLC0415
    from consumerd.spark.spec import load_spark  # noqa: PLC0415

    spec = load_spark(path)
    chosen = spec.pipeline(pipeline)
    if continuous or rounds:
        require_interval(chosen, path)
    names = steps or declared_steps(chosen)
    if rounds:
        names = tuple(step for step in names if step not in ("reconcile", "report"))
    check_steps(chosen, names, spec.config)
    needs = required_packages([chosen], spec.config)
    results: dict[str, Any] = {}
    runs: list[StepRun] = []
    try:
        with working(
            master=master or spec.master, config={**spec.config, **needs.config}, packages=needs.packages, log=log,
            app_name=f"consumerd spark {chosen.name}",
        ) as work:  # fmt: skip
            if rounds:
                return _repeat(names, work, chosen, as_json=as_json)
            for step in names:
                work.begin(step)
                if again is not None:
                    results[step] = _refined_again(work, chosen, again)
                else:
                    results[step], run = perform(
                        step, work.spark, chosen, results,
                        available_now=not continuous, shallow=shallow, display=work.batches(step),
                    )  # fmt: skip
                    runs.append(run)
                if not continuous:
                    work.check()
                if nothing_landed(results):
                    break
    except StoppedBySignal:
        if continuous or rounds:
            return ExitCode.OK  # a signal is how a continuous run ends, also during a step
        raise
    _show(results, runs, as_json=as_json, several=len(names) > 1)
    clean = "reconcile" not in results or results["reconcile"].is_clean
    return ExitCode.OK if clean else ExitCode.CHECK_FAILED


def _refined_again(work: Work, pipeline: PipelineSpec, again: AgainOptions) -> Any:
    from consumerd.spark.refine import preview, refine_again  # noqa: PLC0415 - as above

    run = preview if again.dry_run else refine_again
    return run(work.spark, pipeline, since=again.since, until=again.until)


def _repeat(steps: Sequence[str], work: Work, pipeline: PipelineSpec, *, as_json: bool) -> int:
    """Do these steps again and again, each time after the pipeline's interval, until a signal."""
    from consumerd.spark.run import nothing_landed, perform  # noqa: PLC0415 - as above
    from consumerd.spark.spec_model import interval_seconds  # noqa: PLC0415

    interval = interval_seconds(pipeline.trigger)
    first = True
    while True:
        began = time.monotonic()
        results: dict[str, Any] = {}
        runs = []
        for step in steps:
            if first:
                work.begin(step)
            results[step], run = perform(step, work.spark, pipeline, results, display=work.batches(step))
            runs.append(run)
            if work.wait(0) or nothing_landed(results):
                break
        if first or results["land"].rows:
            _show(results, runs, as_json=as_json, several=len(steps) > 1)
        first = False
        if work.wait(max(0.0, interval - (time.monotonic() - began))):
            return ExitCode.OK


def _show(results: Mapping[str, Any], runs: Sequence[StepRun], *, as_json: bool, several: bool) -> None:
    shown = {step: result.as_json() for step, result in results.items()}
    steps = [run.as_json() for run in runs]
    if as_json:
        show_json({**shown, "steps": steps} if several else next(iter(shown.values())))
    else:
        if several:
            show_steps(steps)
        for step, result in shown.items():
            show_result(step, result)
    sys.stdout.flush()
