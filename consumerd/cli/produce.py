"""`consumerd produce`: send the lines of standard input."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from consumerd.cli.session import with_session, zookeeper_options
from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumerd.producer import ProducerData, Router
    from consumerd.zk import Session

EXAMPLES = """\b
Examples:
  tail -F access.log | consumerd produce --zookeeper zk1:2181/kafka --topic access
  gzip -dc old.gz | consumerd produce --broker 127.0.0.1:9092 --topic events --codec gzip
  consumerd produce --zookeeper zk1:2181 --topic orders --key-separator '\\t' < orders.tsv

Each line is a message, without its newline: any bytes, empty lines too. A batch counts as sent when the broker has
taken it; one whose connection broke before is sent again, so a message may come twice, but none is lost. With an error
the exit code is not 0, and the lines after the batch that failed were not sent.
"""

STDIN = 0
#: No line can be longer than the largest request a broker takes by default.
_MAX_LINE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    brokers: tuple[str, ...]
    zookeeper: str | None
    timeout: float
    topic: str
    partition: int | None
    codec: str
    key_separator: str | None
    magic: int
    batch_size: int
    max_message_bytes: int


@click.command("produce", epilog=EXAMPLES)
@click.option("--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker; may be given several times.")
@zookeeper_options(required=False)
@click.option("--topic", required=True, help="The topic to send to.")
@click.option(
    "--partition",
    type=click.IntRange(-1, (1 << 31) - 1),
    help="The partition's number on a broker; -1 lets the broker choose. [default: by key, or any]",
)
@click.option("--codec", type=click.Choice(["none", "gzip", "snappy"]), default="none", show_default=True)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="What stands between key and message in each line (\\t is a tab). The key is not sent, it chooses the "
    "partition as in Java clients with string keys; with --broker it has no influence.",
)
@click.option(
    "--magic", type=click.IntRange(0, 1), default=1, show_default=True, help="Message format: 0 is that of Kafka 0.6."
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=200, show_default=True, help="Messages in one batch at most."
)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1, _MAX_LINE_BYTES),
    default=1_000_000,
    show_default=True,
    help="The brokers' max.message.size.",
)
def command(**options: object) -> None:
    """Send the lines of standard input to a topic."""
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415

    given = Options(**options)  # type: ignore[arg-type]  # click's types are those of the fields
    if bool(given.brokers) == (given.zookeeper is not None):
        raise click.UsageError("give either --broker or --zookeeper.")
    if given.key_separator == "":
        raise click.BadParameter("it is empty.", param_hint="--key-separator")
    configure_logs("warning", "auto")
    if given.key_separator and given.brokers:
        click.echo("consumerd: keys have no influence with --broker; give --zookeeper to place by key.", err=True)
    rng = random.Random()
    if given.zookeeper is None:
        run_on_loop(_produce(given, _static(given, rng), rng))
        return

    async def work(session: Session) -> None:
        from consumerd.producer import ZooKeeperRouter  # noqa: PLC0415

        await _produce(given, ZooKeeperRouter(session, rng=rng), rng)

    with_session(given.zookeeper, given.timeout, work)


def _static(options: Options, rng: random.Random) -> Router:
    from consumerd.producer import StaticRouter  # noqa: PLC0415

    return StaticRouter([parse_address(text) for text in options.brokers], rng=rng)


async def _produce(options: Options, router: Router, rng: random.Random) -> None:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.net import connect  # noqa: PLC0415
    from consumerd.producer import Producer, ProducerSettings  # noqa: PLC0415
    from consumerd.producer.lines import LineReader  # noqa: PLC0415
    from consumerd.wire.v07 import Codec, validate_topic  # noqa: PLC0415

    validate_topic(options.topic)
    clock = SystemClock()
    settings = ProducerSettings(
        codec=Codec[options.codec.upper()], magic=options.magic, max_message_bytes=options.max_message_bytes
    )
    reader = LineReader(STDIN, max_line_bytes=_MAX_LINE_BYTES)
    started = clock.monotonic()
    messages = size = 0
    async with Producer(router, connect=connect, clock=clock, rng=rng, settings=settings) as producer:
        while (lines := await reader.read()) is not None:
            for batch in _batches(lines, options.batch_size):
                await producer.send_all(_data(options, batch, messages + 1), merge=True)
                messages += len(batch)
                size += sum(map(len, batch))
    if sys.stderr.isatty():
        seconds = clock.monotonic() - started
        click.echo(f"{messages:,} messages ({size:,} bytes) sent to {options.topic} in {seconds:.1f} s", err=True)


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port` as host and port. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    fits = bare == host if ":" not in bare else len(bare) == len(host) - 2
    if not (colon and bare and fits and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"--broker {text} is not an address such as 127.0.0.1:9092.")
    return bare, int(port)


def _batches(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), size):
        yield lines[first : first + size]


def _data(options: Options, lines: list[bytes], number: int) -> list[ProducerData]:
    """A batch as it is sent; `number` is that of its first line."""
    from consumerd.producer import ProducerData  # noqa: PLC0415
    from consumerd.producer.lines import InputError  # noqa: PLC0415

    if options.key_separator is None:
        return [ProducerData(options.topic, lines, partition=options.partition)]
    separator = options.key_separator.replace("\\t", "\t").encode()
    data = []
    for offset, line in enumerate(lines):
        key, found, payload = line.partition(separator)
        if not found:
            raise InputError(f"line {number + offset} has no {options.key_separator!r} after a key.")
        # As Java makes a String of bytes: what is not UTF-8 becomes U+FFFD.
        data.append(ProducerData(options.topic, [payload], key.decode(errors="replace"), options.partition))
    return data
