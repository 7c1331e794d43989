"""`consumerd config`: example, schema and effective values of configurations, and the conversion of property files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from consumerd.cli.config_option import config_option, json_option
from consumerd.cli.numbers import ExistingFile
from consumerd.cli.tables import show_rows

EXAMPLES = """\b
Examples:
  consumerd config convert consumer.properties --topic events > events.toml
  consumerd config show -c /etc/consumerd/events.toml --origin
  consumerd config example > events.toml
  consumerd config schema > consumerd.schema.json
"""

CONVERT_EXAMPLES = """\b
Examples:
  consumerd config convert consumer.properties --topic events --handler files > events.toml
  consumerd config convert consumer.properties producer.properties --whitelist 'events-.*' > mirror.toml
  consumerd config convert config/server.properties
"""

SCHEMA_EXAMPLES = """\b
Examples:
  consumerd config schema > /etc/consumerd/consumerd.schema.json

Editors with Taplo (Even Better TOML) use the schema that the first line of a file names:
  #:schema ./consumerd.schema.json
"""

EXAMPLE_EXAMPLES = """\b
Examples:
  consumerd config example > events.toml
"""

SHOW_EXAMPLES = """\b
Examples:
  consumerd config show -c /etc/consumerd/events.toml --origin
  CONSUMERD_FETCH__SIZE=65536 consumerd config show -c events.toml --json | jq .fetch.size
"""


@click.group("config", epilog=EXAMPLES)
def command() -> None:
    """Print an example, a JSON Schema, or the effective values; convert property files of Kafka 0.7."""


@command.command("convert", epilog=CONVERT_EXAMPLES)
@click.option("--group", help="Name of the group, instead of the file's groupid.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[=STREAMS]",
    help="Topic to consume, with its number of streams; may be given several times.",
)
@click.option("--whitelist", help="Consume all topics that match this regular expression.")
@click.option("--blacklist", help="Consume all topics that do not match this regular expression.")
@click.option("--handler", help="Handler of the messages: an entry point or module:attribute.")
@click.option(
    "--kind",
    type=click.Choice(["consumer", "producer", "server"]),
    help="What the files configure. [default: recognised by their keys]",
)
@click.argument("files", nargs=-1, required=True, type=ExistingFile(path_type=Path))
def convert(
    group: str | None,
    topics: tuple[str, ...],
    whitelist: str | None,
    blacklist: str | None,
    handler: str | None,
    kind: str | None,
    files: tuple[Path, ...],
) -> None:
    """Turn consumer.properties of Kafka 0.7, or of the old consumer of 0.8 to 1.1, into TOML for `consumerd run`.

    Milliseconds become seconds. Every key without a counterpart, or unknown to that consumer, is named with the
    reason, in comments and on standard error. Property files name neither topics nor handler: give them as options, or
    complete the result, which consumes nothing until then. producer.properties and server.properties become comments,
    because the producers and `consumerd broker --config` read these files themselves; keys that they refuse or ignore
    are named.
    """
    from consumerd.service.config.convert import convert as convert_properties  # noqa: PLC0415
    from consumerd.service.config.convert import kind_of  # noqa: PLC0415
    from consumerd.service.config.convert_toml import PLACEHOLDER, to_toml  # noqa: PLC0415
    from consumerd.service.config.properties import read_properties  # noqa: PLC0415

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
@config_option()
@click.option("--origin", is_flag=True, help="Show where each value comes from: default, file or environment.")
@json_option("Print one JSON object of tables.")
def show(path: Path, origin: bool, as_json: bool) -> None:
    """Show the values that `consumerd run` would use, defaults and environment included.

    Credentials are not shown. In a pipe: table.key, value, and with --origin where it comes from.
    """
    from consumerd.service.config.effective import effective_values  # noqa: PLC0415

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


@command.command("schema", epilog=SCHEMA_EXAMPLES)
def schema() -> None:
    """Print the JSON Schema of configuration files, with which editors complete and check them.

    It has types, ranges and descriptions of all keys. Rules about several keys are left to `consumerd check`.
    """
    from consumerd.service.config.schema import config_schema  # noqa: PLC0415
    from consumerd.spark.spec_model import SparkSection  # noqa: PLC0415

    click.echo(json.dumps(config_schema({"spark": SparkSection}), indent=2, ensure_ascii=False))


@command.command("example", epilog=EXAMPLE_EXAMPLES)
def example() -> None:
    """Print an example configuration: every key with its meaning and its default, as comments where it is optional."""
    from consumerd.spark.spec_example import whole_example  # noqa: PLC0415

    click.echo(whole_example(), nl=False)
