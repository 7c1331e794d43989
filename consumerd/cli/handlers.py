"""`consumerd handlers`: lists installed handlers, and delivers messages from a file to one, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import NotFoundError
from consumerd.cli.config_option import file_option, json_option, subscription_option
from consumerd.cli.decoder_options import decoder_options, decoder_table, plugin_options
from consumerd.cli.session import run_tool
from consumerd.cli.tables import counted, show_rows

if TYPE_CHECKING:
    from consumerd.handlers import KeyedMessage, Message
    from consumerd.service.config.model import Config

EXAMPLES = """\b
Examples:
  consumerd handlers list
  consumerd handlers test my_package:Sink lines.txt --option 'url="http://127.0.0.1:8080"'
  consumerd consume --zookeeper zk1:2181 --group x --topic t --json | consumerd handlers test my_package:Sink - --ndjson
  consumerd handlers test my_package:Sink events.ndjson --decoder json
  consumerd handlers test -c /etc/consumerd/events.toml /var/lib/kafka/events-0

INPUT is a file with one message per line (- is standard input); with --ndjson, a file as the handler `print` writes it;
or a folder with the segments of one partition, such as events-0, of any Kafka. The handler is started, asked for its
positions, given batches, and stopped, with the timeout and the retries of the configuration. Nothing is committed.
Segments that a running broker deletes meanwhile are left out, and their offsets named on standard error.
"""


@click.group("handlers", epilog=EXAMPLES)
def command() -> None:
    """List installed handlers, decoders and middleware, and try a handler without a cluster."""


@command.command("list", epilog=EXAMPLES)
@json_option("One JSON object per plugin.")
def list_handlers(as_json: bool) -> None:
    """List the handlers, decoders and middleware that [handler] can name, and the token providers of [kafka.sasl]."""
    import json  # noqa: PLC0415 - only for the command that runs
    from importlib.metadata import entry_points  # noqa: PLC0415

    from consumerd.base.plugins import KINDS  # noqa: PLC0415

    columns = ("name", "kind", "value", "package")
    rows = [
        (point.name, kind.noun, point.value, "" if point.dist is None else f"{point.dist.name} {point.dist.version}")
        for kind in KINDS
        for point in sorted(entry_points(group=kind.group), key=lambda point: (point.name, point.value))
    ]
    if as_json:
        for row in rows:
            click.echo(json.dumps(dict(zip(columns, row, strict=True))))
    else:
        show_rows(columns, rows)


@command.command("test", epilog=EXAMPLES)
@click.argument("arguments", metavar="[HANDLER] INPUT", nargs=-1, required=True)
@file_option("-c", "--config", "config_file", about="The configuration with the handler; instead of HANDLER.")
@subscription_option()
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of HANDLER; VALUE is TOML.")
@decoder_options("Decoder of the payloads: text, json, avro, or another plugin.")
@click.option("--ndjson", is_flag=True, help="Lines are JSON objects as the handler `print` writes them.")
def test(
    arguments: tuple[str, ...],
    config_file: Path | None,
    subscription: str | None,
    options: tuple[str, ...],
    decoder: str | None,
    decoder_options: tuple[str, ...],
    ndjson: bool,
) -> None:
    """Deliver messages from a file to a handler, without a cluster."""
    if len(arguments) != (2 if config_file is None else 1):
        raise click.UsageError("give HANDLER and INPUT, or -c and INPUT.")
    if config_file is not None and (options or decoder is not None or decoder_options):
        raise click.UsageError("--option belongs to HANDLER, as --decoder does; with -c they are in the file.")
    if subscription is not None and config_file is None:
        raise click.UsageError("--subscription needs -c with the file that has it.")
    table = {"options": plugin_options(options, "--option"), "max_attempts": 1, "on_disk_full": "stop"}
    table |= decoder_table(decoder, decoder_options)
    config = _config(config_file, subscription, {"name": arguments[0], **table})
    with ExitStack() as stack:
        committed = config.fetch.isolation == "read_committed"
        messages = _messages(arguments[-1], stack, ndjson=ndjson, committed=committed)
        count, batches = run_tool(_deliver(config, messages))
    click.echo(f"{counted(count, 'message')} in {batches} batch{'' if batches == 1 else 'es'} handled.", err=True)


def _config(path: Path | None, subscription: str | None, handler: dict[str, Any]) -> Config:
    from consumerd.service.config.model import load, parse  # noqa: PLC0415

    if path is not None:
        return load(path).of_subscription(subscription)
    group = {"id": "test", "topics": {"test": 1}}
    return parse({"group": group, "handler": handler}, "the command line", environment=False)


def _messages(name: str, stack: ExitStack, *, ndjson: bool, committed: bool) -> Iterator[Message | KeyedMessage]:
    from consumerd.handlers.recorded import line_messages, record_messages, segment_messages  # noqa: PLC0415

    path = Path(name)
    if name != "-" and path.is_dir():
        topic, _, number = path.resolve().name.rpartition("-")
        if ndjson or not topic or not (number.isascii() and number.isdigit()):
            raise click.UsageError(f"{name} must be a file, or the folder of a partition, such as events-0.")
        return segment_messages(name, topic, int(number), on_deleted=_warn, committed=committed)
    file: BinaryIO = sys.stdin.buffer
    if name != "-":
        try:
            file = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise NotFoundError(f"{name} cannot be read: {error.strerror}.") from error
    return record_messages(file) if ndjson else line_messages(file)


def _warn(problem: str) -> None:
    click.echo(f"consumerd: {problem}.", err=True)


async def _deliver(config: Config, messages: Iterator[Message | KeyedMessage]) -> tuple[int, int]:
    from random import SystemRandom  # noqa: PLC0415

    from consumerd.handlers import HandlerContext  # noqa: PLC0415
    from consumerd.handlers.rate import RateLimiter  # noqa: PLC0415
    from consumerd.handlers.recorded import batches  # noqa: PLC0415
    from consumerd.service.config.build_handlers import build_handler  # noqa: PLC0415

    clock, section = SystemClock(), config.handler
    handler, rate = build_handler(config, clock=clock, rng=SystemRandom()), RateLimiter(section.max_rate, clock)
    positions: dict[Any, int | None] = {}
    count = number = 0
    try:
        await handler.start(HandlerContext(config.group.id, f"{config.group.id}_test", clock))
        for batch in batches(messages, section):
            if batch.partition not in positions:
                positions[batch.partition] = await handler.position(batch.partition)
            stored = positions[batch.partition]
            if stored is not None and batch.start_offset < stored:
                continue  # a sink that has it already would not be asked for it
            rest = batch
            while len(rest):
                part = rest.part(0, await rate.take(rest))
                await handler.handle(part)
                rest = rest.rest(len(part))
                count, number = count + len(part), number + 1
    finally:
        await handler.stop()
    return count, number
