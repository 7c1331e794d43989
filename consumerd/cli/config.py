"""`consumerd config`: convert property files of Kafka 0.7, and show what a configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

EXAMPLES = """\b
Examples:
  consumerd config convert consumer.properties --topic events > events.toml
  consumerd config show -c /etc/consumerd/events.toml --origin
"""

CONVERT_EXAMPLES = """\b
Examples:
  consumerd config convert consumer.properties --topic events --handler files > events.toml
  consumerd config convert consumer.properties producer.properties --whitelist 'events-.*' > mirror.toml
  consumerd config convert config/server.properties
"""

SHOW_EXAMPLES = """\b
Examples:
  consumerd config show -c /etc/consumerd/events.toml --origin
  CONSUMERD_FETCH__SIZE=65536 consumerd config show -c events.toml --json | jq .fetch.size
"""


@click.group("config", epilog=EXAMPLES)
def command() -> None:
    """Convert property files of Kafka 0.7, and show what a configuration says."""


@command.command("convert", epilog=CONVERT_EXAMPLES)
@click.option("--group", help="The group's name, over the file's groupid.")
@click.option("--topic", "topics", multiple=True, metavar="NAME[=STREAMS]", help="What to consume; may be repeated.")
@click.option("--whitelist", help="Consume the topics that match this regular expression.")
@click.option("--blacklist", help="Consume the topics that do not match it.")
@click.option("--handler", help="What to do with the messages: an entry point or module:attribute.")
@click.option(
    "--kind",
    type=click.Choice(["consumer", "producer", "server"]),
    help="What the files are. [default: told by their keys]",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def convert(
    group: str | None,
    topics: tuple[str, ...],
    whitelist: str | None,
    blacklist: str | None,
    handler: str | None,
    kind: str | None,
    files: tuple[Path, ...],
) -> None:
    """Turn consumer.properties of Kafka 0.7 into TOML for `consumerd run`, on standard output.

    Milliseconds become seconds. Every key that has no counterpart here, or that 0.7.2 does not know, is named with the
    reason, in comments and on standard error. Topics and handler stand in no property file: name them with options, or
    complete the result, which consumes nothing until then. producer.properties and server.properties become comments:
    our producers and `consumerd broker --config` take these files themselves, and what they would refuse or ignore is
    told.
    """
    from consumerd.config.convert import convert as convert_properties  # noqa: PLC0415
    from consumerd.config.convert import kind_of  # noqa: PLC0415
    from consumerd.config.convert_toml import PLACEHOLDER, to_toml  # noqa: PLC0415
    from consumerd.config.properties import read_properties  # noqa: PLC0415

    given: dict[tuple[str, str], Any] = {}
    if topics:
        given["group", "topics"] = dict(map(_topic, topics))
    for key, value in (("id", group), ("whitelist", whitelist), ("blacklist", blacklist)):
        if value is not None:
            given["group", key] = value
    if handler is not None:
        given["handler", "name"] = handler
    conversions = []
    for file in files:
        properties = read_properties(file)
        of_kind = kind or kind_of(properties, file.name)
        conversions.append((file.name, of_kind, convert_properties(properties, of_kind, str(file))))
    text = to_toml(conversions, given)
    for source, _, conversion in conversions:
        for remark in conversion.remarks:
            click.echo(f"consumerd: {source}: {remark.key} has no counterpart: {remark.says}", err=True)
    click.echo(text, nl=False)
    if PLACEHOLDER in text:
        click.echo(f"consumerd: complete the result: topics = {{ {PLACEHOLDER} = 1 }} consumes nothing", err=True)


def _topic(text: str) -> tuple[str, int]:
    name, equals, streams = text.rpartition("=")
    if not equals:
        return text, 1
    if not (name and streams.isascii() and streams.isdigit() and 0 < int(streams) <= 10_000):
        raise click.BadParameter(f"{text!r} is not of the form NAME=STREAMS.", param_hint="--topic")
    return name, int(streams)


@command.command("show", epilog=SHOW_EXAMPLES)
@click.option(
    "-c", "--config", "path", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The TOML."
)
@click.option("--origin", is_flag=True, help="Say where each value comes from: default, file or environment.")
@click.option("--json", "as_json", is_flag=True, help="One object of tables.")
def show(path: Path, origin: bool, as_json: bool) -> None:
    """Show the values that `consumerd run` would use, defaults and environment included.

    Credentials are not shown. In a pipe: table.key, value, and with --origin where it comes from.
    """
    from consumerd.cli.tables import show_rows  # noqa: PLC0415
    from consumerd.config.effective import effective_values  # noqa: PLC0415

    values = effective_values(path)
    if as_json:
        tables: dict[str, dict[str, Any]] = {}
        for value in values:
            shown = {"value": value.value, "origin": value.origin} if origin else value.value
            tables.setdefault(value.table, {})[value.key] = shown
        click.echo(json.dumps(tables, indent=2))
        return
    rows = [
        [f"{each.table}.{each.key}", "" if each.value is None else json.dumps(each.value), each.origin][: 2 + origin]
        for each in values
    ]
    show_rows(["key", "value", "origin"][: 2 + origin], rows)
