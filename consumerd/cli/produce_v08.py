"""`consumerd produce` to brokers of Kafka 0.8 and later."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from consumerd.cli.produce_options import MAX_LINE_BYTES, STDIN

if TYPE_CHECKING:
    from consumerd.cli.produce_options import Options
    from consumerd.cli.session import ClusterAddress
    from consumerd.client import ClusterClient
    from consumerd.producer.v08.settings import V08ProducerSettings


def produce_to_cluster(cluster: ClusterAddress, options: Options) -> None:
    """Send to the cluster that the brokers of `cluster` are of."""
    from consumerd.cli.clusters import BROKER_TIMEOUT, make_client  # noqa: PLC0415 - only for the command that runs
    from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415

    async def main() -> None:
        async with make_client(cluster.bootstrap, cluster.config, BROKER_TIMEOUT, cluster.timeout) as client:
            await produce(client, options)

    run_on_loop(main())


async def produce(client: ClusterClient, options: Options) -> None:
    """Send all lines. Raises NotFoundError for a topic or partition that is not there, and as `LineSender.run`."""
    from consumerd.client import topic_partitions  # noqa: PLC0415
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.producer import NoPartitionError  # noqa: PLC0415
    from consumerd.producer.lines import LineReader  # noqa: PLC0415
    from consumerd.producer.v08.lines import LinePlan, LineSender  # noqa: PLC0415
    from consumerd.producer.v08.producer import V08Producer  # noqa: PLC0415

    settings = _settings(options)
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
        await sender.run(LineReader(STDIN, max_line_bytes=MAX_LINE_BYTES))
        if settings.acks == 0:
            await _ask_behind(client)
    if sys.stderr.isatty():
        seconds = clock.monotonic() - started
        sent = f"{sender.lines:,} messages ({sender.bytes:,} bytes) sent to {options.topic}"
        click.echo(f"{sent} in {seconds:.1f} s", err=True)


async def _ask_behind(client: ClusterClient) -> None:
    """Have every broker answer something behind the lines, on their connection, which it takes in turn.

    Nobody confirms the lines themselves; without this the connection may end before a broker has come to them, and who
    reads the topic right after the command misses them.
    """
    from consumerd.client.metadata import metadata_body  # noqa: PLC0415
    from consumerd.errors import BrokerError  # noqa: PLC0415
    from consumerd.wire.v08.apis import METADATA  # noqa: PLC0415

    for node_id in list(client.metadata.nodes):
        # Whether it took anything is not for us to say: that is what acks 0 means.
        with suppress(BrokerError):
            channel = await client.node_channel(node_id)
            version = channel.versions.pick(METADATA)
            await channel.call(METADATA, metadata_body(version, sorted(client.metadata.topics)[:1]), version=version)


def _settings(options: Options) -> V08ProducerSettings:
    from consumerd.producer.v08.settings import V08ProducerSettings  # noqa: PLC0415
    from consumerd.wire.v08.records import Codec  # noqa: PLC0415

    ours = V08ProducerSettings()
    batch_bytes = options.batch_bytes or ours.batch_bytes
    acks: dict[str | None, int] = {"0": 0, "1": 1}
    return V08ProducerSettings(
        acks=acks.get(options.acks, -1),  # type: ignore[arg-type]  # one of the three
        codec=Codec[options.codec.upper()],
        batch_bytes=batch_bytes,
        buffer_bytes=max(ours.buffer_bytes, batch_bytes),
        linger=ours.linger if options.linger is None else options.linger,
        delivery_timeout=options.delivery_timeout or ours.delivery_timeout,
        keyless="round_robin" if options.round_robin else "sticky",
        create_topics=False,
    )
