"""`consumerd check`: everything that can be wrong before joining, found without joining."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, Final

import click

from consumerd.cli.config_option import config_option
from consumerd.errors import ConfigError, ConsumerdError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from consumerd.config.model import Config
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
        checked, found = _check_daemon(document, str(path))
        valid += checked
        problems += found
    if "spark" in document:
        checked, found = _check_pipelines(document, str(path))
        valid += checked
        problems += found
    if problems:
        raise ConfigProblemsError(str(path), problems)
    for what in valid:
        click.echo(f"{path} is valid: {what}")


def _check_daemon(document: TomlDocument, source: str) -> tuple[list[str], list[Problem]]:
    """What is valid, and the problems. The parts of tables that are invalid themselves are not checked further."""
    from pydantic import ValidationError  # noqa: PLC0415
    from pydantic_settings import SettingsError  # noqa: PLC0415

    from consumerd.config.model import parse, parse_valid_tables  # noqa: PLC0415
    from consumerd.config.problems import ConfigProblemsError, problem_of_error  # noqa: PLC0415

    problems: list[Problem] = []
    try:
        config = parse(document, source)
    except ConfigProblemsError as error:
        problems += error.problems
        try:
            config = parse_valid_tables(document, frozenset(each.table for each in problems if each.table is not None))
        except (ValidationError, SettingsError):
            return [], problems
    invalid = {each.table for each in problems}
    what: list[str] = []
    for path, needed, check in _PARTS:
        if invalid.isdisjoint(needed):
            try:
                what.append(check(config))
            except ConsumerdError as error:
                problems.append(problem_of_error(error, path, source, document))
    return [", ".join(filter(None, what))], problems


def _check_subscription(config: Config) -> str:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.config.build import build_settings  # noqa: PLC0415
    from consumerd.config.build_v08 import build_coordination, fixed_partitions  # noqa: PLC0415

    settings = build_settings(config, clock=SystemClock(), rng=SystemRandom())
    what = settings.subscription.format()
    if config.group.coordination != "zookeeper":
        build_coordination(config)
        partitions = fixed_partitions(config.group)
        what = ", ".join(map(str, partitions)) or f"{what} coordinated by a broker"
    return f"group {settings.group}, {what}"


def _check_zookeeper(config: Config) -> str:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.config.build import build_offset_settings, build_session  # noqa: PLC0415

    if config.group.coordination == "zookeeper" or build_offset_settings(config).in_zookeeper:
        build_session(config.zookeeper, clock=SystemClock(), rng=SystemRandom())
    return ""


def _check_kafka(config: Config) -> str:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.config.build_v08 import build_client  # noqa: PLC0415

    if config.group.coordination != "zookeeper" or config.group.dialect != "0.7":
        build_client(config, clock=SystemClock(), rng=SystemRandom())
    return ""


def _check_handler(config: Config) -> str:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.config.build import build_handler  # noqa: PLC0415

    build_handler(config, clock=SystemClock(), rng=SystemRandom())
    return f"handler {config.handler.name}"


def _check_http(config: Config) -> str:
    from consumerd.daemon.endpoints import check_http  # noqa: PLC0415

    check_http(config.health)
    return ""


def _check_telemetry(config: Config) -> str:
    from consumerd.daemon.telemetry import check_telemetry  # noqa: PLC0415

    check_telemetry(config.telemetry)
    return ""


#: What a check is about, the tables that it reads, and the check. It returns what is valid, in words.
_PARTS: Final[tuple[tuple[tuple[str, ...], frozenset[str], Callable[[Config], str]], ...]] = (
    (("group",), frozenset({"group", "rebalance", "fetch", "commit"}), _check_subscription),
    (("zookeeper",), frozenset({"group", "zookeeper", "commit"}), _check_zookeeper),
    (("kafka",), frozenset({"group", "kafka", "fetch"}), _check_kafka),
    (("handler", "name"), frozenset({"handler"}), _check_handler),
    (("health",), frozenset({"health"}), _check_http),
    (("telemetry",), frozenset({"telemetry"}), _check_telemetry),
)


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
