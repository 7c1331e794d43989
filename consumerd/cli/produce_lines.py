"""The sending of `consumerd produce`: lines of standard input to brokers of either dialect."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.cli.clusters import BROKER_TIMEOUT, make_client
from consumerd.cli.session import ClusterAddress, bootstrap_servers
from consumerd.net.client.cluster import ClusterClient, topic_partitions
from consumerd.net.client.metadata import metadata_body
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.producer import (
    AsyncProducer,
    NoPartitionError,
    Producer,
    ProducerData,
    ProducerSettings,
    QueueSettings,
    Router,
    StaticRouter,
    V08ProducerSettings,
    ZooKeeperRouter,
)
from consumerd.producer.lines import InputError, LineReader
from consumerd.producer.v08.lines import LinePlan, LineSender
from consumerd.producer.v08.producer import V08Producer
from consumerd.wire.v07 import Codec, validate_topic
from consumerd.wire.v08.apis import METADATA
from consumerd.wire.v08.records import RecordCodec

_STDIN = 0
_ACKS: dict[str | None, Literal[0, 1]] = {"0": 0, "1": 1}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The options of `consumerd produce`; None where one is not given."""

    brokers: tuple[str, ...]
    topic: str
    partition: int | None
    codec: str
    key_separator: str | None
    max_message_bytes: int | None
    magic: int | None
    batch_size: int | None
    queued: bool
    queue_time: float | None
    queue_size: int | None
    verify: bool
    verify_timeout: float | None
    acks: str | None
    batch_bytes: int | None
    linger: float | None
    delivery_timeout: float | None
    round_robin: bool
    headers: tuple[tuple[str, bytes], ...]

    @property
    def separator(self) -> bytes | None:
        """The key separator as it stands in lines."""
        return None if self.key_separator is None else self.key_separator.replace("\\t", "\t").encode()

    def given(self, *names: str) -> dict[str, Any]:
        """The values of these options, without those that are not given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def v07_settings(self) -> ProducerSettings:
        """The settings of a producer to Kafka 0.7."""
        given = self.given("magic", "max_message_bytes", "verify", "verify_timeout")
        return ProducerSettings(codec=Codec[self.codec.upper()], **given)

    def v08_settings(self) -> V08ProducerSettings:
        """The settings of a producer to Kafka 0.8 and later."""
        defaults = V08ProducerSettings()
        return V08ProducerSettings(
            acks=_ACKS.get(self.acks, -1),
            codec=RecordCodec[self.codec.upper()],
            buffer_bytes=max(defaults.buffer_bytes, self.batch_bytes or 0),
            keyless="round_robin" if self.round_robin else "sticky",
            create_topics=False,
            **self.given("batch_bytes", "linger", "delivery_timeout"),
        )


def _reader() -> LineReader:
    # No line can be longer than the largest request that a broker accepts by default.
    return LineReader(_STDIN, max_line_bytes=100 * 1024 * 1024)


def _report(options: ProduceOptions, lines: int, size: int, seconds: float) -> None:
    if sys.stderr.isatty():
        click.echo(f"{lines:,} messages ({size:,} bytes) sent to {options.topic} in {seconds:.1f} s", err=True)


# -- Kafka 0.7


async def produce_to_brokers(options: ProduceOptions) -> None:
    """Send to the brokers of 0.7 that are named."""
    if options.key_separator:
        click.echo("consumerd: keys have no influence with --broker; give --zookeeper to place by key.", err=True)
    rng = random.Random()
    await _produce_v07(options, StaticRouter(bootstrap_servers(options.brokers, "--broker"), rng=rng), rng)


async def produce_by_zookeeper(session: Session, options: ProduceOptions) -> None:
    """Send to the brokers of 0.7 that are registered."""
    rng = random.Random()
    await _produce_v07(options, ZooKeeperRouter(session, rng=rng), rng)


async def _produce_v07(options: ProduceOptions, router: Router, rng: random.Random) -> None:
    validate_topic(options.topic)
    clock = SystemClock()
    queue = QueueSettings(**options.given("batch_size", "queue_time", "queue_size"))
    reader = _reader()
    started = clock.monotonic()
    messages = size = 0
    sync = Producer(router, connect=connect, clock=clock, rng=rng, settings=options.v07_settings())
    async with AsyncProducer(sync, clock=clock, queue=queue) if options.queued else sync as producer:
        while (lines := await reader.read()) is not None:
            for first in range(0, len(lines), queue.batch_size):
                batch = lines[first : first + queue.batch_size]
                await producer.send_all(_data(options, batch, messages + 1), merge=True)
                messages += len(batch)
                size += sum(map(len, batch))
    _report(options, messages, size, clock.monotonic() - started)


def _data(options: ProduceOptions, lines: list[bytes], number: int) -> list[ProducerData]:
    """A batch as it is sent; `number` is that of its first line."""
    separator = options.separator
    if separator is None:
        return [ProducerData(options.topic, lines, partition=options.partition)]
    data = []
    for offset, line in enumerate(lines):
        key, found, payload = line.partition(separator)
        if not found:
            raise InputError(f"line {number + offset} has no key separator {options.key_separator!r}.")
        # As Java makes a String of bytes: bytes that are not UTF-8 become U+FFFD.
        data.append(ProducerData(options.topic, [payload], key.decode(errors="replace"), options.partition))
    return data


# -- Kafka 0.8 and later


async def produce_to_cluster(cluster: ClusterAddress, options: ProduceOptions) -> None:
    """Send to the cluster of the brokers of `cluster`."""
    async with make_client(cluster.bootstrap, cluster.config, BROKER_TIMEOUT, cluster.timeout) as client:
        await produce_v08(client, options)


async def produce_v08(client: ClusterClient, options: ProduceOptions) -> None:
    """Send all lines. Raises NotFoundError for a topic or partition that does not exist, and as `LineSender.run`."""
    settings = options.v08_settings()
    there = (await topic_partitions(client, [options.topic]))[options.topic]
    if options.partition is not None and options.partition not in there:
        raise NoPartitionError(
            f"the topic {options.topic!r} has no partition {options.partition}: it has {len(there)}, numbered from 0."
        )
    plan = LinePlan(options.topic, options.partition, options.separator, options.headers, options.max_message_bytes)
    clock = SystemClock()
    started = clock.monotonic()
    async with V08Producer(client, settings, clock=clock, rng=random.Random()) as producer:
        sender = LineSender(producer, plan)
        await sender.run(_reader())
        if settings.acks == 0:
            await _await_receipt(client)
    _report(options, sender.lines, sender.bytes, clock.monotonic() - started)


async def _await_receipt(client: ClusterClient) -> None:
    """Wait until every broker has read the messages without acknowledgement: connections are served in order.

    Without this the connection may end before a broker has read the lines, and a program that reads the topic right
    after the command misses them.
    """
    for node_id in list(client.metadata.nodes):
        # With acks 0 a broker that fails here is not an error.
        with suppress(BrokerError):
            channel = await client.node_channel(node_id)
            version = channel.versions.pick(METADATA)
            await channel.call(METADATA, metadata_body(version, sorted(client.metadata.topics)[:1]), version=version)
