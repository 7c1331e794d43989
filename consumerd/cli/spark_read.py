"""`consumerd spark read`: the messages of partitions, archives or a handler's files, without a pipeline."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.config_option import json_option
from consumerd.cli.numbers import PositiveInt
from consumerd.cli.spark_session import require_spark, session_options, working
from consumerd.cli.spark_show import show_json
from consumerd.cli.tables import show_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES = """\b
Examples:
  consumerd spark read --path /archive --subscribe events --show 5
  consumerd spark read --path /archive --subscribe-pattern 'events-.*' --count
  consumerd spark read --zookeeper zk1:2181/kafka --subscribe events --to parquet:out
  consumerd spark read --bootstrap kafka1:9092,kafka2:9092 --subscribe events --count
  consumerd spark read --files /var/lib/consumerd/out --subscribe clicks --count --json
  consumerd spark read --path /archive --subscribe events --option startingTimestamp=1321000000000
"""
#: Columns that `--show` prints, in front of the value.
SHOWN = ("topic", "broker_partition", "offset", "index", "codec", "value")
FORMATS = ("parquet", "json", "orc")
_VALUE_WIDTH = 200


@click.command("read", epilog=EXAMPLES)
@click.option(
    "--path", "paths", multiple=True, metavar="DIR", help="Folder or URL of an archive; may be given several times."
)
@click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="ZooKeeper where live brokers are registered.")
@click.option("--brokers", metavar="ID=HOST:PORT,...", help="Live brokers of Kafka 0.7, with their ids.")
@click.option("--bootstrap", metavar="HOST:PORT,...", help="Live brokers of Kafka 0.8 or later to connect to first.")
@click.option("--files", metavar="DIR", help="Directory that a `files` handler wrote.")
@click.option("--subscribe", metavar="TOPIC,...", help="Topics to read.")
@click.option("--subscribe-pattern", metavar="REGEX", help="Regular expression of the topics to read.")
@click.option("--assign", metavar="JSON", help='Partitions to read, such as {"events": ["0-0", "0-1"]}.')
@click.option("--starting-offsets", metavar="earliest|JSON", help="Offsets to start from.  [default: earliest]")
@click.option("--ending-offsets", metavar="latest|JSON", help="Offsets to stop at.  [default: latest]")
@click.option(
    "--option",
    "further",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of the data source; may be given several times.",
)
@click.option("--show", type=PositiveInt(100_000), metavar="N", help="Number of messages to print.  [default: 20]")
@click.option("--count", is_flag=True, help="Print the number of messages of each partition instead.")
@click.option(
    "--to", "target", metavar="FORMAT:DIR", help=f"Write all messages to a new directory, as {', '.join(FORMATS)}."
)
@session_options
@json_option("Print the result as one JSON object.")
def command(
    show: int | None,
    count: bool,
    target: str | None,
    master: str | None,
    log: Path | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Read messages with the data source `consumerd`: show some, count them, or write them to files.

    Give one source (--path, --zookeeper, --brokers, --bootstrap or --files) and one selection (--subscribe,
    --subscribe-pattern or --assign).
    """
    if sum((show is not None, count, target is not None)) > 1:
        raise click.UsageError("Give at most one of --show, --count and --to.")
    place = None if target is None else _target(target)
    options = _options(**source)
    require_spark()
    from consumerd.spark.preflight import check_read  # noqa: PLC0415 - heavy imports for the command that runs

    check_read(options, None if place is None else place[1])
    with working(master=master, config={}, log=log, app_name="consumerd spark read") as work:
        from consumerd.spark.source import register  # noqa: PLC0415 - heavy imports for the command that runs

        register(work.spark)
        work.begin("reading")
        messages = work.spark.read.format("consumerd").options(**options).load()
        if place is not None:
            messages.write.format(place[0]).mode("error").save(place[1])
            written = work.spark.read.format(place[0]).load(place[1]).count()
            rows: list[dict[str, Any]] = [{"format": place[0], "directory": place[1], "messages": written}]
        elif count:
            rows = _counts(messages)
        else:
            rows = [_message(row, as_json=as_json) for row in messages.select(*SHOWN).take(show or 20)]
    if as_json:
        show_json({"rows": rows})
    elif rows:
        show_rows([f">{name}" if isinstance(value, int) else name for name, value in rows[0].items()], _cells(rows))


def _target(text: str) -> tuple[str, str]:
    kind, colon, directory = text.partition(":")
    if kind not in FORMATS or not colon or not directory:
        raise click.BadParameter(f"{text!r} is not FORMAT:DIR with one of {', '.join(FORMATS)}", param_hint="--to")
    return kind, directory


def _options(*, paths: tuple[str, ...], further: tuple[str, ...], **named: str | None) -> dict[str, str]:
    """Options of the data source, in its own words."""
    words = {
        "subscribe_pattern": "subscribePattern",
        "starting_offsets": "startingOffsets",
        "ending_offsets": "endingOffsets",
    }
    options = {words.get(name, name): value for name, value in named.items() if value is not None}
    if paths:
        options["path"] = ",".join(paths)
    for text in further:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
        options[name] = value
    return options


def _counts(messages: DataFrame) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    counted = messages.groupBy("topic", "broker_partition").agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum(f.length("value")).alias("bytes"),
        f.min("offset").alias("first_offset"),
        f.max("next_offset").alias("end_offset"),
    )
    return [row.asDict() for row in counted.orderBy("topic", "broker_partition").collect()]


def _message(row: Any, *, as_json: bool) -> dict[str, Any]:
    """A message with its value as text, where it is some: else in base64, or for people as they know bytes."""
    found: dict[str, Any] = row.asDict()
    value = found.pop("value")
    try:
        found["value"] = None if value is None else bytes(value).decode()
    except UnicodeDecodeError:
        if as_json:
            found["value_base64"] = b64encode(value).decode()
        else:
            found["value"] = repr(bytes(value))
    return found


def _cells(rows: Iterable[dict[str, Any]]) -> list[list[object]]:
    return [
        [cell[:_VALUE_WIDTH] if name == "value" and isinstance(cell, str) else cell for name, cell in row.items()]
        for row in rows
    ]
