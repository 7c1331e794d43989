"""`consumerd check`: everything that can be wrong before joining, found without joining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from consumerd.cli.config_option import config_option
from consumerd.errors import ConfigError, ConsumerdError

if TYPE_CHECKING:
    from pathlib import Path

    from consumerd.config.problems import Problem, TomlDocument

EXAMPLES = """\b
Examples:
  consumerd check -c /etc/consumerd/events.toml && systemctl restart consumerd@events
"""


@click.command("check", epilog=EXAMPLES)
@config_option()
def command(path: Path) -> None:
    """Validate a configuration: keys and values, topics and filters, credentials, and that the handler loads.

    All problems are printed, each with the file and its line, or with the environment variable. A file for dead
    letters must be writable by the current user. Pipelines of [spark] are checked too; a file may have nothing else.
    Nothing is connected, joined or made.
    """
    from consumerd.config.problems import ConfigProblemsError, read_document  # noqa: PLC0415 - heavy imports

    document = read_document(path)
    valid: list[str] = []
    problems: list[Problem] = []
    if "group" in document or "spark" not in document:
        from consumerd.daemon.checks import check_daemon  # noqa: PLC0415

        daemon = check_daemon(document, str(path))
        valid += daemon.valid
        problems += daemon.problems
    if "spark" in document:
        checked, found = _check_pipelines(document, str(path))
        valid += checked
        problems += found
    if problems:
        raise ConfigProblemsError(str(path), problems)
    for what in valid:
        click.echo(f"{path} is valid: {what}")


def _check_pipelines(document: TomlDocument, source: str) -> tuple[list[str], list[Problem]]:
    from consumerd.config.problems import ConfigProblemsError, problem_of_error  # noqa: PLC0415
    from consumerd.spark.spec import parse_spark  # noqa: PLC0415 - needs neither pyspark nor a JVM

    try:
        spec = parse_spark(document, source)
        try:
            from consumerd.spark.spec_check import check_spark  # noqa: PLC0415 - knows the columns, hence Arrow
        except ImportError as error:
            raise ConfigError(
                f"{source} declares pipelines, which need the extra `spark`: pip install 'consumerd[spark]'."
            ) from error
        check_spark(spec)
    except ConfigProblemsError as error:
        return [], error.problems
    except ConsumerdError as error:
        return [], [problem_of_error(error, ("spark",), source, document)]
    return [f"pipelines {', '.join(sorted(spec.pipelines)) or 'none'}, tables under {spec.root}"], []
