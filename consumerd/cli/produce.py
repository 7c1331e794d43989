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
    from collections.abc import Iterator, Sequence

    from consumerd.producer import ProducerData, QueueSettings, Router
    from consumerd.zk import Session

EXAMPLES = """\b
Examples:
  tail -F access.log | consumerd produce --zookeeper zk1:2181/kafka --topic access
  gzip -dc old.gz | consumerd produce --broker 127.0.0.1:9092 --topic events --codec gzip
  consumerd produce --zookeeper zk1:2181 --topic orders --key-separator '\\t' < orders.tsv
  app | consumerd produce --zookeeper zk1:2181 --topic app --async --queue-time 1

Each line is a message, without its newline: any bytes, empty lines too. A batch counts as sent when the broker has
taken it; one whose connection broke before is sent again, so a message may come twice, but none is lost. With an error
the exit code is not 0, and the lines after the batch that failed were not sent.

With --async lines wait in a queue, while others are read, until a batch is full or the oldest has waited for the queue
time; a batch that fails is given up and told at the end, and those after it are sent. --verify reads back what was
sent: brokers show what they have flushed, so a batch may take seconds.
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
    queued: bool
    queue_time: float | None
    queue_size: int | None
    verify: bool
    verify_timeout: float


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
@click.option("--async", "queued", is_flag=True, help="Send in the background, through a queue.")
@click.option(
    "--queue-time",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --async: how long a line waits for others to make up a batch.  [default: 5]",
)
@click.option("--queue-size", type=click.IntRange(1), help="With --async: lines that wait at most.  [default: 10000]")
@click.option("--verify", is_flag=True, help="Read back what was sent, and fail where it is not there.")
@click.option(
    "--verify-timeout",
    type=click.FloatRange(0, min_open=True),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="With --verify: how long to look.",
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
    if not given.queued and (given.queue_time is not None or given.queue_size is not None):
        raise click.UsageError("--queue-time and --queue-size belong to --async.")
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

    return StaticRouter(parse_brokers(options.brokers), rng=rng)


async def _produce(options: Options, router: Router, rng: random.Random) -> None:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.net import connect  # noqa: PLC0415
    from consumerd.producer import AsyncProducer, Producer, ProducerSettings  # noqa: PLC0415
    from consumerd.producer.lines import LineReader  # noqa: PLC0415
    from consumerd.wire.v07 import Codec, validate_topic  # noqa: PLC0415

    validate_topic(options.topic)
    clock = SystemClock()
    settings = ProducerSettings(
        codec=Codec[options.codec.upper()],
        magic=options.magic,
        max_message_bytes=options.max_message_bytes,
        verify=options.verify,
        verify_timeout=options.verify_timeout,
    )
    reader = LineReader(STDIN, max_line_bytes=_MAX_LINE_BYTES)
    started = clock.monotonic()
    messages = size = 0
    sync = Producer(router, connect=connect, clock=clock, rng=rng, settings=settings)
    async with AsyncProducer(sync, clock=clock, queue=_queue(options)) if options.queued else sync as producer:
        while (lines := await reader.read()) is not None:
            for batch in _batches(lines, options.batch_size):
                await producer.send_all(_data(options, batch, messages + 1), merge=True)
                messages += len(batch)
                size += sum(map(len, batch))
    if sys.stderr.isatty():
        seconds = clock.monotonic() - started
        click.echo(f"{messages:,} messages ({size:,} bytes) sent to {options.topic} in {seconds:.1f} s", err=True)


def _queue(options: Options) -> QueueSettings:
    from consumerd.producer import QueueSettings  # noqa: PLC0415

    ours = QueueSettings()
    return QueueSettings(
        batch_size=options.batch_size,
        queue_time=ours.queue_time if options.queue_time is None else options.queue_time,
        queue_size=options.queue_size or ours.queue_size,
    )


def parse_brokers(texts: Sequence[str], option: str = "--broker") -> list[tuple[str, int]]:
    """The addresses that `option` was given. Raises ConfigError."""
    from consumerd.producer.config import parse_address  # noqa: PLC0415

    try:
        return [parse_address(text) for text in texts]
    except ConfigError as error:
        raise ConfigError(f"{option} {error}") from None


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
