"""The options of the steps of a pipeline, for `consumerd spark` and `consumerd lake`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ConfigError
from consumerd.cli.config_option import Decorated, config_option, json_option, together

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class AgainOptions:
    """What to refine again: what landed from `since` up to, and without, `until`."""

    since: datetime | None
    until: datetime | None
    dry_run: bool

    @classmethod
    def of(cls, *, again: bool, since: str | None, until: str | None, dry_run: bool) -> AgainOptions | None:
        """From the values of `again_options`; None without `--again`. Raises UsageError."""
        if not again:
            given = {"--since": since, "--until": until, "--dry-run": dry_run}
            if alone := [name for name, value in given.items() if value]:
                raise click.UsageError(f"{alone[0]} requires --again.")
            return None
        found = cls(_time(since, "--since"), _time(until, "--until"), dry_run)
        if found.since is not None and found.until is not None and found.since >= found.until:
            raise click.BadParameter("must be later than --since.", param_hint="--until")
        return found


again_options = together(
    click.option(
        "--again",
        is_flag=True,
        help="Refine again what was refined, into new tables that replace silver and quarantine once they are "
        "complete. An interrupted run is continued by the same command.",
    ),
    click.option(
        "--since", metavar="TIME", help="With --again: only what landed then or later, in ISO 8601; UTC by default."
    ),
    click.option(
        "--until", metavar="TIME", help="With --again: only what landed before then, in ISO 8601; UTC by default."
    ),
    click.option(
        "--dry-run", is_flag=True, help="With --again: count rows by their verdict and reason; change nothing."
    ),
)


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"must be ISO 8601, such as 2026-11-21T12:00, not {text!r}.", param_hint=option
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


shallow_option = click.option(
    "--shallow",
    is_flag=True,
    help="Compare offsets only, and read the source only where there are gaps: fast, but altered values go unnoticed.",
)


def step_options(*session: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """The options that all steps of a pipeline have; `session`: those of Spark's session, where they run on it."""
    return together(
        config_option("Configuration file (TOML) that declares the pipeline."),
        click.option("--pipeline", metavar="NAME", help="Name of the pipeline; required if there are several."),
        *session,
        json_option("Print the result as one JSON object."),
    )


def require_interval(pipeline: PipelineSpec, path: Path) -> None:
    """Raise ConfigError where a pipeline of the file at `path` has no interval to continue at."""
    if not pipeline.is_continuous:
        raise ConfigError(
            f"{path}: the trigger of pipeline {pipeline.name} is available-now, and --continuous needs an interval."
        )
