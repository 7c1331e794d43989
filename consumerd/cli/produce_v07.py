"""`consumerd produce` to brokers of Kafka 0.7: a list of them, or those that ZooKeeper names."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import click

from consumerd.address import parse_addresses
from consumerd.cli.produce_options import MAX_LINE_BYTES, STDIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumerd.cli.produce_options import Options
    from consumerd.producer import ProducerData, QueueSettings, Router
    from consumerd.zk import Session

_BATCH_SIZE = 200
_MAX_MESSAGE_BYTES = 1_000_000
_VERIFY_TIMEOUT = 15.0


def produce_to_brokers(options: Options) -> None:
    """Send to the brokers that were named."""
    from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.producer import StaticRouter  # noqa: PLC0415

    if options.key_separator:
        click.echo("consumerd: keys have no influence with --broker; give --zookeeper to place by key.", err=True)
    rng = random.Random()
    run_on_loop(_produce(options, StaticRouter(parse_addresses(options.brokers, "--broker"), rng=rng), rng))


async def produce_by_zookeeper(session: Session, options: Options) -> None:
    """Send to the brokers that are registered."""
    from consumerd.producer import ZooKeeperRouter  # noqa: PLC0415

    rng = random.Random()
    await _produce(options, ZooKeeperRouter(session, rng=rng), rng)


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
        magic=1 if options.magic is None else options.magic,
        max_message_bytes=options.max_message_bytes or _MAX_MESSAGE_BYTES,
        verify=options.verify,
        verify_timeout=options.verify_timeout or _VERIFY_TIMEOUT,
    )
    reader = LineReader(STDIN, max_line_bytes=MAX_LINE_BYTES)
    started = clock.monotonic()
    messages = size = 0
    sync = Producer(router, connect=connect, clock=clock, rng=rng, settings=settings)
    async with AsyncProducer(sync, clock=clock, queue=_queue(options)) if options.queued else sync as producer:
        while (lines := await reader.read()) is not None:
            for batch in _batches(lines, options.batch_size or _BATCH_SIZE):
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
        batch_size=options.batch_size or _BATCH_SIZE,
        queue_time=ours.queue_time if options.queue_time is None else options.queue_time,
        queue_size=options.queue_size or ours.queue_size,
    )


def _batches(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), size):
        yield lines[first : first + size]


def _data(options: Options, lines: list[bytes], number: int) -> list[ProducerData]:
    """A batch as it is sent; `number` is that of its first line."""
    from consumerd.producer import ProducerData  # noqa: PLC0415
    from consumerd.producer.lines import InputError  # noqa: PLC0415

    separator = options.separator
    if separator is None:
        return [ProducerData(options.topic, lines, partition=options.partition)]
    data = []
    for offset, line in enumerate(lines):
        key, found, payload = line.partition(separator)
        if not found:
            raise InputError(f"line {number + offset} has no key separator {options.key_separator!r}.")
        # As Java makes a String of bytes: what is not UTF-8 becomes U+FFFD.
        data.append(ProducerData(options.topic, [payload], key.decode(errors="replace"), options.partition))
    return data
