"""`consumerd check`: everything that can be wrong before joining, found without joining."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.cli.config_option import config_option
from consumerd.cli.numbers import seconds_option
from consumerd.cli.tables import printable, styled

if TYPE_CHECKING:
    from consumerd.service.config.problems import Problem, TomlDocument

EXAMPLES = """\b
Examples:
  consumerd check -c /etc/consumerd/events.toml && systemctl restart consumerd@events
  consumerd check -c /etc/consumerd/events.toml --online
  CONSUMERD_ZOOKEEPER__CONNECT=zk1:2181/kafka consumerd check -c events.toml --online --timeout 10
"""


@click.command("check", epilog=EXAMPLES)
@config_option()
@click.option(
    "--online", is_flag=True, help="Look at the servers, topics, permissions, limits and the handler's receiver, too."
)
@seconds_option("--timeout", 5.0, "With --online: how long each look may take.")
def command(path: Path, online: bool, timeout: float) -> None:
    """Validate a configuration: keys and values, topics and filters, credentials, and that the handler loads.

    All problems are printed, each with the file and its line, or with the environment variable. A file for dead
    letters must be writable by the current user. Pipelines of [spark] are checked too; a file may have nothing else.
    Nothing is joined or made, and without --online nothing is connected.

    With --online, a line for each of these follows: ZooKeeper with its chroot and credentials, the brokers (TLS, SASL),
    the topics, the permissions on topics and group (Read at brokers, the ACLs of the group's nodes in ZooKeeper), the
    group at its coordinator, memory and limits of the process, and what the handler needs: the program of exec,
    the directory of files and parquet, the receiver of http, the server of postgres. The exit code is 0 if all lines
    begin with `ok`, else that of the first that failed, as `consumerd run` would have it: 5 ZooKeeper, 6 brokers, 8 a
    topic or chroot that does not exist, 10 the handler.
    """
    from consumerd.service.config.problems import ConfigProblemsError, read_document  # noqa: PLC0415 - heavy imports

    document = read_document(path)
    valid: list[str] = []
    problems: list[Problem] = []
    if "group" in document or "spark" not in document:
        from consumerd.service.daemon.checks import check_daemon  # noqa: PLC0415

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
    if online and "group" in document:
        _look_online(document, str(path), timeout)


def _look_online(document: TomlDocument, source: str, limit: float) -> None:
    """Print a line for each finding as it comes. Raises the first error, without its sentence, which is printed."""
    from consumerd.service.config.model import parse  # noqa: PLC0415
    from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415
    from consumerd.service.daemon.loop import sigterm_interrupts  # noqa: PLC0415
    from consumerd.service.daemon.online_checks import look_online  # noqa: PLC0415

    configure_logs("error", "auto")
    errors: list[ConsumerdError] = []

    async def main() -> None:
        async for found in look_online(parse(document, source), limit):
            mark = styled("ok    ", fg="green") if found.error is None else styled("failed", fg="red", bold=True)
            click.echo(f"{mark}  {found.subject}: {printable(found.said or str(found.error))}")
            if found.error is not None:
                errors.append(found.error)

    work = main()
    with sigterm_interrupts(work):
        asyncio.run(work)
    if errors:
        sys.exit(int(errors[0].exit_code))


def _check_pipelines(document: TomlDocument, source: str) -> tuple[list[str], list[Problem]]:
    from consumerd.service.config.problems import ConfigProblemsError, problem_of_error  # noqa: PLC0415
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
